//! One writer at a time.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use super::error::{Context, Result, TablesError};

/// Holds `DIR/lock` until dropped. The system lets go of it when the process dies, however it dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(root: &Path) -> Result<Self> {
        let path = root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .context(&path, "open the lock file")?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(TablesError::Locked(root.to_owned())),
            Err(TryLockError::Error(source)) => Err(source).context(&path, "lock"),
        }
    }
}
