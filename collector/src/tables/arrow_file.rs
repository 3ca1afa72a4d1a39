//! Writing a file of one of the fixed tables. Their rows are few, so they go through Arrow.

use std::{fs::File, marker::PhantomData, path::Path, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    datatypes::{DataType, Int32Type, SchemaRef, TimestampMicrosecondType},
};
use parquet::{
    arrow::ArrowWriter,
    errors::Result as ParquetResult,
    file::properties::{EnabledStatistics, WriterProperties},
};

use super::{
    blocks::BLOCK_HASH,
    chunk::compression,
    error::{Context, Result},
    parquet_file::{DataFile, FileName, Stats, Unreferenced},
    routing::ROWS_PER_GROUP,
};

/// Rows built before they go to the file.
const ROWS_PER_BATCH: usize = 8_192;

/// Distinct request ids that the bloom filter of a row group has room for; it shrinks to those that came.
const IDS_PER_GROUP: u64 = ROWS_PER_GROUP as u64;

/// The columns of a fixed table in the making.
pub(super) trait Columns: Default + Send {
    /// The table's name.
    const TABLE: &'static str;

    /// The columns' names and types.
    fn schema() -> SchemaRef;

    /// Rows so far.
    fn rows(&self) -> usize;

    /// The columns, in the schema's order; none is left.
    fn take(&mut self) -> Vec<ArrayRef>;
}

/// A file of a fixed table, created with its first rows.
pub(super) struct ArrowFile<C> {
    root: Arc<Path>,
    name: FileName,
    columns: C,
    rows: RowsFile<C>,
}

impl<C: Columns> ArrowFile<C> {
    pub(super) fn new(root: Arc<Path>, name: FileName) -> Self {
        Self { root, name, columns: C::default(), rows: RowsFile { open: None, table: PhantomData } }
    }

    /// Adds rows.
    pub(super) fn add(&mut self, add: impl FnOnce(&mut C)) -> Result<()> {
        add(&mut self.columns);
        if self.columns.rows() >= ROWS_PER_BATCH { self.write() } else { Ok(()) }
    }

    /// Adds rows that are columns already.
    pub(super) fn add_batch(&mut self, batch: &RecordBatch) -> Result<()> {
        self.write()?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.rows.write(&self.root, self.name, batch)
    }

    fn write(&mut self) -> Result<()> {
        if self.columns.rows() == 0 {
            return Ok(());
        }
        let batch = RecordBatch::try_new(C::schema(), self.columns.take())
            .context(&self.root.join(C::TABLE), "build rows of")?;
        self.rows.write(&self.root, self.name, &batch)
    }

    /// Ends the file and makes it durable; `None` where it has no row.
    pub(super) fn finish(mut self) -> Result<Option<DataFile>> {
        self.write()?;
        let Some((file, writer, stats)) = self.rows.open else { return Ok(None) };
        let handle = writer.into_inner().context(file.path(), "write")?;
        file.finish(handle, stats).map(Some)
    }
}

struct RowsFile<C> {
    open: Option<(Unreferenced, ArrowWriter<File>, Stats)>,
    table: PhantomData<C>,
}

impl<C: Columns> RowsFile<C> {
    fn write(&mut self, root: &Path, name: FileName, batch: &RecordBatch) -> Result<()> {
        if self.open.is_none() {
            let (file, handle) = Unreferenced::create(root, C::TABLE, name)?;
            let writer = writer::<C>(handle).context(file.path(), "write")?;
            self.open = Some((file, writer, Stats::default()));
        }
        let Some((file, writer, stats)) = &mut self.open else { return Ok(()) };
        writer.write(batch).context(file.path(), "write")?;
        see(stats, batch);
        Ok(())
    }
}

fn writer<C: Columns>(file: File) -> ParquetResult<ArrowWriter<File>> {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("gatescope version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(compression()?)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_max_row_group_row_count(Some(ROWS_PER_GROUP))
        .set_data_page_row_count_limit(ROWS_PER_BATCH);
    if C::schema().column_with_name("request_id").is_some() {
        properties = properties
            .set_column_bloom_filter_enabled("request_id".into(), true)
            .set_column_bloom_filter_fpp("request_id".into(), 0.01)
            .set_column_bloom_filter_max_ndv("request_id".into(), IDS_PER_GROUP);
    }
    if C::schema().column_with_name(BLOCK_HASH).is_some() {
        properties = properties
            .set_column_bloom_filter_enabled(BLOCK_HASH.into(), true)
            .set_column_bloom_filter_fpp(BLOCK_HASH.into(), 0.01)
            .set_column_bloom_filter_max_ndv(BLOCK_HASH.into(), IDS_PER_GROUP);
    }
    ArrowWriter::try_new(file, C::schema(), Some(properties.build()))
}

/// Counts the rows and widens the ranges of the columns that queries narrow by.
fn see(stats: &mut Stats, batch: &RecordBatch) {
    stats.count_rows(batch.num_rows());
    for name in ["run", "request_id", "minute", "at", "layer"] {
        let Some(column) = batch.column_by_name(name) else { continue };
        if column.null_count() > 0 {
            // A range says nothing of nulls, and not every reader asks the count of them.
            continue;
        }
        match column.data_type() {
            DataType::Utf8 => {
                let values = column.as_string::<i32>();
                values.iter().flatten().min().into_iter().for_each(|value| stats.see_str(name, value));
                values.iter().flatten().max().into_iter().for_each(|value| stats.see_str(name, value));
            }
            DataType::Int32 => {
                let values = column.as_primitive::<Int32Type>().values();
                values.iter().min().into_iter().for_each(|&value| stats.see_int(name, value.into()));
                values.iter().max().into_iter().for_each(|&value| stats.see_int(name, value.into()));
            }
            DataType::Timestamp(..) => {
                let values = column.as_primitive::<TimestampMicrosecondType>().values();
                values.iter().min().into_iter().for_each(|&value| stats.see_time(name, value));
                values.iter().max().into_iter().for_each(|&value| stats.see_time(name, value));
            }
            _ => {}
        }
    }
}
