//! Columns of an answer by name and type.

use arrow::{
    array::{Array, AsArray, Int32Array, Int64Array, RecordBatch, StringViewArray},
    datatypes::{Int32Type, Int64Type},
};

use crate::error::QueryError;

/// Columns of one batch.
pub(super) struct Columns<'a>(pub(super) &'a RecordBatch);

impl<'a> Columns<'a> {
    pub(super) fn text(&self, name: &str) -> Result<&'a StringViewArray, QueryError> {
        self.column(name)?.as_string_view_opt().ok_or_else(|| self.other_type(name, "text"))
    }

    pub(super) fn int(&self, name: &str) -> Result<&'a Int32Array, QueryError> {
        self.column(name)?.as_primitive_opt::<Int32Type>().ok_or_else(|| self.other_type(name, "a 32-bit integer"))
    }

    pub(super) fn long(&self, name: &str) -> Result<&'a Int64Array, QueryError> {
        self.column(name)?.as_primitive_opt::<Int64Type>().ok_or_else(|| self.other_type(name, "a 64-bit integer"))
    }

    /// The list of integers in a row; `None` where it is null.
    pub(super) fn ints(&self, name: &str, row: usize) -> Result<Option<Vec<i32>>, QueryError> {
        let column = self.column(name)?;
        let lists = column.as_list_opt::<i32>().ok_or_else(|| self.other_type(name, "a list of 32-bit integers"))?;
        if lists.is_null(row) {
            return Ok(None);
        }
        let list = lists.value(row);
        let ints = list.as_primitive_opt::<Int32Type>();
        let ints = ints.ok_or_else(|| self.other_type(name, "a list of 32-bit integers"))?;
        Ok(Some(ints.iter().flatten().collect()))
    }

    fn column(&self, name: &str) -> Result<&'a dyn Array, QueryError> {
        let column = self.0.column_by_name(name).map(|column| column.as_ref());
        column.ok_or_else(|| QueryError::Query(format!("there is no column {name}")))
    }

    fn other_type(&self, name: &str, expected: &str) -> QueryError {
        let found = self.0.column_by_name(name).map(|column| column.data_type().to_string()).unwrap_or_default();
        QueryError::Query(format!("column {name} is of type {found}: expected {expected}"))
    }
}

/// The text in a row; `None` where it is null.
pub(super) fn text_at(column: &StringViewArray, row: usize) -> Option<String> {
    column.is_valid(row).then(|| column.value(row).to_owned())
}

/// The integer in a row; `None` where it is null.
pub(super) fn int_at(column: &Int32Array, row: usize) -> Option<i32> {
    column.is_valid(row).then(|| column.value(row))
}
