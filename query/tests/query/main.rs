//! Queries on data folders that were written by hand.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod catalog;
mod docs;
mod experts;
mod folder;
mod format;
mod functions;
mod verdict;

use folder::{Folder, Routing, rows_of};
use gatescope_query::{Catalog, Format, Options, QueryError};
use serde_json::{Value, json};

/// Two requests of a 3-layer, top-2 model in two commits, a third of another model; one is not clean.
fn small() -> Folder {
    let folder = Folder::empty();
    let id = |position: i32, layer: u16, slot: usize| ((position as u16) * 7 + layer * 3 + slot as u16) % 16;
    let first = Routing::new(0..3, 2, "u8").request("default", "req-a", (4, 3), id);
    let second = Routing::new(0..3, 2, "u8").request("default", "req-b", (3, 2), id);
    let wide =
        Routing::new([1, 2], 2, "u16").request("default", "req-w", (2, 2), |p, l, s| 300 + p as u16 + l + s as u16);
    let request = |id: &str, prompt: i32, completion: i32, table: &str, findings: i32| {
        json!({"request_id": id, "prompt_tokens": prompt, "completion_tokens": completion,
               "expected_rows": prompt + completion - 1, "rows": prompt + completion - 1, "status": "whole",
               "policy": "prefill", "findings": findings, "routing_table": table,
               "segments": [{"start": 0, "end": prompt, "role": "prefill", "instance": "p0", "attempt": 0}]})
    };
    let load = |expert: i32, tokens: i64| {
        json!({"model": "m", "instance": "p0", "role": "prefill", "phase": "prompt", "layer": 1, "expert": expert,
               "tokens": tokens})
    };
    folder.commit("routing_3x2_u8", &first.rows(), 1);
    folder.commit("expert_load", &rows_of("expert_load", &[load(3, 5), load(4, 1)]), 1);
    folder.commit("mismatches", &rows_of("mismatches", &[]), 1);
    folder.commit("captures", &rows_of("captures", &[]), 1);
    folder.commit("requests", &rows_of("requests", &[request("req-a", 4, 3, "routing_3x2_u8", 0)]), 1);

    folder.commit("routing_3x2_u8", &second.rows(), 2);
    folder.commit("routing_3x2_u16_dense0", &wide.rows(), 2);
    folder.commit("expert_load", &rows_of("expert_load", &[load(3, 2)]), 2);
    let mismatch = json!({"check": "GS013", "severity": "warning", "request_id": "req-b", "position": 2, "positions": 1,
        "layer": 1, "role_a": "prefill", "role_b": "decode", "instance_a": "p0", "instance_b": "d0",
        "experts_a": [1, 2], "experts_b": [1, 3], "detail": "decode chose other experts"});
    folder.commit("mismatches", &rows_of("mismatches", &[mismatch]), 2);
    folder.commit("captures", &rows_of("captures", &[json!({"request_id": "req-b", "role": "decode", "rows": 2})]), 2);
    let requests = [request("req-b", 3, 2, "routing_3x2_u8", 1), request("req-w", 2, 2, "routing_3x2_u16_dense0", 0)];
    folder.commit("requests", &rows_of("requests", &requests), 2);
    folder
}

async fn open(folder: &Folder) -> Catalog {
    Catalog::open(folder.path(), &Options::default()).await.unwrap()
}

/// A catalog and the folder that it reads.
struct Opened {
    catalog: Catalog,
    _folder: Folder,
}

impl std::ops::Deref for Opened {
    type Target = Catalog;

    fn deref(&self) -> &Catalog {
        &self.catalog
    }
}

async fn opened(folder: Folder) -> Opened {
    Opened { catalog: open(&folder).await, _folder: folder }
}

async fn written(catalog: &Catalog, sql: &str, format: Format) -> Result<String, QueryError> {
    let mut output = Vec::new();
    catalog.query(sql).await?.write(format, &mut output).await?;
    Ok(String::from_utf8(output).unwrap())
}

/// The rows of an answer as JSON objects.
async fn rows(catalog: &Catalog, sql: &str) -> Vec<Value> {
    serde_json::from_str(&written(catalog, sql, Format::Json).await.unwrap()).unwrap()
}

/// The one value of an answer of one row and column.
async fn value(catalog: &Catalog, sql: &str) -> Value {
    let rows = rows(catalog, sql).await;
    let [row] = rows.as_slice() else { panic!("{sql}: {rows:?}") };
    row.as_object().unwrap().values().next().unwrap().clone()
}

async fn refusal(catalog: &Catalog, sql: &str) -> String {
    match written(catalog, sql, Format::Json).await {
        Ok(answer) => panic!("{sql}: {answer}"),
        Err(error) => error.to_string(),
    }
}
