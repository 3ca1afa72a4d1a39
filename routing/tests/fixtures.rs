//! Recorded answers of real engines: the join of a prefill/decode pair equals what a colocated twin computed; and the rule
//! of an old router, which does not, is caught.
#![allow(clippy::unwrap_used, reason = "the recordings are known to be valid")]

use std::{collections::BTreeMap, path::Path};

use gatescope_routing::{
    Check, Context, Finish, Join, Joined, Part, RequestKey, Role, Rules, Start, Status,
    record::{Record, RecordOptions, read_record},
    shape::RowShape,
};

fn records(path: &str) -> Vec<Record> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path);
    let text = std::fs::read_to_string(&path).unwrap();
    let read = |line: &str| {
        // Some payloads leave the shape to the reader.
        let top_k = if line.contains(r#""run": "wide""#) { 6 } else { 4 };
        read_record(line.as_bytes(), &RecordOptions { shape: RowShape::new(4, top_k).ok() }).unwrap()
    };
    text.lines().map(read).collect()
}

fn parts(record: Record) -> impl Iterator<Item = (RequestKey, Part)> {
    let Record { run, request_id, source, parent, choices, .. } = record;
    let run = run.unwrap_or_else(|| "default".into());
    choices.into_iter().flat_map(move |choice| {
        let key = RequestKey { run: run.clone(), request_id: request_id.clone(), choice: choice.choice };
        let start = Start {
            source: source.clone(),
            prompt_tokens: choice.prompt_tokens,
            first_forward: None,
            prompt_start: choice.prompt_start,
            parent: parent.clone(),
        };
        let finish = Finish {
            source: source.clone(),
            prompt_tokens: choice.prompt_tokens,
            completion_tokens: choice.completion_tokens,
            uniform_prompt: choice.uniform_prompt,
        };
        let spans = choice.spans.unwrap().into_iter().map(Part::Span);
        let parts: Vec<Part> = [Part::Start(start)].into_iter().chain(spans).chain([Part::Finish(finish)]).collect();
        parts.into_iter().map(move |part| (key.clone(), part))
    })
}

fn join(records: Vec<Record>) -> BTreeMap<RequestKey, Joined> {
    let mut join = Join::new(Rules::default());
    for (key, part) in records.into_iter().flat_map(parts) {
        join.apply(&key, part);
    }
    let keys: Vec<RequestKey> = join.keys().cloned().collect();
    keys.into_iter().filter_map(|key| join.close(&key, &Context::default()).map(|joined| (key, joined))).collect()
}

fn check_pair_against_twin(name: &str, requests: usize) {
    let pair = join(records(&format!("vllm-0.31/{name}.pd.jsonl")));
    let twin = join(records(&format!("vllm-0.31/{name}.colocated.jsonl")));
    assert_eq!(pair.len(), requests);
    for (key, joined) in &pair {
        let alone = &twin[key];
        assert_eq!(joined.findings, vec![], "{key}");
        assert_eq!(alone.findings, vec![], "{key}");
        assert_eq!((joined.status, alone.status), (Status::Whole, Status::Whole), "{key}");
        assert_eq!(joined.routing(), alone.routing(), "{key}");
        let prompt = joined.prompt_tokens.unwrap();
        assert_eq!((joined.first_forward, joined.overlap_rows), (Some(prompt - 1), 1), "{key}");
    }
}

#[test]
fn a_joined_pair_equals_its_twin() {
    check_pair_against_twin("pair", 16);
}

#[test]
fn a_joined_pair_with_prefix_cache_hits_equals_its_twin() {
    check_pair_against_twin("prefix", 10);
}

#[test]
fn a_joined_pair_of_sixteen_bit_ids_equals_its_twin() {
    check_pair_against_twin("wide", 8);
}

#[test]
fn a_joined_pair_with_a_dense_layer_equals_its_twin() {
    check_pair_against_twin("dense", 8);
    let live = |joined: &Joined| joined.live_layers.to_string();
    assert!(join(records("vllm-0.31/dense.pd.jsonl")).values().all(|joined| live(joined) == "1-3"));
}

/// Drops the first `prompt` rows of each decode's answer, whatever its start, as vLLM's router did before v0.2.3.
fn merge_as_the_old_router(records: &mut [Record]) {
    for record in records.iter_mut().filter(|record| record.source.role == Role::Decode) {
        for choice in &mut record.choices {
            let prompt = choice.prompt_tokens.unwrap() as usize;
            for span in choice.spans.as_mut().unwrap() {
                span.rows = span.rows.slice(prompt.min(span.rows.len())..span.rows.len());
            }
        }
    }
}

#[test]
fn every_pair_merged_by_the_old_router_is_found_to_lack_rows() {
    for name in ["pair", "prefix", "wide", "dense"] {
        let mut records = records(&format!("vllm-0.31/{name}.pd.jsonl"));
        merge_as_the_old_router(&mut records);
        for (key, joined) in join(records) {
            let codes: Vec<Check> = joined.findings.iter().map(|finding| finding.check).collect();
            assert_eq!(codes, [Check::MissingRows], "{name} {key}");
            let (prompt, completion) = (joined.prompt_tokens.unwrap(), joined.completion_tokens.unwrap());
            // Rows that were computed and thrown away: from the end of the prompt on.
            let kept = completion.saturating_sub(prompt);
            assert_eq!(joined.gaps, vec![prompt..prompt + completion - 1 - kept], "{name} {key}");
            assert_ne!(joined.status, Status::Whole, "{name} {key}");
        }
    }
}

#[test]
fn an_answer_merged_by_the_old_router_disagrees_with_the_pair_it_was_made_of_after_a_shift() {
    for name in ["pair", "wide"] {
        let twins = records(&format!("vllm-0.31/{name}.colocated.jsonl"));
        let mut merged: BTreeMap<_, _> = records(&format!("vllm-0.31/{name}.colocated.jsonl"))
            .into_iter()
            .map(|record| (record.request_id.clone(), record))
            .collect();
        // What the router answered: the prompt's rows and nothing else, for want of as many decode rows as the prompt has.
        for record in merged.values_mut() {
            let choice = &mut record.choices[0];
            let span = &mut choice.spans.as_mut().unwrap()[0];
            span.source.instance = "router".into();
            span.rows = span.rows.slice(0..choice.prompt_tokens.unwrap() as usize);
        }
        for (key, joined) in join(twins.into_iter().chain(merged.into_values()).collect()) {
            let shift = joined.findings.iter().find(|finding| finding.check == Check::MisplacedRows);
            let rows = joined.completion_tokens.unwrap() - 1;
            let expected = format!("a shift by -{rows} positions");
            assert!(
                shift.is_some_and(|finding| finding.detail.contains(&expected)),
                "{name} {key} {:?}",
                joined.findings
            );
        }
    }
}

#[test]
fn every_engines_payload_of_one_routing_joins_to_the_same_rows() {
    let mut seen = 0;
    let truth: BTreeMap<_, _> = ["pair", "wide"]
        .into_iter()
        .flat_map(|name| join(records(&format!("vllm-0.31/{name}.colocated.jsonl"))))
        .map(|(key, joined)| (key.request_id, joined.routing()))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/engines");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".jsonl") {
            continue;
        }
        for (key, joined) in join(records(&format!("engines/{name}"))) {
            assert_eq!((joined.status, &joined.findings), (Status::Whole, &vec![]), "{name} {key}");
            let rows = joined.routing().unwrap();
            let width = rows.width();
            let truth = truth[&key.request_id].as_ref().unwrap().with_width(width).unwrap();
            assert_eq!(rows, truth, "{name} {key}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} requests of other engines");
}
