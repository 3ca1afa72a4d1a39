//! A commit says which position of the write-ahead log it covers, together with its rows or not at all.

use std::path::Path;

use super::{Tables, commit, ids_in, read, small};
use crate::tables::{Batch, TablesError, commit::Prepared};

fn batch_of(tables: &mut Tables, id: &str) -> Batch {
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small(id)).unwrap();
    writer.finish().unwrap();
    batch
}

fn commit_covering(tables: &mut Tables, id: &str, log: u64) {
    let batch = batch_of(tables, id);
    tables.commit_covering(batch, log).unwrap();
}

/// What a table's log says of the write-ahead log, as any reader of Delta finds it.
fn versions_in_log(root: &Path, table: &str) -> Vec<(String, i64)> {
    let log = root.join(table).join("_delta_log");
    let mut names: Vec<_> = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    names.sort_unstable();
    let text: String = names.iter().map(|path| std::fs::read_to_string(path).unwrap() + "\n").collect();
    let actions = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let versions = actions.filter_map(|action| {
        let transaction = action.get("txn")?;
        Some((transaction.get("appId")?.as_str()?.to_owned(), transaction.get("version")?.as_i64()?))
    });
    versions.filter(|(application, _)| application == "gatescope.log").collect()
}

#[test]
fn the_log_position_of_the_last_commit_that_says_one_is_there_after_a_restart() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    assert_eq!(tables.log_position(), None);

    // when
    commit_covering(&mut tables, "b", 700);
    commit(&mut tables, &[small("c")]);

    // then
    assert_eq!(tables.log_position(), Some(700));
    drop(tables);
    let mut tables = Tables::open(folder.path()).unwrap();
    assert_eq!((tables.position(), tables.log_position()), (3, Some(700)));
    commit_covering(&mut tables, "d", 900);
    assert_eq!(
        versions_in_log(folder.path(), "requests"),
        [("gatescope.log".to_owned(), 700), ("gatescope.log".to_owned(), 900)]
    );
    assert_eq!(versions_in_log(folder.path(), "captures"), []);
}

#[test]
fn the_log_position_outlives_the_entries_that_a_checkpoint_sums_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit_covering(&mut tables, "a", 5);
    (10..20).for_each(|id| commit(&mut tables, &[small(&id.to_string())]));
    drop(tables);
    assert!(!folder.path().join("requests/_delta_log/00000000000000000001.json").exists());

    let tables = Tables::open(folder.path()).unwrap();

    assert_eq!(tables.log_position(), Some(5));
}

#[test]
fn a_batch_that_would_go_back_in_the_log_is_refused_and_stores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit_covering(&mut tables, "a", 700);
    let batch = batch_of(&mut tables, "b");

    let error = tables.commit_covering(batch, 699).unwrap_err();

    assert!(matches!(error, TablesError::Covers { position: 2, given: 699, covered: 700 }), "{error}");
    assert_eq!(ids_in(&read(&tables, "requests")), ["a"]);
    commit_covering(&mut tables, "c", 700);
    assert_eq!(ids_in(&read(&tables, "requests")), ["a", "c"]);
}

#[test]
fn after_a_crash_the_log_position_and_the_rows_are_both_there_or_neither() {
    // Steps of the second commit that are done when the process dies: its files; the journal; each table's part.
    for done in 0..=6 {
        // given
        let folder = tempfile::tempdir().unwrap();
        let mut tables = Tables::open(folder.path()).unwrap();
        commit_covering(&mut tables, "a", 700);
        let batch = batch_of(&mut tables, "b");

        // when
        let prepared = Prepared { covers: Some(900), ..tables.prepare(batch).unwrap() };
        if done == 0 {
            std::mem::forget(prepared);
        } else {
            let journal = tables.write_journal(prepared).unwrap();
            for change in &journal.tables[..done - 1] {
                tables.apply_to(2, change).unwrap();
            }
        }
        drop(tables);
        let tables = Tables::open(folder.path()).unwrap();

        // then
        let expected = if done == 0 { (1, Some(700), vec!["a"]) } else { (2, Some(900), vec!["a", "b"]) };
        assert_eq!((tables.position(), tables.log_position()), (expected.0, expected.1), "{done}");
        assert_eq!(ids_in(&read(&tables, "requests")), expected.2, "{done}");
        assert_eq!(ids_in(&read(&tables, "routing_3x2_u8")), expected.2, "{done}");
    }
}

#[test]
fn a_journal_without_a_log_position_is_taken_as_it_is() {
    // given a commit that an earlier build left as far as its journal
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit_covering(&mut tables, "a", 700);
    let batch = batch_of(&mut tables, "b");
    let prepared = tables.prepare(batch).unwrap();
    tables.write_journal(prepared).unwrap();
    drop(tables);
    let journal = folder.path().join("journal/00000000000000000002.json");
    assert!(!std::fs::read_to_string(journal).unwrap().contains("covers"));

    let tables = Tables::open(folder.path()).unwrap();

    assert_eq!((tables.position(), tables.log_position()), (2, Some(700)));
    assert_eq!(ids_in(&read(&tables, "requests")), ["a", "b"]);
}
