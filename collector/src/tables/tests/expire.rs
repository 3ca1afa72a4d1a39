//! Retention takes a request out of every table or of none.

use super::{
    ClosedRequest, Tables, commit,
    compaction::{ALL, compact, files, rows_of},
    ids_in, read,
    replace::loads,
    small,
};
use crate::tables::{TablesError, closed::DAY};

const NOON: i64 = DAY / 2;

fn closed(id: &str, day: i64) -> ClosedRequest {
    ClosedRequest { closed_at: day * DAY + NOON, ..small(id) }
}

/// The request stored anew on another day, with one span more.
fn again(id: &str, day: i64) -> ClosedRequest {
    let mut request = closed(id, day);
    request.replaces = true;
    request.joined.captures.remove(0);
    request.arrivals.remove(0);
    request
}

/// The requests that the tables have: the same in all of them, and their load is that of their rows.
fn held(tables: &Tables) -> Vec<String> {
    let ids = ids_in(&read(tables, "requests"));
    for table in ["routing_3x2_u8", "captures", "mismatches"] {
        assert_eq!(ids_in(&read(tables, table)), ids, "{table}");
    }
    let [counted, stated] = loads(tables, "routing_3x2_u8");
    assert_eq!(counted, stated);
    ids
}

#[test]
fn what_was_closed_before_the_day_goes_in_one_commit() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[closed("a", 1), closed("b", 1)]);
    commit(&mut tables, &[closed("c", 2)]);

    // when a time of the second day is given, only days before it are over
    assert_eq!(tables.expire(2 * DAY - 1).unwrap(), None);
    let expired = tables.expire(2 * DAY + NOON + 1).unwrap().unwrap();

    // then
    assert_eq!((expired.position, expired.requests, expired.files), (3, 2, 5));
    assert!(expired.bytes > 5_000);
    assert_eq!(held(&tables), ["c"]);
    assert_eq!(tables.expire(2 * DAY + NOON + 1).unwrap(), None);
    drop(tables);
    let mut tables = Tables::open(folder.path()).unwrap();
    assert_eq!((held(&tables), tables.position()), (vec!["c".to_owned()], 3));
    commit(&mut tables, &[closed("d", 2)]);
    assert_eq!(held(&tables), ["c", "d"]);
}

#[test]
fn a_request_stored_anew_is_of_its_new_day_in_every_table() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[closed("a", 1), closed("b", 1), closed("c", 1)]);
    commit(&mut tables, &[again("b", 3), closed("d", 3)]);
    assert_eq!(held(&tables), ["a", "b", "c", "d"]);
    assert_eq!(read(&tables, "captures").unwrap().num_rows(), 9);

    // when
    tables.expire(3 * DAY).unwrap().unwrap();

    // then what it shared a file with is gone, and its older spans are not
    assert_eq!(held(&tables), ["b", "d"]);
    assert_eq!(read(&tables, "captures").unwrap().num_rows(), 5);
    tables.expire(4 * DAY).unwrap().unwrap();
    assert!(held(&tables).is_empty());
}

#[test]
fn a_batch_of_several_days_is_of_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[closed("a", 1), closed("b", 2)]);
    commit(&mut tables, &[closed("c", 1)]);

    tables.expire(2 * DAY).unwrap().unwrap();

    assert_eq!(held(&tables), ["a", "b"]);
}

#[test]
fn whatever_is_stored_anew_and_merged_no_request_is_left_in_part() {
    for seed in 0..4u32 {
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::open(folder.path()).unwrap();
        let mut random = seed.wrapping_mul(2_654_435_761) | 1;
        let mut below = |end: u32| {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random % end
        };
        let mut stored: Vec<(String, i64)> = Vec::new();
        for step in 0..14 {
            let day = i64::from(step) / 3;
            match below(4) {
                0 => {
                    compact(&mut tables, &ALL);
                }
                1 if !stored.is_empty() => {
                    let index = below(stored.len() as u32) as usize;
                    commit(&mut tables, &[again(&stored[index].0, day), closed(&format!("n{step}"), day)]);
                    stored[index].1 = day;
                    stored.push((format!("n{step}"), day));
                }
                _ => {
                    let ids = [format!("x{step}"), format!("y{step}")];
                    commit(&mut tables, &ids.each_ref().map(|id| closed(id, day)));
                    stored.extend(ids.map(|id| (id, day)));
                }
            }
            if below(3) == 0 {
                let cut = i64::from(below(4)).min(day);
                tables.expire(cut * DAY).unwrap();
                stored.retain(|(_, day)| *day >= cut);
            }
            let mut expected: Vec<String> = stored.iter().map(|(id, _)| id.clone()).collect();
            expected.sort_unstable();
            assert_eq!(held(&tables), expected, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn nothing_expires_under_a_batch_that_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[closed("a", 1)]);
    let batch = tables.begin();

    let error = tables.expire(9 * DAY).unwrap_err();

    assert!(matches!(error, TablesError::Batch { position: 2, .. }), "{error}");
    tables.commit(batch).unwrap();
    drop(tables.begin());
    assert!(tables.expire(9 * DAY).unwrap().is_some());
    assert!(held(&tables).is_empty());
}

#[test]
fn files_that_do_not_say_when_their_requests_were_closed_stay() {
    // given a table as an earlier build left it
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[closed("a", 1), closed("b", 1)]);
    drop(tables);
    for table in ["requests", "captures", "mismatches", "expert_load", "routing_3x2_u8"] {
        let log = folder.path().join(table).join("_delta_log/00000000000000000001.json");
        let text = std::fs::read_to_string(&log).unwrap();
        let (before, after) = text.split_once("\"tags\":{").unwrap();
        let (_, after) = after.split_once('}').unwrap();
        std::fs::write(&log, format!("{before}\"tags\":null{after}")).unwrap();
    }
    let mut tables = Tables::open(folder.path()).unwrap();

    // when
    commit(&mut tables, &[again("a", 2), closed("c", 2)]);
    tables.expire(3 * DAY).unwrap().unwrap();

    // then
    assert_eq!(held(&tables), ["b"]);
    assert_eq!(tables.expire(i64::MAX).unwrap(), None);
}

#[test]
fn the_day_of_a_file_outlives_checkpoints_and_merging() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    (10..16).for_each(|id| commit(&mut tables, &[closed(&id.to_string(), 1 + id / 14)]));
    compact(&mut tables, &ALL);
    assert_eq!(files(&tables, "requests").len(), 2);
    (16..22).for_each(|id| commit(&mut tables, &[closed(&id.to_string(), 3)]));
    let rows = rows_of(&tables, "captures").len();
    drop(tables);
    assert!(!folder.path().join("captures/_delta_log/00000000000000000006.json").exists());
    let mut tables = Tables::open(folder.path()).unwrap();
    assert_eq!(rows_of(&tables, "captures").len(), rows);

    tables.expire(2 * DAY).unwrap().unwrap();

    assert_eq!(held(&tables), ["14", "15", "16", "17", "18", "19", "20", "21"]);
}
