//! Removing files that no table refers to.

use std::{collections::HashSet, path::Path, time::Duration};

use super::{
    Tables,
    compaction::Mark,
    error::{Context, Result},
    log::{Log, milliseconds_before_now},
    parquet_file::FileName,
};

/// How long a file stays after a commit removed it, unless told otherwise: a reader may have begun before that.
pub const KEPT_AFTER_REMOVAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// What [`Tables::vacuum`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vacuumed {
    /// Files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Tables {
    /// Removes the files of batches that were not committed. Their names say so: a commit's position is in them, and
    /// nobody else writes. Removes those of compactions that came to no end, too: each has left a mark with its name.
    pub(super) fn sweep_uncommitted(&self) -> Result<()> {
        let marks = Mark::all(&self.root)?;
        for folder in self.table_folders()? {
            let mut compacted = HashSet::new();
            for name in our_files(&folder)? {
                if name.position > self.committed {
                    remove(&folder, name)?;
                } else if marks.contains(&name.id) {
                    compacted.insert(name.to_string());
                }
            }
            if compacted.is_empty() {
                continue;
            }
            let table = folder.file_name().unwrap_or_default().to_string_lossy();
            if let Some(log) = self.logs.get(&*table) {
                compacted.retain(|name| log.file(name).is_none());
            }
            for name in compacted.iter().filter_map(|name| FileName::parse(name)) {
                remove(&folder, name)?;
            }
        }
        marks.into_iter().try_for_each(|mark| Mark::remove(&self.root, mark))
    }

    /// Removes the data files that no table refers to any more: those that a commit took out longer ago than `kept`, and
    /// what failed batches left. Those of a compaction under way stay. [`KEPT_AFTER_REMOVAL`] leaves readers a week, which is
    /// the most: the logs do not say for longer what they took out.
    ///
    /// # Errors
    /// Where a log or folder cannot be read or a file not be removed.
    pub fn vacuum(&mut self, kept: Duration) -> Result<Vacuumed> {
        let since = milliseconds_before_now(kept);
        let marks = Mark::all(&self.root)?;
        let mut removed = Vacuumed::default();
        for log in self.logs.values() {
            let mut referred = None;
            for name in our_files(log.folder())? {
                if name.position > self.committed || marks.contains(&name.id) {
                    continue;
                }
                let referred = match &mut referred {
                    Some(referred) => referred,
                    none => none.insert(self.runtime.block_on(names_referred(log, since))?),
                };
                if !referred.contains(&name.to_string()) {
                    removed.bytes += remove(log.folder(), name)?;
                    removed.files += 1;
                }
            }
        }
        Ok(removed)
    }
}

/// The files of a table, and those that it had after `since` (milliseconds since 1970 UTC).
async fn names_referred(log: &Log, since: i64) -> Result<HashSet<String>> {
    let mut names: HashSet<String> = log.removed_since(since).await?.into_iter().collect();
    names.extend(log.files().map(|file| file.path.clone()));
    Ok(names)
}

/// The names in a folder that are of our data files.
fn our_files(folder: &Path) -> Result<Vec<FileName>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).context(folder, "list")? {
        let name = entry.context(folder, "list")?.file_name();
        names.extend(FileName::parse(&name.to_string_lossy()));
    }
    Ok(names)
}

/// Removes a file and says how large it was.
fn remove(folder: &Path, name: FileName) -> Result<u64> {
    let path = folder.join(name.to_string());
    let size = std::fs::metadata(&path).context(&path, "read the size of")?.len();
    std::fs::remove_file(&path).context(&path, "remove")?;
    Ok(size)
}
