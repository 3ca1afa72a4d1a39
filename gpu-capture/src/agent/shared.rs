//! What the engine's threads and the agent's thread share.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::step::Ring;

/// Upper bounds of the step cost's histogram, in microseconds; one more bucket has the rest.
pub const STEP_MICROS: [u64; 12] = [5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000];

/// Most dropped ranges that are remembered until they are told.
const MOST_DROPPED: usize = 1 << 16;
/// Most distinct complaints that are logged.
const MOST_COMPLAINTS: usize = 32;

/// What the agent has done, besides what its exporter counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentMetrics {
    /// Steps captured.
    pub steps: u64,
    /// Rows captured.
    pub positions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows that found no room in the ring.
    pub dropped_positions: u64,
    /// Dropped rows that no gap record tells: there were too many at once.
    pub unreported_positions: u64,
    /// Things told that found no room in the queue.
    pub dropped_events: u64,
    /// Calls with arguments that cannot be.
    pub refused_calls: u64,
    /// Bytes of steps that wait.
    pub ring_bytes: u64,
    /// Room for steps, in bytes.
    pub ring_capacity: u64,
    /// Bytes that wait for a start.
    pub parked_bytes: u64,
    /// Requests known.
    pub requests: u64,
    /// Bytes in the spool.
    pub spool_bytes: u64,
    /// Events in the spool.
    pub spool_events: u64,
    /// How long capturing a step took: counts per bucket of [`STEP_MICROS`], the last one beyond.
    pub step_buckets: [u64; STEP_MICROS.len() + 1],
    /// The sum of it, in nanoseconds.
    pub step_nanos: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) ring: Ring,
    pub(super) dropped: Dropped,
    pub(super) counters: Counters,
    complaints: Mutex<HashSet<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) steps: AtomicU64,
    pub(super) positions: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) dropped_positions: AtomicU64,
    pub(super) dropped_events: AtomicU64,
    refused_calls: AtomicU64,
    parked_bytes: AtomicU64,
    requests: AtomicU64,
    spool_bytes: AtomicU64,
    spool_events: AtomicU64,
    step_buckets: [AtomicU64; STEP_MICROS.len() + 1],
    step_nanos: AtomicU64,
}

impl Shared {
    pub(super) fn new(ring_bytes: usize) -> Self {
        Self {
            ring: Ring::new(ring_bytes),
            dropped: Dropped::default(),
            counters: Counters::default(),
            complaints: Mutex::default(),
        }
    }

    /// Counts a call that cannot be served, and says so the first time.
    pub(super) fn refuse(&self, why: &str) {
        self.counters.refused_calls.fetch_add(1, Relaxed);
        self.refuse_once(why);
    }

    /// Says something the first time.
    pub(super) fn refuse_once(&self, why: &str) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if complaints.len() < MOST_COMPLAINTS && complaints.insert(why.to_owned()) {
            tracing::warn!("the capture agent: {why}; said once");
        }
    }

    pub(super) fn took(&self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        let micros = nanos.div_ceil(1000);
        let bucket = STEP_MICROS.partition_point(|&bound| bound < micros);
        self.counters.step_buckets[bucket].fetch_add(1, Relaxed);
        self.counters.step_nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn parked(&self, bytes: usize, requests: usize) {
        self.counters.parked_bytes.store(bytes as u64, Relaxed);
        self.counters.requests.store(requests as u64, Relaxed);
    }

    pub(super) fn spooled(&self, bytes: u64, events: u64) {
        self.counters.spool_bytes.store(bytes, Relaxed);
        self.counters.spool_events.store(events, Relaxed);
    }

    pub(super) fn metrics(&self) -> AgentMetrics {
        let c = &self.counters;
        AgentMetrics {
            steps: c.steps.load(Relaxed),
            positions: c.positions.load(Relaxed),
            bytes: c.bytes.load(Relaxed),
            dropped_positions: c.dropped_positions.load(Relaxed),
            unreported_positions: self.dropped.unreported.load(Relaxed),
            dropped_events: c.dropped_events.load(Relaxed),
            refused_calls: c.refused_calls.load(Relaxed),
            ring_bytes: self.ring.used() as u64,
            ring_capacity: self.ring.bytes() as u64,
            parked_bytes: c.parked_bytes.load(Relaxed),
            requests: c.requests.load(Relaxed),
            spool_bytes: c.spool_bytes.load(Relaxed),
            spool_events: c.spool_events.load(Relaxed),
            step_buckets: std::array::from_fn(|bucket| c.step_buckets[bucket].load(Relaxed)),
            step_nanos: c.step_nanos.load(Relaxed),
        }
    }
}

/// Rows that the ring had no room for, until they can be told.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    any: AtomicBool,
    ranges: Mutex<Vec<(String, u32, u32)>>,
    unreported: AtomicU64,
}

impl Dropped {
    pub(super) fn add(&self, request: &str, first: u32, rows: u32) {
        let mut ranges = self.ranges();
        // A decode that drops step after step drops one range.
        if let Some(last) =
            ranges.iter_mut().rev().take(512).find(|(name, start, count)| name == request && start + count == first)
        {
            last.2 += rows;
        } else if ranges.len() < MOST_DROPPED {
            ranges.push((request.to_owned(), first, rows));
        } else {
            self.unreported.fetch_add(u64::from(rows), Relaxed);
        }
        self.any.store(true, Relaxed);
    }

    pub(super) fn take(&self) -> Vec<(String, u32, u32)> {
        if self.any.swap(false, Relaxed) { std::mem::take(&mut *self.ranges()) } else { Vec::new() }
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<(String, u32, u32)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
