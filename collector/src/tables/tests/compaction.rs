//! Compaction changes files, not rows, and nobody notices it.

use std::{collections::BTreeMap, path::Path};

use arrow::{
    array::{AsArray, RecordBatch},
    datatypes::{DataType, Int64Type},
    util::display::{ArrayFormatter, FormatOptions},
};
use gatescope_routing::shape::{IdWidth, RowShape};
use parquet::{
    basic::Type,
    file::reader::{FileReader, SerializedFileReader},
};

use super::{ClosedRequest, Tables, commit, ids_in, read, request, small, strings, total_load};
use crate::tables::{CompactionOptions, KEPT_AFTER_REMOVAL, Merged, TablesError, closed::DAY, parquet_file::FileName};

const TABLES: [&str; 5] = ["requests", "mismatches", "captures", "expert_load", "routing_3x2_u8"];

pub(super) const ALL: CompactionOptions = CompactionOptions { target_bytes: 256 << 20, thorough: true };

/// Rows as text, sorted.
pub(super) fn rows_of(tables: &Tables, table: &str) -> Vec<String> {
    let Some(batch) = read(tables, table) else { return Vec::new() };
    let mut rows = in_order(&batch);
    rows.sort_unstable();
    rows
}

fn in_order(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default();
    let columns: Vec<_> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|");
    (0..batch.num_rows()).map(row).collect()
}

/// The load by key.
pub(super) fn load(tables: &Tables) -> BTreeMap<String, i64> {
    let mut load = BTreeMap::new();
    let Some(batch) = read(tables, "expert_load") else { return load };
    let tokens = batch.column_by_name("tokens").unwrap().as_primitive::<Int64Type>();
    for (row, text) in in_order(&batch.project(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap()).into_iter().enumerate() {
        *load.entry(text).or_default() += tokens.value(row);
    }
    load.retain(|_, tokens| *tokens != 0);
    load
}

pub(super) fn files(tables: &Tables, table: &str) -> Vec<String> {
    let mut files: Vec<String> = tables.logs[table].files().map(|file| file.path.clone()).collect();
    files.sort_unstable();
    files
}

pub(super) fn compact(tables: &mut Tables, options: &CompactionOptions) -> Merged {
    let mut all = Merged::default();
    while let Some(compaction) = tables.plan_compaction(options) {
        let merged = tables.commit_compacted(compaction.run().unwrap()).unwrap();
        assert_eq!(merged.void, 0);
        all.files += merged.files;
        all.into += merged.into;
    }
    all
}

fn data_files(root: &Path) -> usize {
    let folders = TABLES.iter().map(|table| root.join(table));
    folders
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .filter(|entry| FileName::parse(&entry.as_ref().unwrap().file_name().to_string_lossy()).is_some())
        .count()
}

fn marks(root: &Path) -> usize {
    let entries = std::fs::read_dir(root.join("journal")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("compaction-")).count()
}

fn with_commits(folder: &Path, ids: impl IntoIterator<Item = u32>) -> Tables {
    let mut tables = Tables::open(folder).unwrap();
    ids.into_iter().for_each(|id| commit(&mut tables, &[small(&id.to_string())]));
    tables
}

#[test]
fn merged_tables_hold_what_they_held_in_the_order_of_commits() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..17);
    let rows = TABLES.map(|table| rows_of(&tables, table));
    let (load_before, order) = (load(&tables), in_order(&read(&tables, "routing_3x2_u8").unwrap()));
    assert!(load_before.len() > 20);

    // when
    let merged = compact(&mut tables, &ALL);

    // then
    assert_eq!(merged, Merged { files: 35, into: 5, void: 0 });
    for (table, before) in TABLES.iter().zip(rows) {
        assert_eq!(files(&tables, table).len(), 1);
        if *table == "expert_load" {
            assert_eq!(read(&tables, table).unwrap().num_rows(), load_before.len());
        } else {
            assert_eq!(rows_of(&tables, table), before, "{table}");
        }
    }
    assert_eq!(load(&tables), load_before);
    assert_eq!(in_order(&read(&tables, "routing_3x2_u8").unwrap()), order);
    assert_eq!(tables.position(), 7);

    // and so after the next opening, to which later commits come
    drop(tables);
    let mut tables = Tables::open(folder.path()).unwrap();
    commit(&mut tables, &[small("17")]);
    assert_eq!(ids_in(&read(&tables, "routing_3x2_u8")), ["10", "11", "12", "13", "14", "15", "16", "17"]);
    let stored = tables.stored(&[small("12").key]).unwrap();
    let stored = stored.values().next().unwrap();
    assert_eq!(tables.stored_rows(&stored.request).unwrap().len(), 2);
    assert_eq!(stored.captures.len(), 2);
    assert_eq!(marks(folder.path()), 0);
}

#[test]
fn a_merged_routing_file_is_like_one_written_at_once() {
    // given more than a row group in small files and large ones
    let shape = RowShape::new(3, 2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    for (id, rows) in ["a", "b", "c", "d", "e", "f"].iter().zip([30_000, 50_000, 70_000, 9_000, 100, 40_000]) {
        commit(&mut tables, &[request(id, rows - 9, 10, shape, IdWidth::U8)]);
    }
    let before = in_order(&read(&tables, "routing_3x2_u8").unwrap());

    // when
    compact(&mut tables, &ALL);

    // then
    let [name] = &files(&tables, "routing_3x2_u8")[..] else { panic!("expected one file") };
    assert!(name.starts_with("00000000000000000001-"));
    let path = folder.path().join("routing_3x2_u8").join(name);
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let groups = reader.metadata().row_groups();
    let (last, others) = groups.split_last().unwrap();
    assert!(others.iter().all(|group| (32_768..=65_536).contains(&group.num_rows())));
    assert!(last.num_rows() > 0 && others.len() >= 3);
    for group in groups {
        assert_eq!(group.column(7).column_type(), Type::FIXED_LEN_BYTE_ARRAY);
        assert!(group.column(1).bloom_filter_offset().is_some());
        assert!(group.column(1).statistics().is_some() && group.column(3).statistics().is_some());
        assert!(group.columns().iter().all(|column| column.offset_index_offset().is_some()));
    }
    let rows = read(&tables, "routing_3x2_u8").unwrap();
    assert_eq!(rows.schema().field(7).data_type(), &DataType::FixedSizeBinary(2));
    assert_eq!(rows.schema().field(7).metadata()["gatescope.width"], "u8");
    assert_eq!(in_order(&rows), before);
    let log = folder.path().join("routing_3x2_u8/_delta_log/00000000000000000007.json");
    let log = std::fs::read_to_string(log).unwrap();
    let actions = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let stats = actions.filter_map(|action| action.get("add")?.get("stats")?.as_str().map(str::to_owned)).next();
    let stats: serde_json::Value = serde_json::from_str(&stats.unwrap()).unwrap();
    assert_eq!(stats["numRecords"], 199_100);
    assert_eq!((&stats["minValues"]["request_id"], &stats["maxValues"]["request_id"]), (&"a".into(), &"f".into()));
    assert_eq!(stats["maxValues"]["position"], 69_999);
}

#[test]
fn the_log_says_that_no_data_changed() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);

    compact(&mut tables, &ALL);

    let log = folder.path().join("requests/_delta_log/00000000000000000005.json");
    let text = std::fs::read_to_string(log).unwrap();
    assert_eq!(text.matches("\"remove\":").count(), 4);
    assert_eq!(text.matches("\"dataChange\":false").count(), 5);
    assert!(!text.contains("\"txn\""));
}

#[test]
fn commits_go_on_while_files_are_merged() {
    // given a batch that is under way
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    let batch = tables.begin();
    let mut writer = batch.writer();
    writer.add(&small("b")).unwrap();

    // when
    let compaction = tables.plan_compaction(&ALL).unwrap();
    assert_eq!((compaction.files(), compaction.bytes() > 10_000), (20, true));
    let merging = std::thread::spawn(move || compaction.run().unwrap());
    let compacted = merging.join().unwrap();
    let merged = tables.commit_compacted(compacted).unwrap();
    writer.finish().unwrap();
    tables.commit(batch).unwrap();
    commit(&mut tables, &[small("c")]);

    // then
    assert_eq!(merged, Merged { files: 20, into: 5, void: 0 });
    drop(tables);
    let tables = Tables::open(folder.path()).unwrap();
    for table in ["requests", "routing_3x2_u8", "captures", "mismatches"] {
        assert_eq!(ids_in(&read(&tables, table)), ["10", "11", "12", "13", "b", "c"]);
    }
    assert_eq!(tables.position(), 6);
}

#[test]
fn a_request_stored_anew_in_the_meantime_voids_what_was_merged_of_it() {
    // given
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    let compacted = tables.plan_compaction(&ALL).unwrap().run().unwrap();
    let again = ClosedRequest { replaces: true, arrivals: Vec::new(), ..small("12") };
    let again = ClosedRequest {
        joined: gatescope_routing::join::Joined { captures: Vec::new(), ..again.joined.clone() },
        ..again
    };
    commit(&mut tables, &[again]);
    let rows = TABLES.map(|table| rows_of(&tables, table));
    let before = data_files(folder.path());

    // when
    let merged = tables.commit_compacted(compacted).unwrap();

    // then the load alone, of which no file went, is merged
    assert_eq!(merged, Merged { files: 4, into: 1, void: 4 });
    assert_eq!(data_files(folder.path()), before - 4);
    assert_eq!(total_load(&tables), 4 * 48);
    for (table, before) in TABLES.iter().zip(rows) {
        if *table != "expert_load" {
            assert_eq!(rows_of(&tables, table), before, "{table}");
        }
    }
    assert_eq!(read(&tables, "requests").unwrap().num_rows(), 4);
    assert_eq!(marks(folder.path()), 0);
}

#[test]
fn a_request_is_stored_anew_in_a_merged_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    compact(&mut tables, &ALL);
    let rows = rows_of(&tables, "routing_3x2_u8");
    let mut again = small("12");
    again.replaces = true;
    again.arrivals.clear();
    again.joined.captures.clear();

    commit(&mut tables, &[again]);

    assert_eq!(rows_of(&tables, "routing_3x2_u8"), rows);
    assert_eq!(read(&tables, "requests").unwrap().num_rows(), 4);
    assert_eq!(read(&tables, "captures").unwrap().num_rows(), 8);
    assert_eq!(total_load(&tables), 4 * 48);
}

#[test]
fn what_is_merged_and_not_committed_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let tables = with_commits(folder.path(), 10..14);
    let before = data_files(folder.path());

    let compacted = tables.plan_compaction(&ALL).unwrap().run().unwrap();

    assert_eq!((data_files(folder.path()), marks(folder.path())), (before + 5, 1));
    drop(compacted);
    assert_eq!((data_files(folder.path()), marks(folder.path())), (before, 0));
}

#[test]
fn a_reader_of_the_version_before_still_has_its_files_and_a_vacuum_takes_them_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    let had = files(&tables, "requests");

    compact(&mut tables, &ALL);

    tables.vacuum(KEPT_AFTER_REMOVAL).unwrap();
    assert!(had.iter().all(|name| folder.path().join("requests").join(name).exists()));
    let vacuumed = tables.vacuum(std::time::Duration::ZERO).unwrap();
    assert_eq!(vacuumed.files, 20);
    assert!(vacuumed.bytes > 10_000);
    assert_eq!(data_files(folder.path()), 5);
    assert_eq!(ids_in(&read(&tables, "requests")), ["10", "11", "12", "13"]);
}

#[test]
fn a_vacuum_leaves_a_compaction_under_way_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    let compacted = tables.plan_compaction(&ALL).unwrap().run().unwrap();

    assert_eq!(tables.vacuum(std::time::Duration::ZERO).unwrap().files, 0);

    tables.commit_compacted(compacted).unwrap();
    assert_eq!(ids_in(&read(&tables, "routing_3x2_u8")), ["10", "11", "12", "13"]);
}

#[test]
fn files_of_two_days_are_not_merged() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = Tables::open(folder.path()).unwrap();
    for (day, id) in [1, 1, 1, 2, 2, 3].iter().zip(10..) {
        let request = ClosedRequest { closed_at: day * DAY + 5, ..small(&id.to_string()) };
        commit(&mut tables, &[request]);
    }

    compact(&mut tables, &ALL);

    for table in TABLES {
        assert_eq!(files(&tables, table).len(), 3, "{table}");
    }
    assert_eq!(ids_in(&read(&tables, "requests")).len(), 6);
    let first = super::read_file(&folder.path().join("requests").join(&files(&tables, "requests")[0]));
    assert_eq!(strings(&first[0], "request_id"), ["10", "11", "12"]);
}

#[test]
fn what_cannot_be_merged_says_why_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..14);
    let lost = folder.path().join("captures").join(&files(&tables, "captures")[1]);
    std::fs::rename(&lost, folder.path().join("aside")).unwrap();

    let error = tables.plan_compaction(&ALL).unwrap().run().unwrap_err();

    assert!(matches!(&error, TablesError::File { path, .. } if *path == lost), "{error}");
    std::fs::rename(folder.path().join("aside"), &lost).unwrap();
    assert_eq!((data_files(folder.path()), marks(folder.path())), (20, 0));
    commit(&mut tables, &[small("b")]);
    compact(&mut tables, &ALL);
    assert_eq!(ids_in(&read(&tables, "captures")), ["10", "11", "12", "13", "b"]);
}

#[test]
fn files_of_fixed_tables_stay_smaller() {
    // given a target that an eighth of which holds two of their files
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), 10..18);
    let largest = tables.logs["requests"].files().map(|file| file.bytes).max().unwrap();
    let options = CompactionOptions { target_bytes: 8 * 2 * (largest + 1), thorough: true };

    // when
    let compaction = tables.plan_compaction(&options).unwrap();
    let merged = tables.commit_compacted(compaction.run().unwrap()).unwrap();

    // then
    assert!(merged.files > 8);
    assert_eq!(files(&tables, "requests").len(), 7);
    assert_eq!(files(&tables, "routing_3x2_u8").len(), 1);
}

#[test]
fn increments_that_cancel_out_leave_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut tables = with_commits(folder.path(), [10]);
    for _ in 0..5 {
        let mut again = small("10");
        again.replaces = true;
        again.arrivals.clear();
        again.joined.captures.clear();
        again.started_at = Some(again.started_at.unwrap() + DAY);
        commit(&mut tables, &[again]);
    }
    let (before, rows) = (load(&tables), read(&tables, "expert_load").unwrap().num_rows());

    compact(&mut tables, &ALL);

    assert_eq!(load(&tables), before);
    assert!(read(&tables, "expert_load").unwrap().num_rows() * 2 <= rows);
}

/// What a process does that is killed at a step: see [`at_steps`].
const FOLDER: &str = "GATESCOPE_COMPACTION_FOLDER";

#[test]
#[ignore = "run by the test that has it die"]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let mut tables = Tables::open(Path::new(&folder)).unwrap();
    compact(&mut tables, &ALL);
}

#[cfg(feature = "fail-points")]
mod at_steps {
    use super::*;
    use crate::fail_point::Step;

    #[test]
    fn a_process_that_dies_at_any_step_leaves_every_row_and_no_file_too_many() {
        let module = module_path!().split_once("::").unwrap().1.rsplit_once("::").unwrap().0;
        for step in Step::ALL.iter().filter(|step| step.name().starts_with("compaction-")) {
            for hit in [1, 3] {
                let once = matches!(
                    step,
                    Step::CompactionBeforeMark | Step::CompactionBeforeFile | Step::CompactionBeforeUnmark
                );
                if once && hit > 1 {
                    continue;
                }
                // given
                let folder = tempfile::tempdir().unwrap();
                let tables = with_commits(folder.path(), 10..14);
                let rows = TABLES.map(|table| rows_of(&tables, table));
                let before = load(&tables);
                drop(tables);

                // when
                let at = format!("{}:{hit}", step.name());
                let status = std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", &format!("{module}::child"), "--ignored", "--test-threads=1"])
                    .envs([(FOLDER, folder.path().as_os_str()), ("GATESCOPE_FAIL_POINT", at.as_ref())])
                    .stdout(std::process::Stdio::null())
                    .stderr(std::process::Stdio::null())
                    .status()
                    .unwrap();
                assert!(!status.success(), "{at} was not reached");

                // then
                let mut tables = Tables::open(folder.path()).unwrap();
                assert_eq!(marks(folder.path()), 0);
                let referred: usize = TABLES.iter().map(|table| files(&tables, table).len()).sum();
                let merged = TABLES.iter().filter(|table| files(&tables, table).len() == 1).count();
                assert_eq!(referred, 4 * (5 - merged) + merged, "{at}");
                assert_eq!(data_files(folder.path()), 20 + merged, "{at}");
                assert_eq!(load(&tables), before);
                for (table, before) in TABLES.iter().zip(rows) {
                    if *table != "expert_load" {
                        assert_eq!(rows_of(&tables, table), before, "{at}: {table}");
                    }
                }
                compact(&mut tables, &ALL);
                assert!(TABLES.iter().all(|table| files(&tables, table).len() == 1));
            }
        }
    }
}
