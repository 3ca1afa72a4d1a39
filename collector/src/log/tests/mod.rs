//! The promises of the module's page, each tried.

mod damage;
mod deletion;
mod failing;
mod kill;
mod limits;
mod model;

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Log, LogError, Options, Record, Replay, memory::MemoryDisk};

/// Where the log lies on a disk in memory.
fn folder() -> &'static Path {
    Path::new("log")
}

/// Small files, groups of one append, and quick retries.
fn small() -> Options {
    Options { roll_bytes: 256, sync_delay: Duration::ZERO, retry_delay: Duration::from_millis(1), ..Options::default() }
}

/// Groups that end only when the log closes.
fn grouped() -> Options {
    Options { sync_delay: Duration::from_secs(3600), roll_bytes: 1 << 20, ..small() }
}

fn open(disk: &MemoryDisk, committed: u64, options: Options) -> Result<(Log, Replay), LogError> {
    Log::open_on(Arc::new(disk.clone()), folder(), committed, options)
}

/// Opens and replays; the records and what was cut and lost.
fn replayed(disk: &MemoryDisk, committed: u64, options: Options) -> Result<(Vec<Record>, Replay), LogError> {
    let (_log, mut replay) = open(disk, committed, options)?;
    let records = replay.by_ref().collect::<Result<_, _>>()?;
    Ok((records, replay))
}

/// A payload that no other position has.
fn payload(position: u64) -> Bytes {
    let length = (position * 7 % 40) as usize;
    format!("record {position} {}", "x".repeat(length)).into()
}

fn records(positions: impl IntoIterator<Item = u64>) -> Vec<Record> {
    positions.into_iter().map(|position| Record { position, bytes: payload(position) }).collect()
}

/// Appends `count` records, each durable before the next: groups of one.
fn append_each(log: &Log, count: u64) {
    for _ in 0..count {
        let position = log.append_blocking(payload(log.durable().position() + 1)).unwrap();
        assert_eq!(log.reached_blocking(position).unwrap().position(), position);
    }
}

/// A disk with records `1..=count` in groups of one, closed.
fn disk_with(count: u64, options: Options) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let (log, _) = open(&disk, 0, options).unwrap();
    append_each(&log, count);
    disk
}

/// Adds one group of records, `first..first + count`, and closes.
fn add_group(disk: &MemoryDisk, first: u64, count: u64) {
    let (log, _) = open(disk, 0, grouped()).unwrap();
    for position in first..first + count {
        assert_eq!(log.append_blocking(payload(position)).unwrap(), position);
    }
    drop(log);
}
