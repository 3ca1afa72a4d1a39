//! Records a second that the write-ahead log acknowledges, beside what the disk's own `fdatasync` allows.
//!
//! `cargo bench -p gatescope-collector --bench log [-- FOLDER [SECONDS]]`; without FOLDER a temporary folder under the
//! current one, so that it is the disk of the checkout and not a memory disk.

use std::{
    error::Error,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use gatescope_collector::log::{Log, Options};

/// 64 positions of 58 layers and 8 slots of one byte.
const RECORD: usize = 64 * 58 * 8;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    // Cargo adds flags of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let folder = arguments.next().map_or_else(|| PathBuf::from("."), PathBuf::from);
    let time = Duration::from_secs(arguments.next().map_or(Ok(4), |seconds| seconds.parse())?);
    println!("{:<46} {:>10} {:>8} {:>10} {:>10}", "", "records/s", "MB/s", "p50 ms", "p99 ms");
    for records in [1, 8, 64, 256] {
        raw(&folder, records, time)?;
    }
    for appenders in [1, 8, 64] {
        waiting(&folder, appenders, time)?;
    }
    streaming(&folder, time)
}

fn record() -> Bytes {
    (0..RECORD).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into()
}

/// The disk alone: a write of so many records at once, then `fdatasync`.
fn raw(folder: &Path, records: usize, time: Duration) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut file = File::create(folder.path().join("raw"))?;
    let bytes = record().repeat(records);
    let begun = Instant::now();
    let mut syncs = Vec::new();
    while begun.elapsed() < time {
        let before = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        syncs.push(before.elapsed());
    }
    report(&format!("write {records} records and fdatasync"), syncs.len() * records, begun.elapsed(), syncs);
    Ok(())
}

/// Threads that append one record and wait until it is durable, again and again.
fn waiting(folder: &Path, appenders: usize, time: Duration) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let (log, _) = Log::open(folder.path(), 0, Options::default())?;
    let begun = Instant::now();
    let run = |log: &Log| -> Outcome<Vec<Duration>> {
        let (record, mut waits) = (record(), Vec::new());
        while begun.elapsed() < time {
            let before = Instant::now();
            let position = log.append_blocking(record.clone())?;
            log.reached_blocking(position)?;
            waits.push(before.elapsed());
        }
        Ok(waits)
    };
    let waits = thread::scope(|scope| {
        let threads: Vec<_> = (0..appenders).map(|_| scope.spawn(|| run(&log))).collect();
        let mut waits = Vec::new();
        for thread in threads {
            waits.extend(thread.join().map_err(|_| "an appender panicked")??);
        }
        Outcome::Ok(waits)
    })?;
    report(&format!("log, {appenders} appenders that wait for each record"), waits.len(), begun.elapsed(), waits);
    Ok(())
}

/// One thread that appends without waiting, as a stream of an agent does; the last record is waited for.
fn streaming(folder: &Path, time: Duration) -> Outcome<()> {
    let folder = tempfile::tempdir_in(folder)?;
    let (log, _) = Log::open(folder.path(), 0, Options::default())?;
    let (record, begun, mut last) = (record(), Instant::now(), 0);
    while begun.elapsed() < time {
        last = log.append_blocking(record.clone())?;
        log.delete_below(log.durable().position())?;
    }
    log.reached_blocking(last)?;
    report("log, one stream that does not wait", usize::try_from(last)?, begun.elapsed(), Vec::new());
    Ok(())
}

fn report(what: &str, records: usize, time: Duration, mut waits: Vec<Duration>) {
    waits.sort_unstable();
    let rate = records as f64 / time.as_secs_f64();
    let quantile = |share: f64| {
        let index = (waits.len() as f64 * share) as usize;
        waits.get(index).map_or_else(|| "-".to_owned(), |wait| format!("{:.2}", wait.as_secs_f64() * 1e3))
    };
    println!(
        "{what:<46} {rate:>10.0} {:>8.1} {:>10} {:>10}",
        rate * RECORD as f64 / 1e6,
        quantile(0.5),
        quantile(0.99)
    );
}
