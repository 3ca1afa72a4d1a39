//! Reading requests back, for those to which a later import adds something.

use std::{collections::HashMap, path::PathBuf};

use arrow::array::{Array, FixedSizeBinaryArray, RecordBatch};
use bytes::Bytes;
use gatescope_routing::{finding::Finding, join::Segment, rows::Rows, span::RequestKey};

use super::{
    Tables,
    arrow_file::Columns,
    captures::{CaptureRow, Captures},
    columns::Cells,
    error::{Result, TablesError},
    lookup::Wanted,
    mismatches::Mismatches,
    requests::{RequestRow, Requests},
    routing::{KEY_COLUMNS, RoutingTable},
};

/// A request as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its row in `requests`.
    pub request: RequestRow,
    /// The spans that were received for it.
    pub captures: Vec<CaptureRow>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl Tables {
    /// What is stored of these requests; those that are not stored are not in the answer. Ask for many at once: the
    /// cost is that of looking into each file that may have one of them.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn stored(&self, keys: &[RequestKey]) -> Result<HashMap<RequestKey, Stored>> {
        let wanted = Wanted::new(keys);
        let mut stored = HashMap::new();
        for (path, batch) in self.rows_of(Requests::TABLE, &wanted)? {
            for request in RequestRow::read(Cells { path: &path, batch: &batch })? {
                stored.insert(request.key.clone(), Stored { request, captures: Vec::new(), findings: Vec::new() });
            }
        }
        if stored.is_empty() {
            return Ok(stored);
        }
        let found: Vec<RequestKey> = stored.keys().cloned().collect();
        for (path, batch) in self.rows_of(Captures::TABLE, &Wanted::new(&found))? {
            for (key, capture) in CaptureRow::read(Cells { path: &path, batch: &batch })? {
                if let Some(stored) = stored.get_mut(&key) {
                    stored.captures.push(capture);
                }
            }
        }
        for (path, batch) in self.rows_of(Mismatches::TABLE, &Wanted::new(&found))? {
            for (key, finding) in Mismatches::read(Cells { path: &path, batch: &batch })? {
                if let Some(stored) = stored.get_mut(&key) {
                    stored.findings.push(finding);
                }
            }
        }
        Ok(stored)
    }

    /// The stored rows of a request, in the segments in which they were accepted. Layers that are not stored read 0.
    ///
    /// # Errors
    /// Where a file cannot be read, or rows that `requests` speaks of are not there.
    pub fn stored_rows(&self, request: &RequestRow) -> Result<Vec<Segment>> {
        let Some(table) = &request.routing_table else { return Ok(Vec::new()) };
        let mut rows = StoredRows::default();
        for (path, batch) in self.rows_of(table, &Wanted::new([&request.key]))? {
            rows.take(Cells { path: &path, batch: &batch })?;
        }
        rows.into_segments(request).ok_or_else(|| TablesError::Damaged {
            path: self.root.join(&**table),
            detail: format!("request {}: expected {} rows of the positions in its segments", request.key, request.rows),
        })
    }

    /// The rows of a table that are about these requests, by file.
    pub(super) fn rows_of(&self, table: &str, wanted: &Wanted<'_>) -> Result<Vec<(PathBuf, RecordBatch)>> {
        let Some(log) = self.logs.get(table) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for file in log.files().filter(|file| wanted.may_be_in(file)) {
            let path = log.folder().join(&file.path);
            let rows = self.indexes.of(&path)?.rows(&path, wanted)?;
            found.extend(rows.into_iter().map(|batch| (path.clone(), batch)));
        }
        Ok(found)
    }
}

/// Stored rows of one request, in the order in which files gave them.
#[derive(Default)]
struct StoredRows {
    table: Option<RoutingTable>,
    positions: Vec<u32>,
    /// `[positions, layers, top_k]`
    bytes: Vec<u8>,
}

impl StoredRows {
    fn take(&mut self, cells: Cells<'_>) -> Result<()> {
        let table = RoutingTable::from_schema(&cells.batch.schema())
            .ok_or_else(|| cells.damaged("expected the columns of a routing table".to_owned()))?;
        let (row_bytes, slots) = (table.shape().row_bytes(table.width()), table.slot_bytes());
        let first = self.bytes.len();
        self.positions.extend(cells.ints("position")?.values().iter().map(|&position| position as u32));
        self.bytes.resize(first + cells.batch.num_rows() * row_bytes, 0);
        for (index, &layer) in table.layers().iter().enumerate() {
            let column = cells.batch.column(KEY_COLUMNS + index).as_any().downcast_ref::<FixedSizeBinaryArray>();
            let column = column.ok_or_else(|| cells.damaged(format!("layer {layer}: expected fixed-size bytes")))?;
            for (row, to) in self.bytes[first..].chunks_exact_mut(row_bytes).enumerate() {
                to[layer * slots..][..slots].copy_from_slice(column.value(row));
            }
        }
        self.table = Some(table);
        Ok(())
    }

    fn into_segments(self, request: &RequestRow) -> Option<Vec<Segment>> {
        let Some(table) = self.table else { return request.segments.is_empty().then(Vec::new) };
        if !self.positions.is_sorted() || self.positions.len() != request.rows as usize {
            return None;
        }
        let all = Rows::new(Bytes::from(self.bytes), table.shape(), table.width()).ok()?;
        let segments = request.segments.iter().map(|segment| {
            let first = self.positions.binary_search(&segment.positions.start).ok()?;
            let rows = first..first + segment.positions.len();
            let last = self.positions.get(rows.end.checked_sub(1)?)?;
            (last + 1 == segment.positions.end).then(|| Segment {
                start: segment.positions.start,
                rows: all.slice(rows),
                source: segment.source.clone(),
            })
        });
        segments.collect()
    }
}
