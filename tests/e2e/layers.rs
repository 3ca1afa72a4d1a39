//! Which layers have a gate, told or found out.

use serde_json::{Value, json};

use crate::{
    gatescope::{Gatescope, fixture_lines, fixture_path},
    payload,
};

/// The lines of a recording with layer 0 of one request's rows all zero.
fn with_a_dead_layer(name: &str, request: usize) -> (String, Vec<String>) {
    let mut lines = fixture_lines(name);
    let id = |line: &String| serde_json::from_str::<Value>(line).unwrap()["request_id"].as_str().unwrap().to_owned();
    let wanted = id(&lines[2 * request]);
    for line in lines.iter_mut().filter(|line| id(line) == wanted) {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        let mut rows = payload::rows(&answer);
        rows.iter_mut().for_each(|row| row[..4].fill(0));
        payload::set_rows(&mut answer, &rows);
        *line = answer.to_string();
    }
    (wanted, lines)
}

#[test]
fn a_layer_that_is_dead_in_one_request_and_live_in_others_is_a_fault_wherever_that_request_stands() {
    for request in [0, 7, 15] {
        // given
        let gatescope = Gatescope::new();
        let (id, lines) = with_a_dead_layer("pair.pd.jsonl", request);

        // when
        let import = gatescope.import_from(&["-"], lines.join("\n").as_bytes());

        // then
        assert_eq!(import.numbers(["requests", "whole"]), [16, 16], "{request}");
        assert!(import.findings("GS004") > 0, "{request}: {}", import.summary);
        assert_eq!(import.findings("GS004"), gatescope.count("SELECT count(*) FROM mismatches"), "{request}");
        let found = gatescope.sql("SELECT DISTINCT request_id FROM mismatches WHERE \"check\" = 'GS004' AND layer = 0");
        assert_eq!(found, [json!(id)], "{request}");
        assert_eq!(gatescope.count("SELECT count(*) FROM captures"), 32, "{request}");
        let tables = gatescope.sql("SELECT DISTINCT routing_table FROM requests");
        assert_eq!(tables, [json!("routing_4x4_u8")], "{request}");
    }
}

#[test]
fn deployments_with_one_model_name_do_not_speak_for_each_other() {
    // given
    let gatescope = Gatescope::new();

    // when
    let import = gatescope.import(&[&fixture_path("pair.pd.jsonl"), &fixture_path("dense.pd.jsonl")]);

    // then
    assert_eq!(import.numbers(["requests", "whole"]), [24, 24]);
    assert_eq!(import.summary["findings"], json!([]));
}

#[test]
fn a_configuration_says_which_layers_have_a_gate() {
    // given
    let gatescope = Gatescope::new();
    let config = |dense: u32| {
        format!(
            "{{\"num_hidden_layers\": 4, \"num_experts\": 32, \"num_experts_per_tok\": 4, \"first_k_dense_replace\": {dense}}}"
        )
    };
    let right = gatescope.write("right.json", config(1));
    let wrong = gatescope.write("wrong.json", config(0));

    // when
    let dense = gatescope.import(&[&fixture_path("dense.pd.jsonl"), "--model-config", &right]);
    let gated = gatescope.import(&[&fixture_path("dense.pd.jsonl"), "--model-config", &wrong, "--run", "gated"]);

    // then
    assert_eq!(dense.summary["findings"], json!([]));
    assert!(gated.findings("GS004") >= 8, "{}", gated.summary);
}

#[test]
fn too_few_experts_are_found() {
    let gatescope = Gatescope::new();
    let import = gatescope.import(&[&fixture_path("pair.pd.jsonl"), "--shape", "4x4", "--experts", "16"]);
    assert!(import.findings("GS006") > 0, "{}", import.summary);
    assert_eq!(import.ran.code, 0, "findings are not refusals");
}
