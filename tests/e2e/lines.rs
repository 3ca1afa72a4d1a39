//! What counts as a line.

use std::io::{self, Read};

use crate::gatescope::{Gatescope, fixture_lines};

#[test]
fn marks_blank_lines_and_line_ends_do_not_matter() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let mut text = "\u{feff}".to_owned();
    for line in &lines {
        text.push_str(line);
        text.push_str("\r\n\r\n  \t\r\n");
    }
    text.push_str("not an answer");

    // when
    let import = gatescope.import_from(&["-"], text.as_bytes());

    // then
    assert_eq!(import.numbers(["lines", "refused", "requests", "whole"]), [33, 1, 16, 16]);
    assert!(import.ran.stderr.starts_with("stdin:97: "), "{}", import.ran.stderr);
}

#[test]
fn the_last_line_needs_no_end() {
    let gatescope = Gatescope::new();
    let import = gatescope.import_from(&["-"], fixture_lines("pair.pd.jsonl").join("\n").as_bytes());
    assert_eq!(import.numbers(["lines", "requests", "whole"]), [32, 16, 16]);
}

#[test]
fn a_line_above_the_limit_is_refused_and_the_rest_read() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let text = format!("{}\n{}\n{}\n", lines[0], "x".repeat(100_000), lines[1]);

    // when
    let import = gatescope.import_from(&["-", "--max-line", "50000"], text.as_bytes());

    // then
    assert_eq!(import.numbers(["lines", "refused", "requests", "whole"]), [3, 1, 1, 1]);
    let expected = "stdin:2: a line of 100000 bytes: expected at most 50000 (--max-line)";
    assert_eq!((import.messages(), import.ran.code), (vec![expected], 1));
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "slow: 2 GB through a pipe"]
fn a_line_of_two_gigabytes_is_skipped_in_constant_memory() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let text = lines.join("\n");
    let long = io::repeat(b'x').take(2_000_000_000);
    let mut command = std::process::Command::new("sh");
    // 1 GiB of address space is far below the line, and room enough for threads and their stacks.
    let limited = format!("ulimit -v 1500000; exec {} import - --format json", env!("CARGO_BIN_EXE_gatescope"));
    command.args(["-c", &limited]).current_dir(gatescope.folder());

    // when
    let ran = crate::gatescope::run(&mut command, long.chain(&b"\n"[..]).chain(text.as_bytes()));

    // then
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(ran.stderr, "stdin:1: a line of 2000000000 bytes: expected at most 134217728 (--max-line)\n");
    assert!(ran.stdout.contains("\"whole\":16"), "{}", ran.stdout);
}
