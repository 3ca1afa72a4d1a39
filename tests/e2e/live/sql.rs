//! Queries of a running collector.

use std::{io::Write, thread, time::Duration};

use serde_json::{Value, json};

use super::{
    fleet::{Fleet, Simple},
    serve::{Running, Serve},
};

fn sql(running: &Running, query: &str) -> Vec<Value> {
    let (status, answer) = ask(running, query);
    assert_eq!(status, 200, "{query}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

fn ask(running: &Running, query: &str) -> (u16, String) {
    running.post("/api/v1/sql", "application/json", json!({"query": query}).to_string().as_bytes())
}

#[test]
fn everything_acknowledged_is_seen_once_at_every_moment() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let fleet = Fleet::to(&serve.collector());
    let requests = Simple::many(0..25);

    for (index, request) in requests.iter().enumerate() {
        // when
        fleet.serve(request);
        fleet.flush();

        // then
        let seen = sql(
            &running,
            "SELECT (SELECT count(*) FROM requests) AS requests, (SELECT sum(rows) FROM requests) AS told, \
             (SELECT count(*) FROM routing_4x2_u8) AS rows, \
             (SELECT sum(tokens) FROM expert_load WHERE layer = 1) AS load",
        );
        let rows: u32 = requests[..=index].iter().map(|request| request.prompt + request.completion - 1).sum();
        assert_eq!(seen, [json!({"requests": index + 1, "told": rows, "rows": rows, "load": rows * 2})], "{index}");
        thread::sleep(Duration::from_millis(20));
    }
    let commits = running.metric("gatescope_commits_total");
    assert!(commits > 1.0, "{commits} commits: the test has to see some happen");
}

#[test]
fn an_open_request_shows_as_far_as_it_came() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let request = Simple { number: 5, prompt: 20, completion: 9 };
    let agent = gatescope_capture::Exporter::start(gatescope_capture::Options::new(serve.collector(), "p0")).unwrap();

    // when
    for event in request.prefill() {
        let _ = agent.send(event);
    }
    agent.flush(super::serve::PATIENCE).unwrap();

    // then
    let seen = sql(&running, "SELECT request_id, status, rows FROM requests");
    assert_eq!(seen, [json!({"request_id": "prefill-5", "status": "open", "rows": 20})]);
    let row = sql(&running, "SELECT experts FROM routing('prefill-5') WHERE position = 3 AND layer = 2");
    let row_bytes = request.rows();
    let expected: Vec<u8> = row_bytes[3 * 8 + 4..3 * 8 + 6].to_vec();
    assert_eq!(row, [json!({"experts": expected})]);
    assert_eq!(sql(&running, "SELECT count(*) AS n FROM mismatches"), [json!({"n": 0})]);
}

#[test]
fn a_query_that_cannot_be_answered_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let running = Serve::on(folder.path()).start();

    for (query, expected) in [
        ("SELECT nothing FROM requests", "nothing"),
        ("DROP TABLE requests", "queries only read"),
        ("SELECT r.run, c.run FROM requests r, captures c", "two columns are called run"),
        ("COPY requests TO '/tmp/stolen.csv'", "queries only read"),
        ("SET datafusion.execution.batch_size = 1", "queries only read"),
        ("SELECT * FROM '/etc/passwd'", "/etc/passwd"),
    ] {
        let (status, answer) = ask(&running, query);
        assert_eq!(status, 400, "{query}: {answer}");
        assert!(answer.to_lowercase().contains(expected), "{query}: {answer}");
    }
    let (status, answer) = running.post("/api/v1/sql", "application/json", b"{\"sql\": 1}");
    assert_eq!(status, 400);
    assert!(answer.contains("expected {\\\"query\\\""), "{answer}");
}

#[test]
fn the_command_asks_a_server_and_gives_the_same_rows_as_the_folder() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let fleet = Fleet::to(&serve.collector());
    Simple::many(0..9).iter().for_each(|request| fleet.serve(request));
    fleet.flush();
    let at = format!("http://{}", serve.http);
    let query = "SELECT request_id, status, rows, segments FROM requests ORDER BY request_id";
    let formats = ["table", "json", "csv"];
    let gatescope = crate::gatescope::Gatescope::new();

    // when
    let asked = formats.map(|format| gatescope.run(&["sql", "--at", &at, "--format", format, query], std::io::empty()));
    let wrong = gatescope.run(&["sql", "--at", &at, "SELECT nothing FROM requests"], std::io::empty());
    assert!(running.stop().success());

    // then
    let data = folder.path().to_str().unwrap();
    for (format, asked) in formats.into_iter().zip(asked) {
        let read = gatescope.run(&["sql", "--data", data, "--format", format, query], std::io::empty());
        assert_eq!((asked.code, asked.stdout), (0, read.stdout), "{}", asked.stderr);
    }
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("nothing"), "{}", wrong.stderr);
    let gone = gatescope.run(&["sql", "--at", &at, "SELECT 1"], std::io::empty());
    assert_eq!(gone.code, 2);
    assert!(gone.stderr.contains(&serve.http.to_string()), "{}", gone.stderr);
}

#[test]
fn a_query_without_end_and_a_client_that_reads_nothing_give_back_their_turn() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let serve = serve.argument("--queries").argument("1").argument("--query-time").argument("2s");
    let running = serve.start();

    // when
    let (status, answer) = ask(&running, "SELECT count(*) FROM range(1, 9000000) a, range(1, 9000000) b");
    let body = json!({"query": "SELECT * FROM range(1, 900000000)"}).to_string();
    let mut deaf = std::net::TcpStream::connect(serve.http).unwrap();
    let length = body.len();
    write!(deaf, "POST /api/v1/sql HTTP/1.1\r\nhost: t\r\naccept: text/csv\r\ncontent-length: {length}\r\n\r\n{body}")
        .unwrap();
    thread::sleep(Duration::from_millis(300));

    // then
    assert_eq!(status, 504, "{answer}");
    assert!(answer.contains("longer than 2s"), "{answer}");
    assert_eq!(sql(&running, "SELECT 1 AS one"), [json!({"one": 1})]);
    drop(deaf);
}
