//! Deleting what the tables have.

use super::*;
use crate::log::{
    Deleted,
    memory::{Faults, Loss},
};

#[test]
fn only_files_wholly_below_the_committed_position_go() {
    let whole = disk_with(30, small());
    let files = whole.paths();
    let (_, all) = (files.clone(), records(1..=30));
    for committed in 0..=30 {
        // When
        let disk = whole.copy();
        let (log, _) = open(&disk, 0, small()).unwrap();
        let deleted = log.delete_below(committed).unwrap();
        drop(log);

        // Then: what is left begins at or below the next record, and one file fewer would not.
        let left = disk.paths();
        assert_eq!(deleted.files as usize, files.len() - left.len());
        let first = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
        assert!(first(&left[0]) <= committed + 1);
        assert!(left.get(1).is_none_or(|second| first(second) > committed + 1), "{committed}: {left:?}");
        let (found, _) = replayed(&disk, committed, small()).unwrap();
        assert_eq!(found, all[committed as usize..]);
    }
}

#[test]
fn records_that_are_not_durable_cannot_be_below() {
    let disk = disk_with(3, small());
    let (log, _) = open(&disk, 0, small()).unwrap();
    let refused = log.delete_below(4).unwrap_err();
    assert!(matches!(refused, LogError::AheadOfLog { committed: 4, durable: 3 }), "{refused}");
}

#[test]
fn a_deleted_file_stays_deleted_and_a_gap_below_the_committed_position_is_none() {
    // Given: two files deleted.
    let disk = disk_with(30, small());
    let before = disk.paths();
    let (log, _) = open(&disk, 0, small()).unwrap();
    let deleted = log.delete_below(12).unwrap();
    assert!(deleted.files >= 2, "{deleted:?}");

    // When: the power goes, the folder was synced.
    let disk = disk.cut_power(Loss::All, 0);
    drop(log);

    // Then
    assert_eq!(disk.paths(), before[deleted.files as usize..]);
    assert_eq!(replayed(&disk, 12, small()).unwrap().0, records(13..=30));

    // And: a deletion of which the disk kept only a later part leaves a gap that nobody needs.
    let disk = disk_with(30, small());
    disk.delete(&before[1]);
    assert_eq!(replayed(&disk, 12, small()).unwrap().0, records(13..=30));
}

#[test]
fn a_deletion_that_fails_can_be_tried_again() {
    // Given
    let disk = disk_with(30, small());
    let (log, _) = open(&disk, 0, small()).unwrap();
    let used = log.used_bytes();
    disk.set(Faults { failing_remove: true, ..Faults::default() });

    // When
    let refused = log.delete_below(30).unwrap_err();

    // Then
    assert!(refused.to_string().contains("cannot delete the file"), "{refused}");
    assert_eq!(log.used_bytes(), used);
    disk.set(Faults::default());
    let deleted = log.delete_below(30).unwrap();
    assert_eq!(used - deleted.bytes, log.used_bytes());
    assert_eq!(disk.paths().len(), 1);
    assert_eq!(log.delete_below(30).unwrap(), Deleted::default());
}

#[test]
fn a_file_that_somebody_else_deleted_is_deleted() {
    let disk = disk_with(30, small());
    let (log, _) = open(&disk, 0, small()).unwrap();
    disk.delete(&disk.paths()[0]);
    assert!(log.delete_below(30).unwrap().files > 1);
}
