//! The fixed tables and their columns, as a folder without them shows them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

use crate::layer_column::LayerColumn;

/// The application id of the writer's `txn` actions; their version is the position that a commit covers.
pub(crate) const APP_ID: &str = "gatescope";
/// Tables of joined rows begin with this.
pub(crate) const ROUTING_PREFIX: &str = "routing_";
/// Committed last: its position is the position of every other table.
pub(crate) const REQUESTS: &str = "requests";
/// Tokens per expert, in increments.
pub(crate) const EXPERT_LOAD: &str = "expert_load";
/// One row per finding.
pub(crate) const MISMATCHES: &str = "mismatches";
/// One row per span received.
pub(crate) const CAPTURES: &str = "captures";
/// Every fixed table.
pub(crate) const FIXED: [&str; 4] = [REQUESTS, EXPERT_LOAD, MISMATCHES, CAPTURES];
/// The columns of a routing table in front of its layers, all of them not null.
pub(crate) const KEYS: [&str; 7] = ["run", "request_id", "choice", "position", "phase", "role", "instance"];

/// Columns of a fixed table, as the writer lays them out.
pub(crate) fn fixed_schema(table: &str) -> SchemaRef {
    let fields = match table {
        REQUESTS => requests(),
        EXPERT_LOAD => expert_load(),
        MISMATCHES => mismatches(),
        _ => captures(),
    };
    Arc::new(Schema::new(fields))
}

/// The key columns of a routing table.
pub(crate) fn key_fields() -> Vec<Field> {
    KEYS.iter()
        .map(|&name| match name {
            "choice" | "position" => int(name),
            _ => text(name),
        })
        .collect()
}

/// The types that queries see: text as views, layer columns as fixed-size binary, whatever the log or file calls them.
pub(crate) fn sql_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let data_type = match (LayerColumn::of(field), field.data_type()) {
            (Some(column), DataType::Binary | DataType::LargeBinary | DataType::BinaryView) => column.data_type(),
            (None, DataType::Binary | DataType::LargeBinary) => DataType::BinaryView,
            (_, DataType::Utf8 | DataType::LargeUtf8) => DataType::Utf8View,
            (_, other) => other.clone(),
        };
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    });
    Arc::new(Schema::new(fields.collect::<Fields>()))
}

fn requests() -> Vec<Field> {
    let segment = vec![int("start"), int("end"), text("role"), text("instance"), int("attempt")];
    let gap = vec![int("start"), int("end")];
    vec![
        text("run"),
        text("request_id"),
        int("choice"),
        maybe(text("model")),
        maybe(int("prompt_tokens")),
        maybe(int("completion_tokens")),
        maybe(int("expected_rows")),
        int("rows"),
        text("status"),
        text("policy"),
        maybe(text("prefill_instance")),
        maybe(text("decode_instance")),
        maybe(int("first_forward")),
        int("overlap_rows"),
        int("mismatched_rows"),
        int("prefix_omitted"),
        int("attempts"),
        int("generation"),
        int("findings"),
        maybe(text("routing_table")),
        maybe(time("started_at")),
        maybe(time("finished_at")),
        time("closed_at"),
        structs("segments", segment),
        structs("gaps", gap),
    ]
}

fn expert_load() -> Vec<Field> {
    vec![
        time("minute"),
        text("run"),
        text("model"),
        text("instance"),
        text("role"),
        text("phase"),
        int("layer"),
        int("expert"),
        long("tokens"),
    ]
}

fn mismatches() -> Vec<Field> {
    vec![
        time("at"),
        text("check"),
        text("severity"),
        text("run"),
        text("request_id"),
        int("choice"),
        maybe(int("position")),
        int("positions"),
        maybe(int("layer")),
        maybe(text("role_a")),
        maybe(text("role_b")),
        maybe(text("instance_a")),
        maybe(text("instance_b")),
        maybe(list("experts_a", DataType::Int32)),
        maybe(list("experts_b", DataType::Int32)),
        text("detail"),
    ]
}

fn captures() -> Vec<Field> {
    vec![
        text("run"),
        text("request_id"),
        int("choice"),
        text("role"),
        text("instance"),
        int("attempt"),
        int("generation"),
        maybe(int("start")),
        int("rows"),
        Field::new("block_hash", DataType::Binary, true),
        long("payload_hash"),
        time("received_at"),
        long("seq"),
    ]
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8View, false)
}

fn int(name: &str) -> Field {
    Field::new(name, DataType::Int32, false)
}

fn long(name: &str) -> Field {
    Field::new(name, DataType::Int64, false)
}

fn time(name: &str) -> Field {
    Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false)
}

fn list(name: &str, element: DataType) -> Field {
    Field::new(name, DataType::List(Arc::new(Field::new("element", element, true))), false)
}

fn structs(name: &str, fields: Vec<Field>) -> Field {
    // Delta's schemas hold plain text inside of structs: the views are for columns that queries compare and sort.
    let fields = fields.into_iter().map(|field| match field.data_type() {
        DataType::Utf8View => field.with_data_type(DataType::Utf8),
        _ => field,
    });
    list(name, DataType::Struct(fields.collect()))
}

fn maybe(field: Field) -> Field {
    field.with_nullable(true)
}
