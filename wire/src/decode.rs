//! From a record batch to events.

use std::sync::Arc;

use arrow::array::RecordBatch;
use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, LayerSet, ModelShape, RequestKey, Role, RowShape, Rows, Source, Span, Start,
    WireType,
    join::{BlockReference, Lost},
    span::{BlockHash, Unknown},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Block, Event, Link, MAX_HASH_BYTES, MAX_NAME_BYTES, MAX_POSITIONS, ModelSeen, Request, RowError, Started, Told,
    WireError,
    columns::Columns,
    encode::{UNKNOWN_BYTES, WIRE_TYPES},
    error::shortened,
    event::Kind,
    schema::Column,
};

/// 31 December 9999, 23:59:59: later times have no four-digit year.
const LAST_TIME: i64 = 253_402_300_799_999_999;

/// What a message holds.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// Its events, in the message's order. Rows share the batch's memory.
    pub events: Vec<Event>,
    /// Rows that cannot be read, each for one reason.
    pub refused: Vec<RowError>,
    /// Rows of kinds that a later version has added.
    pub skipped: Vec<Skipped>,
}

/// A row of a kind that this build does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Index of the row in its message.
    pub row: usize,
    /// Its kind.
    pub kind: String,
}

/// Reads the events of a batch. A row that cannot be read is reported and loses no other.
///
/// # Errors
/// Where the batch as a whole is not one of this version: see [`WireError`].
pub fn decode(batch: &RecordBatch) -> Result<Decoded, WireError> {
    let columns = Columns::new(batch)?;
    let mut decoded = Decoded { events: Vec::with_capacity(columns.rows()), ..Decoded::default() };
    let mut reader = Reader { columns: &columns, last: [const { None }; Column::COUNT] };
    for row in 0..columns.rows() {
        match reader.event(row) {
            Ok(Some(event)) => decoded.events.push(event),
            Ok(None) => {
                let kind = shortened(columns.text(Column::Kind, row).unwrap_or_default());
                decoded.skipped.push(Skipped { row, kind });
            }
            Err(error) => decoded.refused.push(error),
        }
    }
    Ok(decoded)
}

struct Reader<'a> {
    columns: &'a Columns,
    /// The last value of each text column: neighbours mostly name the same run, instance and request.
    last: [Option<Arc<str>>; Column::COUNT],
}

impl Reader<'_> {
    fn event(&mut self, row: usize) -> Result<Option<Event>, RowError> {
        let Some(name) = self.columns.text(Column::Kind, row) else {
            return Err(self.absent(row, Column::Kind, "a kind, such as span"));
        };
        let Some(kind) = Kind::named(name) else { return Ok(None) };
        let at = self.columns.time(Column::At, row);
        let Some(at) = at.filter(|at| (0..=LAST_TIME).contains(at)) else {
            let found = at.map_or("null".to_owned(), |at| format!("{at} us"));
            return Err(self.refuse(row, Column::At, found, "a time from 1970 to 9999"));
        };
        let run = self.name(row, Column::Run)?;
        if kind == Kind::Shape {
            return self.model(row, at, run).map(|model| Some(Event::Model(model)));
        }
        let key = RequestKey {
            run,
            request_id: self.name(row, Column::RequestId)?,
            choice: self.tokens(row, Column::Choice)?.unwrap_or(0),
        };
        let source = self.source(row)?;
        let told = match kind {
            Kind::Span => Told::Span(self.span(row, source)?),
            Kind::Block => Told::Block(self.block(row, source)?),
            Kind::Start => Told::Start(self.started(row, source)?),
            Kind::Finish => Told::Finish(Finish {
                source,
                prompt_tokens: self.tokens(row, Column::PromptTokens)?,
                completion_tokens: self.tokens(row, Column::CompletionTokens)?,
                uniform_prompt: self.columns.boolean(Column::UniformPrompt, row),
            }),
            Kind::Preempt => Told::Preempt(source),
            Kind::Link => match self.kv_link(row)? {
                Some(prefill) => Told::Link(Link { source, prefill }),
                None => return Err(self.absent(row, Column::EngineId, "the prefill's engine id, in a link")),
            },
            Kind::Lost => {
                let (start, positions) = self.positions(row)?;
                Told::Lost(Lost { source, start, positions })
            }
            Kind::Shape => return Ok(None),
        };
        Ok(Some(Event::Request(Request { key, at, told })))
    }

    fn source(&mut self, row: usize) -> Result<Source, RowError> {
        let role = match self.columns.text(Column::Role, row) {
            None => return Err(self.absent(row, Column::Role, "prefill, decode, colocated or trainer")),
            Some(role) => role
                .parse::<Role>()
                .map_err(|_| self.refuse(row, Column::Role, quoted(role), "prefill, decode, colocated or trainer"))?,
        };
        let instance = self.name(row, Column::Instance)?;
        Ok(Source { role, instance, attempt: self.tokens(row, Column::Attempt)?.unwrap_or(0) })
    }

    fn span(&mut self, row: usize, source: Source) -> Result<Span, RowError> {
        let rows = self.rows(row)?;
        let count = rows.len() as u32;
        let start = self.columns.u32(Column::Start, row);
        let anchor = match (start, self.tokens(row, Column::CompletionTokens)?) {
            (Some(start), None) => Anchor::Start(self.ends_in_reach(row, start, count)?),
            (None, Some(completion_tokens)) => Anchor::End { completion_tokens },
            (None, None) => return Err(self.absent(row, Column::Start, "the first row's position")),
            (Some(_), Some(_)) => {
                let found = "there beside start".to_owned();
                return Err(self.refuse(row, Column::CompletionTokens, found, "null in a span that says its start"));
            }
        };
        let wire_type = match self.columns.text(Column::WireType, row) {
            None => WireType::of(rows.width()),
            Some(name) => WIRE_TYPES
                .into_iter()
                .find(|wire_type| wire_type.name() == name)
                .ok_or_else(|| self.refuse(row, Column::WireType, quoted(name), "a numpy integer type, or list"))?,
        };
        if let Some(said) = self.columns.u64(Column::PayloadHash, row) {
            let is = xxh3_64(rows.bytes());
            if said != is {
                return Err(self.refuse(
                    row,
                    Column::PayloadHash,
                    format!("{said}"),
                    format!("{is}, the payload's XXH3"),
                ));
            }
        }
        Ok(Span {
            source,
            anchor,
            wire_type,
            unknown: self.unknown(row, &rows)?,
            generation: self.tokens(row, Column::Generation)?.unwrap_or(0),
            block: self.block_hash(row)?,
            rows,
        })
    }

    fn rows(&mut self, row: usize) -> Result<Rows, RowError> {
        let shape = self.row_shape(row)?;
        let width = match self.columns.text(Column::Width, row) {
            Some("u8") => IdWidth::U8,
            Some("u16") => IdWidth::U16,
            Some(other) => return Err(self.refuse(row, Column::Width, quoted(other), "u8 or u16")),
            None => return Err(self.absent(row, Column::Width, "u8 or u16")),
        };
        let count = self.number(row, Column::Rows, "the number of rows")?;
        let Some(payload) = self.columns.bytes(Column::Payload, row) else {
            return Err(self.absent(row, Column::Payload, "rows x layers x top_k ids"));
        };
        let expected = u64::from(count) * shape.row_bytes(width) as u64;
        if count == 0 || payload.len() as u64 != expected {
            let found = format!("{} bytes for {count} rows", payload.len());
            let expected = format!("{expected} bytes ({shape}, {}), of at least one row", width.name());
            return Err(self.refuse(row, Column::Payload, found, expected));
        }
        Rows::new(payload, shape, width)
            .map_err(|error| self.refuse(row, Column::Payload, error.to_string(), "whole rows"))
    }

    fn row_shape(&self, row: usize) -> Result<RowShape, RowError> {
        let layers = self.number(row, Column::Layers, "the number of layers in a row")?;
        let top_k = self.number(row, Column::TopK, "the number of slots in a layer")?;
        RowShape::new(u64::from(layers), u64::from(top_k))
            .map_err(|error| self.refuse(row, Column::Layers, error.to_string(), "a shape that can be"))
    }

    fn unknown(&self, row: usize, rows: &Rows) -> Result<Vec<Unknown>, RowError> {
        let Some(bytes) = self.columns.bytes(Column::Unknown, row) else { return Ok(Vec::new()) };
        let expected = "ascending ranges apart from each other: first row and end (u32), layer (u16), little-endian";
        if !bytes.len().is_multiple_of(UNKNOWN_BYTES) {
            return Err(self.refuse(row, Column::Unknown, format!("{} bytes", bytes.len()), expected));
        }
        let mut unknown: Vec<Unknown> = Vec::with_capacity(bytes.len() / UNKNOWN_BYTES);
        for range in bytes.chunks_exact(UNKNOWN_BYTES) {
            let first = u32::from_le_bytes([range[0], range[1], range[2], range[3]]);
            let end = u32::from_le_bytes([range[4], range[5], range[6], range[7]]);
            let layer = u16::from_le_bytes([range[8], range[9]]);
            let after_last = unknown.last().is_none_or(|last| first >= last.rows.end);
            let inside = first < end && end as usize <= rows.len() && usize::from(layer) < rows.shape().layers();
            if !(after_last && inside) {
                return Err(self.refuse(row, Column::Unknown, format!("{first}..{end} in layer {layer}"), expected));
            }
            unknown.push(Unknown { rows: first..end, layer });
        }
        Ok(unknown)
    }

    fn block(&mut self, row: usize, source: Source) -> Result<Block, RowError> {
        let (start, rows) = self.positions(row)?;
        let Some(hash) = self.block_hash(row)? else {
            return Err(self.absent(row, Column::BlockHash, "the block's hash"));
        };
        let generation = self.tokens(row, Column::Generation)?.unwrap_or(0);
        Ok(Block { reference: BlockReference { source, start, hash, generation }, rows })
    }

    fn started(&mut self, row: usize, source: Source) -> Result<Started, RowError> {
        Ok(Started {
            start: Start {
                source,
                prompt_tokens: self.tokens(row, Column::PromptTokens)?,
                first_forward: self.tokens(row, Column::FirstForward)?,
                prompt_start: self.tokens(row, Column::PromptStart)?,
                parent: self.optional_name(row, Column::Parent)?,
            },
            name: self.kv_link(row)?,
            model: self.optional_name(row, Column::Model)?,
        })
    }

    fn model(&mut self, row: usize, at: i64, run: Arc<str>) -> Result<ModelSeen, RowError> {
        let shape = self.row_shape(row)?;
        let experts = self.number(row, Column::NumExperts, "the number of experts in a MoE layer")?;
        let Some(moe_layers) = self.layers(row, Column::MoeLayers, shape)? else {
            return Err(self.absent(row, Column::MoeLayers, "a bit for each layer that has a gate"));
        };
        let repeating = self.layers(row, Column::RepeatingLayers, shape)?.unwrap_or_default();
        let shape = ModelShape::new(shape, u64::from(experts), moe_layers)
            .map_err(|error| self.refuse(row, Column::NumExperts, error.to_string(), "a model that can be"))?;
        Ok(ModelSeen {
            run,
            instance: self.name(row, Column::Instance)?,
            at,
            model: self.name(row, Column::Model)?,
            shape: shape.with_repeating_layers(repeating),
        })
    }

    fn layers(&self, row: usize, column: Column, shape: RowShape) -> Result<Option<LayerSet>, RowError> {
        let Some(bytes) = self.columns.bytes(column, row) else { return Ok(None) };
        let bits: Vec<usize> =
            (0..bytes.len().min(1 << 10) * 8).filter(|bit| bytes[bit / 8] & (1 << (bit % 8)) != 0).collect();
        if bytes.len() != shape.layers().div_ceil(8) || bits.last().is_some_and(|&last| last >= shape.layers()) {
            let expected = format!("one bit for each of {} layers, the lowest first", shape.layers());
            return Err(self.refuse(row, column, format!("{} bytes", bytes.len()), expected));
        }
        Ok(Some(bits.into_iter().collect()))
    }

    fn kv_link(&mut self, row: usize) -> Result<Option<KvLink>, RowError> {
        let engine_id = self.optional_name(row, Column::EngineId)?;
        let request_id = self.optional_name(row, Column::InnerRequestId)?;
        match (engine_id, request_id) {
            (None, None) => Ok(None),
            (Some(engine_id), Some(request_id)) => Ok(Some(KvLink { engine_id, request_id })),
            (None, Some(_)) => Err(self.absent(row, Column::EngineId, "the engine id beside inner_request_id")),
            (Some(_), None) => Err(self.absent(row, Column::InnerRequestId, "the request's id inside that engine")),
        }
    }

    /// `start` and `rows` of an event that names positions without their rows.
    fn positions(&self, row: usize) -> Result<(u32, u32), RowError> {
        let start = self.number(row, Column::Start, "the first position")?;
        let rows = self.number(row, Column::Rows, "the number of positions")?;
        if rows == 0 {
            return Err(self.refuse(row, Column::Rows, "0".into(), "at least one position"));
        }
        Ok((self.ends_in_reach(row, start, rows)?, rows))
    }

    fn ends_in_reach(&self, row: usize, start: u32, rows: u32) -> Result<u32, RowError> {
        if u64::from(start) + u64::from(rows) > u64::from(MAX_POSITIONS) {
            let found = format!("{start}, with {rows} rows");
            return Err(self.refuse(row, Column::Start, found, format!("an end of at most {MAX_POSITIONS}")));
        }
        Ok(start)
    }

    fn block_hash(&self, row: usize) -> Result<Option<BlockHash>, RowError> {
        match self.columns.bytes(Column::BlockHash, row) {
            None => Ok(None),
            Some(hash) if (1..=MAX_HASH_BYTES).contains(&hash.len()) => Ok(Some(BlockHash(Arc::from(&hash[..])))),
            Some(hash) => {
                let found = format!("{} bytes", hash.len());
                Err(self.refuse(row, Column::BlockHash, found, format!("1 to {MAX_HASH_BYTES} bytes")))
            }
        }
    }

    fn number(&self, row: usize, column: Column, expected: &str) -> Result<u32, RowError> {
        self.columns.u32(column, row).ok_or_else(|| self.absent(row, column, expected))
    }

    /// A count or index that a table can hold.
    fn tokens(&self, row: usize, column: Column) -> Result<Option<u32>, RowError> {
        match self.columns.u32(column, row) {
            Some(value) if value > MAX_POSITIONS => {
                Err(self.refuse(row, column, value.to_string(), format!("at most {MAX_POSITIONS}")))
            }
            value => Ok(value),
        }
    }

    fn name(&mut self, row: usize, column: Column) -> Result<Arc<str>, RowError> {
        self.optional_name(row, column)?.ok_or_else(|| self.absent(row, column, "a name"))
    }

    fn optional_name(&mut self, row: usize, column: Column) -> Result<Option<Arc<str>>, RowError> {
        let Some(name) = self.columns.text(column, row) else { return Ok(None) };
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
            let found = format!("{} bytes", name.len());
            return Err(self.refuse(row, column, found, format!("1 to {MAX_NAME_BYTES} bytes")));
        }
        let last = &mut self.last[column as usize];
        match last {
            Some(last) if **last == *name => Ok(Some(last.clone())),
            _ => Ok(Some(last.insert(Arc::from(name)).clone())),
        }
    }

    fn absent(&self, row: usize, column: Column, expected: &str) -> RowError {
        self.refuse(row, column, "null".into(), expected)
    }

    fn refuse(&self, row: usize, column: Column, found: String, expected: impl Into<String>) -> RowError {
        let request_id = self.columns.text(Column::RequestId, row).map(|id| Arc::from(shortened(id)));
        RowError { row, request_id, column: column.name(), found, expected: expected.into() }
    }
}

fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}
