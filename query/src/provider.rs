//! Scans the files of a snapshot, keeping the Arrow types and metadata of the table: a provider of our own because
//! delta-rs's would show fixed-size layer columns as plain binary.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use chrono::DateTime;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{DFSchema, Result, Statistics, stats::Precision},
    config::TableParquetOptions,
    datasource::{
        listing::PartitionedFile,
        physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource, parquet::CachedParquetFileReaderFactory},
        source::DataSourceExec,
    },
    execution::object_store::ObjectStoreUrl,
    logical_expr::{Expr, TableProviderFilterPushDown, TableType, utils::conjunction},
    physical_optimizer::pruning::PruningPredicateBuilder,
    physical_plan::{ExecutionPlan, empty::EmptyExec},
};
use object_store::ObjectMeta;

use crate::{
    snapshot::{DataFile, TableSnapshot},
    statistics::FileBounds,
};

/// A table at a fixed version.
#[derive(Debug)]
pub(crate) struct DeltaFiles {
    schema: SchemaRef,
    files: Vec<DataFile>,
    store: ObjectStoreUrl,
}

impl DeltaFiles {
    pub(crate) fn new(table: TableSnapshot, store: ObjectStoreUrl) -> Self {
        Self { schema: table.schema, files: table.files, store }
    }

    /// The files that may hold a row that passes all filters.
    fn candidates(&self, state: &dyn Session, filters: &[Expr]) -> Result<Vec<&DataFile>> {
        let predicate = conjunction(filters.iter().cloned()).filter(|_| !self.files.is_empty());
        let Some(predicate) = predicate else {
            return Ok(self.files.iter().collect());
        };
        let columns = DFSchema::try_from(self.schema.clone())?;
        // A predicate that cannot stand alone (a subquery) or that statistics cannot answer prunes nothing: the filter
        // itself stays in the plan.
        let pruning = state
            .create_physical_expr(predicate, &columns)
            .and_then(|predicate| {
                PruningPredicateBuilder::new().with_file_schema(self.schema.clone()).try_build(predicate)
            })
            .ok()
            .filter(|pruning| !pruning.always_true());
        let Some(pruning) = pruning else {
            return Ok(self.files.iter().collect());
        };
        let keep = pruning.prune(&FileBounds { files: &self.files, schema: &self.schema })?;
        Ok(self.files.iter().zip(keep).filter_map(|(file, keep)| keep.then_some(file)).collect())
    }

    /// Rows of the files alone: with them `count(*)` reads no file. Least and greatest values stay unknown, because
    /// those of a log may be cut short, which is right for pruning and wrong for `max()`.
    fn totals(&self, files: &[&DataFile]) -> Statistics {
        let rows: Option<usize> = files.iter().map(|file| file.statistics.num_rows.get_value().copied()).sum();
        Statistics {
            num_rows: rows.map_or(Precision::Absent, Precision::Exact),
            total_byte_size: Precision::Inexact(files.iter().map(|file| file.bytes as usize).sum()),
            column_statistics: Statistics::unknown_column(&self.schema),
        }
    }
}

#[async_trait]
impl TableProvider for DeltaFiles {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // The scan prunes by them; the physical optimiser then moves the filter itself into the Parquet reader.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let files = self.candidates(state, filters)?;
        if files.is_empty() {
            let schema = match projection {
                Some(columns) => Arc::new(self.schema.project(columns)?),
                None => self.schema.clone(),
            };
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let statistics = self.totals(&files);
        let group: FileGroup = files.into_iter().map(partitioned_file).collect();
        let groups = group.split_files(state.config().target_partitions());

        let runtime = state.runtime_env();
        let options =
            TableParquetOptions { global: state.config_options().execution.parquet.clone(), ..Default::default() };
        // A footer is read once, not once for each range of its file.
        let readers = CachedParquetFileReaderFactory::new(
            runtime.object_store(&self.store)?,
            runtime.cache_manager.get_file_metadata_cache(),
        );
        let source = ParquetSource::new(self.schema.clone())
            .with_table_parquet_options(options)
            .with_parquet_file_reader_factory(Arc::new(readers));
        let config = FileScanConfigBuilder::new(self.store.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

fn partitioned_file(file: &DataFile) -> PartitionedFile {
    let meta = ObjectMeta {
        location: file.location.clone(),
        last_modified: DateTime::from_timestamp_millis(file.modified_ms).unwrap_or_default(),
        size: file.bytes,
        e_tag: None,
        version: None,
    };
    PartitionedFile::new_from_meta(meta).with_statistics(file.statistics.clone())
}
