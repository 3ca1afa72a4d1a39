//! The crash matrix: the process dies at every named step, and what is stored afterwards is what was sent.

use std::time::{Duration, Instant};

use gatescope_collector::fail_point::Step;

use super::{
    assert_stored, compare,
    fleet::{Fleet, Simple},
    serve::{PATIENCE, Serve},
};

/// Serves requests until the collector dies, goes on with one that does not, and compares.
fn die_at(point: &str) {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path()).committing_every("50ms");
    let serve = serve.argument("--log-file-bytes").argument("20000");
    let fleet = Fleet::to(&serve.collector());
    let mut dying = serve.clone().variable("GATESCOPE_FAIL_POINT", point).spawn();
    let mut requests = Vec::new();

    // when
    let begun = Instant::now();
    while dying.is_running() {
        assert!(begun.elapsed() < PATIENCE, "{point} was not reached: {}", dying.log());
        let first = requests.len() as u32;
        let more = Simple::many(first..first + 4);
        more.iter().for_each(|request| fleet.serve(request));
        requests.extend(more);
        std::thread::sleep(Duration::from_millis(20));
    }
    let running = serve.start();
    fleet.flush();
    assert!(running.stop().success());

    // then
    assert_stored(folder.path(), &requests);
}

#[test]
fn dying_at_any_step_loses_and_doubles_nothing() {
    for step in Step::ALL {
        for hit in [1, 3] {
            let point = format!("{}:{hit}", step.name());
            eprintln!("dying at {point}");
            die_at(&point);
        }
    }
}

/// Requests that were acknowledged before a `kill -9`, on a log whose unsynced bytes a crash loses.
fn acknowledged_then_killed(mutation: Option<&str>) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path());
    let mut killed = serve.clone().variable("GATESCOPE_LOG_HOLD_UNSYNCED", "1");
    if let Some(mutation) = mutation {
        killed = killed.variable(mutation, "1");
    }
    let requests = Simple::many(0..120);
    let running = killed.start();
    for requests in requests.chunks(40) {
        let fleet = Fleet::to(&serve.collector());
        requests.iter().for_each(|request| fleet.serve(request));
        // What is acknowledged is not sent again.
        fleet.flush();
    }
    running.kill();
    let running = serve.start();
    assert!(running.stop().success());
    compare(folder.path(), &requests)
}

#[test]
fn acknowledging_before_the_sync_is_found_out() {
    // The kill has to come before the sync: not each one does.
    let mutated = || acknowledged_then_killed(Some("GATESCOPE_LOG_ACKNOWLEDGE_BEFORE_SYNC"));
    assert!((0..30).any(|_| mutated().is_err()));
    for _ in 0..5 {
        assert_eq!(acknowledged_then_killed(None), Ok(()));
    }
}
