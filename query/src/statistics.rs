//! Statistics of an add action, as the query planner prunes by them.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use chrono::{DateTime, Utc};
use datafusion::{
    common::{ColumnStatistics, Statistics, stats::Precision},
    scalar::ScalarValue,
};
use serde::Deserialize;
use serde_json::Value;

/// The `stats` of an add action (Delta protocol, "Per-file Statistics").
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AddStats {
    num_records: Option<usize>,
    min_values: HashMap<String, Value>,
    max_values: HashMap<String, Value>,
    null_count: HashMap<String, Value>,
}

/// Rows, least and greatest values and nulls of a file. What is missing or makes no sense is unknown, never wrong: it
/// only costs reading the file.
pub(crate) fn file_statistics(stats: Option<&str>, schema: &Schema) -> Statistics {
    let stats: AddStats = stats.and_then(|stats| serde_json::from_str(stats).ok()).unwrap_or_default();
    let column_statistics = schema.fields().iter().map(|field| column_statistics(&stats, field)).collect();
    Statistics { num_rows: exact(stats.num_records), total_byte_size: Precision::Absent, column_statistics }
}

fn column_statistics(stats: &AddStats, field: &Field) -> ColumnStatistics {
    let bound = |values: &HashMap<String, Value>, edge| {
        exact(values.get(field.name()).and_then(|value| scalar(value, field.data_type(), edge)))
    };
    let nulls = stats.null_count.get(field.name()).and_then(Value::as_u64).map(|nulls| nulls as usize);
    ColumnStatistics {
        null_count: exact(nulls),
        min_value: bound(&stats.min_values, Edge::Min),
        max_value: bound(&stats.max_values, Edge::Max),
        ..ColumnStatistics::new_unknown()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Edge {
    Min,
    Max,
}

fn scalar(value: &Value, data_type: &DataType, edge: Edge) -> Option<ScalarValue> {
    match data_type {
        DataType::Utf8View => Some(ScalarValue::Utf8View(Some(value.as_str()?.to_owned()))),
        DataType::Int32 => Some(ScalarValue::Int32(Some(value.as_i64()?.try_into().ok()?))),
        DataType::Int64 => Some(ScalarValue::Int64(Some(value.as_i64()?))),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let time: DateTime<Utc> = value.as_str()?.parse().ok()?;
            // Delta cuts times to milliseconds, so the greatest may lie up to 999 us above what is written.
            let slack = if edge == Edge::Max { 999 } else { 0 };
            Some(ScalarValue::TimestampMicrosecond(Some(time.timestamp_micros() + slack), zone.clone()))
        }
        _ => None,
    }
}

fn exact<T: Clone + std::fmt::Debug + PartialEq + Eq + PartialOrd>(value: Option<T>) -> Precision<T> {
    value.map_or(Precision::Absent, Precision::Exact)
}
