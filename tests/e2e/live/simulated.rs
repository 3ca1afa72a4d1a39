//! A simulated fleet in front of a running collector: what comes out is held against the truth beside.

use std::{process::Stdio, thread, time::Duration};

use serde_json::Value;

use super::serve::Serve;
use crate::gatescope::Gatescope;

/// A small model of which layer 0 is dense, and short requests.
const SMALL: [&str; 10] =
    ["--shape", "6x3", "--experts", "40", "--dense-layers", "0", "--prompt-tokens", "60", "--completion-tokens", "40"];

#[test]
fn a_simulated_fleet_comes_out_as_the_truth_beside_it() {
    let seen = simulated(&["--requests", "120", "--seed", "7"], 0);

    assert_eq!(seen["requests"], 120);
}

#[test]
fn a_collector_that_is_killed_in_the_middle_forgets_no_block_that_is_only_named_later() {
    let seen = simulated(&["--requests", "500", "--seed", "9", "--rate", "12000"], 3);

    assert_eq!(seen["requests"], 500);
}

/// Simulates a fleet, killing the collector so often meanwhile, and holds what is stored against the truth. Gives the
/// summary.
fn simulated(bounds: &[&str], kills: u32) -> Value {
    // given
    let gatescope = Gatescope::new();
    let data = gatescope.folder().join("data");
    let serve = Serve::on(&data).argument("--join-timeout").argument("60s");
    let mut running = serve.start();
    let collector = serve.collector();
    let fleet = ["simulate", "--collector", &collector, "--prefill", "2", "--decode", "2", "--colocated", "1"];
    let output = ["--truth", "truth.jsonl", "--format", "json"];
    let arguments = [&fleet[..], bounds, &output[..], &SMALL[..]].concat();

    // when
    let simulating = gatescope.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for kill in 0..kills {
        thread::sleep(Duration::from_millis(1200 + 700 * u64::from(kill)));
        running.kill();
        running = serve.start();
    }
    let simulated = simulating.wait_with_output().unwrap();
    // What was named and is not in memory is looked for after two seconds.
    thread::sleep(Duration::from_secs(3));
    assert!(running.stop().success());
    let data = data.to_str().unwrap();
    let imported = gatescope.import(&["truth.jsonl", "--run", "truth", "--data", data]);
    let checked = gatescope.run(
        &["check", "--data", data, "--run", "default", "--against", "truth", "--format", "json"],
        std::io::empty(),
    );

    // then
    assert!(simulated.status.success(), "{}", String::from_utf8_lossy(&simulated.stderr));
    let summary: Value = serde_json::from_slice(&simulated.stdout).unwrap();
    assert_eq!(summary["events"]["taken"], summary["events"]["acknowledged"]);
    assert_eq!(imported.ran.code, 0, "{:?}", imported.ran);
    assert_eq!(checked.code, 0, "{}", checked.stdout);
    summary
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let gatescope = Gatescope::new();
    for (arguments, reason) in [
        (&["simulate", "--decode", "0"][..], "1 prefill and 0 decode instances"),
        (&["simulate", "--faults", "rows-missing"], "fault \"rows-missing\": expected one of missing-row"),
        (&["simulate", "--shape", "4x2"], "--shape: expected --experts beside it"),
        (&["simulate", "--collector", "127.0.0.1:7879", "--requests", "1"], "no scheme: expected grpc://HOST:PORT"),
    ] {
        let ran = gatescope.run(arguments, std::io::empty());
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains(reason), "{ran:?}");
    }
}
