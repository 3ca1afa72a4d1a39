//! The journal: what makes a commit to several tables one.
//!
//! `DIR/journal/<position, 20 digits>.json` names every file that a commit adds to or removes from any table. The commit
//! has happened once that name is durable; giving the tables their part of it may be done, and done again, at any later
//! time.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use deltalake::kernel::{Add, Remove, StructType};
use serde::{Deserialize, Serialize};

use super::{
    error::{Context, Result, TablesError},
    parquet_file::sync_folder,
};

/// One commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Journal {
    pub(super) position: u64,
    pub(super) tables: Vec<TableChange>,
}

/// What a commit does to one table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TableChange {
    pub(super) table: String,
    /// The table's columns, for the case that it does not exist yet.
    pub(super) schema: Option<StructType>,
    pub(super) add: Vec<Add>,
    pub(super) remove: Vec<Remove>,
    /// The position of the write-ahead log that the commit covers; said of `requests` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) covers: Option<u64>,
}

/// The folder of journals.
#[derive(Debug)]
pub(super) struct Journals {
    folder: PathBuf,
}

impl Journals {
    /// Opens the folder and removes what a crash left half-written.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let folder = root.join("journal");
        std::fs::create_dir_all(&folder).context(&folder, "create the folder")?;
        let journals = Self { folder };
        for name in journals.names()? {
            if name.ends_with(".tmp") {
                let path = journals.folder.join(name);
                std::fs::remove_file(&path).context(&path, "remove")?;
            }
        }
        Ok(journals)
    }

    /// Commits: from here on the journal is there whatever happens.
    pub(super) fn write(&self, journal: &Journal) -> Result<()> {
        let path = self.path(journal.position);
        let unfinished = path.with_extension("json.tmp");
        let text = serde_json::to_vec(journal).map_err(std::io::Error::from).context(&unfinished, "write")?;
        let mut file = File::create(&unfinished).context(&unfinished, "create the file")?;
        file.write_all(&text).context(&unfinished, "write")?;
        file.sync_all().context(&unfinished, "sync")?;
        std::fs::rename(&unfinished, &path).context(&path, "rename to")?;
        sync_folder(&self.folder)
    }

    /// Whether the commit at this position has happened.
    pub(super) fn has(&self, position: u64) -> bool {
        self.path(position).exists()
    }

    /// The positions of the journals, ascending.
    pub(super) fn positions(&self) -> Result<Vec<u64>> {
        let names = self.names()?;
        let mut positions: Vec<u64> =
            names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect();
        positions.sort_unstable();
        Ok(positions)
    }

    pub(super) fn read(&self, position: u64) -> Result<Journal> {
        let path = self.path(position);
        let text = std::fs::read(&path).context(&path, "read")?;
        let journal: Journal = serde_json::from_slice(&text)
            .map_err(|error| TablesError::Damaged { path: path.clone(), detail: format!("not a journal: {error}") })?;
        if journal.position != position {
            let detail = format!("the journal of position {}, expected that of {position}", journal.position);
            return Err(TablesError::Damaged { path, detail });
        }
        Ok(journal)
    }

    /// Removes the journals below a position that every table has taken.
    pub(super) fn retire_below(&self, position: u64) -> Result<()> {
        for position in self.positions()?.into_iter().filter(|&older| older < position) {
            let path = self.path(position);
            std::fs::remove_file(&path).context(&path, "remove")?;
        }
        Ok(())
    }

    fn path(&self, position: u64) -> PathBuf {
        self.folder.join(format!("{position:020}.json"))
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.folder).context(&self.folder, "list")?;
        entries
            .map(|entry| Ok(entry.context(&self.folder, "list")?.file_name().to_string_lossy().into_owned()))
            .collect()
    }
}
