//! What can go wrong between a folder and an answer.

use std::path::PathBuf;

use crate::live::LiveError;
use datafusion::{error::DataFusionError, sql::sqlparser::parser::ParserError};

/// A query that has no answer, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The data folder is not there.
    #[error("data folder {}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    /// The data folder cannot be read.
    #[error("data folder {}: {source}", folder.display())]
    Folder {
        /// Which folder.
        folder: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The folder is there, but nothing of ours in it.
    #[error("data folder {}: it has no gatescope tables (`gatescope import FILE --data {}` makes them)", .0.display(), .0.display())]
    NoTables(PathBuf),
    /// A table's log or one of its files cannot be read.
    #[error("table {table} in {}: its Delta log cannot be read: {reason}", folder.display())]
    BrokenLog {
        /// Which table.
        table: String,
        /// The data folder.
        folder: PathBuf,
        /// What delta-rs says.
        reason: String,
    },
    /// The table uses a Delta feature that this reader does not know.
    #[error("table {table}: {reason}")]
    Unsupported {
        /// Which table.
        table: String,
        /// Which feature.
        reason: String,
    },
    /// The statement would change something.
    #[error("{0}: queries only read; SELECT, WITH, VALUES, EXPLAIN, DESCRIBE and SHOW are possible")]
    ReadOnly(String),
    /// The query did not parse, plan or run.
    #[error("{0}")]
    Query(String),
    /// The query needs more memory than it may have, even with temporary files.
    #[error("the query's memory is used up (--memory gives it more): {0}")]
    Memory(String),
    /// Two columns have one name, and an object can have it once.
    #[error("two columns are called {column}: expected different names (SELECT ... AS ...) for JSON")]
    Unwritable {
        /// The name.
        column: String,
    },
    /// The answer has more rows than it may have.
    #[error(
        "the answer has more than {0} rows, the limit of a JSON answer: ask for CSV, Arrow or Parquet, or with LIMIT"
    )]
    TooManyRows(u64),
    /// The query takes too long.
    #[error("the query took longer than {0:?}, its limit")]
    TooSlow(std::time::Duration),
    /// There are too many queries.
    #[error("{queries} queries run already, and none ended in {patience:?}")]
    Busy {
        /// How many there may be.
        queries: usize,
        /// How long this one waited.
        patience: std::time::Duration,
    },
    /// The collector cannot be asked.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The answer could not be written.
    #[error("writing the answer: {0}")]
    Write(#[from] std::io::Error),
}

impl From<DataFusionError> for QueryError {
    fn from(error: DataFusionError) -> Self {
        // The sentence alone, without the stage that it failed in, where the stage says nothing to who wrote the query.
        Self::Query(match error.find_root() {
            DataFusionError::ResourcesExhausted(what) => {
                return Self::Memory(what.lines().next().unwrap_or_default().to_owned());
            }
            DataFusionError::SQL(error, _) => match error.as_ref() {
                ParserError::TokenizerError(what) | ParserError::ParserError(what) => format!("SQL: {what}"),
                other => format!("SQL: {other}"),
            },
            error @ (DataFusionError::Plan(_) | DataFusionError::Execution(_) | DataFusionError::SchemaError(..)) => {
                error.message().into_owned()
            }
            _ => error.strip_backtrace(),
        })
    }
}
