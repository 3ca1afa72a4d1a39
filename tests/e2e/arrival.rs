//! What is stored does not depend on the order, the number of times and the number of imports in which answers come.

use std::io;

use crate::gatescope::{Gatescope, Import, fixture_lines, fixture_path, lines_of};

const COUNTS: [&str; 5] = ["requests", "whole", "incomplete", "duplicates", "completed"];

fn reference(name: &str) -> Gatescope {
    let gatescope = Gatescope::new();
    gatescope.import(&[&fixture_path(name)]);
    gatescope
}

#[test]
fn a_file_imported_again_stores_nothing_twice() {
    // given
    let gatescope = reference("pair.pd.jsonl");
    let position = gatescope.sql("SELECT count(*) FROM captures");

    // when
    let again = gatescope.import(&[&fixture_path("pair.pd.jsonl")]);

    // then
    assert_eq!(again.numbers(COUNTS), [0, 0, 0, 16, 0]);
    assert_eq!(again.ran.code, 0);
    assert_eq!(gatescope.sql("SELECT count(*) FROM captures"), position);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
}

#[test]
fn a_file_named_twice_stores_nothing_twice() {
    // given
    let gatescope = Gatescope::new();
    let file = fixture_path("pair.pd.jsonl");

    // when
    let import = gatescope.import(&[&file, &file]);

    // then
    assert_eq!(import.numbers(COUNTS), [16, 16, 0, 16, 0]);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
}

#[test]
fn decodes_of_a_later_import_complete_the_requests_of_an_earlier_one() {
    for name in ["pair.pd.jsonl", "wide.pd.jsonl", "dense.pd.jsonl"] {
        // given
        let gatescope = Gatescope::new();
        let lines = fixture_lines(name);
        let (prefills, decodes) = (lines_of(&lines, "prefill"), lines_of(&lines, "decode"));
        let requests = decodes.len() as u64;

        // when
        let first = gatescope.import_from(&["-"], prefills.join("\n").as_bytes());
        let second = gatescope.import_from(&["-"], decodes.join("\n").as_bytes());
        let third = gatescope.import_from(&["-"], prefills.join("\n").as_bytes());

        // then
        assert_eq!(first.numbers(["requests", "duplicates", "completed"]), [requests, 0, 0], "{name}");
        assert_eq!(second.numbers(COUNTS), [requests, requests, 0, 0, requests], "{name} {}", second.summary);
        assert_eq!(second.summary["findings"], serde_json::json!([]), "{name}");
        assert_eq!(third.numbers(COUNTS), [0, 0, 0, requests, 0], "{name} {}", third.summary);
        let captures = gatescope.count("SELECT count(*) FROM captures");
        assert_eq!(captures, 2 * requests, "{name}");
        let mut stored = gatescope.contents();
        let mut expected = reference(name).contents();
        // The overlap row of the decode is compared while both are there, whichever came first.
        stored.iter_mut().chain(&mut expected).for_each(|values| values.sort_by_key(ToString::to_string));
        assert_eq!(stored, expected, "{name}");
    }
}

#[test]
fn prefills_of_a_later_import_complete_the_requests_of_an_earlier_one() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");

    // when
    gatescope.import_from(&["-"], lines_of(&lines, "decode").join("\n").as_bytes());
    let second = gatescope.import_from(&["-"], lines_of(&lines, "prefill").join("\n").as_bytes());

    // then
    assert_eq!(second.numbers(COUNTS), [16, 16, 0, 0, 16], "{}", second.summary);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
}

#[test]
fn answers_come_in_any_order() {
    // given
    let gatescope = Gatescope::new();
    let mut lines = fixture_lines("pair.pd.jsonl");
    lines.reverse();

    // when
    let import = gatescope.import_from(&["-"], lines.join("\n").as_bytes());

    // then
    assert_eq!(import.numbers(COUNTS), [16, 16, 0, 0, 0]);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
}

/// All prefills, then all decodes, with room for hardly a request.
fn with_little_room(read: impl FnOnce(&Gatescope, &str) -> Import) {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let apart = [lines_of(&lines, "prefill"), lines_of(&lines, "decode"), lines_of(&lines, "decode")].concat();

    // when
    let import = read(&gatescope, &apart.join("\n"));

    // then
    assert_eq!(import.numbers(COUNTS), [16, 16, 0, 16, 0], "{}", import.summary);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
    let files: Vec<_> = std::fs::read_dir(gatescope.folder().join("gatescope-data")).unwrap().collect();
    assert!(files.len() < 10, "temporary files are left: {files:?}");
}

#[test]
fn requests_put_aside_are_read_again_from_their_file() {
    with_little_room(|gatescope, lines| {
        let file = gatescope.write("apart.jsonl", lines);
        gatescope.import(&[&file, "--held-bytes", "5000"])
    });
}

#[test]
fn requests_put_aside_are_read_again_from_what_a_stream_left_on_disk() {
    with_little_room(|gatescope, lines| gatescope.import_from(&["-", "--held-bytes", "5000"], lines.as_bytes()));
}

#[test]
fn a_stream_and_files_are_read_in_the_order_of_the_arguments() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let first = gatescope.write("first.jsonl", lines[..10].join("\n"));
    let last = gatescope.write("last.jsonl", lines[20..].join("\n"));

    // when
    let import = gatescope.import_from(&[&first, "-", &last], lines[10..20].join("\n").as_bytes());

    // then
    assert_eq!(import.numbers(["files", "lines", "requests", "whole"]), [3, 32, 16, 16]);
    assert_eq!(gatescope.contents(), reference("pair.pd.jsonl").contents());
}

#[test]
fn an_empty_input_stores_nothing() {
    let gatescope = Gatescope::new();
    let import = gatescope.import_from(&["-"], io::empty());
    assert_eq!(import.numbers(["files", "lines", "refused", "requests"]), [1, 0, 0, 0]);
    assert_eq!(import.ran.code, 0);
}
