//! The view `experts`.

use serde_json::json;

use crate::{
    folder::{Folder, Routing, rows_of},
    open, opened, rows, small, value,
};

#[tokio::test]
async fn a_row_is_unfolded_by_layer_and_slot() {
    let catalog = opened(small()).await;

    let slots = rows(&catalog, "SELECT * FROM experts WHERE request_id = 'req-b' AND position = 1").await;

    let expected = (0..3).flat_map(|layer| (0..2).map(move |slot| (layer, slot))).map(|(layer, slot)| {
        json!({"run": "default", "request_id": "req-b", "choice": 0, "position": 1, "phase": "prompt", "role": "prefill",
               "layer": layer, "slot": slot, "expert": (7 + layer * 3 + slot) % 16})
    });
    assert_eq!(slots, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn tables_of_all_shapes_are_in_it() {
    let catalog = opened(small()).await;

    let layers = rows(
        &catalog,
        "SELECT request_id, count(*) AS slots, min(layer) AS first, max(expert) AS highest FROM experts \
         GROUP BY request_id ORDER BY request_id",
    )
    .await;

    assert_eq!(
        layers,
        [
            json!({"request_id": "req-a", "slots": 36, "first": 0, "highest": 15}),
            json!({"request_id": "req-b", "slots": 24, "first": 0, "highest": 15}),
            json!({"request_id": "req-w", "slots": 12, "first": 1, "highest": 305}),
        ]
    );
}

#[tokio::test]
async fn filters_on_layers_and_keys_leave_columns_and_files_unread() {
    let catalog = opened(small()).await;

    let sql = "SELECT count(*) AS n, sum(expert) AS s FROM experts WHERE layer IN (1, 7) AND request_id = 'req-b'";
    let plan = rows(&catalog, &format!("EXPLAIN {sql}")).await;
    let plan = plan.iter().find(|row| row["plan_type"] == "physical_plan").unwrap()["plan"].to_string();

    assert!(plan.contains("l01") && !plan.contains("l00") && !plan.contains("l02"), "{plan}");
    assert!(!plan.contains("part-00000.parquet"), "{plan}");
    assert!(!plan.contains("FilterExec"), "{plan}");
    let expected: i32 = (0..4).flat_map(|p| (0..2).map(move |s| (p * 7 + 3 + s) % 16)).sum();
    assert_eq!(rows(&catalog, sql).await, [json!({"n": 8, "s": expected})]);
}

#[tokio::test]
async fn other_filters_limits_and_joins_hold() {
    let catalog = opened(small()).await;

    let slots = value(&catalog, "SELECT count(*) FROM experts WHERE expert = 3 AND layer + slot = 1").await;
    let expected =
        value(&catalog, "SELECT count(*) FROM (SELECT *, layer + slot AS d FROM experts) WHERE d = 1 AND expert = 3")
            .await;
    assert_eq!(slots, expected);
    assert_eq!(rows(&catalog, "SELECT position FROM experts LIMIT 7").await.len(), 7);
    assert_eq!(rows(&catalog, "SELECT position FROM experts WHERE phase = 'completion' LIMIT 200").await.len(), 22);
    let joined = "SELECT count(*) FROM experts e JOIN mismatches m ON e.request_id = m.request_id \
                  AND e.position = m.position AND e.layer = m.layer";
    assert_eq!(value(&catalog, joined).await, 2);
}

#[tokio::test]
async fn large_tables_are_unfolded_in_bounded_batches() {
    let folder = Folder::empty();
    let id = |position: i32, layer: u16, slot: usize| (position as u16 / 3 + layer + slot as u16) % 128;
    let routing = Routing::new(0..48, 8, "u8").request("default", "long", (20_000, 1), id);
    folder.commit("routing_48x8_u8", &routing.rows(), 1);
    folder.commit("requests", &rows_of("requests", &[json!({"request_id": "long", "status": "whole"})]), 1);
    let catalog = open(&folder).await;

    let mut answer = catalog.query("SELECT layer, slot, expert, position FROM experts").await.unwrap();
    let (mut slots, mut largest) = (0, 0);
    while let Some(batch) = answer.next().await {
        let batch = batch.unwrap();
        slots += batch.num_rows();
        largest = largest.max(batch.num_rows());
    }

    assert_eq!(slots, 20_000 * 48 * 8);
    assert!(largest <= 8192, "{largest}");
    let sums = "SELECT sum(expert) FROM experts WHERE layer = 5";
    let expected: u64 = (0..20_000).flat_map(|p| (0..8).map(move |s| u64::from(id(p, 5, s)))).sum();
    assert_eq!(value(&catalog, sums).await, expected);
}
