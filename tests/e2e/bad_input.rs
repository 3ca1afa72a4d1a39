//! Each kind of answer that is odd or broken ends in a message or a finding, and every other request is whole.

use serde_json::{Value, json};

use crate::{
    gatescope::{Gatescope, Import, fixture_lines},
    payload,
};

/// What became of the recording's first request after its answers were changed.
struct Outcome {
    import: Import,
    status: Value,
    findings: Vec<Value>,
}

/// The prefill's and the decode's answer of the first request of a recording of 16.
fn first() -> [Value; 2] {
    let lines = fixture_lines("pair.pd.jsonl");
    [0, 1].map(|line| serde_json::from_str(&lines[line]).unwrap())
}

/// Imports these answers in place of the first request's, among those of the others, which must not suffer.
fn import(answers: &[Value]) -> Outcome {
    let gatescope = Gatescope::new();
    let id = first()[0]["request_id"].as_str().unwrap().to_owned();
    let mut lines: Vec<String> = answers.iter().map(Value::to_string).collect();
    lines.extend_from_slice(&fixture_lines("pair.pd.jsonl")[2..]);
    let import = gatescope.import_from(&["-"], lines.join("\n").as_bytes());
    let others =
        format!("SELECT count(*) FROM requests WHERE status = 'whole' AND findings = 0 AND request_id <> '{id}'");
    assert_eq!(gatescope.count(&others), 15, "{:?}", import.ran);
    let status = gatescope.sql(&format!("SELECT status FROM requests WHERE request_id = '{id}'"));
    let findings =
        gatescope.sql(&format!("SELECT \"check\" FROM mismatches WHERE request_id = '{id}' ORDER BY \"check\""));
    Outcome { import, status: status.first().cloned().unwrap_or_default(), findings }
}

/// The prefill's payload cannot be read: a message says why, and its rows are missing.
fn refused_payload(change: impl Fn(&mut Value), message: &str) {
    let [mut prefill, decode] = first();
    change(&mut prefill);
    let outcome = import(&[prefill, decode]);
    assert_eq!((outcome.import.number("refused"), outcome.import.ran.code), (1, 1));
    let said = outcome.import.messages();
    assert!(said[0].starts_with("stdin:1: request ") && said[0].contains(message), "{said:?}");
    assert_eq!((outcome.status, outcome.findings), (json!("incomplete"), vec![json!("GS001")]));
}

/// Gives an answer other lengths.
fn set_lengths(answer: &mut Value, prompt: usize, completion: usize) {
    answer["response"]["choices"][0]["prompt_token_ids"] = json!((0..prompt).collect::<Vec<_>>());
    answer["response"]["choices"][0]["token_ids"] = json!(vec![7; completion]);
    answer["response"]["usage"] = json!({"prompt_tokens": prompt, "completion_tokens": completion});
}

fn prompt_of(answer: &Value) -> usize {
    answer["response"]["usage"]["prompt_tokens"].as_u64().unwrap() as usize
}

fn assert_whole(outcome: &Outcome) {
    assert_eq!((outcome.import.ran.code, outcome.import.number("refused")), (0, 0), "{:?}", outcome.import.ran);
    assert_eq!((&outcome.status, &outcome.findings), (&json!("whole"), &vec![]));
}

#[test]
fn a_completion_of_one_token_is_whole() {
    let [prefill, mut decode] = first();
    let rows = payload::rows(&decode);
    let prompt = prompt_of(&decode);
    set_lengths(&mut decode, prompt, 1);
    payload::set_rows(&mut decode, &rows[..1]);
    assert_whole(&import(&[prefill, decode]));
}

#[test]
fn an_empty_completion_is_whole() {
    let [prefill, mut decode] = first();
    let prompt = prompt_of(&decode);
    set_lengths(&mut decode, prompt, 0);
    decode["response"]["choices"][0]["routed_experts"] = Value::Null;
    assert_whole(&import(&[prefill, decode]));
}

#[test]
fn a_prompt_of_one_token_is_whole() {
    let [mut prefill, mut decode] = first();
    let rows = payload::rows(&decode);
    for (answer, sampled) in [(&mut prefill, 1), (&mut decode, rows.len())] {
        set_lengths(answer, 1, sampled);
    }
    payload::set_rows(&mut prefill, &rows[..1]);
    assert_whole(&import(&[prefill, decode]));
}

#[test]
fn base64_cut_short_is_refused() {
    refused_payload(
        |answer| {
            let payload = answer["response"]["choices"][0]["routed_experts"].as_str().unwrap();
            answer["response"]["choices"][0]["routed_experts"] = json!(payload[..payload.len() - 3]);
        },
        "expected a multiple of 4 (cut short, or without its padding)",
    );
    // At a place where base64 may end, the data is too short.
    refused_payload(
        |answer| {
            let payload = answer["response"]["choices"][0]["routed_experts"].as_str().unwrap();
            answer["response"]["choices"][0]["routed_experts"] = json!(payload[..payload.len() - 400]);
        },
        ".npy data of ",
    );
}

#[test]
fn a_wrong_magic_is_refused() {
    refused_payload(
        |answer| payload::set_bytes(answer, b"PK\x03\x04 is no array"),
        "expected a .npy file, which begins with",
    );
}

#[test]
fn fortran_order_is_refused() {
    refused_payload(
        |answer| payload::set_npy(answer, "|u1", true, "(2, 4, 4)", &[1; 32]),
        ".npy in Fortran order: expected C order, [rows, layers, top_k]",
    );
}

#[test]
fn big_endian_ids_are_refused() {
    refused_payload(
        |answer| payload::set_npy(answer, ">u2", false, "(2, 4, 4)", &[1; 64]),
        ".npy dtype \">u2\": expected a little-endian integer type",
    );
}

#[test]
fn a_negative_shape_is_refused() {
    refused_payload(|answer| payload::set_npy(answer, "|u1", false, "(-2, 4, 4)", &[1; 32]), ".npy header: ");
}

#[test]
fn too_large_a_shape_is_refused() {
    for shape in ["(4000000000, 4000000000, 4)", "(1000000000, 1000, 8)"] {
        refused_payload(|answer| payload::set_npy(answer, "|u1", false, shape, &[1; 32]), "expected ");
    }
}

#[test]
fn ids_above_16_bits_are_refused() {
    let ids: Vec<u8> = (0..32).flat_map(|_| 70_000_i32.to_le_bytes()).collect();
    refused_payload(|answer| payload::set_npy(answer, "<i4", false, "(2, 4, 4)", &ids), "70000");
}

#[test]
fn a_decode_without_its_prefill_is_incomplete() {
    let [_, decode] = first();
    let outcome = import(&[decode]);
    assert_eq!((outcome.status, outcome.findings), (json!("incomplete"), vec![json!("GS001"), json!("GS018")]));
}

#[test]
fn two_prefills_are_two_answers() {
    let [prefill, decode] = first();
    let mut other = prefill.clone();
    other["instance"] = json!("p1");
    let mut rows = payload::rows(&other);
    rows[0].rotate_left(1);
    payload::set_rows(&mut other, &rows);
    let outcome = import(&[prefill, other, decode]);
    assert_eq!(outcome.status, json!("conflict"));
    assert!(outcome.findings.contains(&json!("GS019")), "{:?}", outcome.findings);
}

#[test]
fn other_layer_counts_on_two_sides_are_in_conflict() {
    let [prefill, mut decode] = first();
    let rows = payload::rows(&decode);
    let short: Vec<u8> = rows.iter().flat_map(|row| row[..12].to_vec()).collect();
    payload::set_npy(&mut decode, "|u1", false, &format!("({}, 3, 4)", rows.len()), &short);
    let outcome = import(&[prefill, decode]);
    assert_eq!((outcome.status, outcome.findings), (json!("conflict"), vec![json!("GS012")]));
}

#[test]
fn null_routing_is_no_routing() {
    let mut answers = first();
    for answer in &mut answers {
        answer["response"]["choices"][0]["routed_experts"] = Value::Null;
    }
    let outcome = import(&answers);
    assert_eq!(outcome.import.number("refused"), 0);
    assert_eq!((outcome.status, outcome.findings), (json!("incomplete"), vec![json!("GS031")]));
}

#[test]
fn errors_in_place_of_answers_are_quoted() {
    let errors = first().map(|answer| {
        json!({"role": answer["role"], "request_id": answer["request_id"], "response": {"error": {"message": "too long"}}})
    });
    let outcome = import(&errors);
    assert_eq!(outcome.import.number("refused"), 2);
    for said in outcome.import.messages() {
        assert!(said.contains("the engine answered with an error: too long"), "{said}");
    }
    assert_eq!((outcome.status, outcome.findings), (Value::Null, vec![]));
}

#[test]
fn a_start_past_the_end_is_in_conflict() {
    let [prefill, mut decode] = first();
    let rows = payload::rows(&decode);
    let packed: Vec<u8> = rows.concat();
    payload::set_bytes(&mut decode, &packed);
    let data = decode["response"]["choices"][0]["routed_experts"].take();
    decode["response"]["choices"][0]["routed_experts"] =
        json!({"data": data, "shape": [rows.len(), 4, 4], "start": 5000, "dtype": "uint8"});
    let outcome = import(&[prefill, decode]);
    assert_eq!((outcome.status, outcome.findings), (json!("conflict"), vec![json!("GS001"), json!("GS003")]));
}
