//! One table's log: opening, creating, extending, checkpointing it.
//!
//! We alone write to it, so what the table holds is known without reading it again: a commit costs the same after any
//! number of others. (delta-rs's own commit replays all files of the table each time.)

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use deltalake::{
    DeltaResult, DeltaTable, DeltaTableBuilder, DeltaTableError,
    checkpoints::{cleanup_expired_logs_for, create_checkpoint},
    kernel::{
        Action, Add, Remove, StructType, Transaction,
        transaction::{CommitData, TransactionError},
    },
    logstore::{CommitOrBytes, LogStoreRef},
    operations::create::CreateBuilder,
    protocol::{DeltaOperation, SaveMode},
};
use futures::TryStreamExt;
use url::Url;
use uuid::Uuid;

use super::{
    error::{Context, Result, TablesError},
    journal::TableChange,
    parquet_file::sync_folder,
    table_file::TableFile,
    torn::{remove_torn_checkpoint, remove_torn_commits},
};

/// The application id of our commits in a table's log; its version is the position of the last commit that the table
/// has taken.
pub const APPLICATION: &str = "gatescope";

/// The application id under which `requests` says which position of the write-ahead log its last commit covers.
pub const LOG_APPLICATION: &str = "gatescope.log";

/// Versions between two checkpoints: what a reader has to read besides one.
const VERSIONS_PER_CHECKPOINT: u64 = if cfg!(test) { 4 } else { 64 };

/// Versions that stay though a checkpoint has summed them up, for readers that go back or follow a table version by
/// version: at a commit in ten seconds these are those of some five hours. Every reader lists them all.
const VERSIONS_KEPT: u64 = if cfg!(test) { 4 } else { 2_048 };

/// A table and how far it is.
pub(super) struct Log {
    folder: PathBuf,
    store: LogStoreRef,
    columns: StructType,
    files: BTreeMap<String, TableFile>,
    /// Its newest version.
    version: u64,
    position: u64,
    covers: Option<u64>,
}

impl Log {
    /// Opens the table in this folder; `None` where there is none.
    pub(super) async fn open(folder: &Path) -> Result<Option<Self>> {
        let log = folder.join("_delta_log");
        if !log.is_dir() {
            return Ok(None);
        }
        remove_torn_commits(&log)?;
        remove_torn_checkpoint(&log)?;
        let mut table = unloaded(folder)?;
        if !table.log_store().is_delta_table_location().await.context(folder, "")? {
            return Ok(None);
        }
        table.load().await.context(folder, "")?;
        let snapshot = table.snapshot().context(folder, "")?;
        let files = snapshot.log_data().into_iter().map(|view| TableFile::of(&view));
        Ok(Some(Self {
            folder: folder.to_owned(),
            store: table.log_store(),
            columns: snapshot.schema().as_ref().clone(),
            files: files.map(|file| (file.path.clone(), file)).collect(),
            version: snapshot.version(),
            position: version_of(folder, &table, APPLICATION).await?.unwrap_or(0),
            covers: version_of(folder, &table, LOG_APPLICATION).await?,
        }))
    }

    /// Creates the table, without rows, as plainly as Delta allows: any reader can read it.
    pub(super) async fn create(folder: &Path, schema: &StructType) -> Result<Self> {
        std::fs::create_dir_all(folder).context(folder, "create the folder")?;
        let table = CreateBuilder::new()
            .with_log_store(unloaded(folder)?.log_store())
            .with_columns(schema.fields().cloned())
            .with_save_mode(SaveMode::ErrorIfExists)
            .await
            .context(folder, "")?;
        let log = Self {
            folder: folder.to_owned(),
            store: table.log_store(),
            columns: schema.clone(),
            files: BTreeMap::new(),
            version: 0,
            position: 0,
            covers: None,
        };
        log.sync_version(0)?;
        sync_folder(folder)?;
        if let Some(root) = folder.parent() {
            sync_folder(root)?;
        }
        Ok(log)
    }

    /// # Errors
    /// Where the table has other columns than these.
    pub(super) fn expect_columns(&self, expected: &StructType) -> Result<()> {
        if self.columns == *expected {
            return Ok(());
        }
        let names =
            |schema: &StructType| schema.fields().map(|field| field.name().clone()).collect::<Vec<_>>().join(", ");
        let detail = format!(
            "not a table of this version of gatescope: it has the columns {}, expected {}, of gatescope's types",
            names(&self.columns),
            names(expected),
        );
        Err(TablesError::Damaged { path: self.folder.clone(), detail })
    }

    /// The position of the last commit that the table has taken.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The position of the write-ahead log that the table's commits cover.
    pub(super) fn covers(&self) -> Option<u64> {
        self.covers
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The table's files, by name: in the order of their commits.
    pub(super) fn files(&self) -> impl Iterator<Item = &TableFile> {
        self.files.values()
    }

    /// A file of the table.
    pub(super) fn file(&self, path: &str) -> Option<&TableFile> {
        self.files.get(path)
    }

    /// Takes the table's part of a commit, once: a second time changes nothing.
    pub(super) async fn apply(&mut self, position: u64, change: &TableChange) -> Result<()> {
        if position <= self.position {
            return Ok(());
        }
        let operation = if change.remove.is_empty() {
            DeltaOperation::Write { mode: SaveMode::Append, partition_by: None, predicate: None }
        } else if change.add.is_empty() {
            DeltaOperation::Delete { predicate: None }
        } else {
            DeltaOperation::Update { predicate: None }
        };
        let mut transactions = vec![Transaction::new(APPLICATION, version_in_log(position))];
        transactions.extend(change.covers.map(|covers| Transaction::new(LOG_APPLICATION, version_in_log(covers))));
        self.commit(&change.add, &change.remove, operation, transactions).await?;
        self.position = position;
        self.covers = change.covers.or(self.covers);
        self.checkpoint_if_due().await
    }

    /// Puts merged files into the place of those that they were merged from.
    pub(super) async fn compact(&mut self, add: &[Add], remove: &[Remove]) -> Result<()> {
        let target_size = add.iter().map(|file| file.size).sum();
        self.commit(add, remove, DeltaOperation::Optimize { predicate: None, target_size }, Vec::new()).await?;
        self.checkpoint_if_due().await
    }

    /// Writes the next version. Where someone else has written it, which nobody should, the log has to be opened again.
    async fn commit(
        &mut self,
        add: &[Add],
        remove: &[Remove],
        operation: DeltaOperation,
        transactions: Vec<Transaction>,
    ) -> Result<()> {
        let removed = remove.iter().cloned().map(Action::Remove);
        let actions = removed.chain(add.iter().cloned().map(Action::Add)).collect();
        let version = self.version + 1;
        let entry = CommitData::new(actions, operation, Default::default(), transactions).get_bytes();
        let written = match entry {
            Ok(entry) => self.store.write_commit_entry(version, CommitOrBytes::LogBytes(entry), Uuid::new_v4()).await,
            Err(error) => Err(error),
        };
        written.map_err(|error: TransactionError| DeltaTableError::from(error)).context(&self.folder, "")?;
        self.sync_version(version)?;
        self.version = version;
        for file in remove {
            self.files.remove(&file.path);
        }
        self.files.extend(add.iter().map(|add| (add.path.clone(), TableFile::added(add))));
        Ok(())
    }

    async fn checkpoint_if_due(&self) -> Result<()> {
        if self.version.is_multiple_of(VERSIONS_PER_CHECKPOINT) { self.checkpoint(self.version).await } else { Ok(()) }
    }

    async fn checkpoint(&self, version: u64) -> Result<()> {
        let log = self.folder.join("_delta_log");
        create_checkpoint(&self.loaded().await?, None).await.context(&self.folder, "")?;
        for name in [format!("{version:020}.checkpoint.parquet"), "_last_checkpoint".to_owned()] {
            sync_file(&log.join(name))?;
        }
        sync_folder(&log)?;
        let (kept, now) = (version.saturating_sub(VERSIONS_KEPT), milliseconds_before_now(Duration::ZERO));
        cleanup_expired_logs_for(kept, self.store.as_ref(), now, None).await.context(&self.folder, "")?;
        Ok(())
    }

    /// The names of the files that a commit took out after `since`, milliseconds since 1970 UTC.
    pub(super) async fn removed_since(&self, since: i64) -> Result<Vec<String>> {
        let table = self.loaded().await?;
        let snapshot = table.snapshot().context(&self.folder, "")?;
        let removed: DeltaResult<Vec<_>> = snapshot.all_tombstones(self.store.as_ref()).try_collect().await;
        let removed = removed.context(&self.folder, "")?.into_iter();
        let removed = removed.filter(|file| file.deletion_timestamp().is_none_or(|at| at > since));
        Ok(removed.map(|file| file.path().into_owned()).collect())
    }

    /// The table as delta-rs knows it, by its log.
    async fn loaded(&self) -> Result<DeltaTable> {
        let mut table = unloaded(&self.folder)?;
        table.load_version(self.version).await.context(&self.folder, "")?;
        Ok(table)
    }

    /// The log store renames a file into place without syncing it.
    fn sync_version(&self, version: u64) -> Result<()> {
        let log = self.folder.join("_delta_log");
        sync_file(&log.join(format!("{version:020}.json")))?;
        sync_folder(&log)
    }
}

/// The version that an application has last committed.
async fn version_of(folder: &Path, table: &DeltaTable, application: &str) -> Result<Option<u64>> {
    let snapshot = table.snapshot().context(folder, "")?;
    let version = snapshot.transaction_version(table.log_store().as_ref(), application).await.context(folder, "")?;
    Ok(version.map(|version| version.max(0) as u64))
}

/// A position as Delta states versions. None comes near the end of them.
fn version_in_log(position: u64) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

/// A moment, milliseconds since 1970 UTC.
pub(super) fn milliseconds_before_now(duration: Duration) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(duration).as_millis() as i64
}

fn sync_file(path: &Path) -> Result<()> {
    File::open(path).and_then(|file| file.sync_all()).context(path, "sync")
}

fn unloaded(folder: &Path) -> Result<DeltaTable> {
    let url = Url::from_directory_path(folder).map_err(|()| TablesError::Damaged {
        path: folder.to_owned(),
        detail: "expected the absolute path of a folder".to_owned(),
    })?;
    DeltaTableBuilder::from_url(url).and_then(DeltaTableBuilder::build).context(folder, "")
}
