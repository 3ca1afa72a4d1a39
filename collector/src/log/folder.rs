//! The folder of a log: names of files, and the sync that makes names durable.

use std::path::{Path, PathBuf};

use super::{
    error::{Context, FileFailure},
    storage::Storage,
};

/// IMPORTANT: call this after every create, rename and delete, before anything relies on it.
///
/// Syncing a file makes its bytes durable and not its name: the name lives in the folder. Without this call a file whose
/// records were acknowledged can be gone after a power cut, or a deleted one back.
pub(super) fn sync_folder(storage: &dyn Storage, folder: &Path) -> Result<(), FileFailure> {
    storage.sync_folder(folder).context(folder, "sync the folder")
}

/// The file whose first record is `first`: 20 digits, so that names sort as positions do.
pub(super) fn file_path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.log"))
}

/// First positions of the log's files, ascending. Other names are none of ours and stay.
pub(super) fn first_positions(storage: &dyn Storage, folder: &Path) -> Result<Vec<u64>, FileFailure> {
    let names = storage.names(folder).context(folder, "list the folder")?;
    let mut positions: Vec<u64> = names.iter().filter_map(|name| first_position(name)).collect();
    positions.sort_unstable();
    Ok(positions)
}

fn first_position(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let whole = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|first| whole && *first > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_first_position_in_twenty_digits() {
        assert_eq!(file_path(Path::new("log"), 42), Path::new("log/00000000000000000042.log"));
        for first in [1, 42, u64::MAX] {
            let path = file_path(Path::new("log"), first);
            assert_eq!(path.file_name().and_then(|name| first_position(name.to_str()?)), Some(first));
        }
    }

    #[test]
    fn other_names_are_left_alone() {
        for name in
            ["lock", "42.log", "0000000000000000004x.log", "+0000000000000000042.log", "99999999999999999999.log"]
        {
            assert_eq!(first_position(name), None, "{name}");
        }
        assert_eq!(first_position("00000000000000000000.log"), None, "positions begin at 1");
    }
}
