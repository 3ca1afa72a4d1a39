//! The names of all stored requests.

use std::fs::File;

use gatescope_routing::span::RequestKey;
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};

use super::{
    Tables,
    arrow_file::Columns,
    columns::Cells,
    error::{Context, Result},
    requests::Requests,
};

/// Rows read at once.
const ROWS: usize = 8_192;

impl Tables {
    /// Calls `take` with the name of each stored request, until it says that it has had enough. Says whether it had all.
    ///
    /// # Errors
    /// Where a file cannot be read.
    pub fn request_keys(&self, mut take: impl FnMut(RequestKey) -> bool) -> Result<bool> {
        let Some(log) = self.logs.get(Requests::TABLE) else { return Ok(true) };
        for file in log.files() {
            let path = log.folder().join(&file.path);
            let file = File::open(&path).context(&path, "open")?;
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).context(&path, "read")?;
            let names = ProjectionMask::columns(reader.parquet_schema(), ["run", "request_id", "choice"]);
            let reader = reader.with_projection(names).with_batch_size(ROWS).build().context(&path, "read")?;
            for batch in reader {
                let batch = batch.context(&path, "read")?;
                for key in (Cells { path: &path, batch: &batch }).keys()? {
                    if !take(key) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}
