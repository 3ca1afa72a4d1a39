//! The steps of a commit.

use std::{collections::BTreeMap, path::Path};

use arrow::datatypes::{Schema, SchemaRef};
use deltalake::kernel::{Remove, StructType, engine::arrow_conversion::TryIntoKernel};

use super::{
    Batch, Tables,
    arrow_file::Columns,
    error::{Context, Result, TablesError},
    fixed_tables,
    journal::{Journal, TableChange},
    log::Log,
    parquet_file::{DataFile, sync_folder},
    replace::Replacement,
    requests::Requests,
};

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its position.
    pub position: u64,
    /// Files added to each table.
    pub files: BTreeMap<String, usize>,
}

impl Tables {
    /// Commits a batch: all of it is stored, durably, or nothing.
    ///
    /// # Errors
    /// After an error the tables hold all of the batch or none of it, and the next commit or opening settles which;
    /// [`Self::position`] says what is sure so far.
    pub fn commit(&mut self, batch: Batch) -> Result<Committed> {
        self.commit_batch(batch, None)
    }

    /// Commits a batch that holds everything which the write-ahead log had before `log` and earlier commits had not:
    /// [`Self::log_position`] says `log` from the moment at which the batch is stored, and only from then.
    ///
    /// # Errors
    /// As [`Self::commit`]; and [`TablesError::Covers`] where an earlier commit covers more of the log, with nothing
    /// stored.
    pub fn commit_covering(&mut self, batch: Batch, log: u64) -> Result<Committed> {
        self.commit_batch(batch, Some(log))
    }

    fn commit_batch(&mut self, batch: Batch, covers: Option<u64>) -> Result<Committed> {
        self.settle()?;
        if let (Some(given), Some(covered)) = (covers, self.covered)
            && given < covered
        {
            return Err(TablesError::Covers { position: batch.position(), given, covered });
        }
        let prepared = Prepared { covers, ..self.prepare(batch)? };
        self.commit_prepared(prepared)
    }

    pub(super) fn commit_prepared(&mut self, prepared: Prepared) -> Result<Committed> {
        let journal = self.write_journal(prepared)?;
        self.apply(&journal)?;
        self.settled = true;
        self.journals.retire_below(self.committed)?;
        let files = journal.tables.into_iter().map(|change| (change.table, change.add.len())).collect();
        Ok(Committed { position: journal.position, files })
    }

    /// Ends the batch's files and makes them durable.
    pub(super) fn prepare(&mut self, batch: Batch) -> Result<Prepared> {
        let position = batch.position();
        if position <= self.committed {
            return Err(TablesError::Batch { position, detail: "one begun later was committed before it" });
        }
        let mut contents = batch.into_contents()?;
        let mut replaced = self.take_out_replaced(&mut contents, position)?;
        contents.load.write_to(&mut contents.expert_load)?;

        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        let closed = contents.closed;
        for (table, file) in contents.routing {
            let change = changes.entry(table.name()).or_default();
            change.schema = Some(table.schema());
            change.add.push(file.closed(closed));
        }
        for name in replaced.keys().filter(|name| name.starts_with("routing_")) {
            changes.entry(name.clone()).or_default();
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
            ordered.push((
                name.to_owned(),
                Change {
                    schema: Some(schema),
                    add: file.into_iter().map(|file| file.closed(closed)).collect(),
                    remove: Vec::new(),
                },
            ));
        }
        for (name, change) in &mut ordered {
            let Replacement { add, remove } = replaced.remove(&*name).unwrap_or_default();
            change.add.extend(add);
            change.remove.extend(remove);
            if !change.add.is_empty() {
                sync_folder(&self.root.join(&*name))?;
            }
        }
        sync_folder(&self.root)?;
        Ok(Prepared { position, covers: None, changes: ordered })
    }

    /// The commit point.
    pub(super) fn write_journal(&mut self, prepared: Prepared) -> Result<Journal> {
        let position = prepared.position;
        let mut tables = Vec::new();
        let mut files = Vec::new();
        for (table, change) in prepared.changes {
            let add = change.add.iter().map(DataFile::add).collect();
            let folder = self.root.join(&table);
            let new_table = change.schema.filter(|_| !self.logs.contains_key(&table));
            let schema = new_table.map(|schema| delta_schema(&schema, &folder)).transpose()?;
            let covers = prepared.covers.filter(|_| table == Requests::TABLE);
            tables.push(TableChange { table, schema, add, remove: change.remove, covers });
            files.extend(change.add);
        }
        let journal = Journal { position, tables };
        let written = self.journals.write(&journal);
        if written.is_ok() || self.journals.has(position) {
            // Also where the journal may not be durable: it may be, and then names the files.
            files.into_iter().for_each(DataFile::keep);
            self.committed = position;
            self.covered = prepared.covers.or(self.covered);
            self.settled = false;
        }
        written.map(|()| journal)
    }

    /// Gives every table its part of a commit.
    fn apply(&mut self, journal: &Journal) -> Result<()> {
        journal.tables.iter().try_for_each(|change| self.apply_to(journal.position, change))
    }

    pub(super) fn apply_to(&mut self, position: u64, change: &TableChange) -> Result<()> {
        let log = match self.logs.entry(change.table.clone()) {
            std::collections::btree_map::Entry::Occupied(log) => log.into_mut(),
            std::collections::btree_map::Entry::Vacant(none) => {
                let folder = self.root.join(&change.table);
                let Some(schema) = &change.schema else {
                    let detail = format!("expected the table that the commit at {position} changes");
                    return Err(TablesError::Damaged { path: folder, detail });
                };
                none.insert(self.runtime.block_on(Log::create(&folder, schema))?)
            }
        };
        self.runtime.block_on(log.apply(position, change))
    }

    /// Makes sure that every table has taken the last commit.
    pub(super) fn settle(&mut self) -> Result<()> {
        if !self.settled {
            // A log that failed may have taken its part all the same.
            self.open_logs()?;
            self.recover()?;
        }
        Ok(())
    }

    /// Brings every table up to the last journal.
    pub(super) fn recover(&mut self) -> Result<()> {
        for position in self.journals.positions()? {
            self.committed = self.committed.max(position);
            let journal = self.journals.read(position)?;
            self.apply(&journal)?;
        }
        self.covered = self.logs.get(Requests::TABLE).and_then(Log::covers).max(self.covered);
        self.committed = self.logs.values().map(Log::position).fold(self.committed, u64::max);
        self.begun = self.begun.max(self.committed);
        self.settled = true;
        self.journals.retire_below(self.committed)
    }
}

/// A batch whose files are durable and unknown to every table.
pub(super) struct Prepared {
    pub(super) position: u64,
    /// The position of the write-ahead log that it covers.
    pub(super) covers: Option<u64>,
    pub(super) changes: Vec<(String, Change)>,
}

/// What a commit does to one table, before the journal names it.
#[derive(Default)]
pub(super) struct Change {
    /// The columns, for the case that the table does not exist yet.
    pub(super) schema: Option<SchemaRef>,
    pub(super) add: Vec<DataFile>,
    pub(super) remove: Vec<Remove>,
}

/// The columns as Delta's log states them.
pub(super) fn delta_schema(schema: &Schema, folder: &Path) -> Result<StructType> {
    schema.try_into_kernel().context(folder, "")
}
