//! Comma-separated values (RFC 4180) under a header line.

use std::{
    io::{BufWriter, Write},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, RecordBatch, StringArray},
    csv::{Writer, WriterBuilder},
    datatypes::{DataType, Field, Fields, Schema, SchemaRef},
};

use super::{RowWriter, text::formatters};
use crate::error::QueryError;

pub(super) struct Csv<W: Write> {
    writer: Writer<BufWriter<W>>,
    /// Every column as text: arrow's writer has no lists, and its times differ from those in tables.
    schema: SchemaRef,
    started: bool,
}

impl<W: Write> Csv<W> {
    pub(super) fn new(schema: SchemaRef, output: W) -> Self {
        let fields = schema.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8, true));
        let schema = Arc::new(Schema::new(fields.collect::<Fields>()));
        Self { writer: WriterBuilder::new().with_header(true).build(BufWriter::new(output)), schema, started: false }
    }
}

impl<W: Write> RowWriter for Csv<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        self.started = true;
        let formatters = formatters(batch).map_err(super::written)?;
        let columns = batch.columns().iter().zip(formatters).map(|(column, formatter)| {
            let values =
                (0..batch.num_rows()).map(|row| column.is_valid(row).then(|| formatter.value(row).to_string()));
            Arc::new(values.collect::<StringArray>()) as ArrayRef
        });
        let text = RecordBatch::try_new(self.schema.clone(), columns.collect()).map_err(super::written)?;
        self.writer.write(&text).map_err(super::written)
    }

    fn finish(mut self: Box<Self>) -> Result<(), QueryError> {
        if !self.started {
            self.write(&RecordBatch::new_empty(self.schema.clone()))?;
        }
        Ok(self.writer.into_inner().flush()?)
    }
}
