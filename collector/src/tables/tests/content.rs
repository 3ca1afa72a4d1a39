//! What is stored is what was given.

use std::collections::BTreeMap;

use arrow::array::AsArray;
use gatescope_routing::shape::{IdWidth, LayerSet, RowShape};

use super::{ClosedRequest, Tables, commit, ids_in, numbers, read, request, rows, small, strings};
use crate::tables::TablesError;

#[test]
fn every_row_comes_back_byte_for_byte_in_its_layer_and_place() {
    for (width, layers, top_k) in [(IdWidth::U8, 48, 8), (IdWidth::U16, 3, 8), (IdWidth::U8, 5, 3)] {
        // given more rows than a page and a row group hold
        let folder = tempfile::tempdir().unwrap();
        let shape = RowShape::new(layers, top_k).unwrap();
        let lengths = [(9_000, 3), (1, 60_000), (7, 1), (300, 200)];
        let requests: Vec<ClosedRequest> =
            (0..4).map(|i| request(&format!("{i}"), lengths[i].0, lengths[i].1, shape, width)).collect();
        let mut tables = Tables::open(folder.path()).unwrap();

        // when
        commit(&mut tables, &requests);

        // then
        let stored = read(&tables, &format!("routing_{layers}x{top_k}_{}", width.name())).unwrap();
        let (ids, positions) = (strings(&stored, "request_id"), numbers(&stored, "position"));
        let mut row = 0;
        for request in &requests {
            for segment in &request.joined.segments {
                for index in 0..segment.rows.len() {
                    assert_eq!(ids[row], *request.key.request_id);
                    assert_eq!(positions[row], segment.start as i32 + index as i32);
                    for layer in 0..layers as usize {
                        let column = stored.column_by_name(&format!("l{layer:02}")).unwrap();
                        assert_eq!(column.as_fixed_size_binary().value(row), segment.rows.layer(index, layer));
                    }
                    row += 1;
                }
            }
        }
        assert_eq!(row, stored.num_rows());
    }
}

#[test]
fn the_prompt_ends_where_the_completion_begins_and_every_row_names_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();

    commit(&mut tables, &[small("a")]);

    let stored = read(&tables, "routing_3x2_u8").unwrap();
    let phases = strings(&stored, "phase");
    let sources: Vec<String> = strings(&stored, "role")
        .into_iter()
        .zip(strings(&stored, "instance"))
        .map(|(r, i)| format!("{r} {i}"))
        .collect();
    assert_eq!(phases, [vec!["prompt"; 5], vec!["completion"; 3]].concat());
    assert_eq!(sources, [vec!["prefill p0"; 5], vec!["decode d0"; 3]].concat());
}

#[test]
fn the_load_is_the_count_of_the_rows_stored() {
    // given two requests, written by two threads
    let folder = tempfile::tempdir().unwrap();
    let shape = RowShape::new(4, 8).unwrap();
    let requests = [request("a", 2_000, 50, shape, IdWidth::U8), request("b", 3, 700, shape, IdWidth::U8)];
    let mut tables = Tables::open(folder.path()).unwrap();

    // when
    let batch = tables.begin();
    std::thread::scope(|threads| {
        for request in &requests {
            let mut writer = batch.writer();
            threads.spawn(move || {
                writer.add(request).unwrap();
                writer.finish().unwrap();
            });
        }
    });
    tables.commit(batch).unwrap();

    // then
    let mut expected: BTreeMap<(String, i32, i32), i64> = BTreeMap::new();
    for segment in requests.iter().flat_map(|request| &request.joined.segments) {
        for index in 0..segment.rows.len() {
            for layer in 0..4 {
                for expert in segment.rows.experts(index, layer) {
                    let key = (segment.source.instance.to_string(), layer as i32, i32::from(expert));
                    *expected.entry(key).or_default() += 1;
                }
            }
        }
    }
    let load = read(&tables, "expert_load").unwrap();
    let tokens = load.column_by_name("tokens").unwrap().as_primitive::<arrow::datatypes::Int64Type>();
    let mut found: BTreeMap<(String, i32, i32), i64> = BTreeMap::new();
    let (instances, layers, experts) = (strings(&load, "instance"), numbers(&load, "layer"), numbers(&load, "expert"));
    for row in 0..load.num_rows() {
        *found.entry((instances[row].clone(), layers[row], experts[row])).or_default() += tokens.value(row);
    }
    assert_eq!(found, expected);
    let minutes = load.column_by_name("minute").unwrap();
    let minutes = minutes.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
    assert!(minutes.values().iter().all(|&minute| minute == 5 * super::MINUTE));
}

#[test]
fn dense_layers_get_no_column() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let mut request = small("a");
    request.layers = LayerSet::from_iter([1, 2]);

    commit(&mut tables, &[request.clone()]);

    let stored = read(&tables, "routing_3x2_u8_dense0").unwrap();
    assert!(stored.column_by_name("l00").is_none());
    let second = stored.column_by_name("l01").unwrap().as_fixed_size_binary().value(0);
    assert_eq!(second, request.joined.segments[0].rows.layer(0, 1));
    assert_eq!(strings(&read(&tables, "requests").unwrap(), "routing_table"), ["routing_3x2_u8_dense0"]);
}

#[test]
fn narrow_rows_are_widened_and_wide_ids_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let shape = RowShape::new(3, 2).unwrap();
    let mut widened = small("a");
    widened.width = IdWidth::U16;
    let mut refused = request("b", 5, 4, shape, IdWidth::U16);
    refused.width = IdWidth::U8;

    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&widened).unwrap();
    let error = writer.add(&refused).unwrap_err();
    writer.finish().unwrap();
    tables.commit(batch).unwrap();

    assert!(matches!(error, TablesError::IdTooWide { position: 0, .. }), "{error}");
    let stored = read(&tables, "routing_3x2_u16").unwrap();
    let first = stored.column_by_name("l00").unwrap().as_fixed_size_binary().value(0);
    let ids = widened.joined.segments[0].rows.layer(0, 0);
    assert_eq!(first, [ids[0], 0, ids[1], 0]);
    assert_eq!(ids_in(&read(&tables, "requests")), ["a"]);
}

#[test]
fn a_request_without_rows_is_stored_without_a_routing_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let mut request = small("a");
    request.joined.segments.clear();
    request.joined.shape = None;

    commit(&mut tables, &[request]);

    assert_eq!(ids_in(&read(&tables, "requests")), ["a"]);
    assert!(tables.logs.keys().all(|table| !table.starts_with("routing_")));
}

#[test]
fn a_segment_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let mut request = small("a");
    request.joined.segments[1].rows = rows(5, 3, RowShape::new(4, 2).unwrap(), IdWidth::U8, 0);

    let batch = tables.begin();
    let error = batch.writer().add(&request).unwrap_err();

    assert_eq!(error.to_string(), "request a: position 5: rows of 4 layers x 2 slots, expected 3 layers x 2 slots");
}
