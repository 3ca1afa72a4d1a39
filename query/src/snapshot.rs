//! Which files make up each table at one position of the log, the same for all tables.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use deltalake::{
    DeltaTableError,
    kernel::EagerSnapshot,
    logstore::{LogStoreRef, StorageConfig, logstore_for},
};
use futures::{StreamExt, TryStreamExt, future::try_join_all};
use object_store::path::Path as StorePath;
use url::Url;

use crate::{
    error::QueryError,
    statistics::file_statistics,
    tables::{APP_ID, FIXED, REQUESTS, ROUTING_PREFIX, sql_schema},
};

/// A Parquet file of a table.
#[derive(Debug, Clone)]
pub(crate) struct DataFile {
    /// Below the data folder.
    pub(crate) location: StorePath,
    pub(crate) bytes: u64,
    pub(crate) modified_ms: i64,
    /// What its add action says of its rows, column by column of the table.
    pub(crate) statistics: Arc<Statistics>,
}

/// A table as of the position that was read.
#[derive(Debug, Clone)]
pub(crate) struct TableSnapshot {
    pub(crate) schema: SchemaRef,
    pub(crate) files: Vec<DataFile>,
}

/// Every table of the folder by name, at the position of `requests`. A table that is not there yet is left out.
///
/// A commit reaches the tables one after the other and `requests` last, so the position of `requests` is one that every
/// table has; a table that is ahead of it is read as of an earlier version.
pub(crate) async fn read_tables(folder: &Path) -> Result<BTreeMap<String, TableSnapshot>, QueryError> {
    let root = Root::find(folder)?;
    let Some(requests) = root.newest(REQUESTS).await? else {
        return Ok(BTreeMap::new());
    };
    let position = root.position(REQUESTS, &requests).await?.unwrap_or(0);
    let others = root.tables.iter().filter(|table| *table != REQUESTS);
    let others = others.map(|table| root.table_at(table, position));
    let mut tables: BTreeMap<String, TableSnapshot> = try_join_all(others).await?.into_iter().flatten().collect();
    tables.insert(REQUESTS.to_owned(), root.files(REQUESTS, &requests).await?);
    Ok(tables)
}

/// Every table of the folder by name, at this commit.
pub(crate) async fn read_tables_at(
    folder: &Path,
    position: u64,
) -> Result<BTreeMap<String, TableSnapshot>, QueryError> {
    let root = Root::find(folder)?;
    let position = i64::try_from(position).unwrap_or(i64::MAX);
    let tables = root.tables.iter().map(|table| root.table_at(table, position));
    Ok(try_join_all(tables).await?.into_iter().flatten().collect())
}

struct Root {
    folder: PathBuf,
    url: Url,
    /// Folders that are tables of ours, by name.
    tables: Vec<String>,
}

impl Root {
    fn find(folder: &Path) -> Result<Self, QueryError> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => QueryError::NoFolder(folder.to_owned()),
            _ => QueryError::Folder { folder: folder.to_owned(), source },
        };
        let absolute = folder.canonicalize().map_err(failed)?;
        let mut tables = Vec::new();
        let mut ours = false;
        for entry in absolute.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if FIXED.contains(&name.as_str()) || name.starts_with(ROUTING_PREFIX) {
                ours = true;
                // A folder gets its log when the first commit reaches it; until then it is no table.
                if has_log(&entry.path()) {
                    tables.push(name);
                }
            }
            // The journal is there before the first table.
            ours |= entry.file_name() == "journal";
        }
        if !ours {
            return Err(QueryError::NoTables(folder.to_owned()));
        }
        tables.sort();
        let url = Url::from_directory_path(&absolute).map_err(|()| QueryError::NoFolder(folder.to_owned()))?;
        Ok(Self { folder: folder.to_owned(), url, tables })
    }

    async fn table_at(&self, table: &str, position: i64) -> Result<Option<(String, TableSnapshot)>, QueryError> {
        let Some(mut snapshot) = self.newest(table).await? else { return Ok(None) };
        while self.position(table, &snapshot).await?.is_some_and(|reached| reached > position) {
            let Some(earlier) = snapshot.version().checked_sub(1) else { return Ok(None) };
            snapshot = self.load(table, Some(earlier)).await?;
        }
        Ok(Some((table.to_owned(), self.files(table, &snapshot).await?)))
    }

    async fn newest(&self, table: &str) -> Result<Option<EagerSnapshot>, QueryError> {
        if !self.tables.iter().any(|known| known == table) {
            return Ok(None);
        }
        self.load(table, None).await.map(Some)
    }

    async fn load(&self, table: &str, version: Option<u64>) -> Result<EagerSnapshot, QueryError> {
        let log = self.log(table)?;
        EagerSnapshot::try_new(log.as_ref(), version).await.map_err(|error| self.broken(table, error))
    }

    /// The position that the snapshot covers; `None` for a table that no writer of ours has committed to.
    async fn position(&self, table: &str, snapshot: &EagerSnapshot) -> Result<Option<i64>, QueryError> {
        let log = self.log(table)?;
        snapshot.transaction_version(log.as_ref(), APP_ID).await.map_err(|error| self.broken(table, error))
    }

    async fn files(&self, table: &str, snapshot: &EagerSnapshot) -> Result<TableSnapshot, QueryError> {
        let unsupported = |reason: String| QueryError::Unsupported { table: table.to_owned(), reason };
        if snapshot.protocol().min_reader_version() > 1 {
            return Err(unsupported(format!(
                "it asks for Delta reader version {}: expected 1",
                snapshot.protocol().min_reader_version()
            )));
        }
        if !snapshot.metadata().partition_columns().is_empty() {
            return Err(unsupported("it is partitioned: expected a table without partition columns".to_owned()));
        }
        let schema = sql_schema(&snapshot.arrow_schema());
        let log = self.log(table)?;
        let views: Vec<_> = snapshot
            .file_views(log.as_ref(), None)
            .boxed()
            .try_collect()
            .await
            .map_err(|error| self.broken(table, error))?;
        let mut files = Vec::with_capacity(views.len());
        for view in views {
            let path = view.path();
            let location = StorePath::parse(format!("{table}/{path}")).map_err(|_| {
                unsupported(format!("its log names the file {path:?}: expected a path inside the table"))
            })?;
            let bytes =
                u64::try_from(view.size()).map_err(|_| unsupported(format!("file {path} has a negative size")))?;
            let statistics = Arc::new(file_statistics(view.stats().as_deref(), &schema));
            files.push(DataFile { location, bytes, modified_ms: view.modification_time(), statistics });
        }
        // By name, so that a plan does not depend on the order of replay.
        files.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(TableSnapshot { schema, files })
    }

    fn log(&self, table: &str) -> Result<LogStoreRef, QueryError> {
        let url = self.url.join(&format!("{table}/")).map_err(|error| self.broken(table, error))?;
        logstore_for(&url, StorageConfig::default()).map_err(|error| self.broken(table, error))
    }

    fn broken(&self, table: &str, error: impl Into<Reason>) -> QueryError {
        QueryError::BrokenLog { table: table.to_owned(), folder: self.folder.clone(), reason: error.into().0 }
    }
}

fn has_log(table: &Path) -> bool {
    table.join("_delta_log").read_dir().is_ok_and(|mut entries| {
        entries.any(|entry| {
            entry.is_ok_and(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.ends_with(".json") || name.ends_with(".checkpoint.parquet")
            })
        })
    })
}

/// An error of delta-rs or of a URL, as a sentence.
struct Reason(String);

impl From<DeltaTableError> for Reason {
    fn from(error: DeltaTableError) -> Self {
        Self(error.to_string())
    }
}

impl From<url::ParseError> for Reason {
    fn from(error: url::ParseError) -> Self {
        Self(error.to_string())
    }
}
