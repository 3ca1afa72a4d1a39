//! Ingest over HTTP.

use gatescope_wire::{encode, ipc};

use super::{assert_stored, fleet::Simple, serve::Serve};

#[test]
fn events_posted_as_an_arrow_stream_are_joined() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let running = Serve::on(folder.path()).start();
    let requests = Simple::many(0..10);

    // when
    for request in &requests {
        let events = request.prefill().into_iter().chain(request.decode()).collect::<Vec<_>>();
        let body = ipc::stream_of(&encode(&events).unwrap()).unwrap();
        let (status, answer) = running.post("/api/v1/spans", "application/vnd.apache.arrow.stream", &body);
        assert_eq!(status, 200, "{answer}");
        assert!(answer.contains(&format!("\"events\":{}", events.len())), "{answer}");
    }

    // then
    assert!(running.stop().success());
    assert_stored(folder.path(), &requests);
}

#[test]
fn a_body_that_is_no_arrow_stream_is_refused_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let running = Serve::on(folder.path()).start();

    let (status, answer) = running.post("/api/v1/spans", "text/plain", b"what is this");

    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("continuation marker"), "{answer}");
}

#[test]
fn recorded_answers_are_taken_and_bad_lines_named() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let running = Serve::on(folder.path()).start();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/vllm-0.31/pair.pd.jsonl");
    let mut body = std::fs::read(fixture).unwrap();
    let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    body.extend_from_slice(b"no json at all\n");

    // when
    let (status, answer) = running.post("/api/v1/responses?run=posted", "application/jsonl", &body);

    // then
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains(&format!("\"lines\":{lines},\"refusals\":1")), "{answer}");
    assert!(answer.contains(&format!("{{\"line\":{},\"problem\":\"not JSON", lines + 1)), "{answer}");
    assert!(running.stop().success());
    let tables = gatescope_collector::tables::Tables::open(folder.path()).unwrap();
    let mut stored = 0;
    tables
        .request_keys(|key| {
            assert_eq!(&*key.run, "posted");
            stored += 1;
            true
        })
        .unwrap();
    assert_eq!(stored, lines / 2);
}
