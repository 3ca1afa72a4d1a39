//! Answers as text and files.

use arrow::array::RecordBatch;
use gatescope_query::Format;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::{folder::rows_of, open, opened, small, written};

const QUERY: &str = "SELECT request_id, position, l00, experts(l00) AS experts, nullif(position, 0) AS maybe \
                     FROM routing_3x2_u8 WHERE request_id = 'req-b' AND position < 2 ORDER BY position";

#[tokio::test]
async fn a_table_is_aligned_and_shows_binary_as_hex() {
    let catalog = opened(small()).await;

    let table = written(&catalog, QUERY, Format::Table).await.unwrap();

    let expected = "\
request_id  position  l00   experts  maybe
----------  --------  ----  -------  -----
req-b              0  0001  [0, 1]
req-b              1  0708  [7, 8]       1
";
    assert_eq!(table, expected);
}

#[tokio::test]
async fn csv_and_json_show_the_same_values() {
    let catalog = opened(small()).await;

    let csv = written(&catalog, QUERY, Format::Csv).await.unwrap();
    let json = written(&catalog, QUERY, Format::Json).await.unwrap();

    let expected = "request_id,position,l00,experts,maybe\nreq-b,0,0001,\"[0, 1]\",\nreq-b,1,0708,\"[7, 8]\",1\n";
    assert_eq!(csv, expected);
    let expected = "[{\"request_id\":\"req-b\",\"position\":0,\"l00\":\"0001\",\"experts\":[0,1],\"maybe\":null},\
                    {\"request_id\":\"req-b\",\"position\":1,\"l00\":\"0708\",\"experts\":[7,8],\"maybe\":1}]\n";
    assert_eq!(json, expected);
}

#[tokio::test]
async fn parquet_keeps_types_and_metadata() {
    let catalog = opened(small()).await;

    let mut file = tempfile::tempfile().unwrap();
    let answer = catalog.query("SELECT position, l01 FROM routing_3x2_u8 ORDER BY request_id, position").await.unwrap();
    assert_eq!(answer.write(Format::Parquet, &mut file).await.unwrap(), 10);

    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let field = reader.schema().field(1).clone();
    assert_eq!(field.data_type().to_string(), "FixedSizeBinary(2)");
    assert_eq!(field.metadata()["gatescope.width"], "u8");
    let batches: Vec<RecordBatch> = reader.build().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 10);
}

#[tokio::test]
async fn no_rows_are_a_header_and_no_failure() {
    let catalog = opened(small()).await;
    let sql = "SELECT request_id, rows FROM requests WHERE rows = 77";

    assert_eq!(written(&catalog, sql, Format::Table).await.unwrap(), "request_id  rows\n----------  ----\n");
    assert_eq!(written(&catalog, sql, Format::Csv).await.unwrap(), "request_id,rows\n");
    assert_eq!(written(&catalog, sql, Format::Json).await.unwrap(), "[]\n");
}

#[tokio::test]
async fn long_tables_keep_the_widths_of_their_beginning() {
    let catalog = opened(small()).await;

    let table = written(&catalog, "SELECT value FROM generate_series(1, 20000)", Format::Table).await.unwrap();

    assert_eq!(table.lines().count(), 20_002);
    assert_eq!(table.lines().nth(2), Some("    1"));
    assert_eq!(table.lines().last(), Some("20000"));
}

#[tokio::test]
async fn what_a_client_put_into_an_id_stays_on_its_line() {
    let folder = small();
    let request = serde_json::json!({"request_id": "a\nb\u{1b}[31m", "status": "whole"});
    folder.commit("requests", &rows_of("requests", &[request]), 3);
    let catalog = open(&folder).await;

    let table = written(&catalog, "SELECT request_id FROM requests WHERE request_id LIKE 'a%'", Format::Table).await;

    assert_eq!(table.unwrap().lines().nth(2), Some("a\\nb\\u{1b}[31m"));
}
