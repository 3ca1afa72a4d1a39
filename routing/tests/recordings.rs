//! The recordings under `tests/fixtures/`, read.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, path::PathBuf};

use gatescope_routing::{
    record::{Record, RecordOptions, RecordedChoice, read_record},
    rows::ids,
    shape::RowShape,
    span::{Anchor, Role, WireType},
};

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The records of a fixture; those of the run `wide` have 6 slots, all others 4.
fn records(name: &str) -> Vec<Record> {
    let wide = name.contains("wide");
    fixture(name)
        .lines()
        .map(|line| {
            let top_k = if wide || line.contains(r#""wide""#) || line.contains(r#"\"wide\""#) { 6 } else { 4 };
            let options = RecordOptions { shape: Some(RowShape::new(4, top_k).unwrap()) };
            read_record(line.as_bytes(), &options).unwrap_or_else(|error| panic!("{name}: {error}"))
        })
        .collect()
}

/// The ids of every position of a choice, in its spans' order.
fn positions(choice: &RecordedChoice) -> Vec<(u32, Vec<u16>)> {
    let mut positions = Vec::new();
    for span in choice.spans.as_ref().unwrap() {
        let rows = span.rows.len() as u32;
        let start = match span.anchor {
            Anchor::Start(start) => start,
            Anchor::End { completion_tokens } => choice.prompt_tokens.unwrap() + completion_tokens - 1 - rows,
        };
        let row = |index: u32| ids(span.rows.row(index as usize), span.rows.width());
        positions.extend((0..rows).map(|index| (start + index, row(index))));
    }
    positions
}

type Key = (Role, String);
type Positions = BTreeMap<Key, Vec<(u32, Vec<u16>)>>;

fn by_request(records: &[Record]) -> Positions {
    records
        .iter()
        .flat_map(|record| {
            let key = (record.source.role, record.request_id.to_string());
            record.choices.iter().map(move |choice| (key.clone(), positions(choice)))
        })
        .collect()
}

fn real() -> Positions {
    ["pair.pd", "pair.colocated", "wide.pd", "wide.colocated"]
        .into_iter()
        .flat_map(|name| by_request(&records(&format!("vllm-0.31/{name}.jsonl"))))
        .collect()
}

#[test]
fn real_prefill_rows_are_those_of_the_prompt() {
    for name in ["pair", "prefix", "wide", "dense"] {
        for record in records(&format!("vllm-0.31/{name}.pd.jsonl")) {
            let choice = &record.choices[0];
            let prompt = choice.prompt_tokens.unwrap();
            let range = match record.source.role {
                Role::Prefill => 0..prompt,
                _ => prompt - 1..prompt + choice.completion_tokens.unwrap() - 1,
            };
            let found: Vec<u32> = positions(choice).into_iter().map(|(position, _)| position).collect();
            assert_eq!(found, range.collect::<Vec<_>>());
        }
    }
}

#[test]
fn real_answers_say_who_answered_whom_and_when() {
    let records = records("vllm-0.31/pair.pd.jsonl");
    let (prefill, decode) = (&records[0], &records[1]);

    let identity = prefill.identity.as_ref().unwrap();
    assert_eq!(prefill.source.role, Role::Prefill);
    assert_eq!(prefill.source.instance, identity.engine_id);
    assert!(identity.request_id.starts_with(&format!("cmpl-{}-0-", prefill.request_id)));
    assert_eq!(prefill.link, None);
    assert_eq!(prefill.model.as_deref(), Some("tiny-moe"));
    assert_eq!(prefill.created_at, Some(1_796_092_093_000_000));
    assert_eq!((&*decode.source.instance, decode.source.attempt), ("decode", 0));
    assert_eq!((&decode.identity, &decode.link, &decode.parent, &decode.run), (&None, &None, &None, &None));
    assert_eq!(decode.request_id, prefill.request_id);
    assert_eq!(decode.choices[0].uniform_prompt, Some(false));
    assert_eq!((decode.choices[0].choice, decode.choices[0].prompt_start), (0, None));
}

#[test]
fn every_engines_form_gives_the_rows_of_the_real_answers() {
    let real = real();
    let cases = [
        ("vllm-completions-escaped", 15, 1),
        ("vllm-chat", 15, 1),
        ("vllm-generate", 15, 1),
        ("vllm-two-choices", 15, 2),
        ("vllm-0.21", 10, 1),
        ("prime-rl", 15, 1),
        ("prime-rl-without-start", 15, 1),
        ("prime-rl-base85", 15, 1),
        ("sglang", 15, 1),
        ("sglang-narrow", 15, 1),
        ("sglang-list", 15, 2),
        ("sglang-openai", 15, 1),
        ("sglang-openai-choice", 15, 1),
    ];
    for (name, count, choices) in cases {
        let records = records(&format!("engines/{name}.jsonl"));
        assert_eq!(records.len(), count, "{name}");
        for record in records {
            let expected = &real[&(record.source.role, record.request_id.to_string())];
            let mut numbers: Vec<u32> = record.choices.iter().map(|choice| choice.choice).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..choices).collect::<Vec<_>>(), "{name}");
            for choice in &record.choices {
                assert_eq!(&positions(choice), expected, "{name}, request {}", record.request_id);
                assert_eq!(choice.prompt_start, None, "{name}");
            }
        }
    }
}

#[test]
fn every_fixture_of_another_engine_is_tested() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/engines");
    let recordings = std::fs::read_dir(folder)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "jsonl"));
    assert_eq!(recordings.count(), 13);
}

#[test]
fn starts_are_taken_where_the_form_says_them() {
    let anchors = |name: &str| -> Vec<(Role, Anchor)> {
        let records = records(name);
        records.iter().map(|record| (record.source.role, record.choices[0].spans.as_ref().unwrap()[0].anchor)).collect()
    };
    for (role, anchor) in anchors("engines/prime-rl.jsonl") {
        match (role, anchor) {
            (Role::Decode, Anchor::Start(start)) => assert!(start > 0),
            (_, anchor) => assert_eq!(anchor, Anchor::Start(0)),
        }
    }
    for name in ["engines/prime-rl-without-start.jsonl", "engines/prime-rl-base85.jsonl", "engines/sglang.jsonl"] {
        assert!(anchors(name).iter().all(|(_, anchor)| matches!(anchor, Anchor::End { .. })), "{name}");
    }
}

#[test]
fn types_on_the_wire_are_kept() {
    let types = |name: &str| -> Vec<WireType> {
        let mut types: Vec<_> = records(name)
            .iter()
            .flat_map(|record| record.choices[0].spans.as_ref().unwrap().iter().map(|span| span.wire_type))
            .collect();
        types.sort_unstable();
        types.dedup();
        types
    };
    assert_eq!(types("vllm-0.31/pair.pd.jsonl"), [WireType::U8]);
    assert_eq!(types("vllm-0.31/wide.pd.jsonl"), [WireType::U16]);
    assert_eq!(types("engines/prime-rl.jsonl"), [WireType::U8, WireType::U16]);
    assert_eq!(types("engines/prime-rl-base85.jsonl"), [WireType::I32]);
    assert_eq!(types("engines/sglang.jsonl"), [WireType::I32]);
    assert_eq!(types("engines/sglang-narrow.jsonl"), [WireType::U8, WireType::U16]);
    assert_eq!(types("engines/vllm-0.21.jsonl"), [WireType::Json]);
}
