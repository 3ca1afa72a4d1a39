//! Recordings of a prefill/decode pair become whole requests.

use crate::gatescope::{Gatescope, fixture_path};

fn joins_whole_and_equal_to_the_twin(name: &str, requests: u64) {
    // given
    let gatescope = Gatescope::new();

    // when
    let pair = gatescope.import(&[&fixture_path(&format!("{name}.pd.jsonl"))]);
    let twin = gatescope.import(&[&fixture_path(&format!("{name}.colocated.jsonl")), "--run", "twin"]);

    // then
    let names = ["files", "lines", "refused", "requests", "whole", "incomplete", "conflict", "duplicates", "completed"];
    assert_eq!(pair.numbers(names), [1, 2 * requests, 0, requests, requests, 0, 0, 0, 0], "{}", pair.summary);
    assert_eq!(twin.numbers(names), [1, requests, 0, requests, requests, 0, 0, 0, 0], "{}", twin.summary);
    for import in [&pair, &twin] {
        assert_eq!(import.summary["findings"], serde_json::json!([]));
        assert_eq!((import.ran.code, import.ran.stderr.as_str()), (0, ""));
    }
    assert_eq!(pair.number("rows"), twin.number("rows"));
    let ids = "SELECT request_id, choice, position, phase, layer, slot, expert FROM experts WHERE run";
    let difference = |one: &str, other: &str| {
        gatescope.count(&format!("SELECT count(*) FROM ({ids} = '{one}' EXCEPT {ids} = '{other}')"))
    };
    assert!(gatescope.count("SELECT count(*) FROM experts WHERE run = 'twin'") > 0);
    assert_eq!((difference("default", "twin"), difference("twin", "default")), (0, 0));
}

#[test]
fn a_pair_joins_to_what_its_twin_answers() {
    joins_whole_and_equal_to_the_twin("pair", 16);
}

#[test]
fn prefix_cache_hits_join_to_what_the_twin_answers() {
    joins_whole_and_equal_to_the_twin("prefix", 10);
}

#[test]
fn ids_of_two_bytes_join_to_what_the_twin_answers() {
    joins_whole_and_equal_to_the_twin("wide", 8);
}

#[test]
fn a_dense_layer_is_no_fault() {
    joins_whole_and_equal_to_the_twin("dense", 8);
}

#[test]
fn the_summary_for_people_says_the_same() {
    // given
    let gatescope = Gatescope::new();

    // when
    let ran = gatescope.run(&["import", &fixture_path("pair.pd.jsonl")], std::io::empty());

    // then
    assert_eq!(ran.code, 0);
    assert!(ran.stdout.contains("32 lines of 1 file, 0 refused\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("16 requests: 16 whole, 0 incomplete, 0 in conflict\n"), "{}", ran.stdout);
    let quiet = gatescope.run(&["import", "--quiet", &fixture_path("pair.pd.jsonl")], std::io::empty());
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "", ""));
}
