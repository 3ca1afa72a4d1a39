//! Records that cannot be read, and whether to go on without them.

use std::{fmt, path::PathBuf};

use super::error::LogError;

/// Records that are gone: the damaged bytes of a file and the positions that were in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The file.
    pub path: PathBuf,
    /// First byte that cannot be read.
    pub from: u64,
    /// First byte after it that can, or the file's length.
    pub to: u64,
    /// First position lost.
    pub first: u64,
    /// Last position lost; unknown where the last file's header is damaged.
    pub last: Option<u64>,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, from, to, first, last } = self;
        write!(f, "{}: damaged from byte {from} to {to}: ", path.display())?;
        match last {
            Some(last) if last < first => write!(f, "no record lost"),
            Some(last) if last == first => write!(f, "record {first} lost"),
            Some(last) => write!(f, "records {first} to {last} lost"),
            None => write!(f, "records from {first} on lost"),
        }
    }
}

/// What may be lost without stopping.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerance {
    /// Records up to here are in the tables: nobody needs them from the log.
    pub(super) committed: u64,
    /// Whether the user said to go on.
    pub(super) salvage: bool,
}

impl Tolerance {
    /// What to report when going on, or the error that stops.
    pub(super) fn judge(
        &self,
        lost: Lost,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Result<Option<Lost>, LogError> {
        if lost.last.is_some_and(|last| last <= self.committed) {
            return Ok(None);
        }
        if self.salvage {
            return Ok(Some(lost));
        }
        Err(LogError::Damaged { lost, expected: expected.to_string(), found: found.to_string() })
    }
}
