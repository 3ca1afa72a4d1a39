//! Data folders written by hand, from the table layout alone: nothing of the writer's code is in here.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, FixedSizeBinaryArray, Int32Array, RecordBatch, StringArray},
    datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit},
    json::ReaderBuilder,
};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::{EnabledStatistics, WriterProperties},
    schema::types::ColumnPath,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A data folder that goes when it is dropped.
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    /// A folder with no table in it.
    pub fn empty() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Adds a commit with these rows to a table, which covers `position` of the log. The first one makes the table.
    pub fn commit(&self, table: &str, rows: &RecordBatch, position: i64) {
        let folder = self.path().join(table);
        let log = folder.join("_delta_log");
        fs::create_dir_all(&log).unwrap();
        let version = fs::read_dir(&log).unwrap().count();
        let mut actions = Vec::new();
        if version == 0 {
            actions.push(json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}));
            actions.push(json!({"metaData": {
                "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": delta_struct(rows.schema().fields()).to_string(),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 1_796_000_000_000_i64,
            }}));
        }
        if rows.num_rows() > 0 {
            let name = format!("part-{version:05}.parquet");
            let bytes = write_parquet(&folder.join(&name), rows);
            actions.push(json!({"add": {
                "path": name, "partitionValues": {}, "size": bytes, "modificationTime": 1_796_000_000_000_i64,
                "dataChange": true, "stats": stats(rows).to_string(),
            }}));
        }
        actions.push(json!({"txn": {"appId": "gatescope", "version": position}}));
        let lines: String = actions.iter().map(|action| format!("{action}\n")).collect();
        fs::write(log.join(format!("{version:020}.json")), lines).unwrap();
    }

    /// The log file of a table's newest version.
    pub fn newest_log(&self, table: &str) -> PathBuf {
        let log = self.path().join(table).join("_delta_log");
        let mut files: Vec<PathBuf> = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.pop().unwrap()
    }
}

fn write_parquet(path: &Path, rows: &RecordBatch) -> u64 {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap()))
        .set_max_row_group_row_count(Some(65_536))
        .set_statistics_enabled(EnabledStatistics::Page);
    for field in rows.schema().fields() {
        let column = ColumnPath::from(field.name().as_str());
        if matches!(field.data_type(), DataType::FixedSizeBinary(_)) {
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_statistics_enabled(column, EnabledStatistics::None);
        } else if field.name() == "request_id" {
            properties = properties.set_column_bloom_filter_enabled(column, true);
        }
    }
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties.build())).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
    fs::metadata(path).unwrap().len()
}

fn stats(rows: &RecordBatch) -> Value {
    let (mut least, mut greatest) = (json!({}), json!({}));
    for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
        if let Some(text) = column.as_any().downcast_ref::<StringArray>() {
            least[field.name()] = text.iter().flatten().min().into();
            greatest[field.name()] = text.iter().flatten().max().into();
        }
        if let Some(numbers) = column.as_any().downcast_ref::<Int32Array>() {
            least[field.name()] = numbers.iter().flatten().min().into();
            greatest[field.name()] = numbers.iter().flatten().max().into();
        }
    }
    json!({"numRecords": rows.num_rows(), "minValues": least, "maxValues": greatest, "nullCount": {}})
}

fn delta_struct(fields: &Fields) -> Value {
    let fields = fields.iter().map(|field| {
        json!({"name": field.name(), "type": delta_type(field.data_type()), "nullable": field.is_nullable(),
               "metadata": field.metadata()})
    });
    json!({"type": "struct", "fields": fields.collect::<Vec<_>>()})
}

fn delta_type(data_type: &DataType) -> Value {
    match data_type {
        DataType::Utf8 => "string".into(),
        DataType::Int32 => "integer".into(),
        DataType::Int64 => "long".into(),
        DataType::Timestamp(..) => "timestamp".into(),
        DataType::Binary | DataType::FixedSizeBinary(_) => "binary".into(),
        DataType::List(item) => {
            json!({"type": "array", "elementType": delta_type(item.data_type()), "containsNull": true})
        }
        DataType::Struct(fields) => delta_struct(fields),
        other => panic!("{other} is in no table"),
    }
}

/// Rows of a fixed table; columns that are left out of a row are null, zero, empty or the run `default`.
pub fn rows_of(table: &str, rows: &[Value]) -> RecordBatch {
    let schema = schema_of(table);
    let rows: Vec<Value> = rows.iter().map(|row| with_defaults(row, &schema)).collect();
    let mut decoder = ReaderBuilder::new(schema.clone()).build_decoder().unwrap();
    decoder.serialize(&rows).unwrap();
    decoder.flush().unwrap().unwrap_or_else(|| RecordBatch::new_empty(schema))
}

fn with_defaults(row: &Value, schema: &Schema) -> Value {
    let mut row = row.clone();
    for field in schema.fields().iter().filter(|field| !field.is_nullable()) {
        if row.get(field.name()).is_none() {
            row[field.name()] = match field.data_type() {
                DataType::Utf8 if field.name() == "run" => "default".into(),
                DataType::Utf8 => "".into(),
                DataType::Timestamp(..) => "2026-12-01T10:00:00Z".into(),
                DataType::List(_) => json!([]),
                _ => 0.into(),
            };
        }
    }
    row
}

/// Columns of a fixed table: `?` is nullable, `t` text, `i` 32 bits, `l` 64 bits, `at` a time.
fn schema_of(table: &str) -> SchemaRef {
    let columns = match table {
        "requests" => {
            "run t,request_id t,choice i,model t?,prompt_tokens i?,completion_tokens i?,expected_rows i?,rows i,status t,\
             policy t,prefill_instance t?,decode_instance t?,first_forward i?,overlap_rows i,mismatched_rows i,\
             prefix_omitted i,attempts i,generation i,findings i,routing_table t?,started_at at?,finished_at at?,\
             closed_at at,segments segments,gaps gaps"
        }
        "expert_load" => "minute at,run t,model t,instance t,role t,phase t,layer i,expert i,tokens l",
        "mismatches" => {
            "at at,check t,severity t,run t,request_id t,choice i,position i?,positions i,layer i?,role_a t?,role_b t?,\
             instance_a t?,instance_b t?,experts_a ids?,experts_b ids?,detail t"
        }
        "captures" => {
            "run t,request_id t,choice i,role t,instance t,attempt i,generation i,start i?,rows i,block_hash b?,\
             payload_hash l,received_at at,seq l"
        }
        other => panic!("{other} is no fixed table"),
    };
    let fields = columns.split(',').map(|column| {
        let (name, kind) = column.trim().split_once(' ').unwrap();
        let int = |name: &str| Field::new(name, DataType::Int32, false);
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let list = |item: DataType| DataType::List(Arc::new(Field::new("element", item, true)));
        let data_type = match kind.trim_end_matches('?') {
            "t" => DataType::Utf8,
            "i" => DataType::Int32,
            "l" => DataType::Int64,
            "b" => DataType::Binary,
            "at" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            "ids" => list(DataType::Int32),
            "gaps" => list(DataType::Struct(vec![int("start"), int("end")].into())),
            "segments" => {
                let fields = vec![int("start"), int("end"), text("role"), text("instance"), int("attempt")];
                list(DataType::Struct(fields.into()))
            }
            other => panic!("{other} is no kind of column"),
        };
        Field::new(name, data_type, kind.ends_with('?'))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Rows of a routing table: `[positions, layers, top_k]` ids of one request after the other.
pub struct Routing {
    pub layers: Vec<u16>,
    pub top_k: usize,
    pub width: &'static str,
    keys: Vec<(String, String, i32, i32, &'static str, &'static str, &'static str)>,
    ids: Vec<Vec<u8>>,
}

impl Routing {
    pub fn new(layers: impl IntoIterator<Item = u16>, top_k: usize, width: &'static str) -> Self {
        let layers: Vec<u16> = layers.into_iter().collect();
        let ids = vec![Vec::new(); layers.len()];
        Self { layers, top_k, width, keys: Vec::new(), ids }
    }

    /// Adds a request of `prompt + completion - 1` rows; `id(position, layer, slot)` is what they chose.
    pub fn request(
        mut self,
        run: &str,
        request_id: &str,
        (prompt, completion): (i32, i32),
        id: impl Fn(i32, u16, usize) -> u16,
    ) -> Self {
        for position in 0..prompt + completion - 1 {
            let (phase, role, instance) =
                if position < prompt { ("prompt", "prefill", "p0") } else { ("completion", "decode", "d0") };
            self.keys.push((run.to_owned(), request_id.to_owned(), 0, position, phase, role, instance));
            for (column, &layer) in self.layers.iter().enumerate() {
                for slot in 0..self.top_k {
                    let id = id(position, layer, slot).to_le_bytes();
                    self.ids[column].extend(&id[..if self.width == "u8" { 1 } else { 2 }]);
                }
            }
        }
        self
    }

    pub fn rows(&self) -> RecordBatch {
        let bytes = (self.top_k * if self.width == "u8" { 1 } else { 2 }) as i32;
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        let int = |name: &str| Field::new(name, DataType::Int32, false);
        let mut fields = vec![
            text("run"),
            text("request_id"),
            int("choice"),
            int("position"),
            text("phase"),
            text("role"),
            text("instance"),
        ];
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.iter().map(|key| Some(key.0.as_str())).collect::<StringArray>()),
            Arc::new(self.keys.iter().map(|key| Some(key.1.as_str())).collect::<StringArray>()),
            Arc::new(self.keys.iter().map(|key| key.2).collect::<Int32Array>()),
            Arc::new(self.keys.iter().map(|key| key.3).collect::<Int32Array>()),
            Arc::new(self.keys.iter().map(|key| Some(key.4)).collect::<StringArray>()),
            Arc::new(self.keys.iter().map(|key| Some(key.5)).collect::<StringArray>()),
            Arc::new(self.keys.iter().map(|key| Some(key.6)).collect::<StringArray>()),
        ];
        for (layer, ids) in self.layers.iter().zip(&self.ids) {
            let metadata = HashMap::from([
                ("gatescope.width".to_owned(), self.width.to_owned()),
                ("gatescope.top_k".to_owned(), self.top_k.to_string()),
                ("gatescope.layer".to_owned(), layer.to_string()),
            ]);
            let field = Field::new(format!("l{layer:02}"), DataType::FixedSizeBinary(bytes), false);
            fields.push(field.with_metadata(metadata));
            columns.push(Arc::new(FixedSizeBinaryArray::new(bytes, ids.clone().into(), None)));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }
}
