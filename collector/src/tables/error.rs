//! What can go wrong with the tables.

use std::path::{Path, PathBuf};

use gatescope_routing::{
    shape::{IdWidth, RowShape},
    span::RequestKey,
};

/// Why the tables could not be opened, written or read. Whatever it says, what was committed before stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// Another writer holds the folder.
    #[error("{}: another process is writing to this data folder; only one may at a time", .0.display())]
    Locked(PathBuf),
    /// The file system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A Parquet file could not be written or read.
    #[error("{}: Parquet: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: parquet::errors::ParquetError,
    },
    /// Columns could not be built or converted.
    #[error("{}: Arrow: {source}", path.display())]
    Arrow {
        /// The file or table that the columns belong to.
        path: PathBuf,
        /// What is wrong with them.
        source: arrow::error::ArrowError,
    },
    /// A table's log could not be read or extended.
    #[error("{}: Delta log: {source}", path.display())]
    Delta {
        /// The table.
        path: PathBuf,
        /// What delta-rs said.
        source: Box<deltalake::DeltaTableError>,
    },
    /// A file is there but does not hold what the tables put there.
    #[error("{}: {detail}", path.display())]
    Damaged {
        /// The file or table.
        path: PathBuf,
        /// What was expected and what was found.
        detail: String,
    },
    /// An id does not fit the width in which the request is to be stored.
    #[error("request {key}: position {position}: an id does not fit {}", width.name())]
    IdTooWide {
        /// The request.
        key: RequestKey,
        /// First position of the segment that holds the id.
        position: u32,
        /// The width asked for.
        width: IdWidth,
    },
    /// A segment has another geometry than the request.
    #[error("request {key}: position {position}: rows of {found}, expected {expected}")]
    Shape {
        /// The request.
        key: RequestKey,
        /// First position of the segment.
        position: u32,
        /// Geometry of its rows.
        found: RowShape,
        /// Geometry of the request.
        expected: RowShape,
    },
    /// The record of spans does not match the spans.
    #[error("request {key}: {found} arrivals for {expected} spans")]
    Arrivals {
        /// The request.
        key: RequestKey,
        /// Arrivals given.
        found: usize,
        /// Spans of the request.
        expected: usize,
    },
    /// A request was added twice to one batch.
    #[error("request {0}: added twice to one batch")]
    Twice(RequestKey),
    /// A commit would go back in the write-ahead log.
    #[error("batch {position}: covers the log up to {given}; the commits before it cover it up to {covered}")]
    Covers {
        /// The batch's position.
        position: u64,
        /// The position of the log that was given.
        given: u64,
        /// The position that is covered already.
        covered: u64,
    },
    /// The batch cannot be committed.
    #[error("batch {position}: {detail}")]
    Batch {
        /// Its position.
        position: u64,
        /// Why not.
        detail: &'static str,
    },
}

/// What the tables return.
pub(super) type Result<T, E = TablesError> = std::result::Result<T, E>;

/// Says which file or table an error is about.
pub(super) trait Context<T> {
    /// Adds the path and, for the file system, what was tried.
    fn context(self, path: &Path, action: &'static str) -> Result<T>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, path: &Path, action: &'static str) -> Result<T> {
        self.map_err(|source| TablesError::File { path: path.to_owned(), action, source })
    }
}

impl<T> Context<T> for parquet::errors::Result<T> {
    fn context(self, path: &Path, action: &'static str) -> Result<T> {
        use parquet::errors::ParquetError::External;
        self.map_err(|source| match source {
            // A full disk is the file system's word, not Parquet's.
            External(inner) => match inner.downcast::<std::io::Error>() {
                Ok(source) => TablesError::File { path: path.to_owned(), action, source: *source },
                Err(inner) => TablesError::Parquet { path: path.to_owned(), source: External(inner) },
            },
            source => TablesError::Parquet { path: path.to_owned(), source },
        })
    }
}

impl<T> Context<T> for std::result::Result<T, arrow::error::ArrowError> {
    fn context(self, path: &Path, _action: &'static str) -> Result<T> {
        self.map_err(|source| TablesError::Arrow { path: path.to_owned(), source })
    }
}

impl<T> Context<T> for deltalake::DeltaResult<T> {
    fn context(self, path: &Path, _action: &'static str) -> Result<T> {
        self.map_err(|source| TablesError::Delta { path: path.to_owned(), source: Box::new(source) })
    }
}
