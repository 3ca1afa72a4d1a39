//! Disks that refuse, and then do not.

use futures::executor::block_on;

use super::*;
use crate::log::{
    AppendError, NotDurable,
    frame::{FILE_HEADER, FRAME_HEADER},
    memory::{Faults, Loss},
};

/// Waits for the watermark, however often the disk has refused on the way.
fn durable_at_last(log: &Log, position: u64) {
    let mut watermark = log.watermark();
    let mut now = watermark.now();
    while now.position() < position {
        now = block_on(watermark.above(now)).unwrap();
    }
}

#[test]
fn a_full_disk_refuses_with_its_reason_and_goes_on_when_there_is_room() {
    let first = payload(3).len() + FRAME_HEADER;
    for room in 0..first {
        // Given: two records, and a disk that takes only part of the third.
        let disk = disk_with(2, small());
        let before = disk.read(&disk.paths()[0]);
        let (log, _) = open(&disk, 0, small()).unwrap();
        disk.set(Faults { room: Some(room), ..Faults::default() });

        // When
        let third = log.append_blocking(payload(3)).unwrap();
        let told = log.reached_blocking(third).unwrap_err();

        // Then: who waits is told why, nothing else is taken, and no part of a frame stays.
        assert!(matches!(&told, NotDurable::Failing(failure) if failure.action == "write"), "{told}");
        let refused = log.append_blocking(payload(4)).unwrap_err();
        assert!(matches!(refused, AppendError::Failing(_)), "{refused}");
        assert!(matches!(log.try_append(payload(4)), Err(AppendError::Failing(_))));
        assert!(log.watermark().failure().is_some());
        assert_eq!(log.durable().position(), 2);
        disk.set(Faults { room: Some(0), ..Faults::default() });
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(disk.read(&disk.paths()[0]), before, "room {room}");

        // And: with room again the record is there, once, and others after it.
        disk.set(Faults::default());
        durable_at_last(&log, third);
        assert!(log.watermark().failure().is_none());
        assert_eq!(log.append_blocking(payload(4)).unwrap(), 4);
        log.reached_blocking(4).unwrap();
        drop(log);
        assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=4));
    }
}

#[test]
fn half_a_frame_that_cannot_be_cut_off_is_cut_before_the_next_write() {
    // Given
    let disk = disk_with(2, small());
    let (log, _) = open(&disk, 0, small()).unwrap();
    disk.set(Faults { room: Some(10), failing_truncate: true, ..Faults::default() });
    let third = log.append_blocking(payload(3)).unwrap();
    log.reached_blocking(third).unwrap_err();

    // When: the process dies here, or the disk is well again.
    let crashed = replayed(&disk.copy(), 0, small()).unwrap();
    disk.set(Faults::default());
    durable_at_last(&log, third);
    drop(log);

    // Then
    assert_eq!(crashed.0, records(1..=2));
    assert_eq!(crashed.1.cut().map(|cut| (cut.bytes, cut.position)), Some((10, 3)));
    assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=3));
}

#[test]
fn after_a_failed_sync_the_records_go_to_a_new_file() {
    for failing_syncs in 1..4 {
        // Given: two durable records.
        let disk = disk_with(2, small());
        let (log, _) = open(&disk, 0, small()).unwrap();
        disk.set(Faults { failing_syncs, ..Faults::default() });

        // When
        let third = log.append_blocking(payload(3)).unwrap();
        let told = log.reached_blocking(third).unwrap_err();
        durable_at_last(&log, third);

        // Then: a second sync of the first file would have said yes and kept nothing.
        assert!(told.to_string().contains("cannot sync the file"), "{told}");
        assert_eq!(disk.paths().len(), 2);
        let disk = disk.cut_power(Loss::All, 0);
        drop(log);
        assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=3));
    }
}

#[test]
fn what_a_failed_sync_left_behind_is_not_read_again() {
    // Given: a file whose third record was given up half-way to the disk, then the same record and others elsewhere.
    let disk = disk_with(2, small());
    let (log, _) = open(&disk, 0, small()).unwrap();
    disk.set(Faults { failing_syncs: 1, ..Faults::default() });
    log.append_blocking(payload(3)).unwrap();
    durable_at_last(&log, 3);
    append_each(&log, 2);
    let used = log.used_bytes();
    drop(log);

    // Then: whatever is left of it, whole or torn.
    let path = disk.paths()[0].clone();
    let bytes = disk.read(&path);
    assert_eq!(used, disk.paths().iter().map(|path| disk.read(path).len() as u64).sum::<u64>());
    let given_up = bytes.len() - payload(3).len() - FRAME_HEADER;
    for length in given_up..=bytes.len() {
        let disk = disk.copy();
        disk.write(&path, bytes[..length].to_vec());
        assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=5), "{length} bytes");
    }
}

#[test]
fn the_first_file_is_replaced_when_its_first_sync_fails() {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, small()).unwrap();
    disk.set(Faults { failing_syncs: 1, ..Faults::default() });
    log.append_blocking(payload(1)).unwrap();
    durable_at_last(&log, 1);
    assert_eq!(disk.paths().len(), 1);
    assert_eq!(log.used_bytes(), disk.read(&disk.paths()[0]).len() as u64);
    let disk = disk.cut_power(Loss::All, 0);
    drop(log);
    assert_eq!(replayed(&disk, 0, small()).unwrap().0, records([1]));
}

#[test]
fn a_new_file_that_cannot_be_made_is_made_later() {
    let faults = [
        Faults { room: Some(FILE_HEADER / 2), ..Faults::default() },
        Faults { failing_syncs: u32::MAX, ..Faults::default() },
        Faults { failing_folder_sync: true, ..Faults::default() },
    ];
    for fault in faults {
        // Given: the next record needs a new file.
        let disk = disk_with(1, small());
        let (log, _) = open(&disk, 0, Options { roll_bytes: 1, ..small() }).unwrap();
        disk.set(fault);
        let second = log.append_blocking(payload(2)).unwrap();
        log.reached_blocking(second).unwrap_err();

        // When: the process dies here, or the disk is well again.
        let crashed = replayed(&disk.copy(), 0, small()).unwrap();
        disk.set(Faults::default());
        durable_at_last(&log, second);

        // Then
        let disk = disk.cut_power(Loss::All, 0);
        drop(log);
        assert_eq!(crashed.0[..1], records([1]));
        assert_eq!(replayed(&disk, 0, small()).unwrap().0, records(1..=2), "{fault:?}");
    }
}

#[test]
fn a_log_that_closes_while_the_disk_refuses_tries_once_more() {
    for is_well in [false, true] {
        // Given: a record that the disk refused, and no attempt for an hour.
        let disk = MemoryDisk::new();
        let (log, _) = open(&disk, 0, Options { retry_delay: Duration::from_secs(3600), ..small() }).unwrap();
        disk.set(Faults { room: Some(0), ..Faults::default() });
        let first = log.append_blocking(payload(1)).unwrap();
        log.reached_blocking(first).unwrap_err();

        // When
        if is_well {
            disk.set(Faults::default());
        }
        let closed = block_on(log.close());

        // Then
        match closed {
            Ok(durable) => assert!(is_well && durable.position() == first),
            Err(told) => assert!(!is_well && matches!(told, NotDurable::Failing(_)), "{told}"),
        }
        assert!(matches!(log.append_blocking(payload(2)), Err(AppendError::Closed)));
    }
}

#[test]
fn appends_that_wait_for_room_are_told_when_the_disk_refuses() {
    // Given: no room, and one append that waits for it.
    let disk = MemoryDisk::new();
    let options = Options { record_bytes: 40, pending_bytes: 40 + FRAME_HEADER, ..small() };
    let (log, _) = open(&disk, 0, options).unwrap();
    disk.set(Faults { stuck_syncs: true, ..Faults::default() });
    log.append_blocking(vec![7; 40].into()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| log.append_blocking(vec![8; 40].into()));
        std::thread::sleep(Duration::from_millis(20));

        // When
        disk.set(Faults { failing_syncs: u32::MAX, ..Faults::default() });

        // Then
        assert!(matches!(waiting.join().unwrap(), Err(AppendError::Failing(_))));
    });
    disk.set(Faults::default());
    durable_at_last(&log, 1);
}
