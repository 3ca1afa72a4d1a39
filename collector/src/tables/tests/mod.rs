//! The tables as a whole.

mod commit;
mod compaction;
mod content;
mod covering;
mod crash;
mod expire;
mod replace;

use std::path::Path;

use arrow::{
    array::{AsArray, RecordBatch},
    compute::concat_batches,
    datatypes::{Int32Type, Int64Type},
};
use bytes::Bytes;
use gatescope_routing::{
    finding::{Check, Finding},
    join::{Capture, Joined, Policy, Segment, Status},
    rows::Rows,
    shape::{IdWidth, LayerSet, RowShape},
    span::{RequestKey, Role, Source},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{Arrival, ClosedRequest, Tables};

pub(super) const MINUTE: i64 = 60_000_000;

/// Rows whose every id is determined by position, layer, slot and seed.
pub(super) fn rows(start: u32, len: u32, shape: RowShape, width: IdWidth, seed: u32) -> Rows {
    let mut bytes = Vec::new();
    for position in start..start + len {
        for cell in 0..shape.ids() as u32 {
            let mixed = (position * 31 + cell * 7 + seed).wrapping_mul(2_654_435_761) >> 24;
            bytes.push(mixed as u8);
            if width == IdWidth::U16 {
                bytes.push((mixed % 2) as u8);
            }
        }
    }
    Rows::new(Bytes::from(bytes), shape, width).unwrap()
}

pub(super) fn source(role: Role, instance: &str) -> Source {
    Source { role, instance: instance.into(), attempt: 0 }
}

/// A request that `p0` prefilled and `d0` decoded.
pub(super) fn request(id: &str, prompt: u32, completion: u32, shape: RowShape, width: IdWidth) -> ClosedRequest {
    let len = prompt + completion - 1;
    let all = rows(0, len, shape, width, id.len() as u32 + u32::from(id.as_bytes()[0]));
    let segment = |role, instance, from: u32, to: u32| Segment {
        start: from,
        rows: all.slice(from as usize..to as usize),
        source: source(role, instance),
    };
    let segments = vec![segment(Role::Prefill, "p0", 0, prompt), segment(Role::Decode, "d0", prompt, len)];
    let captures = segments
        .iter()
        .map(|segment| Capture {
            source: segment.source.clone(),
            start: Some(segment.start),
            rows: segment.rows.len() as u32,
            payload_hash: u64::MAX - u64::from(segment.start),
            generation: 0,
            block: None,
        })
        .collect();
    let finding = Finding::new(Check::OneRoleOnly, "for the test").at(3, 2);
    ClosedRequest {
        key: RequestKey { run: "default".into(), request_id: id.into(), choice: 0 },
        model: Some("model".into()),
        started_at: Some(5 * MINUTE + 1),
        finished_at: Some(5 * MINUTE + 2),
        closed_at: 6 * MINUTE,
        layers: LayerSet::all(shape.layers()),
        width,
        arrivals: vec![Arrival { at: 7, seq: 1 }, Arrival { at: 8, seq: 2 }],
        joined: Joined {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(completion),
            shape: Some((shape, width)),
            segments,
            gaps: Vec::new(),
            prefix_omitted: 0,
            status: Status::Whole,
            policy: Policy::Prefill,
            prefill_instance: Some("p0".into()),
            decode_instance: Some("d0".into()),
            first_forward: Some(prompt - 1),
            overlap_rows: 1,
            mismatched_rows: 0,
            attempts: 1,
            generation: 0,
            live_layers: LayerSet::all(shape.layers()),
            findings: vec![finding],
            captures,
        },
        replaces: false,
    }
}

pub(super) fn small(id: &str) -> ClosedRequest {
    request(id, 5, 4, RowShape::new(3, 2).unwrap(), IdWidth::U8)
}

pub(super) fn commit(tables: &mut Tables, requests: &[ClosedRequest]) {
    let batch = tables.begin();
    let mut writer = batch.writer();
    requests.iter().for_each(|request| writer.add(request).unwrap());
    writer.finish().unwrap();
    tables.commit(batch).unwrap();
}

/// All rows of a table, in the order of its files.
pub(super) fn read(tables: &Tables, table: &str) -> Option<RecordBatch> {
    let log = tables.logs.get(table)?;
    let mut names: Vec<String> = log.files().map(|file| file.path.clone()).collect();
    names.sort_unstable();
    let batches: Vec<RecordBatch> =
        names.iter().flat_map(|name| read_file(&tables.root().join(table).join(name))).collect();
    let schema = batches.first()?.schema();
    Some(concat_batches(&schema, &batches).unwrap())
}

pub(super) fn read_file(path: &Path) -> Vec<RecordBatch> {
    let file = std::fs::File::open(path).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    reader.map(Result::unwrap).collect()
}

pub(super) fn ids_in(batch: &Option<RecordBatch>) -> Vec<String> {
    let Some(batch) = batch else { return Vec::new() };
    let mut ids: Vec<String> = strings(batch, "request_id");
    ids.sort_unstable();
    ids.dedup();
    ids
}

pub(super) fn strings(batch: &RecordBatch, column: &str) -> Vec<String> {
    batch.column_by_name(column).unwrap().as_string::<i32>().iter().map(|id| id.unwrap().to_owned()).collect()
}

pub(super) fn numbers(batch: &RecordBatch, column: &str) -> Vec<i32> {
    batch.column_by_name(column).unwrap().as_primitive::<Int32Type>().values().to_vec()
}

pub(super) fn total_load(tables: &Tables) -> i64 {
    read(tables, "expert_load")
        .map_or(0, |batch| batch.column_by_name("tokens").unwrap().as_primitive::<Int64Type>().values().iter().sum())
}
