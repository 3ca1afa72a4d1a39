//! Merging small files, while commits go on.
//!
//! A commit every ten seconds adds a small file to each table. [`Tables::plan_compaction`] picks some to merge,
//! [`Compaction::run`] writes what they hold into one file per table, on any thread and without the tables, and
//! [`Tables::commit_compacted`] puts it into their place. What a table holds does not change, so no table has to
//! wait for another: each takes its part as a version of its own, without a position, marked as no change of data. A file
//! that a commit has taken out in the meantime makes the part void.

mod choose;
mod mark;
mod rewrite;

use std::{path::Path, sync::Arc};

use deltalake::kernel::Add;
use uuid::Uuid;

pub(super) use self::mark::Mark;
use self::{
    choose::{Candidate, choose},
    rewrite::rewrite,
};
use super::{
    Tables,
    closed::{Closed, both},
    error::Result,
    fixed_tables,
    log::Log,
    parquet_file::{DataFile, FileName, sync_folder},
    table_file::TableFile,
};
use crate::fail_point::{Step, reach};

/// Large enough for a file of a fixed table is this part of what it is for a routing table.
const FIXED_SHARE: u64 = 8;

/// When files are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionOptions {
    /// Bytes of a file of a routing table that is large enough; in the other tables an eighth of it is. No file is made
    /// larger by merging. When a request is stored anew, each file that has something of it is written again, which takes
    /// longer row by row, as in the other tables, than by whole row groups.
    pub target_bytes: u64,
    /// Whether to merge whatever can be merged. Otherwise files wait until there are enough of about equal size, so
    /// that no row is written again more than four times: what tables that are being written to want.
    pub thorough: bool,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self { target_bytes: 256 << 20, thorough: false }
    }
}

/// Files to merge, one run of adjacent ones per table at most.
#[derive(Debug)]
pub struct Compaction {
    root: Arc<Path>,
    id: Uuid,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    table: String,
    sources: Vec<Candidate>,
    closed: Option<Closed>,
}

impl Compaction {
    /// Files that it merges.
    pub fn files(&self) -> usize {
        self.parts.iter().map(|part| part.sources.len()).sum()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().flat_map(|part| &part.sources).map(|source| source.bytes).sum()
    }

    /// Writes the merged files, which no table knows yet.
    ///
    /// # Errors
    /// Where a file cannot be read or written: nothing is left of it.
    pub fn run(self) -> Result<Compacted> {
        reach(Step::CompactionBeforeMark);
        let mark = Mark::set(self.root.clone(), self.id)?;
        reach(Step::CompactionBeforeFile);
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            let folder = self.root.join(&part.table);
            let files: Vec<_> = part.sources.iter().map(|source| folder.join(source.name.to_string())).collect();
            let position = part.sources.first().map_or(0, |first| first.name.position);
            let name = FileName { position, id: self.id };
            let file = rewrite(&self.root, &part.table, &files, name)?;
            reach(Step::CompactionAfterFile);
            sync_folder(&folder)?;
            let file = file.map(|file| file.closed(part.closed));
            parts.push((part, file));
        }
        Ok(Compacted { parts, mark })
    }
}

/// Merged files, to be committed. Dropped instead, they go.
#[derive(Debug)]
pub struct Compacted {
    // In this order: files go before the mark that names them.
    parts: Vec<(Part, Option<DataFile>)>,
    mark: Mark,
}

/// What [`Tables::commit_compacted`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Merged {
    /// Files that are no longer part of a table.
    pub files: usize,
    /// Files in their place.
    pub into: usize,
    /// Tables for which it came too late, since a commit had taken out one of the files.
    pub void: usize,
}

impl Tables {
    /// Files that are worth merging; `None` where there are none. Plan the next when this one is committed or dropped:
    /// it would have the same files.
    pub fn plan_compaction(&self, options: &CompactionOptions) -> Option<Compaction> {
        let part = |(table, log): (&String, &Log)| {
            let candidate = |file: &TableFile| {
                let name = FileName::parse(&file.path)?;
                Some(Candidate { name, bytes: file.bytes, day: file.closed.map(Closed::day) })
            };
            let is_fixed = fixed_tables().iter().any(|(name, _)| name == table);
            let target_bytes = if is_fixed { options.target_bytes / FIXED_SHARE } else { options.target_bytes };
            let options = CompactionOptions { target_bytes, ..*options };
            let sources = choose(log.files().filter_map(candidate).collect(), &options)?;
            let closed = sources.iter().filter_map(|source| log.file(&source.name.to_string())?.closed);
            let closed = closed.fold(None, |all, one| both(all, Some(one)));
            Some(Part { table: table.clone(), sources, closed })
        };
        let parts: Vec<_> = self.logs.iter().filter_map(part).collect();
        (!parts.is_empty()).then(|| Compaction { root: self.root.clone(), id: Uuid::new_v4(), parts })
    }

    /// Puts merged files into the place of those that they were merged from. Readers do not notice: the files of before
    /// stay until a vacuum.
    ///
    /// # Errors
    /// Where a table's log cannot be extended. What each table holds is the same with and without it, and the next
    /// opening clears up.
    pub fn commit_compacted(&mut self, compacted: Compacted) -> Result<Merged> {
        self.settle()?;
        let Compacted { parts, mark } = compacted;
        let mut merged = Merged::default();
        let result = parts.into_iter().try_for_each(|(part, file)| self.merge(&part, file, &mut merged));
        match result {
            Ok(()) => {
                reach(Step::CompactionBeforeUnmark);
                drop(mark);
                Ok(merged)
            }
            Err(error) => {
                // The table may have taken its file all the same.
                mark.leave();
                self.settled = false;
                Err(error)
            }
        }
    }

    fn merge(&mut self, part: &Part, file: Option<DataFile>, merged: &mut Merged) -> Result<()> {
        let Some(log) = self.logs.get_mut(&part.table) else {
            merged.void += 1;
            return Ok(());
        };
        let there = part.sources.iter().filter_map(|source| log.file(&source.name.to_string()));
        let remove: Vec<_> = there.map(|file| file.remove(false)).collect();
        if remove.len() != part.sources.len() {
            merged.void += 1;
            return Ok(());
        }
        let add: Vec<Add> = file.iter().map(|file| Add { data_change: false, ..file.add() }).collect();
        merged.files += remove.len();
        merged.into += add.len();
        file.into_iter().for_each(DataFile::keep);
        reach(Step::CompactionBeforeCommit);
        self.runtime.block_on(log.compact(&add, &remove))?;
        reach(Step::CompactionAfterCommit);
        Ok(())
    }
}
