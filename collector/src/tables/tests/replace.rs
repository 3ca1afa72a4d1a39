//! Requests that are stored anew.

use std::collections::BTreeMap;

use arrow::{array::AsArray, datatypes::Int64Type};
use gatescope_routing::{
    join::Status,
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::RequestKey,
};

use super::{ClosedRequest, Tables, commit, ids_in, numbers, read, request, small, strings};

/// The load that the stored rows have, and the load that the table says.
pub(super) fn loads(tables: &Tables, table: &str) -> [BTreeMap<(String, String, i32, i32), i64>; 2] {
    let (mut counted, mut stated) = (BTreeMap::new(), BTreeMap::new());
    let Some(load) = read(tables, "expert_load") else { return [counted, stated] };
    if let Some(rows) = read(tables, table) {
        let (instances, phases) = (strings(&rows, "instance"), strings(&rows, "phase"));
        for (layer, column) in rows.columns()[7..].iter().enumerate() {
            for (row, ids) in column.as_fixed_size_binary().iter().enumerate() {
                for &id in ids.unwrap() {
                    let key = (instances[row].clone(), phases[row].clone(), layer as i32, i32::from(id));
                    *counted.entry(key).or_default() += 1;
                }
            }
        }
    }
    let (instances, phases) = (strings(&load, "instance"), strings(&load, "phase"));
    let (layers, experts) = (numbers(&load, "layer"), numbers(&load, "expert"));
    let tokens = load.column_by_name("tokens").unwrap().as_primitive::<Int64Type>();
    for row in 0..load.num_rows() {
        let key = (instances[row].clone(), phases[row].clone(), layers[row], experts[row]);
        *stated.entry(key).or_default() += tokens.value(row);
    }
    stated.retain(|_, tokens| *tokens != 0);
    [counted, stated]
}

/// The request as it was before its decode's rows came.
fn prefill_only(whole: &ClosedRequest) -> ClosedRequest {
    let mut part = whole.clone();
    part.joined.segments.truncate(1);
    part.joined.captures.truncate(1);
    part.arrivals.truncate(1);
    part.joined.status = Status::Incomplete;
    part.joined.gaps.push(whole.joined.segments[1].start..whole.joined.segments[1].end());
    part
}

/// The request as it is stored anew: its decode's capture is the only new one.
fn completed(whole: &ClosedRequest) -> ClosedRequest {
    let mut completed = whole.clone();
    completed.joined.captures.remove(0);
    completed.arrivals.remove(0);
    completed.replaces = true;
    completed
}

#[test]
fn a_request_stored_anew_is_stored_once_and_the_load_follows_the_rows() {
    // given more than a row group, the request in the midst of it
    let shape = RowShape::new(3, 2).unwrap();
    let around = |id: &str| request(id, 40_000, 2, shape, IdWidth::U8);
    let whole = request("m", 300, 200, shape, IdWidth::U8);
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[around("a"), around("b"), prefill_only(&whole), around("c"), around("d")]);
    let before = read(&tables, "routing_3x2_u8").unwrap().num_rows();
    let [counted, stated] = loads(&tables, "routing_3x2_u8");
    assert_eq!(counted, stated);

    // when
    commit(&mut tables, &[completed(&whole)]);

    // then
    let rows = read(&tables, "routing_3x2_u8").unwrap();
    assert_eq!(rows.num_rows(), before + 199);
    assert_eq!(ids_in(&Some(rows)), ["a", "b", "c", "d", "m"]);
    let [counted, stated] = loads(&tables, "routing_3x2_u8");
    assert_eq!(counted, stated);
    let requests = read(&tables, "requests").unwrap();
    assert_eq!(requests.num_rows(), 5);
    assert_eq!(strings(&requests, "status"), ["whole"; 5]);
    assert_eq!(read(&tables, "mismatches").unwrap().num_rows(), 5);
    assert_eq!(read(&tables, "captures").unwrap().num_rows(), 2 * 5);

    // and so after the next opening
    drop(tables);
    let tables = Tables::open(folder.path()).unwrap();
    for id in ["a", "b", "c", "d", "m"] {
        let key = RequestKey { run: "default".into(), request_id: id.into(), choice: 0 };
        let stored = tables.stored(std::slice::from_ref(&key)).unwrap().remove(&key).unwrap();
        assert_eq!(tables.stored_rows(&stored.request).unwrap().len(), 2, "{id}");
    }
}

#[test]
fn only_what_was_stored_of_a_request_is_taken_out() {
    // given two choices and two runs of one id
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let first = small("a");
    let (mut choice, mut run) = (small("a"), small("a"));
    choice.key.choice = 1;
    run.key.run = "twin".into();
    commit(&mut tables, &[first.clone(), choice, run]);

    // when
    commit(&mut tables, &[completed(&first), ClosedRequest { replaces: true, ..small("new") }]);

    // then
    let requests = read(&tables, "requests").unwrap();
    let mut found: Vec<(String, String, i32)> = strings(&requests, "run")
        .into_iter()
        .zip(strings(&requests, "request_id"))
        .zip(numbers(&requests, "choice"))
        .map(|((run, id), choice)| (run, id, choice))
        .collect();
    found.sort_unstable();
    let name = |run: &str, id: &str, choice| (run.to_owned(), id.to_owned(), choice);
    assert_eq!(
        found,
        [name("default", "a", 0), name("default", "a", 1), name("default", "new", 0), name("twin", "a", 0)]
    );
    assert_eq!(read(&tables, "routing_3x2_u8").unwrap().num_rows(), 4 * 8);
    let [counted, stated] = loads(&tables, "routing_3x2_u8");
    assert_eq!(counted, stated);
}

#[test]
fn a_crash_after_the_journal_still_replaces_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let whole = small("a");
    commit(&mut tables, &[prefill_only(&whole), small("b")]);
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&completed(&whole)).unwrap();
    writer.finish().unwrap();
    let prepared = tables.prepare(batch).unwrap();
    tables.write_journal(prepared).unwrap();
    drop(tables);

    let tables = Tables::open(folder.path()).unwrap();

    assert_eq!(read(&tables, "routing_3x2_u8").unwrap().num_rows(), 2 * 8);
    assert_eq!(strings(&read(&tables, "requests").unwrap(), "status"), ["whole"; 2]);
    let [counted, stated] = loads(&tables, "routing_3x2_u8");
    assert_eq!(counted, stated);
}

#[test]
fn a_stored_request_reads_back_as_it_was_given() {
    for width in [IdWidth::U8, IdWidth::U16] {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::open(folder.path()).unwrap();
        let wanted = request("b", 100, 20, RowShape::new(3, 2).unwrap(), width);
        commit(&mut tables, &[small("a"), wanted.clone(), small("c")]);
        commit(&mut tables, &[small("d")]);
        let nowhere = RequestKey { run: "default".into(), request_id: "bb".into(), choice: 0 };

        // when
        let stored = tables.stored(&[nowhere, wanted.key.clone()]).unwrap();

        // then
        assert_eq!(stored.len(), 1);
        let stored = &stored[&wanted.key];
        assert_eq!(stored.request.status, Status::Whole);
        assert_eq!(stored.request.started_at, wanted.started_at);
        assert_eq!(stored.request.first_forward, Some(99));
        assert_eq!(stored.request.findings, 1);
        assert_eq!(stored.captures.len(), 2);
        assert_eq!(stored.captures[0].payload_hash, wanted.joined.captures[0].payload_hash);
        assert_eq!(stored.captures[1].arrival, wanted.arrivals[1]);
        let given: Vec<(u32, Rows)> = wanted.joined.segments.iter().map(|s| (s.start, s.rows.clone())).collect();
        let found: Vec<(u32, Rows)> =
            tables.stored_rows(&stored.request).unwrap().into_iter().map(|s| (s.start, s.rows)).collect();
        assert_eq!(found, given);
    }
}

#[test]
fn a_folder_without_requests_answers_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::open(folder.path()).unwrap();

    assert!(tables.stored(&[small("a").key]).unwrap().is_empty());
}
