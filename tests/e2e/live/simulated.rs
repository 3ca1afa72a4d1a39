//! A simulated fleet in front of a running collector: what comes out is held against the truth beside.

use serde_json::Value;

use super::serve::Serve;
use crate::gatescope::Gatescope;

/// A small model of which layer 0 is dense, and short requests.
const SMALL: [&str; 10] =
    ["--shape", "6x3", "--experts", "40", "--dense-layers", "0", "--prompt-tokens", "60", "--completion-tokens", "40"];

#[test]
fn a_simulated_fleet_comes_out_as_the_truth_beside_it() {
    // given
    let gatescope = Gatescope::new();
    let data = gatescope.folder().join("data");
    let serve = Serve::on(&data).argument("--join-timeout").argument("60s");
    let running = serve.start();

    // when
    let collector = serve.collector();
    let fleet = ["simulate", "--collector", &collector, "--prefill", "2", "--decode", "2", "--colocated", "1"];
    let bounds = ["--requests", "120", "--seed", "7", "--truth", "truth.jsonl", "--format", "json"];
    let simulated = gatescope.run(&[&fleet[..], &bounds[..], &SMALL[..]].concat(), std::io::empty());
    assert!(running.stop().success());
    let data = data.to_str().unwrap();
    let imported = gatescope.import(&["truth.jsonl", "--run", "truth", "--data", data]);
    let checked = gatescope.run(
        &["check", "--data", data, "--run", "default", "--against", "truth", "--format", "json"],
        std::io::empty(),
    );

    // then
    assert_eq!(simulated.code, 0, "{simulated:?}");
    let summary: Value = serde_json::from_str(&simulated.stdout).unwrap();
    assert_eq!(summary["requests"], 120);
    assert_eq!(summary["events"]["taken"], summary["events"]["acknowledged"]);
    assert_eq!(imported.ran.code, 0, "{:?}", imported.ran);
    assert_eq!(checked.code, 0, "{}", checked.stdout);
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
