//! Batches, writers and the folder.

use std::path::Path;

use super::{Tables, commit, ids_in, read, small};
use crate::tables::{KEPT_AFTER_REMOVAL, TablesError};

#[test]
fn only_one_writer_may_have_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Tables::open(folder.path()).unwrap();

    let second = Tables::open(folder.path()).err().unwrap();
    drop(first);

    assert!(matches!(second, TablesError::Locked(_)));
    assert!(second.to_string().contains("another process is writing"), "{second}");
    Tables::open(folder.path()).unwrap();
}

#[test]
fn a_batch_that_is_dropped_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("a")).unwrap();
    writer.finish().unwrap();

    drop(batch);

    assert_eq!(std::fs::read_dir(folder.path().join("routing_3x2_u8")).unwrap().count(), 0);
}

#[test]
fn a_batch_with_an_unfinished_writer_cannot_be_committed() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("a")).unwrap();
    drop(writer);

    let error = tables.commit(batch).unwrap_err();

    assert!(matches!(error, TablesError::Batch { position: 1, .. }), "{error}");
    commit(&mut tables, &[small("b")]);
    assert_eq!(ids_in(&read(&tables, "requests")), ["b"]);
}

#[test]
fn batches_are_committed_in_the_order_of_their_beginnings() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let (first, second) = (tables.begin(), tables.begin());

    tables.commit(second).unwrap();
    let error = tables.commit(first).unwrap_err();

    assert!(matches!(error, TablesError::Batch { position: 1, .. }), "{error}");
}

#[test]
fn a_request_cannot_be_in_a_batch_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let batch = tables.begin();
    let (mut one, mut other) = (batch.writer(), batch.writer());
    one.add(&small("a")).unwrap();

    let error = other.add(&small("a")).unwrap_err();

    assert_eq!(error.to_string(), "request a: added twice to one batch");
}

#[test]
fn an_error_of_the_file_system_names_the_path() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("journal"), "in the way").unwrap();

    let error = Tables::open(folder.path()).err().unwrap();

    assert!(matches!(&error, TablesError::File { path, .. } if path.ends_with("journal")), "{error}");
}

#[test]
fn a_folder_stays_short_to_open_after_many_commits() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    let ids: Vec<String> = (10..20).map(|id| id.to_string()).collect();

    // when
    ids.iter().for_each(|id| commit(&mut tables, &[small(id)]));
    drop(tables);

    // then
    let log = folder.path().join("requests/_delta_log");
    assert!(log.join("00000000000000000008.checkpoint.parquet").exists());
    assert_eq!(std::fs::read_dir(folder.path().join("journal")).unwrap().count(), 1);
    let tables = Tables::open(folder.path()).unwrap();
    assert_eq!(ids_in(&read(&tables, "requests")), ids);
    assert_eq!(tables.position(), 10);
}

#[test]
fn old_versions_go_when_a_checkpoint_has_summed_them_up_and_readers_can_still_go_back() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    (10..21).for_each(|id| commit(&mut tables, &[small(&id.to_string())]));
    let log = folder.path().join("captures/_delta_log");
    let versions = |extension: &str| {
        let names = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut versions: Vec<u64> = names
            .filter_map(|name| name.strip_suffix(extension)?.strip_prefix("000000000000000000")?.parse().ok())
            .collect();
        versions.sort_unstable();
        versions
    };
    assert_eq!((versions(".json"), versions(".checkpoint.parquet")), ((4..=11).collect(), vec![4, 8]));

    // when the next checkpoint is due
    commit(&mut tables, &[small("21")]);

    // then as many versions as there should be, and the checkpoint that they begin with, are still there
    assert_eq!((versions(".json"), versions(".checkpoint.parquet")), ((8..=12).collect(), vec![8, 12]));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = url::Url::from_directory_path(folder.path().join("captures").canonicalize().unwrap()).unwrap();
    for version in [11, 12] {
        let table = runtime.block_on(deltalake::open_table_with_version(url.clone(), version)).unwrap();
        assert_eq!(table.snapshot().unwrap().log_data().num_files(), version as usize);
    }
    drop(tables);
    let tables = Tables::open(folder.path()).unwrap();
    assert_eq!(ids_in(&read(&tables, "captures")).len(), 12);
    assert_eq!(tables.position(), 12);
}

#[test]
fn a_commit_reads_nothing_of_what_the_tables_have() {
    // given tables whose logs and files are out of reach
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    let logs: Vec<_> = tables.logs.values().map(|log| log.folder().join("_delta_log")).collect();
    let aside = |log: &Path| log.with_file_name("aside");
    for log in &logs {
        std::fs::rename(log, aside(log)).unwrap();
        std::fs::create_dir(log).unwrap();
    }

    // when
    commit(&mut tables, &[small("b")]);

    // then
    for log in &logs {
        let entry = "00000000000000000002.json";
        std::fs::rename(log.join(entry), aside(log).join(entry)).unwrap();
        std::fs::remove_dir(log).unwrap();
        std::fs::rename(aside(log), log).unwrap();
    }
    drop(tables);
    let tables = Tables::open(folder.path()).unwrap();
    assert_eq!(ids_in(&read(&tables, "requests")), ["a", "b"]);
}

#[test]
fn another_program_that_writes_to_a_table_is_told_and_overcome() {
    // given a version that is not ours
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    let log = folder.path().join("captures/_delta_log");
    std::fs::write(log.join("00000000000000000002.json"), "{\"commitInfo\":{\"operation\":\"theirs\"}}").unwrap();

    // when
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("b")).unwrap();
    writer.finish().unwrap();
    let error = tables.commit(batch).unwrap_err();

    // then the commit has happened, and the next one gives the table its part
    assert!(error.to_string().contains("captures: Delta log: "), "{error}");
    assert_eq!(tables.position(), 2);
    commit(&mut tables, &[small("c")]);
    assert_eq!(ids_in(&read(&tables, "captures")), ["a", "b", "c"]);
    assert!(log.join("00000000000000000004.json").exists());
}

#[test]
fn the_tables_ask_for_no_feature_of_their_readers() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);

    for table in ["requests", "captures", "mismatches", "expert_load", "routing_3x2_u8"] {
        let first = folder.path().join(table).join("_delta_log/00000000000000000000.json");
        let text = std::fs::read_to_string(first).unwrap();
        assert!(text.contains("\"protocol\":{\"minReaderVersion\":1,\"minWriterVersion\":2}"), "{text}");
    }
}

#[test]
fn vacuum_keeps_what_the_tables_refer_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("a")]);
    let stray = |name: &str| folder.path().join("requests").join(name);
    let ours = stray("00000000000000000001-00000000-0000-4000-8000-000000000000.parquet");
    std::fs::write(&ours, "").unwrap();
    std::fs::write(stray("notes.parquet"), "").unwrap();

    let removed = tables.vacuum(KEPT_AFTER_REMOVAL).unwrap();

    assert_eq!(removed.files, 1);
    assert!(!Path::exists(&ours));
    assert!(stray("notes.parquet").exists());
    assert_eq!(ids_in(&read(&tables, "requests")), ["a"]);
}

#[test]
fn a_table_of_other_columns_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    drop(Tables::open(folder.path()).unwrap());
    let log = folder.path().join("captures/_delta_log/00000000000000000000.json");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("payload_hash", "checksum")).unwrap();

    let error = Tables::open(folder.path()).err().unwrap();

    assert!(matches!(&error, TablesError::Damaged { path, .. } if path.ends_with("captures")), "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
}
