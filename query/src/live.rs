//! What a running collector holds that its tables do not have yet.

use std::{fmt, sync::Arc};

use arrow::{
    array::{ArrayRef, RecordBatch, RecordBatchOptions},
    compute::cast,
    datatypes::SchemaRef,
};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider, memory::MemorySourceConfig},
    common::Result,
    error::DataFusionError,
    logical_expr::{Expr, TableProviderFilterPushDown, TableType},
    physical_plan::{ExecutionPlan, empty::EmptyExec, union::UnionExec},
};

use crate::provider::DeltaFiles;

/// Why there is no look at what a collector holds.
#[derive(Debug, thiserror::Error)]
#[error("what is not in the tables yet cannot be read: {0}")]
pub struct LiveError(pub Box<dyn std::error::Error + Send + Sync>);

/// A running collector.
#[async_trait]
pub trait Live: fmt::Debug + Send + Sync {
    /// A look at one moment: everything acknowledged is in the tables as of the look's position or in the look, never in
    /// both.
    ///
    /// # Errors
    /// Where the collector has stopped.
    async fn look(&self) -> Result<Arc<dyn Look>, LiveError>;
}

/// What a collector held at one moment.
pub trait Look: fmt::Debug + Send + Sync {
    /// The commit that the tables are to be read at.
    fn position(&self) -> u64;

    /// Routing tables that it has rows for, with the columns as they are written.
    fn routing_tables(&self) -> Vec<(String, SchemaRef)>;

    /// Its rows of a table, in the columns as they are written, only those of `projection` where there is one. May take
    /// long.
    ///
    /// # Errors
    /// Where rows contradict their table.
    fn rows(&self, table: &str, projection: Option<&[usize]>) -> Result<Vec<RecordBatch>, LiveError>;
}

/// The files of a table, and what is not in them yet.
#[derive(Debug)]
pub(crate) struct LiveTable {
    name: String,
    files: DeltaFiles,
    look: Arc<dyn Look>,
}

impl LiveTable {
    pub(crate) fn new(name: String, files: DeltaFiles, look: Arc<dyn Look>) -> Self {
        Self { name, files, look }
    }

    /// The rows that are in no file, in the types of the table.
    async fn rows(&self, projection: Option<&Vec<usize>>, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
        let (look, name, projection) = (Arc::clone(&self.look), self.name.clone(), projection.cloned());
        let work = move || look.rows(&name, projection.as_deref());
        let batches = tokio::task::spawn_blocking(work).await.map_err(|error| external(error.into()))?;
        let batches = batches.map_err(|error| external(error.into()))?;
        batches.iter().map(|batch| as_shown(batch, schema)).collect()
    }
}

fn external(error: Box<dyn std::error::Error + Send + Sync>) -> DataFusionError {
    DataFusionError::External(error)
}

fn as_shown(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()));
    let columns = columns.collect::<std::result::Result<Vec<ArrayRef>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

#[async_trait]
impl TableProvider for LiveTable {
    fn schema(&self) -> SchemaRef {
        self.files.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.files.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let files = self.files.scan(state, projection, filters, limit).await?;
        let schema = files.schema();
        let rows = self.rows(projection, &schema).await?;
        if rows.is_empty() {
            return Ok(files);
        }
        let rows = MemorySourceConfig::try_new_exec(&[rows], schema, None)?;
        if files.is::<EmptyExec>() {
            return Ok(rows);
        }
        UnionExec::try_new(vec![files, rows])
    }
}
