//! Tables stay fit to use: checkpoints, merging, retention, and the command that does it.

use std::path::Path;

use bytes::Bytes;
use gatescope_collector::tables::{Arrival, ClosedRequest, CompactionOptions, Tables};
use gatescope_query::{Catalog, Format, Options};
use gatescope_routing::{
    join::{Capture, Joined, Policy, Segment, Status},
    rows::Rows,
    shape::{IdWidth, LayerSet, RowShape},
    span::{RequestKey, Role, Source},
};
use serde_json::{Value, json};

use crate::gatescope::{Gatescope, fixture_path};

const DAY: i64 = 24 * 3600 * 1_000_000;

/// A request of five rows that one engine computed.
fn request(number: u32, closed_at: i64) -> ClosedRequest {
    let shape = RowShape::new(2, 2).unwrap();
    let source = Source { role: Role::Colocated, instance: "c0".into(), attempt: 0 };
    let bytes: Bytes = (0..20).map(|cell| ((cell * 7 + number) % 64) as u8).collect();
    ClosedRequest {
        key: RequestKey { run: "default".into(), request_id: format!("r{number:04}").into(), choice: 0 },
        model: None,
        started_at: Some(closed_at),
        finished_at: Some(closed_at),
        closed_at,
        layers: LayerSet::all(2),
        width: IdWidth::U8,
        arrivals: vec![Arrival { at: closed_at, seq: number.into() }],
        joined: Joined {
            prompt_tokens: Some(3),
            completion_tokens: Some(3),
            shape: Some((shape, IdWidth::U8)),
            segments: vec![Segment {
                start: 0,
                rows: Rows::new(bytes, shape, IdWidth::U8).unwrap(),
                source: source.clone(),
            }],
            gaps: Vec::new(),
            prefix_omitted: 0,
            status: Status::Whole,
            policy: Policy::Prefill,
            prefill_instance: Some("c0".into()),
            decode_instance: None,
            first_forward: None,
            overlap_rows: 0,
            mismatched_rows: 0,
            attempts: 1,
            generation: 0,
            live_layers: LayerSet::all(2),
            findings: Vec::new(),
            captures: vec![Capture {
                source,
                start: Some(0),
                rows: 5,
                payload_hash: number.into(),
                generation: 0,
                block: None,
            }],
        },
        replaces: false,
    }
}

fn commit(tables: &mut Tables, number: u32, closed_at: i64) {
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&request(number, closed_at)).unwrap();
    writer.finish().unwrap();
    tables.commit_covering(batch, u64::from(number) * 10).unwrap();
}

fn files(folder: &Path, table: &str, extension: &str) -> usize {
    let entries = std::fs::read_dir(folder.join(table)).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(extension)).count()
}

/// Everything a query can see of the tables.
fn seen(gatescope: &Gatescope) -> [Vec<Value>; 3] {
    let [requests, ids] = gatescope.contents();
    let load =
        "SELECT concat_ws(' ', minute, instance, role, phase, layer, expert, tokens) FROM expert_load ORDER BY 1";
    [requests, ids, gatescope.sql(load)]
}

#[test]
fn after_hundreds_of_commits_a_folder_opens_reads_and_is_put_in_order() {
    // given more commits than several checkpoints sum up
    let gatescope = Gatescope::new();
    let folder = gatescope.folder().join("gatescope-data");
    let mut tables = Tables::open(&folder).unwrap();
    (0..320).for_each(|number| commit(&mut tables, number, 20_000 * DAY));
    drop(tables);
    assert!(files(&folder, "requests/_delta_log", ".checkpoint.parquet") >= 4);

    // when it is opened again, read, and has a commit after a while
    let tables = Tables::open(&folder).unwrap();
    assert_eq!((tables.position(), tables.log_position()), (320, Some(3_190)));
    drop(tables);
    let before = seen(&gatescope);
    assert_eq!(before[0].len(), 320);
    assert_eq!(before[1].len(), 320 * 5 * 2 * 2);

    // and put in order
    let ran = gatescope.run(&["vacuum", "--compact", "--keep-hours", "0", "--format", "json"], std::io::empty());

    // then nothing has changed but the files
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(summary["merged"], json!({"files": 4 * 320, "into": 4}));
    assert_eq!(summary["removed"]["files"], 4 * 320);
    for table in ["requests", "captures", "expert_load", "routing_2x2_u8"] {
        assert_eq!(files(&folder, table, ".parquet"), 1, "{table}");
    }
    assert_eq!(seen(&gatescope), before);
}

#[test]
fn a_reader_that_has_opened_a_folder_does_not_notice_that_files_are_merged_and_commits_go_on() {
    // given a query catalog that was opened before
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    (0..6).for_each(|number| commit(&mut tables, number, 20_000 * DAY));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let open = || runtime.block_on(Catalog::open(folder.path(), &Options::default())).unwrap();
    let count = |catalog: &Catalog| {
        let query = "SELECT count(*), count(DISTINCT request_id), sum(expert) FROM experts";
        let mut text = Vec::new();
        runtime.block_on(async { catalog.query(query).await.unwrap().write(Format::Csv, &mut text).await.unwrap() });
        String::from_utf8(text).unwrap()
    };
    let earlier = open();
    let before = count(&earlier);

    // when
    let options = CompactionOptions { thorough: true, ..CompactionOptions::default() };
    let compacted = tables.plan_compaction(&options).unwrap().run().unwrap();
    tables.commit_compacted(compacted).unwrap();

    // then
    assert_eq!(count(&earlier), before);
    assert_eq!(count(&open()), before);
    commit(&mut tables, 6, 20_000 * DAY);
    assert_eq!(count(&earlier), before);
    assert_ne!(count(&open()), before);
}

#[test]
fn what_is_imported_is_the_same_after_merging_and_goes_when_it_expires() {
    // given
    let gatescope = Gatescope::new();
    let folder = gatescope.folder().join("gatescope-data");
    for file in ["pair.pd.jsonl", "pair.colocated.jsonl", "wide.pd.jsonl", "dense.pd.jsonl"] {
        gatescope.import(&[&fixture_path(file), "--run", file]);
        gatescope.import(&[&fixture_path(file), "--run", &format!("again {file}")]);
    }
    let requests = gatescope.count("SELECT count(*) FROM requests");
    let before = seen(&gatescope);

    // when
    let ran = gatescope.run(&["vacuum", "--compact"], std::io::empty());

    // then
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with("merged "), "{}", ran.stdout);
    assert_eq!(seen(&gatescope), before);
    let ran = gatescope.run(&["check"], std::io::empty());
    assert!(ran.code < 2, "{}", ran.stderr);

    // and when all of it expires
    let ran = gatescope.run(&["vacuum", "--expire-before", "2200-01-01", "--keep-hours", "0"], std::io::empty());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with(&format!("expired {requests} requests in ")), "{}", ran.stdout);
    assert!(seen(&gatescope).iter().all(Vec::is_empty));
    assert_eq!(files(&folder, "requests", ".parquet"), 0);
}

#[test]
fn a_folder_that_is_none_of_ours_or_in_use_is_left_alone() {
    let gatescope = Gatescope::new();
    let ran = gatescope.run(&["vacuum", "--data", "."], std::io::empty());
    assert_eq!(ran.code, 2);
    assert_eq!(ran.stderr, "gatescope: .: there are no gatescope tables in it\n");
    assert!(!gatescope.folder().join("requests").exists());

    let _tables = Tables::open(&gatescope.folder().join("gatescope-data")).unwrap();
    let ran = gatescope.run(&["vacuum"], std::io::empty());
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("another process is writing to this data folder"), "{}", ran.stderr);
}
