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
mod captures;
mod chunk;
mod columns;
mod commit;
mod counts;
mod error;
mod expert_load;
mod gather;
mod journal;
mod lock;
mod mismatches;
mod parquet_file;
mod request;
mod requests;
mod routing;
mod routing_file;
mod sweep;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::datatypes::{Schema, SchemaRef};
use deltalake::kernel::{Remove, StructType, engine::arrow_conversion::TryIntoKernel};
use tokio::runtime::Runtime;

use self::{
    arrow_file::Columns,
    captures::Captures,
    commit::Log,
    error::{Context, Result},
    expert_load::ExpertLoad,
    journal::{Journal, Journals, TableChange},
    lock::Lock,
    mismatches::Mismatches,
    parquet_file::{DataFile, sync_folder},
    requests::Requests,
};
pub use self::{
    batch::{Batch, BatchWriter},
    captures::CaptureRow,
    commit::APPLICATION,
    error::TablesError,
    request::{Arrival, ClosedRequest},
    requests::{RequestRow, StoredSegment},
    routing::RoutingTable,
};

/// The tables under one folder, open for writing.
pub struct Tables {
    root: Arc<Path>,
    _lock: Lock,
    runtime: Runtime,
    journals: Journals,
    logs: BTreeMap<String, Log>,
    /// The position of the last commit.
    committed: u64,
    /// The position of the last batch that was begun.
    begun: u64,
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its position.
    pub position: u64,
    /// Files added to each table.
    pub files: BTreeMap<String, usize>,
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
        let mut tables = Self { root, _lock: lock, runtime, journals, logs: BTreeMap::new(), committed: 0, begun: 0 };
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

    /// A batch for the next commit. Several may be under way; they must be committed in the order of their beginnings,
    /// and none sees the requests of another before that one's commit.
    pub fn begin(&mut self) -> Batch {
        self.begun += 1;
        Batch::new(self.root.clone(), self.begun)
    }

    /// Commits a batch: all of it is stored, durably, or nothing.
    ///
    /// # Errors
    /// After an error the tables hold all of the batch or none of it, and the next commit or opening settles which;
    /// [`Self::position`] says what is sure so far.
    pub fn commit(&mut self, batch: Batch) -> Result<Committed> {
        self.recover()?;
        let prepared = self.prepare(batch)?;
        self.write_journal(prepared)?;
        let journal = self.journals.read(self.committed)?;
        self.apply(&journal)?;
        self.journals.retire_below(self.committed)?;
        let files = journal.tables.into_iter().map(|change| (change.table, change.add.len())).collect();
        Ok(Committed { position: journal.position, files })
    }

    /// Ends the batch's files and makes them durable.
    fn prepare(&mut self, batch: Batch) -> Result<Prepared> {
        let position = batch.position();
        if position <= self.committed {
            return Err(TablesError::Batch { position, detail: "one begun later was committed before it" });
        }
        let mut contents = batch.into_contents()?;
        contents.load.write_to(&mut contents.expert_load)?;

        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        for (table, file) in contents.routing {
            let change = changes.entry(table.name()).or_insert_with(|| Change::to(table.schema()));
            change.add.push(file);
        }
        let fixed = [
            contents.expert_load.finish()?,
            contents.mismatches.finish()?,
            contents.captures.finish()?,
            contents.requests.finish()?,
        ];
        // Routing tables by name, then the fixed ones in their order; all fixed ones take part in every commit.
        let mut ordered: Vec<(String, Change)> = changes.into_iter().collect();
        for ((name, schema), file) in fixed_tables().into_iter().zip(fixed) {
            ordered.push((name.to_owned(), Change { schema, add: file.into_iter().collect(), remove: Vec::new() }));
        }
        for (name, change) in &ordered {
            if !change.add.is_empty() {
                sync_folder(&self.root.join(name))?;
            }
        }
        sync_folder(&self.root)?;
        Ok(Prepared { position, changes: ordered })
    }

    /// The commit point.
    fn write_journal(&mut self, prepared: Prepared) -> Result<()> {
        let position = prepared.position;
        let mut tables = Vec::new();
        let mut files = Vec::new();
        for (table, change) in prepared.changes {
            let add = change.add.iter().map(DataFile::add).collect();
            let schema = delta_schema(&change.schema, &self.root.join(&table))?;
            tables.push(TableChange { table, schema, add, remove: change.remove });
            files.extend(change.add);
        }
        let written = self.journals.write(&Journal { position, tables });
        if written.is_ok() || self.journals.has(position) {
            // Also where the journal may not be durable: it may be, and then names the files.
            files.into_iter().for_each(DataFile::keep);
            self.committed = position;
        }
        written
    }

    /// Gives every table its part of a commit.
    fn apply(&mut self, journal: &Journal) -> Result<()> {
        journal.tables.iter().try_for_each(|change| self.apply_to(journal.position, change))
    }

    fn apply_to(&mut self, position: u64, change: &TableChange) -> Result<()> {
        let log = match self.logs.entry(change.table.clone()) {
            std::collections::btree_map::Entry::Occupied(log) => log.into_mut(),
            std::collections::btree_map::Entry::Vacant(none) => {
                let folder = self.root.join(&change.table);
                none.insert(self.runtime.block_on(Log::create(&folder, &change.schema))?)
            }
        };
        self.runtime.block_on(log.apply(position, change))
    }

    fn open_logs(&mut self) -> Result<()> {
        for folder in self.table_folders()? {
            if let Some(log) = self.runtime.block_on(Log::open(&folder))? {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.logs.insert(name, log);
            }
        }
        for (name, schema) in fixed_tables() {
            if !self.logs.contains_key(name) {
                let folder = self.root.join(name);
                let schema = delta_schema(&schema, &folder)?;
                let log = self.runtime.block_on(Log::create(&folder, &schema))?;
                self.logs.insert(name.to_owned(), log);
            }
        }
        Ok(())
    }

    /// Brings every table up to the last journal.
    fn recover(&mut self) -> Result<()> {
        let everywhere = fixed_tables().iter().filter_map(|(name, _)| self.logs.get(*name)).map(Log::position).min();
        let everywhere = everywhere.unwrap_or(0);
        for position in self.journals.positions()? {
            if position > everywhere {
                let journal = self.journals.read(position)?;
                self.apply(&journal)?;
            }
            self.committed = self.committed.max(position);
        }
        self.committed = self.logs.values().map(Log::position).fold(self.committed, u64::max);
        self.begun = self.begun.max(self.committed);
        self.journals.retire_below(self.committed)
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

/// A batch whose files are durable and unknown to every table.
struct Prepared {
    position: u64,
    changes: Vec<(String, Change)>,
}

/// What a commit does to one table, before the journal names it.
struct Change {
    schema: SchemaRef,
    add: Vec<DataFile>,
    remove: Vec<Remove>,
}

impl Change {
    fn to(schema: SchemaRef) -> Self {
        Self { schema, add: Vec::new(), remove: Vec::new() }
    }
}

fn delta_schema(schema: &Schema, folder: &Path) -> Result<StructType> {
    schema.try_into_kernel().context(folder, "")
}
