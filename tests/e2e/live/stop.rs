//! Starting and stopping.

use std::{net::TcpListener, thread, time::Duration};

use super::{
    assert_stored,
    fleet::{Fleet, Simple},
    serve::Serve,
};

#[test]
fn open_requests_go_on_after_a_stop() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let fleet = Fleet::to(&serve.collector());
    let requests = Simple::many(0..6);
    let running = serve.start();
    let half = gatescope_capture::Exporter::start(gatescope_capture::Options::new(serve.collector(), "p1")).unwrap();
    for event in requests.iter().flat_map(Simple::prefill) {
        let _ = half.send(event);
    }
    half.flush(super::serve::PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(500));

    // when
    assert!(running.stop().success());
    let running = serve.start();
    requests.iter().for_each(|request| fleet.serve(request));
    fleet.flush();

    // then
    assert!(running.stop().success());
    assert_stored(folder.path(), &requests);
}

#[test]
fn a_port_that_is_taken_is_said_before_anything_is_opened() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(&folder.path().join("data"));
    let _taken = TcpListener::bind(serve.flight).unwrap();

    // when
    let mut running = serve.spawn();
    let status = running.ended();

    // then
    assert_eq!(status.code(), Some(2));
    thread::sleep(Duration::from_millis(100));
    let (log, port) = (running.log(), serve.flight);
    assert!(log.contains(&format!("Flight: cannot listen on {port}")), "{log}");
    assert!(!folder.path().join("data").exists());
}

#[test]
fn a_second_collector_on_the_same_folder_is_refused() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let first = Serve::on(folder.path()).start();

    // when
    let mut second = Serve::on(folder.path()).spawn();
    let status = second.ended();

    // then
    assert_eq!(status.code(), Some(2));
    thread::sleep(Duration::from_millis(100));
    assert!(second.log().contains("another process"), "{}", second.log());
    assert!(first.stop().success());
}
