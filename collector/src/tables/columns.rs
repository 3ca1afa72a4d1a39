//! Building columns from values, and reading values from columns.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int32Array, ListArray, StringArray, TimestampMicrosecondArray},
    buffer::OffsetBuffer,
    datatypes::{DataType, Field, TimeUnit},
};

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
