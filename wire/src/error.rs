//! What can be wrong with a message.

use std::{fmt, sync::Arc};

use crate::{MAX_EVENTS, MAX_MESSAGE_BYTES, VERSION};

/// A message that cannot be read or written as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The schema does not say its version.
    #[error("schema metadata: no `gatescope.wire`: expected the version of the wire schema, {VERSION}")]
    NoVersion,
    /// The schema's version is not one that this build reads.
    #[error("schema metadata `gatescope.wire` = {0:?}: expected {VERSION}")]
    Version(String),
    /// A column that every message has is absent.
    #[error("column {0}: absent: expected in every message")]
    NoColumn(&'static str),
    /// A column is there twice.
    #[error("column {0}: there twice: expected once")]
    RepeatedColumn(String),
    /// A known column has another type.
    #[error("column {column}: type {found}: expected {expected}")]
    ColumnType {
        /// Its name.
        column: &'static str,
        /// Its type.
        found: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// Too many events in one message.
    #[error("{0} events in one message: expected at most {MAX_EVENTS}")]
    TooManyEvents(usize),
    /// Too many bytes in one message.
    #[error("{0} bytes in one message: expected less than {MAX_MESSAGE_BYTES}")]
    TooLarge(usize),
    /// The Arrow message is not one of those that carry events.
    #[error("Arrow message: {found}: expected {expected}")]
    Ipc {
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Arrow objects to the message's values.
    #[error("Arrow message: {0}")]
    Arrow(String),
    /// The message's own metadata do not name it, or an acknowledgement cannot be read.
    #[error("app_metadata: {found}: expected {expected}")]
    Metadata {
        /// What is wrong.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
}

/// One row of a message that cannot be read. The other rows can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {row}{}, column {column}: {found}: expected {expected}", OfRequest(request_id.as_deref()))]
pub struct RowError {
    /// Index of the row in its message.
    pub row: usize,
    /// The request that it is of, where the row says so.
    pub request_id: Option<Arc<str>>,
    /// The column.
    pub column: &'static str,
    /// What is there.
    pub found: String,
    /// What should be there.
    pub expected: String,
}

struct OfRequest<'a>(Option<&'a str>);

impl fmt::Display for OfRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, " (request {})", shortened(id)),
            None => Ok(()),
        }
    }
}

/// Text of others for a message: its beginning where it is long.
pub(crate) fn shortened(text: &str) -> String {
    const LIMIT: usize = 80;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
