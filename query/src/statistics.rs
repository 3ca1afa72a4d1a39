//! Statistics of an add action, as the query planner prunes by them.

use std::collections::{HashMap, HashSet};

use arrow::{
    array::{ArrayRef, BooleanArray},
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use chrono::{DateTime, Utc};
use datafusion::{
    common::{Column, ColumnStatistics, Statistics, pruning::PruningStatistics, stats::Precision},
    scalar::ScalarValue,
};
use serde::Deserialize;
use serde_json::Value;

use crate::snapshot::DataFile;

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

/// Least and greatest values of each of some files, for pruning. (DataFusion's own `PrunableStatistics` gives up on a column
/// when one file does not know it.)
pub(crate) struct FileBounds<'a> {
    pub(crate) files: &'a [DataFile],
    pub(crate) schema: &'a Schema,
}

impl FileBounds<'_> {
    fn values(&self, column: &Column, of: impl Fn(&ColumnStatistics) -> &Precision<ScalarValue>) -> Option<ArrayRef> {
        let index = self.schema.index_of(column.name()).ok()?;
        let unknown = ScalarValue::try_from(self.schema.field(index).data_type()).ok()?;
        let values = self.files.iter().map(|file| {
            let value = file.statistics.column_statistics.get(index).and_then(|column| of(column).get_value());
            value.unwrap_or(&unknown).clone()
        });
        ScalarValue::iter_to_array(values).ok()
    }
}

impl PruningStatistics for FileBounds<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, |column| &column.min_value)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, |column| &column.max_value)
    }

    fn num_containers(&self) -> usize {
        self.files.len()
    }

    fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn schema() -> Schema {
        let zone = Some("UTC".into());
        Schema::new(vec![
            Field::new("request_id", DataType::Utf8View, false),
            Field::new("position", DataType::Int32, true),
            Field::new("closed_at", DataType::Timestamp(TimeUnit::Microsecond, zone), false),
            Field::new("l00", DataType::FixedSizeBinary(4), false),
        ])
    }

    fn file(stats: Option<&str>) -> DataFile {
        let statistics = Arc::new(file_statistics(stats, &schema()));
        DataFile { location: "f".into(), bytes: 1, modified_ms: 0, statistics }
    }

    const STATS: &str = r#"{"numRecords": 7, "nullCount": {"position": 2},
        "minValues": {"request_id": "a", "position": -1, "closed_at": "2026-12-01T10:00:00.123Z"},
        "maxValues": {"request_id": "b", "position": 70000000000, "closed_at": "2026-12-01T10:00:00.123Z"}}"#;

    #[test]
    fn what_the_log_says_is_known_and_nothing_else() {
        let statistics = file_statistics(Some(STATS), &schema());

        assert_eq!(statistics.num_rows, Precision::Exact(7));
        let [request, position, closed, layer] = statistics.column_statistics.as_slice() else { panic!() };
        assert_eq!(request.max_value, Precision::Exact(ScalarValue::Utf8View(Some("b".to_owned()))));
        assert_eq!(request.null_count, Precision::Absent);
        assert_eq!(position.min_value, Precision::Exact(ScalarValue::Int32(Some(-1))));
        // A number that is no 32-bit integer is unknown.
        assert_eq!((&position.max_value, &position.null_count), (&Precision::Absent, &Precision::Exact(2)));
        assert_eq!((&layer.min_value, &layer.max_value), (&Precision::Absent, &Precision::Absent));
        // Times are cut to milliseconds in the log, so the greatest lies up to 999 us above.
        let (
            Precision::Exact(ScalarValue::TimestampMicrosecond(Some(least), _)),
            Precision::Exact(ScalarValue::TimestampMicrosecond(Some(greatest), _)),
        ) = (&closed.min_value, &closed.max_value)
        else {
            panic!("{closed:?}")
        };
        assert_eq!(greatest - least, 999);
    }

    #[test]
    fn stats_that_do_not_parse_are_unknown() {
        for stats in [None, Some(""), Some("{\"numRecords\": -3}"), Some("17")] {
            let statistics = file_statistics(stats, &schema());

            assert_eq!(statistics.num_rows, Precision::Absent, "{stats:?}");
        }
    }

    #[test]
    fn a_file_without_stats_hides_no_other_file() {
        let files = [file(None), file(Some(STATS))];

        let bounds = FileBounds { files: &files, schema: &schema() };
        let least = bounds.min_values(&Column::from_name("request_id"));

        let expected = ScalarValue::iter_to_array([
            ScalarValue::Utf8View(None),
            ScalarValue::from("a").cast_to(&DataType::Utf8View).unwrap(),
        ]);
        assert_eq!(least.unwrap().as_ref(), expected.unwrap().as_ref());
    }
}
