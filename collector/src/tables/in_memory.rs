//! Requests that are not in the tables, as rows of the tables' columns.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, RecordBatchOptions, StringArray},
    buffer::Buffer,
    datatypes::SchemaRef,
};
use gatescope_routing::{join::Segment, rows::Rows};

use super::{
    arrow_file::Columns,
    batch::{phases, stored_segments},
    captures::{CaptureRow, Captures},
    columns::{int, ints, texts},
    error::{Context, Result},
    expert_load::{ExpertLoad, Load, LoadKey},
    gather::LayerSource,
    mismatches::Mismatches,
    request::ClosedRequest,
    requests::{RequestRow, Requests},
    routing::{KEY_COLUMNS, Phase, RoutingTable},
};

/// Rows of a batch.
const ROWS_PER_BATCH: usize = 8_192;
/// The status of a request that is not closed.
const OPEN: &str = "open";

/// Requests as rows of the tables' columns.
#[derive(Debug)]
pub struct InMemory {
    closed: Vec<Arc<ClosedRequest>>,
    /// As far as they came.
    open: Vec<Arc<ClosedRequest>>,
}

impl InMemory {
    /// Closed requests, and open ones as far as they came.
    pub fn new(closed: Vec<Arc<ClosedRequest>>, open: Vec<Arc<ClosedRequest>>) -> Self {
        Self { closed, open }
    }

    /// How many are closed, how many open.
    pub fn requests(&self) -> (usize, usize) {
        (self.closed.len(), self.open.len())
    }

    /// The routing tables that their rows belong to.
    pub fn routing_tables(&self) -> Vec<RoutingTable> {
        let mut tables = BTreeMap::new();
        for request in self.all() {
            if let Some(table) = table_of(request) {
                tables.insert(table.name(), table);
            }
        }
        tables.into_values().collect()
    }

    /// The columns of a table; `None` for a routing table that none of them has rows for.
    pub fn schema(&self, table: &str) -> Option<SchemaRef> {
        match table {
            Requests::TABLE => Some(Requests::schema()),
            Captures::TABLE => Some(Captures::schema()),
            Mismatches::TABLE => Some(Mismatches::schema()),
            ExpertLoad::TABLE => Some(ExpertLoad::schema()),
            _ => self.routing_tables().iter().find(|known| known.name() == table).map(RoutingTable::schema),
        }
    }

    /// Their rows of a table, with `projection` only these of its columns.
    ///
    /// # Errors
    /// Where a request's rows contradict its shape.
    pub fn rows(&self, table: &str, projection: Option<&[usize]>) -> Result<Vec<RecordBatch>> {
        let batches = match table {
            Requests::TABLE => self.request_rows()?,
            Captures::TABLE => {
                let mut rows = Captures::default();
                for request in self.all() {
                    for (capture, &arrival) in request.joined.captures.iter().zip(&request.arrivals) {
                        rows.push(&request.key, CaptureRow::of(capture, arrival));
                    }
                }
                batch_of(rows)?
            }
            Mismatches::TABLE => {
                let mut rows = Mismatches::default();
                for request in self.all() {
                    for finding in &request.joined.findings {
                        rows.push(request.closed_at, &request.key, finding);
                    }
                }
                batch_of(rows)?
            }
            ExpertLoad::TABLE => batch_of(self.load()?.into_rows())?,
            _ => return self.routing_rows(table, projection),
        };
        let Some(projection) = projection else { return Ok(batches) };
        batches.iter().map(|batch| batch.project(projection).context(table.as_ref(), "project")).collect()
    }

    fn all(&self) -> impl Iterator<Item = &ClosedRequest> {
        self.closed.iter().chain(&self.open).map(|request| &**request)
    }

    fn request_rows(&self) -> Result<Vec<RecordBatch>> {
        let rows_of = |requests: &[Arc<ClosedRequest>]| {
            let mut rows = Requests::default();
            requests.iter().for_each(|request| {
                let table = table_of(request).map(|table| table.name().into());
                rows.push(RequestRow::of(request, table));
            });
            batch_of(rows)
        };
        let mut batches = rows_of(&self.closed)?;
        for open in rows_of(&self.open)? {
            let schema = open.schema();
            let mut columns = open.columns().to_vec();
            if let Ok(status) = schema.index_of("status") {
                columns[status] = Arc::new(StringArray::from_iter_values(std::iter::repeat_n(OPEN, open.num_rows())));
            }
            batches.push(RecordBatch::try_new(schema, columns).context(Requests::TABLE.as_ref(), "build rows of")?);
        }
        Ok(batches)
    }

    fn load(&self) -> Result<Load> {
        let mut load = Load::default();
        let mut ids = Vec::new();
        for request in self.all() {
            for (start, rows, segment) in stored_segments(request)? {
                for (phase, part) in phases(request, start, &rows) {
                    let counts = load.of(LoadKey::of(request, segment, phase));
                    let slots = rows.shape().top_k() * rows.width().bytes();
                    ids.resize(part.len() * slots, 0);
                    for layer in request.layers.iter().filter(|&layer| layer < rows.shape().layers()) {
                        rows.copy_layer(layer, part.start, &mut ids);
                        counts.count(layer, &ids, rows.width(), 1);
                    }
                }
            }
        }
        Ok(load)
    }

    fn routing_rows(&self, name: &str, projection: Option<&[usize]>) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        let mut pieces: Vec<Piece<'_>> = Vec::new();
        let mut table = None;
        let mut rows = 0;
        for request in self.all() {
            let Some(of) = table_of(request).filter(|of| of.name() == name) else { continue };
            let of: &RoutingTable = table.get_or_insert(of);
            for (start, all, segment) in stored_segments(request)? {
                for (phase, part) in phases(request, start, &all) {
                    rows += part.len();
                    let first = start + part.start as u32;
                    pieces.push(Piece { request, segment, phase, first, rows: all.slice(part) });
                }
            }
            if rows >= ROWS_PER_BATCH {
                batches.push(routing_batch(of, &std::mem::take(&mut pieces), rows, projection)?);
                rows = 0;
            }
        }
        if let Some(table) = table.filter(|_| rows > 0) {
            batches.push(routing_batch(&table, &pieces, rows, projection)?);
        }
        Ok(batches)
    }
}

fn table_of(request: &ClosedRequest) -> Option<RoutingTable> {
    let (shape, _) = request.joined.shape?;
    let any = request.joined.segments.iter().any(|segment| !segment.rows.is_empty());
    any.then(|| RoutingTable::new(shape, request.width, &request.layers))
}

fn batch_of<C: Columns>(mut rows: C) -> Result<Vec<RecordBatch>> {
    if rows.rows() == 0 {
        return Ok(Vec::new());
    }
    RecordBatch::try_new(C::schema(), rows.take()).map(|batch| vec![batch]).context(C::TABLE.as_ref(), "build rows of")
}

/// Rows of adjacent positions of one phase and source.
struct Piece<'a> {
    request: &'a ClosedRequest,
    segment: &'a Segment,
    phase: Phase,
    first: u32,
    rows: Rows,
}

fn routing_batch(
    table: &RoutingTable,
    pieces: &[Piece<'_>],
    rows: usize,
    projection: Option<&[usize]>,
) -> Result<RecordBatch> {
    let name = table.name();
    let text = |of: for<'p> fn(&'p Piece<'_>) -> &'p str| -> ArrayRef {
        texts(pieces.iter().flat_map(|piece| std::iter::repeat_n(Some(of(piece)), piece.rows.len())).collect())
    };
    let schema = table.schema();
    let all: Vec<usize>;
    let wanted = match projection {
        Some(wanted) => wanted,
        None => {
            all = (0..schema.fields().len()).collect();
            &all
        }
    };
    let column = |index: usize| -> Result<ArrayRef> {
        Ok(match index {
            0 => text(|piece| &piece.request.key.run),
            1 => text(|piece| &piece.request.key.request_id),
            2 => {
                let choice = |piece: &Piece<'_>| std::iter::repeat_n(Some(piece.request.key.choice), piece.rows.len());
                ints(pieces.iter().flat_map(choice).collect())
            }
            3 => {
                let positions = |piece: &Piece<'_>| (piece.first..).take(piece.rows.len()).map(Some);
                ints(pieces.iter().flat_map(positions).collect())
            }
            4 => text(|piece| piece.phase.name()),
            5 => text(|piece| piece.segment.source.role.name()),
            6 => text(|piece| &piece.segment.source.instance),
            _ => {
                let layer = table.layers().get(index - KEY_COLUMNS).copied().unwrap_or_default();
                let mut ids = vec![0; rows * table.slot_bytes()];
                let mut to = ids.as_mut_slice();
                for piece in pieces {
                    let (here, rest) = to.split_at_mut(piece.rows.len() * table.slot_bytes());
                    piece.rows.copy_layer(layer, 0, here);
                    to = rest;
                }
                let ids = FixedSizeBinaryArray::try_new(int(table.slot_bytes() as u32), Buffer::from_vec(ids), None);
                Arc::new(ids.context(name.as_ref(), "build rows of")?) as ArrayRef
            }
        })
    };
    let columns = wanted.iter().map(|&index| column(index)).collect::<Result<Vec<_>>>()?;
    let schema = Arc::new(schema.project(wanted).context(name.as_ref(), "project")?);
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options).context(name.as_ref(), "build rows of")
}
