//! `gatescope check` says what it has no verdict on.

use std::io;

use crate::gatescope::{Gatescope, fixture_path};

#[test]
fn a_request_that_is_not_there_has_no_verdict() {
    // given
    let gatescope = Gatescope::new();
    gatescope.import(&[&fixture_path("pair.pd.jsonl")]);
    let id = gatescope.sql("SELECT request_id FROM requests ORDER BY 1")[0].as_str().unwrap().to_owned();

    // when
    let there = gatescope.run(&["check", "--request", &id], io::empty());
    let nowhere = gatescope.run(&["check", "--request", "no'pe"], io::empty());
    let elsewhere = gatescope.run(&["check", "--request", "nope", "--run", "default", "--format", "json"], io::empty());

    // then
    assert_eq!((there.code, there.stderr.as_str()), (0, ""));
    assert!(there.stdout.starts_with("1 request: 1 whole"), "{}", there.stdout);
    assert_eq!((nowhere.code, nowhere.stdout.as_str()), (2, ""));
    assert_eq!(nowhere.stderr, "gatescope: there is no request 'no''pe'\n");
    assert_eq!((elsewhere.code, elsewhere.stdout.as_str()), (2, ""));
    assert_eq!(elsewhere.stderr, "gatescope: there is no request 'nope' in run 'default'\n");
}
