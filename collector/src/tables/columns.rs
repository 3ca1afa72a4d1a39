//! Building columns from values, and reading values from columns.

use std::{path::Path, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, Int32Array, ListArray, RecordBatch, StringArray, TimestampMicrosecondArray},
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, TimeUnit},
};
use gatescope_routing::span::RequestKey;

use super::error::{Result, TablesError};

/// The type of every time: microseconds, UTC.
pub(super) fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Times as a column.
pub(super) fn times(values: Vec<Option<i64>>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(values).with_timezone("UTC"))
}

/// Numbers as a column. Those above `i32`, which Delta's `integer` cannot say, would need 4 GiB of ids for one request.
pub(super) fn ints(values: Vec<Option<u32>>) -> ArrayRef {
    Arc::new(values.into_iter().map(|value| value.map(int)).collect::<Int32Array>())
}

/// The nearest `i32`.
pub(super) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Strings as a column.
pub(super) fn texts<S: AsRef<str>>(values: Vec<Option<S>>) -> ArrayRef {
    Arc::new(values.into_iter().collect::<StringArray>())
}

/// Lists as a column, from the length of each and the values of all.
pub(super) fn lists(item: Field, lengths: impl IntoIterator<Item = usize>, values: ArrayRef) -> ArrayRef {
    Arc::new(ListArray::new(Arc::new(item), OffsetBuffer::from_lengths(lengths), values, None))
}

/// Columns that were read from a file.
#[derive(Clone, Copy)]
pub(super) struct Cells<'a> {
    pub(super) path: &'a Path,
    pub(super) batch: &'a RecordBatch,
}

impl<'a> Cells<'a> {
    /// A column of this type.
    ///
    /// # Errors
    /// Where the file has no such column: it is not one of ours.
    pub(super) fn column<A: Array + 'static>(self, name: &str) -> Result<&'a A> {
        let column = self.batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref());
        column.ok_or_else(|| self.damaged(format!("expected a column {name:?} of another type")))
    }

    pub(super) fn text(self, name: &str) -> Result<&'a StringArray> {
        self.column(name)
    }

    pub(super) fn ints(self, name: &str) -> Result<&'a Int32Array> {
        self.column(name)
    }

    pub(super) fn times(self, name: &str) -> Result<&'a TimestampMicrosecondArray> {
        self.column(name)
    }

    /// The request that each row is about.
    pub(super) fn keys(self) -> Result<Vec<RequestKey>> {
        let (runs, ids, choices) = (self.text("run")?, self.text("request_id")?, self.ints("choice")?);
        // Neighbours are mostly about one request: they share its strings.
        let mut keys: Vec<RequestKey> = Vec::with_capacity(self.batch.num_rows());
        for row in 0..self.batch.num_rows() {
            let (run, id, choice) = (runs.value(row), ids.value(row), choices.value(row) as u32);
            match keys.last() {
                Some(last) if &*last.request_id == id && &*last.run == run && last.choice == choice => {
                    keys.push(last.clone());
                }
                _ => keys.push(RequestKey { run: run.into(), request_id: id.into(), choice }),
            }
        }
        Ok(keys)
    }

    pub(super) fn damaged(self, detail: String) -> TablesError {
        TablesError::Damaged { path: self.path.to_owned(), detail }
    }
}

/// A string that may be null.
pub(super) fn text_at(column: &StringArray, row: usize) -> Option<Arc<str>> {
    column.is_valid(row).then(|| column.value(row).into())
}

/// A number that may be null.
pub(super) fn int_at(column: &Int32Array, row: usize) -> Option<u32> {
    column.is_valid(row).then(|| column.value(row) as u32)
}

/// A time that may be null.
pub(super) fn time_at(column: &TimestampMicrosecondArray, row: usize) -> Option<i64> {
    column.is_valid(row).then(|| column.value(row))
}
