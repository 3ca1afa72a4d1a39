//! `kill -9` at any moment: nothing acknowledged is lost, nothing is there twice.

use std::{thread, time::Duration};

use super::{
    assert_stored,
    fleet::{Fleet, Simple},
    serve::Serve,
};

/// Kills in a run: few here, many where the variable says so.
fn kills() -> u32 {
    std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4)
}

#[test]
fn nothing_is_lost_or_doubled_however_often_the_collector_is_killed() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let serve = Serve::on(folder.path()).argument("--log-file-bytes").argument("20000");
    let fleet = Fleet::to(&serve.collector());
    let mut requests = Vec::new();

    // when
    for kill in 0..kills() {
        let running = serve.start();
        for burst in 0..10 {
            let first = (kill * 10 + burst) * 8;
            let more = Simple::many(first..first + 8);
            more.iter().for_each(|request| fleet.serve(request));
            requests.extend(more);
            thread::sleep(Duration::from_millis(u64::from(7 + kill * 37 % 91)));
        }
        running.kill();
    }
    let running = serve.start();
    fleet.flush();
    assert!(running.stop().success());

    // then
    assert_stored(folder.path(), &requests);
}
