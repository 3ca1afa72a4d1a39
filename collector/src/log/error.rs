//! What can go wrong with the log.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::damage::Lost;

/// Why the log could not be opened, replayed or shortened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file system refused.
    #[error(transparent)]
    File(#[from] FileFailure),
    /// Another process has this log open.
    #[error("{}: another process has this log open; only one may at a time", .0.display())]
    Locked(PathBuf),
    /// Records that may have been acknowledged cannot be read, and later ones can.
    #[error("{lost}; expected {expected}, found {found}")]
    Damaged {
        /// Where, and which records.
        lost: Lost,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The file was written by a later release.
    #[error("{}: log format {found}; this release reads format {supported}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this release reads.
        supported: u32,
    },
    /// Options that do not go together.
    #[error("log: {0}")]
    Options(&'static str),
    /// Asked to delete records that are not even durable.
    #[error("log: cannot delete up to record {committed}: only {durable} are durable")]
    AheadOfLog {
        /// The position asked for.
        committed: u64,
        /// The last durable one.
        durable: u64,
    },
}

/// What the file system refused.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileFailure {
    /// The file or folder.
    pub path: PathBuf,
    /// What was tried.
    pub action: &'static str,
    /// What the system said.
    pub source: io::Error,
}

/// Why a record was not taken. It is nowhere: to keep it, send it again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// It will never be taken.
    #[error("record of {bytes} bytes; expected at most {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
    /// Too much waits for the disk; take it later.
    #[error("the log has {limit} bytes waiting for the disk, which is its limit")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// The log may take no more disk; take it once older records are committed and deleted.
    #[error("the log has {used} bytes on disk, and its limit is {limit}")]
    Full {
        /// Bytes on disk and on the way there.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The disk refuses; take it once it does not.
    #[error("the log cannot be written: {0}")]
    Failing(Arc<FileFailure>),
    /// The log is closing.
    #[error("the log is closed")]
    Closed,
}

impl AppendError {
    /// Whether the same record may be taken later.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::TooLarge { .. })
    }
}

/// Why a record that was taken is not known to be durable. It may still be found there after a restart.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotDurable {
    /// The disk refuses. The record is kept in memory and tried again, so it may become durable yet.
    #[error("the log cannot be written: {0}")]
    Failing(Arc<FileFailure>),
    /// The log was closed before.
    #[error("the log was closed before the record was durable")]
    Closed,
}

/// Says which file or folder a failure is about, and what was tried.
pub(super) trait Context<T> {
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileFailure>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, path: &Path, action: &'static str) -> Result<T, FileFailure> {
        self.map_err(|source| FileFailure { path: path.to_owned(), action, source })
    }
}
