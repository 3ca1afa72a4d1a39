//! What is seen of a folder, and at which position.

use std::fs;

use gatescope_query::{Catalog, Options, QueryError};
use serde_json::json;

use crate::{
    folder::{Folder, Routing, rows_of},
    open, opened, refusal, rows, small, value,
};

async fn failure(folder: &std::path::Path) -> QueryError {
    match Catalog::open(folder, &Options::default()).await {
        Ok(_) => panic!("{} was opened", folder.display()),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_named() {
    let error = failure("/nonexistent/gatescope-data".as_ref()).await;

    assert!(matches!(error, QueryError::NoFolder(_)));
    assert_eq!(error.to_string(), "data folder /nonexistent/gatescope-data: there is no such folder");
}

#[tokio::test]
async fn a_folder_without_our_tables_is_refused() {
    let folder = Folder::empty();
    fs::create_dir(folder.path().join("photos")).unwrap();

    let error = failure(folder.path()).await;

    assert!(matches!(error, QueryError::NoTables(_)));
    assert!(error.to_string().contains("it has no gatescope tables"), "{error}");
}

#[tokio::test]
async fn a_broken_log_is_named_with_its_table() {
    let folder = small();
    fs::write(folder.newest_log("mismatches"), "{\"add\": {\"path\"").unwrap();

    let error = failure(folder.path()).await;

    assert!(matches!(error, QueryError::BrokenLog { ref table, .. } if table == "mismatches"), "{error}");
    assert!(error.to_string().starts_with("table mismatches in "), "{error}");
}

#[tokio::test]
async fn tables_that_are_missing_are_empty() {
    let folder = Folder::empty();
    folder.commit("requests", &rows_of("requests", &[json!({"request_id": "a", "status": "whole"})]), 1);

    let catalog = open(&folder).await;

    assert_eq!(value(&catalog, "SELECT count(*) FROM requests").await, 1);
    for table in ["mismatches", "captures", "expert_load", "experts"] {
        assert_eq!(value(&catalog, &format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    assert!(rows(&catalog, "SELECT \"check\", experts_a FROM mismatches").await.is_empty());
}

#[tokio::test]
async fn a_folder_with_only_a_journal_has_empty_tables() {
    let folder = Folder::empty();
    fs::create_dir(folder.path().join("journal")).unwrap();

    let catalog = open(&folder).await;

    assert_eq!(value(&catalog, "SELECT count(*) FROM requests").await, 0);
}

#[tokio::test]
async fn tables_ahead_of_requests_are_read_at_its_position() {
    // given a commit that reached all tables but `requests`, and a table that only this commit made
    let folder = small();
    let more = Routing::new(0..3, 2, "u8").request("default", "req-c", (5, 5), |_, _, _| 1);
    folder.commit("routing_3x2_u8", &more.rows(), 3);
    folder.commit("routing_9x2_u8", &Routing::new(0..9, 2, "u8").request("r", "x", (1, 2), |_, _, _| 1).rows(), 3);
    folder.commit("mismatches", &rows_of("mismatches", &[json!({"check": "GS001", "request_id": "req-c"})]), 3);

    // when it is read
    let catalog = open(&folder).await;

    // then nothing of it is seen
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing_3x2_u8").await, 10);
    assert_eq!(value(&catalog, "SELECT count(*) FROM mismatches").await, 1);
    assert!(refusal(&catalog, "SELECT * FROM routing_9x2_u8").await.contains("not found"));

    // and all of it once `requests` has it
    folder.commit("requests", &rows_of("requests", &[json!({"request_id": "req-c", "status": "whole"})]), 3);
    let catalog = open(&folder).await;
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing_3x2_u8").await, 19);
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing_9x2_u8").await, 2);
}

#[tokio::test]
async fn only_reading_is_possible() {
    let catalog = opened(small()).await;

    for (sql, what) in [
        ("CREATE TABLE t AS SELECT 1", "CREATE TABLE: queries"),
        ("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '/etc'", "CREATE EXTERNAL TABLE"),
        ("DROP TABLE requests", "DROP TABLE: queries"),
        ("COPY (SELECT 1) TO '/tmp/x.csv'", "COPY"),
        ("INSERT INTO requests SELECT * FROM requests", ""),
        ("SET datafusion.execution.batch_size = 1", "SET"),
        ("EXPLAIN ANALYZE INSERT INTO requests SELECT * FROM requests", ""),
    ] {
        let refused = refusal(&catalog, sql).await;
        assert!(refused.contains("queries only read") && refused.contains(what), "{sql}: {refused}");
    }
    for sql in ["SELECT * FROM '/etc/passwd'", "SELECT * FROM 'file:///etc/passwd'", "SELECT * FROM '/tmp/x.parquet'"] {
        assert!(refusal(&catalog, sql).await.contains("not found"), "{sql}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_query_is_one_sentence() {
    let catalog = opened(small()).await;

    for (sql, expected) in [
        ("SELEC 1", "SQL: Expected: an SQL statement, found: SELEC at Line: 1, Column: 1"),
        ("SELECT 'a", "SQL: Unterminated string literal at Line: 1, Column: 8"),
        ("SELECT 1 FROM nowhere", "table 'gatescope.public.nowhere' not found"),
        ("SELECT expert_counts(rows) FROM requests", "expert_counts(...) takes a layer column such as l00"),
    ] {
        let refused = refusal(&catalog, sql).await;
        assert!(refused.starts_with(expected), "{sql}: {refused}");
    }
    let refused = refusal(&catalog, "SELECT request_di FROM requests").await;
    assert!(refused.starts_with("No field named request_di."), "{refused}");
}

#[tokio::test]
async fn check_is_a_column_like_any_other() {
    let catalog = opened(small()).await;

    let counts = rows(&catalog, "SELECT check, count(*) AS n FROM mismatches GROUP BY check").await;

    assert_eq!(counts, [json!({"check": "GS013", "n": 1})]);
}

#[tokio::test]
async fn tables_and_their_columns_can_be_listed() {
    let catalog = opened(small()).await;

    let tables = rows(&catalog, "SHOW TABLES").await;
    let names: Vec<&str> = tables.iter().map(|t| t["table_name"].as_str().unwrap()).collect();
    assert!(tables.iter().all(|table| table["table_schema"] == "public"), "{tables:?}");
    for table in ["requests", "mismatches", "captures", "expert_load", "experts", "routing_3x2_u8"] {
        assert!(names.contains(&table), "{table} in {names:?}");
    }

    let columns = rows(&catalog, "DESCRIBE routing_3x2_u8").await;
    assert_eq!(columns[7]["column_name"], "l00");
    assert_eq!(columns[7]["data_type"], "FixedSizeBinary(2)");

    let columns = rows(
        &catalog,
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'requests' AND column_name = 'rows'",
    )
    .await;
    assert_eq!(columns, [json!({"column_name": "rows", "data_type": "Int32"})]);
}

#[tokio::test]
async fn increments_of_load_are_added_up() {
    let catalog = opened(small()).await;

    let load = rows(&catalog, "SELECT expert, tokens FROM expert_load WHERE layer = 1 ORDER BY expert").await;

    assert_eq!(load, [json!({"expert": 3, "tokens": 7}), json!({"expert": 4, "tokens": 1})]);
    assert!(refusal(&catalog, "SELECT count(*) FROM expert_load_increments").await.contains("not found"));
}

#[tokio::test]
async fn files_without_the_request_are_not_read() {
    let catalog = opened(small()).await;

    let plan = rows(&catalog, "EXPLAIN SELECT * FROM routing_3x2_u8 WHERE request_id = 'req-b'").await;
    let plan = plan.iter().find(|row| row["plan_type"] == "physical_plan").unwrap()["plan"].to_string();

    assert!(plan.contains("part-00001.parquet") && !plan.contains("part-00000.parquet"), "{plan}");
    assert!(!plan.contains("FilterExec"), "the reader filters: {plan}");
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing_3x2_u8 WHERE request_id = 'req-b'").await, 4);
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing_3x2_u8 WHERE request_id = 'nobody'").await, 0);
}

#[tokio::test]
async fn rows_are_counted_from_the_log_alone() {
    let catalog = opened(small()).await;

    let plan = rows(&catalog, "EXPLAIN SELECT count(*) FROM routing_3x2_u8").await;

    assert!(!format!("{plan:?}").contains("DataSourceExec: file_groups"), "{plan:?}");
}

#[tokio::test]
async fn filters_with_a_subquery_are_answered() {
    let catalog = opened(small()).await;

    let sql = "SELECT count(*) FROM routing_3x2_u8 WHERE request_id = (SELECT max(request_id) FROM mismatches)";
    assert_eq!(value(&catalog, sql).await, 4);
    let sql = "SELECT count(*) FROM experts WHERE request_id IN (SELECT request_id FROM mismatches) AND layer < 2";
    assert_eq!(value(&catalog, sql).await, 16);
    let sql = "SELECT count(*) FROM experts WHERE layer = (SELECT max(layer) FROM mismatches) AND request_id = 'req-b'";
    assert_eq!(value(&catalog, sql).await, 8);
}
