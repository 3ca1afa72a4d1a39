//! From events to a record batch.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BinaryBuilder, BooleanBuilder, LargeBinaryBuilder, RecordBatch, StringBuilder,
        TimestampMicrosecondBuilder, UInt32Builder, UInt64Builder,
    },
    datatypes::DataType,
};
use gatescope_routing::{
    Anchor, KvLink, LayerSet, Source, Span, WireType, join::BlockReference, shape::RowShape, span::Unknown,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Event, MAX_EVENTS, MAX_MESSAGE_BYTES, ModelSeen, Started, Told, WireError,
    batcher::{MESSAGE_BYTES, wire_bytes},
    event::Kind,
    schema::{Column, Form, schema},
};

/// Bytes of one range in the column `unknown`.
pub(crate) const UNKNOWN_BYTES: usize = 10;

/// The types that the column `wire_type` names.
pub(crate) const WIRE_TYPES: [WireType; 9] = [
    WireType::U8,
    WireType::I8,
    WireType::U16,
    WireType::I16,
    WireType::U32,
    WireType::I32,
    WireType::U64,
    WireType::I64,
    WireType::Json,
];

/// Lays events out as one record batch, in their order. Each row's ids are copied once.
///
/// # Errors
/// Where they are more than one message holds: see [`Batcher`](crate::Batcher).
pub fn encode(events: &[Event]) -> Result<RecordBatch, WireError> {
    if events.len() > MAX_EVENTS {
        return Err(WireError::TooManyEvents(events.len()));
    }
    let bytes = MESSAGE_BYTES + events.iter().map(wire_bytes).sum::<usize>();
    if bytes > MAX_MESSAGE_BYTES {
        return Err(WireError::TooLarge(bytes));
    }
    let payload = events.iter().map(payload_bytes).sum();
    let mut builder = Builder::new(events.len(), payload);
    for event in events {
        builder.push(event);
        builder.end_row();
    }
    builder.finish()
}

fn payload_bytes(event: &Event) -> usize {
    match event {
        Event::Request(request) => match &request.told {
            Told::Span(span) => span.rows.bytes().len(),
            _ => 0,
        },
        Event::Model(_) => 0,
    }
}

enum ColumnBuilder {
    Text(StringBuilder),
    U32(UInt32Builder),
    U64(UInt64Builder),
    Time(TimestampMicrosecondBuilder),
    Boolean(BooleanBuilder),
    Binary(BinaryBuilder),
    LargeBinary(LargeBinaryBuilder),
}

struct Builder {
    columns: Vec<ColumnBuilder>,
    rows: usize,
}

impl Builder {
    fn new(rows: usize, payload: usize) -> Self {
        let columns =
            Column::ALL
                .iter()
                .map(|&column| match column.form() {
                    Form::Text => ColumnBuilder::Text(StringBuilder::with_capacity(rows, rows * 16)),
                    Form::U32 => ColumnBuilder::U32(UInt32Builder::with_capacity(rows)),
                    Form::U64 => ColumnBuilder::U64(UInt64Builder::with_capacity(rows)),
                    Form::Time => ColumnBuilder::Time(TimestampMicrosecondBuilder::with_capacity(rows).with_data_type(
                        DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, Some("UTC".into())),
                    )),
                    Form::Boolean => ColumnBuilder::Boolean(BooleanBuilder::with_capacity(rows)),
                    Form::Binary => ColumnBuilder::Binary(BinaryBuilder::with_capacity(rows, 0)),
                    Form::LargeBinary => {
                        let bytes = if column == Column::Payload { payload } else { 0 };
                        ColumnBuilder::LargeBinary(LargeBinaryBuilder::with_capacity(rows, bytes))
                    }
                })
                .collect();
        Self { columns, rows: 0 }
    }

    fn push(&mut self, event: &Event) {
        self.text(Column::Kind, Kind::of(event).name());
        match event {
            Event::Model(model) => self.model(model),
            Event::Request(request) => {
                self.time(Column::At, request.at);
                self.text(Column::Run, &request.key.run);
                self.text(Column::RequestId, &request.key.request_id);
                self.u32(Column::Choice, request.key.choice);
                self.source(request.told.source());
                match &request.told {
                    Told::Span(span) => self.span(span),
                    Told::Block(block) => {
                        let BlockReference { start, hash, generation, .. } = &block.reference;
                        self.u32(Column::Generation, *generation);
                        self.u32(Column::Start, *start);
                        self.u32(Column::Rows, block.rows);
                        self.bytes(Column::BlockHash, &hash.0);
                    }
                    Told::Start(started) => self.started(started),
                    Told::Finish(finish) => {
                        self.u32(Column::PromptTokens, finish.prompt_tokens);
                        self.u32(Column::CompletionTokens, finish.completion_tokens);
                        self.boolean(Column::UniformPrompt, finish.uniform_prompt);
                    }
                    Told::Preempt(_) => {}
                    Told::Link(link) => self.kv_link(&link.prefill),
                    Told::Lost(lost) => {
                        self.u32(Column::Start, lost.start);
                        self.u32(Column::Rows, lost.positions);
                    }
                }
            }
        }
    }

    fn source(&mut self, source: &Source) {
        self.text(Column::Role, source.role.name());
        self.text(Column::Instance, &source.instance);
        self.u32(Column::Attempt, source.attempt);
    }

    fn span(&mut self, span: &Span) {
        self.u32(Column::Generation, span.generation);
        match span.anchor {
            Anchor::Start(start) => self.u32(Column::Start, start),
            Anchor::End { completion_tokens } => self.u32(Column::CompletionTokens, completion_tokens),
        }
        self.u32(Column::Rows, span.rows.len() as u32);
        self.row_shape(span.rows.shape());
        self.text(Column::Width, span.rows.width().name());
        self.text(Column::WireType, span.wire_type.name());
        self.bytes(Column::Payload, span.rows.bytes());
        self.u64(Column::PayloadHash, xxh3_64(span.rows.bytes()));
        if !span.unknown.is_empty() {
            self.bytes(Column::Unknown, &packed_unknown(&span.unknown));
        }
        if let Some(hash) = &span.block {
            self.bytes(Column::BlockHash, &hash.0);
        }
    }

    fn started(&mut self, started: &Started) {
        let start = &started.start;
        self.u32(Column::PromptTokens, start.prompt_tokens);
        self.u32(Column::FirstForward, start.first_forward);
        self.u32(Column::PromptStart, start.prompt_start);
        if let Some(parent) = &start.parent {
            self.text(Column::Parent, parent);
        }
        if let Some(name) = &started.name {
            self.kv_link(name);
        }
        if let Some(model) = &started.model {
            self.text(Column::Model, model);
        }
    }

    fn model(&mut self, model: &ModelSeen) {
        self.time(Column::At, model.at);
        self.text(Column::Run, &model.run);
        self.text(Column::Instance, &model.instance);
        self.text(Column::Model, &model.model);
        self.row_shape(model.shape.row());
        self.u32(Column::NumExperts, model.shape.num_experts());
        let row = model.shape.row();
        self.bytes(Column::MoeLayers, &bitmap(model.shape.moe_layers(), row));
        if !model.shape.repeating_layers().is_empty() {
            self.bytes(Column::RepeatingLayers, &bitmap(model.shape.repeating_layers(), row));
        }
    }

    fn row_shape(&mut self, shape: RowShape) {
        self.u32(Column::Layers, shape.layers() as u32);
        self.u32(Column::TopK, shape.top_k() as u32);
    }

    fn kv_link(&mut self, link: &KvLink) {
        self.text(Column::EngineId, &link.engine_id);
        self.text(Column::InnerRequestId, &link.request_id);
    }

    // A value goes into a column of its form; the forms are fixed in the table of columns, and the test that reads back
    // every field would miss one that fell out here.
    fn text(&mut self, column: Column, value: &str) {
        if let ColumnBuilder::Text(builder) = &mut self.columns[column as usize] {
            builder.append_value(value);
        }
    }

    fn u32(&mut self, column: Column, value: impl Into<Option<u32>>) {
        if let ColumnBuilder::U32(builder) = &mut self.columns[column as usize] {
            builder.append_option(value.into());
        }
    }

    fn u64(&mut self, column: Column, value: u64) {
        if let ColumnBuilder::U64(builder) = &mut self.columns[column as usize] {
            builder.append_value(value);
        }
    }

    fn time(&mut self, column: Column, value: i64) {
        if let ColumnBuilder::Time(builder) = &mut self.columns[column as usize] {
            builder.append_value(value);
        }
    }

    fn boolean(&mut self, column: Column, value: Option<bool>) {
        if let ColumnBuilder::Boolean(builder) = &mut self.columns[column as usize] {
            builder.append_option(value);
        }
    }

    fn bytes(&mut self, column: Column, value: &[u8]) {
        match &mut self.columns[column as usize] {
            ColumnBuilder::Binary(builder) => builder.append_value(value),
            ColumnBuilder::LargeBinary(builder) => builder.append_value(value),
            _ => {}
        }
    }

    /// Columns that the event said nothing of are null.
    fn end_row(&mut self) {
        self.rows += 1;
        for column in &mut self.columns {
            column.fill(self.rows);
        }
    }

    fn finish(self) -> Result<RecordBatch, WireError> {
        let columns = self.columns.into_iter().map(ColumnBuilder::finish).collect();
        RecordBatch::try_new(schema(), columns).map_err(|error| WireError::Arrow(error.to_string()))
    }
}

macro_rules! each {
    ($column:expr, $builder:ident => $do:expr) => {
        match $column {
            ColumnBuilder::Text($builder) => $do,
            ColumnBuilder::U32($builder) => $do,
            ColumnBuilder::U64($builder) => $do,
            ColumnBuilder::Time($builder) => $do,
            ColumnBuilder::Boolean($builder) => $do,
            ColumnBuilder::Binary($builder) => $do,
            ColumnBuilder::LargeBinary($builder) => $do,
        }
    };
}

impl ColumnBuilder {
    fn fill(&mut self, rows: usize) {
        use arrow::array::ArrayBuilder;
        each!(self, builder => {
            if builder.len() < rows {
                builder.append_null();
            }
        });
    }

    fn finish(self) -> ArrayRef {
        each!(self, builder => {
            let mut builder = builder;
            Arc::new(builder.finish())
        })
    }
}

fn packed_unknown(unknown: &[Unknown]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(unknown.len() * UNKNOWN_BYTES);
    for range in unknown {
        bytes.extend_from_slice(&range.rows.start.to_le_bytes());
        bytes.extend_from_slice(&range.rows.end.to_le_bytes());
        bytes.extend_from_slice(&range.layer.to_le_bytes());
    }
    bytes
}

/// One bit for each layer of the row, the lowest first.
fn bitmap(layers: &LayerSet, shape: RowShape) -> Vec<u8> {
    let mut bytes = vec![0; shape.layers().div_ceil(8)];
    for layer in layers.iter().filter(|&layer| layer < shape.layers()) {
        bytes[layer / 8] |= 1 << (layer % 8);
    }
    bytes
}
