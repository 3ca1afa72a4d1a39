//! One array of objects, every column in each, null where there is no value.

use std::io::{BufWriter, Write};

use arrow::{
    array::RecordBatch,
    json::{Writer, WriterBuilder, writer::JsonArray},
};

use super::RowWriter;
use crate::error::QueryError;

pub(super) struct Json<W: Write> {
    writer: Writer<BufWriter<W>, JsonArray>,
}

impl<W: Write> Json<W> {
    pub(super) fn new(output: W) -> Self {
        Self { writer: WriterBuilder::new().with_explicit_nulls(true).build(BufWriter::new(output)) }
    }
}

impl<W: Write> RowWriter for Json<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        self.writer.write(batch).map_err(super::written)
    }

    fn finish(mut self: Box<Self>) -> Result<(), QueryError> {
        self.writer.finish().map_err(super::written)?;
        let mut output = self.writer.into_inner();
        output.write_all(b"\n")?;
        Ok(output.flush()?)
    }
}
