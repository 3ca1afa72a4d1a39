//! The rows of an answer, as they come.

use std::io::Write;

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use crate::{error::QueryError, format::Format};

/// A running query. Dropping it stops it.
pub struct Answer {
    rows: SendableRecordBatchStream,
}

impl Answer {
    pub(crate) fn new(rows: SendableRecordBatchStream) -> Self {
        Self { rows }
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    /// The next rows; `None` at the end. Safe to cancel: nothing is lost between two calls.
    ///
    /// # Errors
    /// If the query fails; there are no rows after that.
    pub async fn next(&mut self) -> Option<Result<RecordBatch, QueryError>> {
        Some(self.rows.next().await?.map_err(QueryError::from))
    }

    /// Writes all rows to `output`, holding a bounded number of them; returns how many there were.
    ///
    /// # Errors
    /// If the query fails or `output` does; what was written until then stays written.
    pub async fn write(mut self, format: Format, output: impl Write + Send) -> Result<u64, QueryError> {
        let mut writer = format.writer(self.schema(), output)?;
        let mut rows = 0;
        while let Some(batch) = self.next().await {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            writer.write(&batch)?;
        }
        writer.finish()?;
        Ok(rows)
    }
}
