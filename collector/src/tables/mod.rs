//! The tables: joined routing as Delta Lake, under one folder.
//!
//! ```text
//! DIR/requests, DIR/mismatches, DIR/captures, DIR/expert_load    a Delta table each
//! DIR/routing_<layers>x<top_k>_<width>...                        one Delta table per geometry of rows
//! DIR/journal/<position>.json                                    what makes a commit to all of them one
//! DIR/lock                                                       held by the one writer
//! ```
//!
//! A [`Batch`] takes [`ClosedRequest`]s, from several threads if need be, straight into Parquet files; [`Tables::commit`]
//! then shows them to every table's readers as one. The steps, each durable before the next begins:
//!
//! 1. the data files, which no table knows yet;
//! 2. the journal of this commit's position, which names them all: **this is the commit**;
//! 3. each table's own log entry, marked with the position; `requests` comes last.
//!
//! A crash before 2 leaves files that the next opening removes; a crash after it, tables that the next opening brings up
//! to the journal. A reader takes the position of `requests` and reads every other table at its newest version that is
//! not beyond it.
//!
//! Everything here blocks on files. Call it from a thread of its own, not from inside an asynchronous runtime.

mod arrow_file;
mod batch;
mod blocks;
mod captures;
mod chunk;
mod closed;
mod columns;
mod commit;
mod compaction;
mod counts;
mod early_sync;
mod error;
mod expert_load;
mod expire;
mod gather;
mod in_memory;
mod journal;
mod keys;
mod lock;
mod log;
mod lookup;
mod mismatches;
mod old_file;
mod parquet_file;
mod replace;
mod request;
mod requests;
mod routing;
mod routing_file;
mod stored;
mod sweep;
mod table_file;
#[cfg(test)]
mod tests;
mod torn;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::datatypes::SchemaRef;
use tokio::runtime::Runtime;

pub(crate) use self::expert_load::SourceLoad;
use self::{
    arrow_file::Columns,
    batch::UnderWay,
    captures::Captures,
    commit::delta_schema,
    error::{Context, Result},
    expert_load::ExpertLoad,
    journal::Journals,
    lock::Lock,
    log::Log,
    lookup::FileIndexes,
    mismatches::Mismatches,
    requests::Requests,
};
pub use self::{
    batch::{Batch, BatchWriter},
    blocks::{BlockName, rows_between},
    captures::CaptureRow,
    commit::Committed,
    compaction::{Compacted, Compaction, CompactionOptions, Merged},
    error::TablesError,
    expire::Expired,
    in_memory::InMemory,
    log::{APPLICATION, LOG_APPLICATION},
    request::{Arrival, ClosedRequest},
    requests::{RequestRow, StoredSegment},
    routing::RoutingTable,
    stored::Stored,
    sweep::{KEPT_AFTER_REMOVAL, Vacuumed},
};

/// The tables under one folder, open for writing.
pub struct Tables {
    root: Arc<Path>,
    _lock: Lock,
    runtime: Runtime,
    journals: Journals,
    logs: BTreeMap<String, Log>,
    indexes: FileIndexes,
    /// The position of the last commit.
    committed: u64,
    /// The position of the write-ahead log that the commits cover.
    covered: Option<u64>,
    /// Whether every table has taken its part of it.
    settled: bool,
    /// The position of the last batch that was begun.
    begun: u64,
    /// Those that may not have ended.
    under_way: Vec<UnderWay>,
}

/// The fixed tables, in the order in which a commit reaches them: `requests` last, since readers go by it.
fn fixed_tables() -> [(&'static str, SchemaRef); 4] {
    [
        (ExpertLoad::TABLE, ExpertLoad::schema()),
        (Mismatches::TABLE, Mismatches::schema()),
        (Captures::TABLE, Captures::schema()),
        (Requests::TABLE, Requests::schema()),
    ]
}

impl Tables {
    /// Opens the folder for writing, creating it and its tables where they are not there, and finishes or clears away
    /// what an earlier writer left undone.
    ///
    /// # Errors
    /// [`TablesError::Locked`] where another process writes to the folder.
    pub fn open(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).context(root, "create the folder")?;
        let root: Arc<Path> = std::fs::canonicalize(root).context(root, "resolve the path of")?.into();
        let lock = Lock::take(&root)?;
        let journals = Journals::open(&root)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context(&root, "start a runtime for")?;
        let indexes = FileIndexes::default();
        let mut tables = Self {
            root,
            _lock: lock,
            runtime,
            journals,
            logs: BTreeMap::new(),
            indexes,
            committed: 0,
            covered: None,
            settled: false,
            begun: 0,
            under_way: Vec::new(),
        };
        tables.open_logs()?;
        tables.recover()?;
        tables.sweep_uncommitted()?;
        Ok(tables)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The position of the last commit; 0 before the first.
    pub fn position(&self) -> u64 {
        self.committed
    }

    /// The position of the write-ahead log that the commits cover: what is before it is in the tables. `None` where no
    /// commit has said one, as in a folder that was only imported into.
    pub fn log_position(&self) -> Option<u64> {
        self.covered
    }

    /// A batch for the next commit. Several may be under way; they must be committed in the order of their beginnings,
    /// and none sees the requests of another before that one's commit.
    pub fn begin(&mut self) -> Batch {
        self.begun += 1;
        let batch = Batch::new(self.root.clone(), self.begun);
        self.under_way.retain(UnderWay::is);
        self.under_way.push(batch.under_way());
        batch
    }

    /// The position of the oldest batch that was begun and neither committed nor dropped.
    fn batch_under_way(&self) -> Option<u64> {
        self.under_way.iter().find(|batch| batch.is()).map(UnderWay::position)
    }

    fn open_logs(&mut self) -> Result<()> {
        for folder in self.table_folders()? {
            if let Some(log) = self.runtime.block_on(Log::open(&folder))? {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.logs.insert(name, log);
            }
        }
        for (name, schema) in fixed_tables() {
            let folder = self.root.join(name);
            let schema = delta_schema(&schema, &folder)?;
            match self.logs.get(name) {
                Some(log) => log.expect_columns(&schema)?,
                None => {
                    let log = self.runtime.block_on(Log::create(&folder, &schema))?;
                    self.logs.insert(name.to_owned(), log);
                }
            }
        }
        Ok(())
    }

    /// Our tables' folders.
    fn table_folders(&self) -> Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(&self.root).context(&self.root, "list")? {
            let path = entry.context(&self.root, "list")?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let ours = name.starts_with("routing_") || fixed_tables().iter().any(|(fixed, _)| *fixed == name);
            if ours && path.is_dir() {
                folders.push(path);
            }
        }
        folders.sort_unstable();
        Ok(folders)
    }
}
