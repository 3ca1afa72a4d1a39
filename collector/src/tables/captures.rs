//! The table `captures`: one row per span received.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, BinaryArray, Int64Array},
    datatypes::{DataType, Field, Schema, SchemaRef},
};
use gatescope_routing::{
    join::Capture,
    span::{BlockHash, RequestKey, Role, Source},
};

use super::{
    arrow_file::Columns,
    columns::{Cells, int_at, ints, texts, time, times},
    error::Result,
    request::Arrival,
};

/// A row of `captures`: a span that was received for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureRow {
    /// Who sent it.
    pub source: Source,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
    /// Where it was placed.
    pub start: Option<u32>,
    /// Rows in it.
    pub rows: u32,
    /// The KV block that it is, if it is one.
    pub block: Option<BlockHash>,
    /// XXH3 (64 bit) of its rows' bytes.
    pub payload_hash: u64,
    /// When it came, and as what.
    pub arrival: Arrival,
}

impl CaptureRow {
    pub(super) fn of(capture: &Capture, arrival: Arrival) -> Self {
        Self {
            source: capture.source.clone(),
            generation: capture.generation,
            start: capture.start,
            rows: capture.rows,
            block: capture.block.clone(),
            payload_hash: capture.payload_hash,
            arrival,
        }
    }

    /// The rows of these columns, each with its request.
    pub(super) fn read(cells: Cells<'_>) -> Result<Vec<(RequestKey, Self)>> {
        let keys = cells.keys()?;
        let (roles, instances, attempts) = (cells.text("role")?, cells.text("instance")?, cells.ints("attempt")?);
        let (generations, starts, rows) = (cells.ints("generation")?, cells.ints("start")?, cells.ints("rows")?);
        let blocks = cells.column::<BinaryArray>("block_hash")?;
        let (hashes, seqs) = (cells.column::<Int64Array>("payload_hash")?, cells.column::<Int64Array>("seq")?);
        let received = cells.times("received_at")?;
        keys.into_iter()
            .enumerate()
            .map(|(row, key)| {
                let role = roles.value(row).parse::<Role>().map_err(|error| cells.damaged(format!("{error}")))?;
                let attempt = attempts.value(row) as u32;
                let capture = Self {
                    source: Source { role, instance: instances.value(row).into(), attempt },
                    generation: generations.value(row) as u32,
                    start: int_at(starts, row),
                    rows: rows.value(row) as u32,
                    block: blocks.is_valid(row).then(|| BlockHash(blocks.value(row).into())),
                    payload_hash: hashes.value(row) as u64,
                    arrival: Arrival { at: received.value(row), seq: seqs.value(row) },
                };
                Ok((key, capture))
            })
            .collect()
    }
}

/// Rows of `captures` in the making.
#[derive(Default)]
pub(super) struct Captures {
    rows: Vec<(RequestKey, CaptureRow)>,
}

impl Captures {
    pub(super) fn push(&mut self, key: &RequestKey, row: CaptureRow) {
        self.rows.push((key.clone(), row));
    }
}

type Row = (RequestKey, CaptureRow);

impl Columns for Captures {
    const TABLE: &'static str = "captures";

    fn schema() -> SchemaRef {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let number = |name: &str| Field::new(name, DataType::Int32, false);
        Arc::new(Schema::new(vec![
            text("run"),
            text("request_id"),
            number("choice"),
            text("role"),
            text("instance"),
            number("attempt"),
            number("generation"),
            Field::new("start", DataType::Int32, true),
            number("rows"),
            Field::new("block_hash", DataType::Binary, true),
            Field::new("payload_hash", DataType::Int64, false),
            Field::new("received_at", time(), false),
            Field::new("seq", DataType::Int64, false),
        ]))
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn take(&mut self) -> Vec<ArrayRef> {
        let rows = std::mem::take(&mut self.rows);
        let text = |of: fn(&Row) -> Option<&str>| texts(rows.iter().map(of).collect());
        let number = |of: fn(&Row) -> Option<u32>| ints(rows.iter().map(of).collect());
        vec![
            text(|(key, _)| Some(&key.run)),
            text(|(key, _)| Some(&key.request_id)),
            number(|(key, _)| Some(key.choice)),
            text(|(_, row)| Some(row.source.role.name())),
            text(|(_, row)| Some(&row.source.instance)),
            number(|(_, row)| Some(row.source.attempt)),
            number(|(_, row)| Some(row.generation)),
            number(|(_, row)| row.start),
            number(|(_, row)| Some(row.rows)),
            Arc::new(rows.iter().map(|(_, row)| row.block.as_ref().map(|block| &*block.0)).collect::<BinaryArray>()),
            // The bits of the hash: Delta has no unsigned numbers.
            Arc::new(rows.iter().map(|(_, row)| row.payload_hash as i64).collect::<Int64Array>()),
            times(rows.iter().map(|(_, row)| Some(row.arrival.at)).collect()),
            Arc::new(rows.iter().map(|(_, row)| row.arrival.seq).collect::<Int64Array>()),
        ]
    }
}
