//! What is given back, and what is refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, executor::block_on};

use super::*;
use crate::log::{
    AppendError, NotDurable,
    frame::{FILE_HEADER, FRAME_HEADER},
    memory::Faults,
};

#[test]
fn records_come_back_in_order_above_the_committed_position() {
    let disk = disk_with(30, small());
    for committed in 0..=30 {
        let (found, replay) = replayed(&disk, committed, small()).unwrap();
        assert_eq!(found, records(committed + 1..=30));
        assert_eq!((replay.cut(), replay.lost()), (None, &[][..]));
    }
    assert!(disk.paths().len() > 3, "files must have rolled: {:?}", disk.paths());
}

#[test]
fn an_empty_record_is_a_record() {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, small()).unwrap();
    assert_eq!(log.append_blocking(Bytes::new()).unwrap(), 1);
    drop(log);
    let (found, _) = replayed(&disk, 0, small()).unwrap();
    assert_eq!(found, [Record { position: 1, bytes: Bytes::new() }]);
}

#[test]
fn positions_go_on_after_reopening_and_never_fall_to_what_the_tables_have() {
    // Given: three records, of which the tables have two; or the log was lost and the tables have ten.
    let disk = disk_with(3, small());

    // Then
    let (log, _) = open(&disk, 2, small()).unwrap();
    assert_eq!(log.append_blocking(payload(4)).unwrap(), 4);
    drop(log);
    let (log, _) = open(&disk, 10, small()).unwrap();
    assert_eq!(log.append_blocking(payload(11)).unwrap(), 11);
    drop(log);
    let (log, _) = open(&MemoryDisk::new(), 10, small()).unwrap();
    assert_eq!(log.append_blocking(payload(11)).unwrap(), 11);
    drop(log);
    let (found, _) = replayed(&disk, 10, small()).unwrap();
    assert_eq!(found, records([11]), "the gap holds nothing that anybody needs");
}

#[test]
fn appends_of_many_threads_are_all_there_once() {
    // Given
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, Options { roll_bytes: 4096, ..small() }).unwrap();
    let sum = AtomicU64::new(0);

    // When
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (log, sum) = (&log, &sum);
            scope.spawn(move || {
                for turn in 0..100 {
                    let record = Bytes::from(format!("{thread} {turn}"));
                    let position = log.append_blocking(record).unwrap();
                    assert!(log.reached_blocking(position).unwrap().position() >= position);
                    sum.fetch_add(position, Ordering::Relaxed);
                }
            });
        }
    });
    drop(log);

    // Then: dense positions, and each thread's records in its order.
    assert_eq!(sum.into_inner(), 800 * 801 / 2);
    let (found, _) = replayed(&disk, 0, small()).unwrap();
    assert!(found.iter().map(|record| record.position).eq(1..=800));
    for thread in 0..8 {
        let prefix = format!("{thread} ");
        let turns = found.iter().filter(|record| record.bytes.starts_with(prefix.as_bytes()));
        assert!(turns.map(|record| record.bytes.clone()).eq((0..100).map(|turn| format!("{thread} {turn}"))));
    }
}

#[test]
fn a_group_waits_for_bytes_or_time_and_no_longer() {
    // Given: a group is due at 100 bytes, or never.
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, Options { sync_bytes: 100, ..grouped() }).unwrap();

    // When: 75 bytes; then 103.
    log.append_blocking(Bytes::from(vec![0; 51])).unwrap();
    thread::sleep(Duration::from_millis(20));
    let before = log.durable().position();
    let second = log.append_blocking(Bytes::from(vec![0; 4])).unwrap();

    // Then
    assert_eq!(before, 0);
    assert_eq!(log.reached_blocking(second).unwrap().position(), 2);
    let (log, _) = open(&disk, 0, Options { sync_delay: Duration::from_millis(5), ..small() }).unwrap();
    let third = log.append_blocking(Bytes::from(vec![0; 4])).unwrap();
    assert_eq!(log.reached_blocking(third).unwrap().position(), 3);
}

#[test]
fn nothing_is_durable_before_the_sync() {
    // Given: a disk whose syncs do not end.
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, small()).unwrap();
    disk.set(Faults { stuck_syncs: true, ..Faults::default() });

    // When
    let position = log.append_blocking(payload(1)).unwrap();
    thread::sleep(Duration::from_millis(20));

    // Then
    let mut watermark = log.watermark();
    let before = watermark.now();
    assert_eq!(before.position(), 0);
    assert!(watermark.reached(position).now_or_never().is_none());
    assert!(watermark.above(before).now_or_never().is_none());
    disk.set(Faults::default());
    assert_eq!(block_on(watermark.above(before)).unwrap().position(), 1);
}

#[test]
fn a_record_above_the_limit_is_refused_and_one_at_it_is_taken() {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, Options { record_bytes: 10, ..small() }).unwrap();
    let refused = log.append_blocking(Bytes::from(vec![0; 11])).unwrap_err();
    assert!(matches!(refused, AppendError::TooLarge { bytes: 11, limit: 10 }));
    assert!(!refused.is_retryable());
    assert_eq!(log.append_blocking(Bytes::from(vec![0; 10])).unwrap(), 1);
}

#[test]
fn records_larger_than_a_file_get_a_file_each() {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, Options { roll_bytes: 100, ..small() }).unwrap();
    for byte in 0..3 {
        log.append_blocking(Bytes::from(vec![byte; 1000])).unwrap();
    }
    drop(log);
    assert_eq!(disk.paths().len(), 3);
    assert_eq!(replayed(&disk, 0, small()).unwrap().0.len(), 3);
}

#[test]
fn what_waits_for_the_disk_is_bounded() {
    // Given: room for two records of 40 bytes and a disk that takes none.
    let disk = MemoryDisk::new();
    let options = Options { record_bytes: 40, pending_bytes: 2 * (40 + FRAME_HEADER), ..small() };
    let (log, _) = open(&disk, 0, options).unwrap();
    disk.set(Faults { stuck_syncs: true, ..Faults::default() });
    let record = Bytes::from(vec![7; 40]);
    log.append_blocking(record.clone()).unwrap();
    log.append_blocking(record.clone()).unwrap();

    // Then: a third is told to come later, or waits; one that stopped waiting was not taken.
    assert!(matches!(log.try_append(record.clone()), Err(AppendError::Busy { limit: 128 })));
    assert!(log.append(record.clone()).now_or_never().is_none());
    disk.set(Faults::default());
    assert_eq!(log.append_blocking(record).unwrap(), 3);
}

#[test]
fn the_log_takes_no_more_disk_than_it_may() {
    // Given: room for two files of one record, and not quite for a third record.
    let disk = MemoryDisk::new();
    let frame = (20 + FRAME_HEADER) as u64;
    let limit = 2 * FILE_HEADER as u64 + 3 * frame - 1;
    let options = Options { disk_bytes: Some(limit), roll_bytes: 1, ..small() };
    let (log, _) = open(&disk, 0, options.clone()).unwrap();
    let record = Bytes::from(vec![7; 20]);
    for _ in 0..2 {
        let position = log.append_blocking(record.clone()).unwrap();
        log.reached_blocking(position).unwrap();
    }

    // When
    let refused = log.append_blocking(record.clone()).unwrap_err();

    // Then: it is refused until an older file goes; and a log that was opened again counts the same.
    assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
    assert!(refused.is_retryable());
    drop(log);
    let (log, _) = open(&disk, 0, options).unwrap();
    assert!(matches!(log.append_blocking(record.clone()), Err(AppendError::Full { .. })));
    assert_eq!(log.delete_below(1).unwrap().files, 1);
    assert_eq!(log.append_blocking(record).unwrap(), 3);
    log.reached_blocking(3).unwrap();
    let stored: usize = disk.paths().iter().map(|path| disk.read(path).len()).sum();
    assert_eq!(log.used_bytes(), stored as u64);
    assert!(stored as u64 <= limit);
}

#[test]
fn closing_makes_all_durable_and_takes_no_more() {
    // Given
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, grouped()).unwrap();
    for position in 1..=5 {
        log.append_blocking(payload(position)).unwrap();
    }

    // When
    let durable = block_on(log.close()).unwrap();

    // Then
    assert_eq!(durable.position(), 5);
    assert!(matches!(log.append_blocking(payload(6)), Err(AppendError::Closed)));
    assert!(matches!(log.try_append(payload(6)), Err(AppendError::Closed)));
    let mut watermark = log.watermark();
    drop(log);
    assert!(matches!(block_on(watermark.above(durable)), Err(NotDurable::Closed)));
    assert!(matches!(block_on(watermark.reached(6)), Err(NotDurable::Closed)));
    assert_eq!(block_on(watermark.reached(5)).unwrap(), durable);
}

#[test]
fn a_folder_has_one_log_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/log");
    let (log, _) = Log::open(&path, 0, Options::default()).unwrap();
    assert!(matches!(Log::open(&path, 0, Options::default()), Err(LogError::Locked(_))));
    drop(log);
    Log::open(&path, 0, Options::default()).unwrap();
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let disk = MemoryDisk::new();
    let options = Options { pending_bytes: 100, record_bytes: 77, ..small() };
    assert!(matches!(open(&disk, 0, options), Err(LogError::Options(_))));
    let options = Options { pending_bytes: 1 << 32, ..small() };
    assert!(matches!(open(&disk, 0, options), Err(LogError::Options(_))));
}

#[test]
fn asynchronous_appends_share_a_group() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, Options { sync_delay: Duration::from_millis(2), ..small() }).unwrap();
    let log = Arc::new(log);
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let log = log.clone();
            tasks.spawn(async move {
                let position = log.append(Bytes::from_static(b"async")).await.unwrap();
                log.watermark().reached(position).await.unwrap()
            });
        }
        let durable = tasks.join_all().await;
        assert_eq!(durable.into_iter().max().map(|durable| durable.position()), Some(200));
        assert_eq!(log.close().await.unwrap().position(), 200);
    });
}
