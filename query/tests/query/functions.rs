//! `experts()`, `expert_counts()`, `routing()`.

use std::sync::Arc;

use arrow::{
    array::{FixedSizeBinaryArray, RecordBatch},
    datatypes::Schema,
};
use gatescope_query::Catalog;
use serde_json::{Value, json};

use crate::{
    folder::{Folder, Routing, rows_of},
    opened, refusal, rows, small, value,
};

/// The values of an answer of one column.
async fn rows_of_answer(catalog: &Catalog, sql: &str) -> Vec<Value> {
    let rows = rows(catalog, sql).await.into_iter();
    rows.map(|row| row.as_object().unwrap().values().next().unwrap().clone()).collect()
}

#[tokio::test]
async fn experts_are_a_list_in_slot_order() {
    let catalog = opened(small()).await;

    let sql = "SELECT experts(l01) AS l FROM routing_3x2_u8 WHERE request_id = 'req-b' ORDER BY position";
    let lists: Vec<Value> = rows(&catalog, sql).await.iter().map(|row| row["l"].clone()).collect();
    assert_eq!(lists, [json!([3, 4]), json!([10, 11]), json!([1, 2]), json!([8, 9])]);

    let wide = "SELECT experts(l02) AS l FROM routing_3x2_u16_dense0 ORDER BY position";
    let lists: Vec<Value> = rows(&catalog, wide).await.iter().map(|row| row["l"].clone()).collect();
    assert_eq!(lists, [json!([302, 303]), json!([303, 304]), json!([304, 305])]);
}

#[tokio::test]
async fn the_width_of_ids_goes_through_views_of_a_column_and_can_be_named_elsewhere() {
    let catalog = opened(small()).await;

    let through = "WITH r AS (SELECT l01 AS layer_one, position FROM routing_3x2_u16_dense0 ORDER BY position LIMIT 1) \
                   SELECT experts(layer_one) FROM r";
    assert_eq!(value(&catalog, through).await, json!([301, 302]));

    let lost =
        "SELECT experts(CASE WHEN position = 0 THEN l01 ELSE l02 END{}) FROM routing_3x2_u16_dense0 WHERE position = 0";
    assert!(refusal(&catalog, &lost.replace("{}", "")).await.contains("say it: experts(..., 'u8') or 'u16'"));
    assert_eq!(value(&catalog, &lost.replace("{}", ", 'u16'")).await, json!([301, 302]));
}

#[tokio::test]
async fn what_is_no_layer_column_is_refused() {
    let catalog = opened(small()).await;

    for function in ["experts", "expert_counts"] {
        let refused = refusal(&catalog, &format!("SELECT {function}(position) FROM routing_3x2_u8")).await;
        assert!(refused.contains(&format!("{function}(...) takes a layer column such as l00")), "{refused}");
    }
    let refused = refusal(&catalog, "SELECT experts(l00, 'u32') FROM routing_3x2_u8").await;
    assert!(refused.contains("'u8' or 'u16'"), "{refused}");
}

#[tokio::test]
async fn counts_are_those_of_the_unfolded_rows() {
    let catalog = opened(small()).await;

    for (table, layer, condition) in [
        ("routing_3x2_u8", 0, "true"),
        ("routing_3x2_u8", 2, "phase = 'prompt'"),
        ("routing_3x2_u8", 1, "request_id = 'nobody'"),
        ("routing_3x2_u16_dense0", 2, "true"),
    ] {
        let sql = format!("SELECT expert_counts(l{layer:02}) FROM {table} WHERE {condition}");
        let counts = value(&catalog, &sql).await;
        let shape = if table.contains("u16") { "request_id = 'req-w'" } else { "request_id <> 'req-w'" };
        let sql = format!(
            "SELECT expert, count(*) AS n FROM experts WHERE layer = {layer} AND {shape} AND {condition} GROUP BY expert"
        );
        let slots = rows(&catalog, &sql).await;
        let highest = slots.iter().filter_map(|row| row["expert"].as_u64()).max();
        let mut expected = vec![0; highest.map_or(0, |highest| highest as usize + 1)];
        slots.iter().for_each(|row| expected[row["expert"].as_u64().unwrap() as usize] = row["n"].as_u64().unwrap());
        assert_eq!(counts, json!(expected), "{sql}");
    }
}

#[tokio::test]
async fn many_rows_are_counted_like_one_by_one() {
    for (width, top_k, experts) in [("u8", 3, 256_u64), ("u16", 5, 60_000)] {
        // given rows whose bytes are no multiple of any word
        let id = |position: i32, _: u16, slot: usize| {
            ((position as u64 * 0x9E37_79B9 + slot as u64 * 0x85EB_CA6B) >> 7).rem_euclid(experts) as u16
        };
        let folder = Folder::empty();
        let routing = Routing::new([0], top_k, width).request("default", "r", (30_011, 1), id);
        folder.commit("routing_x", &routing.rows(), 1);
        folder.commit("requests", &rows_of("requests", &[json!({"request_id": "r", "status": "whole"})]), 1);
        let catalog = opened(folder).await;

        // when
        let counts = value(&catalog, "SELECT expert_counts(l00) FROM routing_x").await;

        // then
        let mut expected = vec![0; experts as usize];
        (0..30_011).for_each(|p| (0..top_k).for_each(|s| expected[usize::from(id(p, 0, s))] += 1));
        expected.truncate(expected.iter().rposition(|&n| n > 0).unwrap() + 1);
        assert_eq!(counts, json!(expected), "{width}");
    }
}

#[tokio::test]
async fn rows_without_ids_are_left_out() {
    // given a layer column with nulls, as another writer might leave them
    let rows =
        Routing::new([0, 1], 2, "u8").request("default", "r", (4, 1), |p, l, s| p as u16 * 2 + l + s as u16).rows();
    let schema = rows.schema();
    let mut fields: Vec<_> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    fields[8] = fields[8].clone().with_nullable(true);
    let mut columns = rows.columns().to_vec();
    let ids = [None, Some([3_u8, 4]), None, Some([7, 8])];
    columns[8] = Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(ids.into_iter(), 2).unwrap());
    let folder = Folder::empty();
    folder.commit("routing_x", &RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap(), 1);
    folder.commit("requests", &rows_of("requests", &[json!({"request_id": "r", "status": "whole"})]), 1);
    let catalog = opened(folder).await;

    // then no function makes up ids for them
    assert_eq!(value(&catalog, "SELECT expert_counts(l01) FROM routing_x").await, json!([0, 0, 0, 1, 1, 0, 0, 1, 1]));
    let grouped = "SELECT expert_counts(l01) AS c FROM routing_x GROUP BY position < 2 ORDER BY position < 2";
    let grouped: Vec<Value> = rows_of_answer(&catalog, grouped).await;
    assert_eq!(grouped, [json!([0, 0, 0, 0, 0, 0, 0, 1, 1]), json!([0, 0, 0, 1, 1])]);
    let lists: Vec<Value> = rows_of_answer(&catalog, "SELECT experts(l01) FROM routing_x ORDER BY position").await;
    assert_eq!(lists, [Value::Null, json!([3, 4]), Value::Null, json!([7, 8])]);
    assert_eq!(value(&catalog, "SELECT count(*) FROM experts").await, 12);
    let unfolded = rows_of_answer(&catalog, "SELECT expert FROM experts WHERE layer = 1").await;
    assert_eq!(unfolded, [json!(3), json!(4), json!(7), json!(8)]);
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing('r')").await, 6);
}

#[tokio::test]
async fn counts_by_group_add_up_to_all() {
    let catalog = opened(small()).await;

    let groups = rows(
        &catalog,
        "SELECT request_id, phase, expert_counts(l01) AS counts, expert_counts(l01) FILTER (WHERE position < 2) AS early \
         FROM routing_3x2_u8 GROUP BY request_id, phase ORDER BY request_id, phase",
    )
    .await;

    let ids = |positions: std::ops::Range<i32>| {
        let mut counts = vec![0; 16];
        positions.for_each(|p| (0..2).for_each(|s| counts[(p as usize * 7 + 3 + s) % 16] += 1));
        let length = counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        counts.truncate(length);
        counts
    };
    let expected = [
        json!({"request_id": "req-a", "phase": "completion", "counts": ids(4..6), "early": []}),
        json!({"request_id": "req-a", "phase": "prompt", "counts": ids(0..4), "early": ids(0..2)}),
        json!({"request_id": "req-b", "phase": "completion", "counts": ids(3..4), "early": []}),
        json!({"request_id": "req-b", "phase": "prompt", "counts": ids(0..3), "early": ids(0..2)}),
    ];
    assert_eq!(groups, expected);
}

#[tokio::test]
async fn routing_is_one_request_in_order() {
    let catalog = opened(small()).await;

    let routing = rows(&catalog, "SELECT * FROM routing('req-b')").await;

    let expected = (0..4).flat_map(|position| (0..3).map(move |layer| (position, layer))).map(|(position, layer)| {
        let (phase, role, instance) =
            if position < 3 { ("prompt", "prefill", "p0") } else { ("completion", "decode", "d0") };
        let first = position * 7 + layer * 3;
        json!({"run": "default", "request_id": "req-b", "choice": 0, "position": position, "phase": phase, "role": role,
               "instance": instance, "layer": layer, "experts": [first % 16, (first + 1) % 16]})
    });
    assert_eq!(routing, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn routing_keeps_its_order_where_the_positions_are_not_shown() {
    let catalog = opened(small()).await;

    let layers = rows(&catalog, "SELECT layer, experts FROM routing('req-w', 0, 'default') LIMIT 4").await;

    let expected = [(1, [301, 302]), (2, [302, 303]), (1, [302, 303]), (2, [303, 304])];
    assert_eq!(layers, expected.map(|(layer, experts)| json!({"layer": layer, "experts": experts})));
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing('req-w', 1)").await, 0);
    assert_eq!(value(&catalog, "SELECT count(*) FROM routing('req-w', NULL, 'twin')").await, 0);
    let one = "SELECT experts FROM routing('req-w') WHERE position = 2 AND layer = 2";
    assert_eq!(value(&catalog, one).await, json!([304, 305]));
}

#[tokio::test]
async fn routing_says_how_it_is_called() {
    let catalog = opened(small()).await;

    for call in ["routing()", "routing(17)", "routing('a', 'b')", "routing('a', 0, 1)", "routing('a', 0, 'r', 1)"] {
        let refused = refusal(&catalog, &format!("SELECT * FROM {call}")).await;
        assert!(refused.contains("routing('request id' [, choice [, run]])"), "{call}: {refused}");
    }
}

#[tokio::test]
async fn routing_reads_the_files_of_the_request_alone() {
    let catalog = opened(small()).await;

    let plan = rows(&catalog, "EXPLAIN SELECT * FROM routing('req-b')").await;
    let plan = plan.iter().find(|row| row["plan_type"] == "physical_plan").unwrap()["plan"].to_string();

    assert!(plan.contains("routing_3x2_u8/part-00001.parquet") && !plan.contains("part-00000.parquet"), "{plan}");
}
