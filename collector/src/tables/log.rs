//! One table's log: opening, creating, extending, checkpointing it.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use deltalake::{
    DeltaTable, DeltaTableBuilder,
    checkpoints::{cleanup_metadata, create_checkpoint},
    kernel::{
        Action, Add, LogicalFileView, Remove, StructType, Transaction,
        transaction::{CommitBuilder, CommitProperties, TableReference},
    },
    operations::create::CreateBuilder,
    protocol::{DeltaOperation, SaveMode},
};
use url::Url;

use super::{
    error::{Context, Result, TablesError},
    journal::TableChange,
    parquet_file::sync_folder,
};

/// The application id of our commits in a table's log; its version is the position of the last commit that the table
/// has taken.
pub const APPLICATION: &str = "gatescope";

/// The application id under which `requests` says which position of the write-ahead log its last commit covers.
pub const LOG_APPLICATION: &str = "gatescope.log";

/// Versions between two checkpoints: what a reader has to read besides one.
const VERSIONS_PER_CHECKPOINT: u64 = if cfg!(test) { 4 } else { 64 };

/// A table and how far it is.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    table: DeltaTable,
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
        let position = version_of(folder, &table, APPLICATION).await?.unwrap_or(0);
        let covers = version_of(folder, &table, LOG_APPLICATION).await?;
        let version = table.snapshot().context(folder, "")?.version();
        Ok(Some(Self { folder: folder.to_owned(), table, version, position, covers }))
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
        let log = Self { folder: folder.to_owned(), table, version: 0, position: 0, covers: None };
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
        let found = self.table.snapshot().context(&self.folder, "")?.schema();
        if *found == *expected {
            return Ok(());
        }
        let names =
            |schema: &StructType| schema.fields().map(|field| field.name().clone()).collect::<Vec<_>>().join(", ");
        let detail = format!(
            "not a table of this version of gatescope: it has the columns {}, expected {}, of gatescope's types",
            names(&found),
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

    pub(super) fn table(&self) -> &DeltaTable {
        &self.table
    }

    /// The table's files.
    pub(super) fn files(&self) -> Result<impl Iterator<Item = LogicalFileView> + '_> {
        Ok(self.table.snapshot().context(&self.folder, "")?.log_data().into_iter())
    }

    /// Takes the table's part of a commit, once: a second time changes nothing.
    pub(super) async fn apply(&mut self, position: u64, change: &TableChange) -> Result<()> {
        if position <= self.position {
            return Ok(());
        }
        let add = change.add.iter().cloned().map(Action::Add);
        let remove = change.remove.iter().cloned().map(Action::Remove);
        let operation = if change.remove.is_empty() {
            DeltaOperation::Write { mode: SaveMode::Append, partition_by: None, predicate: None }
        } else if change.add.is_empty() {
            DeltaOperation::Delete { predicate: None }
        } else {
            DeltaOperation::Update { predicate: None }
        };
        let mut transactions = vec![Transaction::new(APPLICATION, version_in_log(position))];
        transactions.extend(change.covers.map(|covers| Transaction::new(LOG_APPLICATION, version_in_log(covers))));
        self.commit(remove.chain(add).collect(), operation, transactions).await?;
        self.position = position;
        self.covers = change.covers.or(self.covers);
        self.checkpoint_if_due().await
    }

    /// Puts merged files into the place of those that they were merged from.
    pub(super) async fn compact(&mut self, add: Vec<Add>, remove: Vec<Remove>) -> Result<()> {
        let target_size = add.iter().map(|file| file.size).sum();
        let actions = remove.into_iter().map(Action::Remove).chain(add.into_iter().map(Action::Add)).collect();
        self.commit(actions, DeltaOperation::Optimize { predicate: None, target_size }, Vec::new()).await?;
        self.checkpoint_if_due().await
    }

    async fn commit(
        &mut self,
        actions: Vec<Action>,
        operation: DeltaOperation,
        transactions: Vec<Transaction>,
    ) -> Result<()> {
        let properties = CommitProperties::default()
            .with_application_transactions(transactions)
            // Ours are made when the commit that they hold is durable.
            .with_create_checkpoint(false)
            .with_cleanup_expired_logs(Some(false));
        let snapshot = self.table.snapshot().context(&self.folder, "")?;
        let committed = CommitBuilder::from(properties)
            .with_actions(actions)
            .build(Some(snapshot as &dyn TableReference), self.table.log_store(), operation)
            .await
            .context(&self.folder, "")?;
        self.version = committed.version();
        self.table.state = Some(committed.snapshot());
        self.sync_version(self.version)
    }

    async fn checkpoint_if_due(&self) -> Result<()> {
        if self.version.is_multiple_of(VERSIONS_PER_CHECKPOINT) { self.checkpoint(self.version).await } else { Ok(()) }
    }

    async fn checkpoint(&self, version: u64) -> Result<()> {
        let log = self.folder.join("_delta_log");
        create_checkpoint(&self.table, None).await.context(&self.folder, "")?;
        for name in [format!("{version:020}.checkpoint.parquet"), "_last_checkpoint".to_owned()] {
            sync_file(&log.join(name))?;
        }
        sync_folder(&log)?;
        cleanup_metadata(&self.table, None).await.context(&self.folder, "")?;
        Ok(())
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

/// Removes log entries that a power cut left empty or cut short. They are the newest, since each is synced before the
/// next is written, and the journal has what they said.
fn remove_torn_commits(log: &Path) -> Result<()> {
    let mut versions = names_in(log)?;
    versions.retain(|name| {
        name.strip_suffix(".json").is_some_and(|version| version.len() == 20 && version.parse::<u64>().is_ok())
    });
    versions.sort_unstable();
    for name in versions.iter().rev() {
        let path = log.join(name);
        let text = std::fs::read(&path).context(&path, "read")?;
        let mut lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let whole = !text.is_empty() && lines.all(|line| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok());
        if whole {
            break;
        }
        std::fs::remove_file(&path).context(&path, "remove")?;
        sync_folder(log)?;
    }
    Ok(())
}

/// Removes the newest checkpoint where a power cut left it without its end, and the note that points to it. The entries
/// that it sums up are still there: they are removed long after.
fn remove_torn_checkpoint(log: &Path) -> Result<()> {
    const END: &[u8] = b"PAR1";
    let mut checkpoints = names_in(log)?;
    checkpoints.retain(|name| name.ends_with(".checkpoint.parquet"));
    let Some(newest) = checkpoints.iter().max().map(|name| log.join(name)) else { return Ok(()) };
    if std::fs::read(&newest).context(&newest, "read")?.ends_with(END) {
        return Ok(());
    }
    let note = log.join("_last_checkpoint");
    if note.exists() {
        std::fs::remove_file(&note).context(&note, "remove")?;
    }
    std::fs::remove_file(&newest).context(&newest, "remove")?;
    sync_folder(log)
}

fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).context(folder, "list")?;
    entries.map(|entry| Ok(entry.context(folder, "list")?.file_name().to_string_lossy().into_owned())).collect()
}
