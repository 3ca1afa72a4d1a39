//! The collector, as queries see it.

use std::sync::Arc;

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use gatescope_collector::live::{View, Viewer};
use gatescope_query::{Live, LiveError, Look};

/// What a collector has not stored yet.
#[derive(Debug)]
pub(super) struct Collected(pub(super) Viewer);

#[async_trait::async_trait]
impl Live for Collected {
    async fn look(&self) -> Result<Arc<dyn Look>, LiveError> {
        let view = self.0.view().await.map_err(|error| LiveError(error.into()))?;
        Ok(Arc::new(Seen(view)))
    }
}

#[derive(Debug)]
struct Seen(View);

impl Look for Seen {
    fn position(&self) -> u64 {
        self.0.number()
    }

    fn routing_tables(&self) -> Vec<(String, SchemaRef)> {
        self.0.routing_tables().iter().map(|table| (table.name(), table.schema())).collect()
    }

    fn rows(&self, table: &str, projection: Option<&[usize]>) -> Result<Vec<RecordBatch>, LiveError> {
        self.0.rows(table, projection).map_err(|error| LiveError(error.into()))
    }
}
