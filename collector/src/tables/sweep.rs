//! Removing files that no table refers to.

use std::{
    collections::HashSet,
    path::Path,
    time::{Duration, SystemTime},
};

use deltalake::DeltaResult;
use futures::TryStreamExt;

use super::{
    Tables,
    error::{Context, Result},
    log::Log,
    parquet_file::position_in_name,
};

/// How long a file stays after a commit removed it: a reader may have begun before that.
const KEPT_AFTER_REMOVAL: Duration = Duration::from_secs(7 * 24 * 3600);

impl Tables {
    /// Removes the files of batches that were not committed. Their names say so: a commit's position is in them, and
    /// nobody else writes.
    pub(super) fn sweep_uncommitted(&self) -> Result<()> {
        for folder in self.table_folders()? {
            for name in our_files(&folder)? {
                if position_in_name(&name).is_some_and(|position| position > self.committed) {
                    let path = folder.join(name);
                    std::fs::remove_file(&path).context(&path, "remove")?;
                }
            }
        }
        Ok(())
    }

    /// Removes the data files that no table refers to any more: those that a commit replaced more than a week ago, and
    /// what failed batches left. Says how many.
    ///
    /// # Errors
    /// Where a log or folder cannot be read or a file not be removed.
    pub fn vacuum(&mut self) -> Result<usize> {
        let oldest_reader = SystemTime::now() - KEPT_AFTER_REMOVAL;
        let since = oldest_reader.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let mut removed = 0;
        for log in self.logs.values() {
            let referred = self.runtime.block_on(referred(log, since))?;
            for name in our_files(log.folder())? {
                let settled = position_in_name(&name).is_some_and(|position| position <= self.committed);
                if settled && !referred.contains(&name) {
                    let path = log.folder().join(name);
                    std::fs::remove_file(&path).context(&path, "remove")?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

/// The files of a table, and those that it had after `since` (milliseconds since 1970 UTC).
async fn referred(log: &Log, since: i64) -> Result<HashSet<String>> {
    let table = log.table();
    let mut names: HashSet<String> = log.files()?.map(|file| file.path().into_owned()).collect();
    let tombstones: DeltaResult<Vec<_>> = match table.snapshot() {
        Ok(snapshot) => snapshot.all_tombstones(table.log_store().as_ref()).try_collect().await,
        Err(error) => Err(error),
    };
    for tombstone in tombstones.context(log.folder(), "")? {
        if tombstone.deletion_timestamp().is_none_or(|at| at >= since) {
            names.insert(tombstone.path().into_owned());
        }
    }
    Ok(names)
}

/// The names in a folder that are of our data files.
fn our_files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).context(folder, "list")? {
        let name = entry.context(folder, "list")?.file_name().to_string_lossy().into_owned();
        if position_in_name(&name).is_some() {
            names.push(name);
        }
    }
    Ok(names)
}
