//! A crash at any step leaves the tables before the commit or after it, all of them alike.

use std::path::Path;

use super::{Tables, commit, ids_in, read, small, total_load};
use crate::tables::{journal::Journal, parquet_file::FileName};

/// The ids of four small rows per layer and slot: what one small request adds to the load.
const LOAD_OF_ONE: i64 = 8 * 3 * 2;

fn holds(tables: &Tables, requests: &[&str]) {
    for table in ["requests", "mismatches", "captures", "routing_3x2_u8"] {
        assert_eq!(ids_in(&read(tables, table)), requests, "{table}");
    }
    assert_eq!(total_load(tables), LOAD_OF_ONE * requests.len() as i64);
}

fn data_files(root: &Path) -> usize {
    let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    folders
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .filter(|entry| FileName::parse(&entry.as_ref().unwrap().file_name().to_string_lossy()).is_some())
        .count()
}

/// A folder with one commit, and a second one that is as far as its journal.
fn interrupted(folder: &Path) -> (Tables, Journal) {
    let mut tables = Tables::open(folder).unwrap();
    commit(&mut tables, &[small("a")]);
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("b")).unwrap();
    writer.finish().unwrap();
    let prepared = tables.prepare(batch).unwrap();
    tables.write_journal(prepared).unwrap();
    let journal = tables.journals.read(2).unwrap();
    (tables, journal)
}

#[test]
fn files_without_a_journal_are_no_commit_and_go_at_the_next_opening() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    let before = data_files(folder.path());
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("b")).unwrap();
    writer.finish().unwrap();

    // when the process dies before it writes the journal
    std::mem::forget(tables.prepare(batch).unwrap());
    assert!(data_files(folder.path()) > before);
    drop(tables);
    let tables = Tables::open(folder.path()).unwrap();

    // then
    holds(&tables, &["a"]);
    assert_eq!(data_files(folder.path()), before);
}

#[test]
fn a_journal_is_a_commit_though_no_table_has_taken_it() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, _) = interrupted(folder.path());
    holds(&tables, &["a"]);
    drop(tables);

    let tables = Tables::open(folder.path()).unwrap();

    holds(&tables, &["a", "b"]);
}

#[test]
fn a_commit_that_some_tables_have_taken_is_taken_by_the_others_and_once() {
    for taken in 1..=5 {
        let folder = tempfile::tempdir().unwrap();
        let (mut tables, journal) = interrupted(folder.path());
        assert_eq!(journal.tables.len(), 5);
        for change in &journal.tables[..taken] {
            tables.apply_to(2, change).unwrap();
        }
        drop(tables);

        let mut tables = Tables::open(folder.path()).unwrap();
        holds(&tables, &["a", "b"]);
        assert!(tables.logs.values().all(|log| log.position() == 2));

        // and the next commit is none the wiser
        commit(&mut tables, &[small("c")]);
        holds(&tables, &["a", "b", "c"]);
    }
}

#[test]
fn the_next_commit_finishes_one_that_was_left_undone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut tables, _) = interrupted(folder.path());

    commit(&mut tables, &[small("c")]);

    holds(&tables, &["a", "b", "c"]);
}

#[test]
fn the_requests_table_is_the_last_to_take_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (_, journal) = interrupted(folder.path());

    let order: Vec<&str> = journal.tables.iter().map(|change| &*change.table).collect();

    assert_eq!(order, ["routing_3x2_u8", "expert_load", "mismatches", "captures", "requests"]);
}

#[test]
fn a_log_entry_cut_short_by_a_power_cut_is_written_again() {
    let tables: [(&str, &[&str]); 4] = [
        ("", &["routing_3x2_u8"]),
        ("{\"commitInfo\":{\"times", &["captures", "routing_3x2_u8"]),
        ("\0\0\0\0", &["requests"]),
        ("{\"commitInfo\":{}}\n{\"add\":{", &["expert_load", "mismatches", "requests"]),
    ];
    for (torn, torn_tables) in tables {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::open(folder.path()).unwrap();
        commit(&mut tables, &[small("a")]);
        commit(&mut tables, &[small("b")]);
        drop(tables);
        let entry = |table: &str| folder.path().join(table).join("_delta_log/00000000000000000002.json");
        torn_tables.iter().for_each(|table| std::fs::write(entry(table), torn).unwrap());

        // when
        let tables = Tables::open(folder.path()).unwrap();

        // then
        holds(&tables, &["a", "b"]);
    }
}

#[test]
fn a_half_written_journal_is_no_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    drop(tables);
    std::fs::write(folder.path().join("journal/00000000000000000002.json.tmp"), "{\"position\":2").unwrap();

    let tables = Tables::open(folder.path()).unwrap();

    holds(&tables, &["a"]);
    assert_eq!(std::fs::read_dir(folder.path().join("journal")).unwrap().count(), 1);
}

#[test]
fn a_checkpoint_without_its_end_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    ["a", "b", "c", "d"].iter().for_each(|id| commit(&mut tables, &[small(id)]));
    drop(tables);
    let checkpoint = folder.path().join("requests/_delta_log/00000000000000000004.checkpoint.parquet");
    let whole = std::fs::read(&checkpoint).unwrap();
    std::fs::write(&checkpoint, &whole[..whole.len() / 2]).unwrap();

    let tables = Tables::open(folder.path()).unwrap();

    holds(&tables, &["a", "b", "c", "d"]);
}
