//! Why an import ends without a summary.

use std::path::PathBuf;

use crate::tables::TablesError;

/// Why an import could not go on. What was committed before stays; importing the same again is safe.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The tables could not be opened, written or committed.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// Unfinished requests of a stream could not be put aside on disk.
    #[error("{}: cannot keep the lines of unfinished requests: {source}", folder.display())]
    Aside {
        /// The folder for the temporary file.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
