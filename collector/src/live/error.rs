//! What can go wrong with a running collector.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    log::{LogError, NotDurable},
    tables::TablesError,
};

/// Why the collector could not start, or not go on.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The tables.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// The file system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file that says which requests were open at the last commit cannot be read.
    #[error("{}: {detail}; expected the state that the last commit wrote", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The tables cover more than the log has.
    #[error("the tables cover log record {position}, but {} does not exist: \
             the folder `state` belongs to the tables and cannot be removed without the folder `log`", path.display())]
    NoState {
        /// The position that the tables cover.
        position: u64,
        /// Where its state should be.
        path: PathBuf,
    },
    /// The log is not durable up to a commit.
    #[error(transparent)]
    NotDurable(#[from] NotDurable),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// It did not end in time.
    #[error(
        "stopping took longer than {0:?}: what is not in the tables is in the log, and the next start goes on from it"
    )]
    StopTooSlow(std::time::Duration),
    /// It stopped before.
    #[error("the collector has stopped")]
    Stopped,
}

impl LiveError {
    /// For `map_err`: the file or folder, and what was tried.
    pub(super) fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, action, source }
    }
}
