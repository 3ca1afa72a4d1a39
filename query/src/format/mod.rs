//! How an answer is written.

mod arrow;
mod csv;
mod json;
mod parquet;
mod relay;
mod table;
mod text;

use std::{fmt, io::Write, str::FromStr};

use ::arrow::{array::RecordBatch, datatypes::SchemaRef, error::ArrowError};

pub use self::relay::Relay;
use crate::error::QueryError;

/// A way to write rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Aligned columns for people.
    #[default]
    Table,
    /// One JSON array of objects; binary as hex.
    Json,
    /// Comma-separated, with a header line; lists and binary as in a table.
    Csv,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC stream.
    Arrow,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Table, Self::Json, Self::Csv, Self::Parquet, Self::Arrow];

    /// `table`, `json`, `csv`, `parquet` or `arrow`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }

    pub(crate) fn writer<'a>(
        self,
        schema: SchemaRef,
        output: impl Write + Send + 'a,
    ) -> Result<Box<dyn RowWriter + Send + 'a>, QueryError> {
        self.check(&schema)?;
        Ok(match self {
            Self::Table => Box::new(table::Table::new(schema, output)),
            Self::Json => Box::new(json::Json::new(output)),
            Self::Csv => Box::new(csv::Csv::new(schema, output)),
            Self::Parquet => Box::new(parquet::Parquet::new(schema, output)?),
            Self::Arrow => Box::new(arrow::Arrow::new(&schema, output)?),
        })
    }

    /// Whether columns of these names can be told in this format.
    ///
    /// # Errors
    /// An object has each name once.
    pub fn check(self, schema: &SchemaRef) -> Result<(), QueryError> {
        let mut names = std::collections::HashSet::new();
        let twice = schema.fields().iter().find(|field| !names.insert(field.name()));
        match twice.filter(|_| self == Self::Json) {
            Some(field) => Err(QueryError::Unwritable { column: field.name().clone() }),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| format!("format {name:?}: expected table, json, csv, parquet or arrow"))
    }
}

/// Takes rows in order and holds a bounded number of them.
pub(crate) trait RowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), QueryError>;

    /// Writes what is still held. Without it the output is not whole.
    fn finish(self: Box<Self>) -> Result<(), QueryError>;
}

/// An error of arrow's writers; theirs of the output are told apart, since a closed pipe is no failure of the query.
fn written(error: ArrowError) -> QueryError {
    match error {
        ArrowError::IoError(_, source) => QueryError::Write(source),
        ArrowError::ExternalError(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => QueryError::Write(*source),
            Err(source) => QueryError::Query(source.to_string()),
        },
        other => QueryError::Query(other.to_string()),
    }
}
