//! What cannot be used is named, and everything else is imported.

use serde_json::{Value, json};

use crate::gatescope::{Gatescope, fixture_lines, fixture_path};

#[test]
fn a_bad_line_is_named_and_skipped() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let mut bytes = lines[..10].join("\n").into_bytes();
    bytes.extend_from_slice(b"\n{\"role\": \"prefill\"\n\xff\xfe\n{\"role\": \"bystander\", \"response\": {}}\n");
    bytes.extend_from_slice(
        b"{\"role\": \"decode\", \"request_id\": \"e\", \"response\": {\"error\": {\"message\": \"no\"}}}\n",
    );
    bytes.extend_from_slice(lines[10..].join("\n").as_bytes());
    let file = gatescope.write("bad.jsonl", bytes);

    // when
    let import = gatescope.import(&[&file]);

    // then
    assert_eq!(import.numbers(["lines", "refused", "requests", "whole"]), [36, 4, 16, 16]);
    assert_eq!(import.ran.code, 1);
    let places: Vec<&str> = import.messages().iter().map(|message| &message[..13]).collect();
    assert_eq!(places, ["bad.jsonl:11:", "bad.jsonl:12:", "bad.jsonl:13:", "bad.jsonl:14:"]);
    assert!(import.messages()[2].contains("bystander"), "{:?}", import.messages());
}

#[test]
fn a_decode_that_answered_with_an_error_leaves_its_request_incomplete() {
    // given
    let gatescope = Gatescope::new();
    let mut lines = fixture_lines("pair.pd.jsonl");
    let decode: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    let request = decode["request_id"].as_str().unwrap();
    lines[1] =
        format!(r#"{{"role": "decode", "request_id": "{request}", "response": {{"error": {{"message": "no"}}}}}}"#);
    let file = gatescope.write("failed.jsonl", lines.join("\n"));

    // when
    let import = gatescope.import(&[&file]);

    // then
    assert_eq!(import.numbers(["refused", "requests", "whole"]), [1, 16, 15]);
    let sql = format!("SELECT count(*) FROM mismatches WHERE request_id = '{request}' AND check = 'GS001'");
    assert_eq!(gatescope.count(&sql), 1);
}

#[test]
fn strict_stops_at_the_first_bad_line_and_stores_what_came_before() {
    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl");
    let text = format!("{}\nbad\n{}\nbad\n", lines[..10].join("\n"), lines[10..].join("\n"));
    let file = gatescope.write("bad.jsonl", text);

    // when
    let import = gatescope.import(&[&file, "--strict"]);

    // then
    assert_eq!(import.ran.code, 1);
    assert_eq!(import.summary["stopped"], "strict");
    assert_eq!(import.messages().len(), 1);
    assert_eq!(import.numbers(["refused", "requests", "whole"]), [1, 5, 5]);
    assert_eq!(gatescope.count("SELECT count(*) FROM requests"), 5);
}

#[test]
fn an_input_that_cannot_be_read_is_named_and_the_others_read() {
    // given
    let gatescope = Gatescope::new();
    std::fs::create_dir(gatescope.folder().join("folder")).unwrap();

    // when
    let import = gatescope.import(&["missing.jsonl", "folder", &fixture_path("pair.pd.jsonl")]);

    // then
    assert_eq!(import.numbers(["files", "refused", "requests", "whole"]), [1, 2, 16, 16]);
    assert_eq!(import.ran.code, 1);
    let messages = import.messages();
    assert!(messages[0].starts_with("missing.jsonl: No such file"), "{messages:?}");
    assert_eq!(messages[1], "folder: a folder: expected a file of JSON lines");
}

#[test]
fn a_payload_that_cannot_be_read_leaves_its_request_incomplete_and_others_whole() {
    // given
    let gatescope = Gatescope::new();
    let mut lines = fixture_lines("pair.pd.jsonl");
    let mut prefill: Value = serde_json::from_str(&lines[0]).unwrap();
    let id = prefill["request_id"].as_str().unwrap().to_owned();
    let payload = prefill["response"]["choices"][0]["routed_experts"].as_str().unwrap();
    prefill["response"]["choices"][0]["routed_experts"] = json!(payload[..payload.len() / 2 - 1]);
    lines[0] = prefill.to_string();

    // when
    let import = gatescope.import_from(&["-"], lines.join("\n").as_bytes());

    // then
    assert_eq!(import.numbers(["lines", "refused", "requests", "whole", "incomplete"]), [32, 1, 16, 15, 1]);
    assert_eq!(import.ran.code, 1);
    let expected = format!("stdin:1: request {id}: response.choices[0].routed_experts: ");
    assert!(import.ran.stderr.starts_with(&expected), "{}", import.ran.stderr);
    assert_eq!(import.findings("GS001"), 1);
    assert_eq!(gatescope.sql("SELECT request_id FROM requests WHERE status = 'incomplete'"), [json!(id)]);
    let length = gatescope.count("SELECT prompt_tokens FROM requests WHERE status = 'incomplete'");
    assert_eq!(length, prefill["response"]["usage"]["prompt_tokens"].as_u64().unwrap());
}

#[test]
fn after_a_hundred_messages_the_rest_is_counted() {
    // given
    let gatescope = Gatescope::new();

    // when
    let import = gatescope.import_from(&["-"], "bad\n".repeat(123).as_bytes());

    // then
    assert_eq!(import.number("refused"), 123);
    assert_eq!(import.messages().len(), 101);
    assert_eq!(import.messages()[100], "stdin: 23 more could not be used");
}

#[test]
fn a_data_folder_that_cannot_be_made_is_fatal() {
    // given
    let gatescope = Gatescope::new();
    gatescope.write("file", "");

    // when
    let ran = gatescope.run(&["import", &fixture_path("pair.pd.jsonl"), "--data", "file/data"], std::io::empty());

    // then
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.starts_with("gatescope: file/data: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("os error").count(), 1, "{}", ran.stderr);
}

#[test]
#[cfg(unix)]
fn an_interrupted_import_stores_nothing_and_can_be_run_again() {
    use std::{io::Write, process::Stdio};

    // given
    let gatescope = Gatescope::new();
    let lines = fixture_lines("pair.pd.jsonl").join("\n") + "\n";
    let mut child = gatescope
        .command(&["import", "-", "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The stream stays open: the program waits for more.
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(lines.as_bytes()).unwrap();
    pipe.flush().unwrap();
    let lock = gatescope.folder().join("gatescope-data/lock");
    while !lock.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }

    // when
    let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    drop(pipe);

    // then
    assert!(killed.success());
    assert_eq!(output.status.code(), Some(1));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["stopped"], &summary["requests"]), (&json!("interrupted"), &json!(0)));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "gatescope: interrupted; nothing was stored\n");
    assert_eq!(gatescope.count("SELECT count(*) FROM requests"), 0);
    let again = gatescope.import_from(&["-"], lines.as_bytes());
    assert_eq!(again.numbers(["requests", "whole"]), [16, 16]);
}
