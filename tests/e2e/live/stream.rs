//! Agents' streams.

use std::{thread, time::Duration};

use super::{
    assert_stored,
    fleet::{Fleet, Simple},
    serve::Serve,
};

#[test]
fn what_agents_stream_is_joined_and_stored_as_it_was_computed() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let running = serve.start();
    let fleet = Fleet::to(&serve.collector());
    let requests = Simple::many(0..100);

    // when
    requests.iter().for_each(|request| fleet.serve(request));
    fleet.flush();
    let acknowledged = running.metric("gatescope_ack_latency_seconds_count");
    let status = running.stop();

    // then
    assert!(status.success(), "{status}");
    assert!(acknowledged > 0.0);
    assert_stored(folder.path(), &requests);
}

#[test]
fn agents_that_begin_before_the_collector_lose_nothing() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let fleet = Fleet::to(&serve.collector());
    let requests = Simple::many(0..20);
    requests.iter().for_each(|request| fleet.serve(request));
    thread::sleep(Duration::from_millis(300));

    // when
    let running = serve.start();
    fleet.flush();

    // then
    assert!(running.stop().success());
    assert_stored(folder.path(), &requests);
}
