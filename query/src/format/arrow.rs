//! An Arrow IPC stream.

use std::io::{BufWriter, Write};

use arrow::{array::RecordBatch, datatypes::SchemaRef, ipc::writer::StreamWriter};

use super::RowWriter;
use crate::error::QueryError;

pub(super) struct Arrow<W: Write> {
    writer: StreamWriter<BufWriter<W>>,
}

impl<W: Write> Arrow<W> {
    pub(super) fn new(schema: &SchemaRef, output: W) -> Result<Self, QueryError> {
        Ok(Self { writer: StreamWriter::try_new_buffered(output, schema).map_err(super::written)? })
    }
}

impl<W: Write> RowWriter for Arrow<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        self.writer.write(batch).map_err(super::written)
    }

    fn finish(mut self: Box<Self>) -> Result<(), QueryError> {
        self.writer.finish().map_err(super::written)?;
        Ok(self.writer.get_mut().flush()?)
    }
}
