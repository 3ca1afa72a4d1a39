//! A Parquet file.

use std::io::Write;

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

use super::RowWriter;
use crate::error::QueryError;

/// Rows of a row group: it is held in memory until it is full.
const ROW_GROUP_ROWS: usize = 65_536;
/// Bytes of a row group, for wide rows.
const ROW_GROUP_BYTES: usize = 32 << 20;

pub(super) struct Parquet<W: Write + Send> {
    writer: ArrowWriter<W>,
}

impl<W: Write + Send> Parquet<W> {
    pub(super) fn new(schema: SchemaRef, output: W) -> Result<Self, QueryError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .build();
        Ok(Self { writer: ArrowWriter::try_new(output, schema, Some(properties)).map_err(written)? })
    }
}

impl<W: Write + Send> RowWriter for Parquet<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        self.writer.write(batch).map_err(written)?;
        if self.writer.in_progress_size() >= ROW_GROUP_BYTES {
            self.writer.flush().map_err(written)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), QueryError> {
        self.writer.into_inner().map_err(written)?.flush()?;
        Ok(())
    }
}

fn written(error: parquet::errors::ParquetError) -> QueryError {
    match error {
        parquet::errors::ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => QueryError::Write(*source),
            Err(source) => QueryError::Query(source.to_string()),
        },
        other => QueryError::Query(other.to_string()),
    }
}
