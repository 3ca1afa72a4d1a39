//! What is broken is refused, and takes little.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array},
    datatypes::{DataType, Field, Schema},
};
use bytes::Bytes;
use gatescope_routing::RowShape;
use gatescope_wire::{Ack, Event, MessageId, Request, Told, WireError, decode, encode, ipc};
use proptest::prelude::*;

use crate::events::{event, of_request, span_at};

/// Changes some bytes, cuts some off.
fn mutate(bytes: &Bytes, changes: &[(prop::sample::Index, u8)], cut: Option<prop::sample::Index>) -> Bytes {
    let mut bytes = bytes.to_vec();
    for (index, value) in changes.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
        let at = index.index(bytes.len());
        bytes[at] = *value;
    }
    if let Some(cut) = cut.filter(|_| !bytes.is_empty()) {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes.into()
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    // Extremes are more telling than other values: signs, lengths, counts.
    let value = prop_oneof![Just(0u8), Just(0xff), Just(0x7f), Just(0x80), any::<u8>()];
    prop::collection::vec((any::<prop::sample::Index>(), value), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_change_of_bytes_gives_an_error_or_valid_events(
        events in prop::collection::vec(event(), 1..4),
        in_schema in changes(), in_header in changes(), in_body in changes(),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
        place in 0u8..3,
    ) {
        let (header, body) = ipc::batch_message(&encode(&events).unwrap()).unwrap();
        let schema = ipc::schema_header().unwrap();
        // One place at a time: a broken schema would hide what a broken body does.
        let (none, keep) = (Vec::new(), None);
        let schema = if place == 0 { mutate(&schema, &in_schema, cut) } else { mutate(&schema, &none, keep) };
        let header = if place == 1 { mutate(&header, &in_header, cut) } else { header };
        let body = if place == 2 { mutate(&body, &in_body, cut) } else { body };

        let Ok(reader) = ipc::Reader::new(&schema) else { return Ok(()) };
        let Ok(batch) = reader.batch(&header, body) else { return Ok(()) };
        let Ok(decoded) = decode(&batch) else { return Ok(()) };

        // Valid: whatever came can be written and read again.
        let rows = decoded.events.len() + decoded.refused.len() + decoded.skipped.len();
        prop_assert_eq!(rows, batch.num_rows());
        let again = decode(&encode(&decoded.events).unwrap()).unwrap();
        prop_assert_eq!(again.refused, vec![]);
        prop_assert_eq!(again.events.len(), decoded.events.len());
    }

    #[test]
    fn any_bytes_as_metadata_give_an_error_or_a_name(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = MessageId::read(&bytes);
        let _ = Ack::read(&bytes);
        let _ = ipc::Reader::new(&bytes);
    }
}

fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut fields: Vec<_> = batch.schema().fields().iter().cloned().collect();
    let mut columns = batch.columns().to_vec();
    let field = Arc::new(Field::new(name, column.data_type().clone(), true));
    match fields.iter().position(|field| field.name() == name) {
        Some(at) => {
            fields[at] = field;
            columns[at] = column;
        }
        None => {
            fields.push(field);
            columns.push(column);
        }
    }
    let schema = Schema::new_with_metadata(fields, batch.schema().metadata().clone());
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn three_spans() -> RecordBatch {
    let shape = RowShape::new(2, 2).unwrap();
    let events: Vec<Event> = (0..3).map(|i| of_request(Told::Span(span_at(i, 1, shape)))).collect();
    encode(&events).unwrap()
}

#[test]
fn a_row_that_cannot_be_read_is_named_and_loses_no_other() {
    type Case = (&'static str, ArrayRef, &'static str);
    let numbers = |values: [Option<u32>; 3]| -> ArrayRef { Arc::new(UInt32Array::from(values.to_vec())) };
    let texts = |values: [Option<&str>; 3]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let long = "x".repeat(5000);
    let cases: Vec<Case> = vec![
        ("rows", numbers([Some(1), Some(2), Some(1)]), "column payload: 4 bytes for 2 rows: expected 8 bytes"),
        ("rows", numbers([Some(1), Some(0), Some(1)]), "column payload: 4 bytes for 0 rows"),
        ("rows", numbers([Some(1), None, Some(1)]), "column rows: null: expected the number of rows"),
        ("rows", numbers([Some(1), Some(u32::MAX), Some(1)]), "column payload: 4 bytes for 4294967295 rows"),
        ("layers", numbers([Some(2), Some(5000), Some(2)]), "column layers: 5000 layers: expected 1 to 1024"),
        ("start", numbers([Some(1), None, Some(1)]), "column start: null: expected the first row's position"),
        ("start", numbers([Some(1), Some(1 << 31), Some(1)]), "column start: 2147483648, with 1 rows: expected an end"),
        ("completion_tokens", numbers([None, Some(1), None]), "column completion_tokens: there beside start"),
        ("attempt", numbers([None, Some(u32::MAX), None]), "column attempt: 4294967295: expected at most"),
        (
            "role",
            texts([Some("decode"), Some("decoder"), Some("prefill")]),
            "column role: \"decoder\": expected prefill",
        ),
        ("width", texts([Some("u8"), Some("u32"), Some("u8")]), "column width: \"u32\": expected u8 or u16"),
        ("instance", texts([Some("a"), Some(""), Some("a")]), "column instance: 0 bytes: expected 1 to 4096 bytes"),
        ("instance", texts([Some("a"), Some(&long), Some("a")]), "column instance: 5000 bytes: expected 1 to 4096"),
        ("payload_hash", Arc::new(UInt64Array::from(vec![None, Some(7), None])), "column payload_hash: 7: expected "),
    ];
    for (column, values, expected) in cases {
        let decoded = decode(&with_column(&three_spans(), column, values)).unwrap();

        assert_eq!(decoded.events.len(), 2, "{column}");
        let [error] = &decoded.refused[..] else { panic!("{column}: {:?}", decoded.refused) };
        let message = error.to_string();
        assert!(message.starts_with("row 1 (request a), column "), "{message}");
        assert!(message.contains(expected), "{message}: not {expected}");
    }
}

#[test]
fn columns_and_kinds_of_later_versions_are_passed_over() {
    let batch = three_spans();
    let later: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, 3]));
    let batch = with_column(&batch, "zeal", later);
    let kinds: ArrayRef = Arc::new(StringArray::from(vec!["span", "mood", "span"]));
    let batch = with_column(&batch, "kind", kinds);
    let (header, body) = ipc::batch_message(&batch).unwrap();
    let reader = ipc::Reader::new(&header_of(&batch)).unwrap();

    let decoded = decode(&reader.batch(&header, body).unwrap()).unwrap();

    assert_eq!((decoded.events.len(), decoded.refused.len()), (2, 0));
    assert_eq!((decoded.skipped[0].row, &*decoded.skipped[0].kind), (1, "mood"));
}

#[test]
fn absent_columns_read_as_null() {
    let batch = three_spans();
    let keep: Vec<usize> = batch
        .schema()
        .fields()
        .iter()
        .enumerate()
        .filter(|(_, field)| !["choice", "attempt", "generation", "wire_type", "parent"].contains(&&**field.name()))
        .map(|(i, _)| i)
        .collect();

    let decoded = decode(&batch.project(&keep).unwrap()).unwrap();

    assert_eq!((decoded.events.len(), decoded.refused.len()), (3, 0));
    let Event::Request(Request { key, .. }) = &decoded.events[0] else { panic!("not of a request") };
    assert_eq!(key.choice, 0);
}

#[test]
fn a_batch_of_another_version_or_shape_is_refused_as_a_whole() {
    let batch = three_spans();
    let version = |value: Option<&str>| {
        let metadata = value.map(|value| ("gatescope.wire".to_owned(), value.to_owned())).into_iter().collect();
        let schema = Schema::new_with_metadata(batch.schema().fields().clone(), metadata);
        RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec()).unwrap()
    };
    let refused = |batch: &RecordBatch| decode(batch).unwrap_err().to_string();

    assert_eq!(refused(&version(Some("2"))), "schema metadata `gatescope.wire` = \"2\": expected 1");
    assert_eq!(decode(&version(None)).unwrap_err(), WireError::NoVersion);
    let numbers: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, 3]));
    assert_eq!(refused(&with_column(&batch, "start", numbers)), "column start: type UInt64: expected UInt32");
    let without_run: Vec<usize> = (0..batch.num_columns()).filter(|&i| i != 2).collect();
    assert_eq!(refused(&batch.project(&without_run).unwrap()), "column run: absent: expected in every message");
}

#[test]
fn a_header_that_claims_many_rows_takes_no_memory() {
    // Given a batch of one column without buffers, and of a billion rows.
    let rows = 1_000_000_000;
    let schema = Schema::new_with_metadata(
        vec![Field::new("zeal", DataType::Null, true)],
        three_spans().schema().metadata().clone(),
    );
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(arrow::array::NullArray::new(rows))]).unwrap();
    let (header, body) = ipc::batch_message(&batch).unwrap();

    let reader = ipc::Reader::new(&header_of(&batch)).unwrap();

    assert_eq!(reader.batch(&header, body).unwrap_err(), WireError::TooManyEvents(rows));
}

#[test]
fn buffers_that_overlap_are_refused() {
    // Given a header whose buffers are all the whole body.
    let (header, body) = ipc::batch_message(&three_spans()).unwrap();
    let reader = ipc::Reader::new(&ipc::schema_header().unwrap()).unwrap();
    assert!(reader.batch(&header, body.clone()).is_ok());
    let message = arrow::ipc::root_as_message(&header).unwrap();
    let buffers = message.header_as_record_batch().unwrap().buffers().unwrap();
    let bytes = |offset: i64, length: i64| [offset.to_le_bytes(), length.to_le_bytes()].concat();
    let written: Vec<u8> = buffers.iter().flat_map(|buffer| bytes(buffer.offset(), buffer.length())).collect();
    let at = header.windows(written.len()).position(|window| window == written).unwrap();
    let mut header = header.to_vec();
    header.splice(at..at + written.len(), bytes(0, body.len() as i64 / 8 * 8).repeat(buffers.len()));

    let error = reader.batch(&header, body).unwrap_err().to_string();

    assert!(error.contains("buffers that overlap"), "{error}");
}

/// The schema message of another schema than this version's.
fn header_of(batch: &RecordBatch) -> Vec<u8> {
    use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
    IpcDataGenerator::default()
        .schema_to_bytes_with_dictionary_tracker(
            &batch.schema(),
            &mut DictionaryTracker::new(false),
            &IpcWriteOptions::default(),
        )
        .ipc_message
}
