//! Values as text, the same in tables and CSV: binary as hex, lists as `[1, 2]`, times as RFC 3339.

use arrow::{
    array::RecordBatch,
    error::ArrowError,
    util::display::{ArrayFormatter, DurationFormat, FormatOptions},
};

/// A formatter per column.
pub(super) fn formatters(batch: &RecordBatch) -> Result<Vec<ArrayFormatter<'_>>, ArrowError> {
    const OPTIONS: FormatOptions =
        FormatOptions::new().with_display_error(true).with_duration_format(DurationFormat::Pretty);
    batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &OPTIONS)).collect()
}
