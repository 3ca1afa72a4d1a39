//! What a power cut can leave of a table's log.

use std::{fs::File, path::Path};

use super::{
    error::{Context, Result},
    parquet_file::sync_folder,
};

/// Removes log entries that a power cut left empty or cut short. They are the newest, since each is synced before the
/// next is written; what they said is in the journal, or was a compaction, which changed nothing. The newest one that is
/// whole is synced: its writer may have died before it was.
pub(super) fn remove_torn_commits(log: &Path) -> Result<()> {
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
            File::open(&path).and_then(|file| file.sync_all()).context(&path, "sync")?;
            return sync_folder(log);
        }
        std::fs::remove_file(&path).context(&path, "remove")?;
        sync_folder(log)?;
    }
    Ok(())
}

/// Removes the newest checkpoint where a power cut left it without its end, and the note that points to it. The entries
/// that it sums up are still there: they are removed long after.
pub(super) fn remove_torn_checkpoint(log: &Path) -> Result<()> {
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
