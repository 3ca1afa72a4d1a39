//! Where appending threads and the writer meet: records in, groups out, and the watermark moved.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use super::{
    error::{AppendError, FileFailure},
    frame::FRAME_HEADER,
    options::Options,
    segment::{Entry, Synced},
    watermark::{Durable, State, Watermark},
};

/// What appending threads and the writer share.
#[derive(Debug)]
pub(super) struct GroupCommit {
    options: Options,
    queue: Mutex<Queue>,
    /// The writer sleeps here.
    work: Condvar,
    /// Bytes that may still be accepted.
    room: Semaphore,
    state: watch::Sender<State>,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Frame bytes of `entries`.
    bytes: usize,
    /// When the first of them came.
    since: Option<Instant>,
    /// The position of the next record.
    next: u64,
    /// Bytes of all files, and of all records that are not in one yet.
    used: u64,
    /// No more records are taken, and the writer ends once there are none left.
    closing: bool,
}

impl GroupCommit {
    pub(super) fn new(options: Options, durable: u64, used: u64) -> Self {
        let queue = Queue { entries: VecDeque::new(), bytes: 0, since: None, next: durable + 1, used, closing: false };
        let room = Semaphore::new(options.pending_bytes);
        let (state, _) =
            watch::channel(State { durable: Durable::recovered(durable), failure: None, is_closed: false });
        Self { options, queue: Mutex::new(queue), work: Condvar::new(), room, state }
    }

    /// The queue is whole between any two statements, so a thread that died while it held it left it usable.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watermark(&self) -> Watermark {
        Watermark::new(self.state.subscribe())
    }

    /// Takes a record, or says why not, without waiting.
    pub(super) fn try_append(&self, record: Bytes) -> Result<u64, AppendError> {
        let bytes = self.measure(&record)?;
        self.check_health()?;
        match self.room.try_acquire_many(bytes) {
            Ok(permit) => {
                let position = self.enqueue(record)?;
                permit.forget();
                Ok(position)
            }
            Err(tokio::sync::TryAcquireError::Closed) => Err(AppendError::Closed),
            Err(tokio::sync::TryAcquireError::NoPermits) => {
                Err(AppendError::Busy { limit: self.options.pending_bytes })
            }
        }
    }

    /// Takes a record, once there is room for it.
    pub(super) async fn append(&self, record: Bytes) -> Result<u64, AppendError> {
        let bytes = self.measure(&record)?;
        self.check_health()?;
        let mut state = self.state.subscribe();
        let permit = tokio::select! {
            biased;
            permit = self.room.acquire_many(bytes) => permit.map_err(|_| AppendError::Closed)?,
            _ = state.wait_for(|state| !state.is_writable()) => {
                self.check_health()?;
                return Err(AppendError::Busy { limit: self.options.pending_bytes });
            }
        };
        let position = self.enqueue(record)?;
        permit.forget();
        Ok(position)
    }

    fn measure(&self, record: &Bytes) -> Result<u32, AppendError> {
        let (bytes, limit) = (record.len(), self.options.record_bytes);
        let too_large = AppendError::TooLarge { bytes, limit };
        if bytes > limit {
            return Err(too_large);
        }
        u32::try_from(bytes + FRAME_HEADER).map_err(|_| too_large)
    }

    fn check_health(&self) -> Result<(), AppendError> {
        let state = self.state.borrow();
        match &state.failure {
            _ if state.is_closed => Err(AppendError::Closed),
            Some(failure) => Err(AppendError::Failing(failure.clone())),
            None => Ok(()),
        }
    }

    fn enqueue(&self, payload: Bytes) -> Result<u64, AppendError> {
        // Outside the lock: this is the only work that grows with the record.
        let payload_crc = crc32c::crc32c(&payload);
        let mut queue = self.queue();
        if queue.closing {
            return Err(AppendError::Closed);
        }
        let entry = Entry { position: queue.next, payload, payload_crc };
        let bytes = entry.frame_bytes();
        let used = queue.used + bytes as u64;
        if let Some(limit) = self.options.disk_bytes
            && used > limit
        {
            return Err(AppendError::Full { used: queue.used, limit });
        }
        let was_enough = queue.bytes >= self.options.sync_bytes;
        queue.used = used;
        queue.bytes += bytes;
        queue.next += 1;
        queue.entries.push_back(entry);
        let is_first = queue.since.is_none();
        queue.since.get_or_insert_with(Instant::now);
        let is_enough = queue.bytes >= self.options.sync_bytes;
        let position = queue.next - 1;
        drop(queue);
        if is_first || (is_enough && !was_enough) {
            self.work.notify_one();
        }
        Ok(position)
    }

    /// Waits until a group is due and takes it: at least one record, and no more than `most` bytes otherwise. None once
    /// the log is closing and everything was taken.
    pub(super) fn next_group(&self, most: u64) -> Option<Vec<Entry>> {
        let mut queue = self.queue();
        loop {
            let waited = queue.since.map(|since| since.elapsed());
            let left = match waited {
                None if queue.closing => return None,
                None => None,
                Some(_) if queue.closing || queue.bytes >= self.options.sync_bytes => break,
                Some(waited) => match self.options.sync_delay.checked_sub(waited) {
                    None | Some(Duration::ZERO) => break,
                    left => left,
                },
            };
            queue = match left {
                None => self.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.work.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Some(queue.take(most))
    }

    /// Moves the watermark and makes room.
    pub(super) fn publish(&self, synced: &Synced, group: &[Entry]) {
        self.state.send_modify(|state| {
            state.durable = Durable::from(synced);
            state.failure = None;
        });
        self.room.add_permits(group.iter().map(Entry::frame_bytes).sum());
    }

    /// The fault that crash tests must find.
    #[cfg(any(test, feature = "fail-points"))]
    pub(super) fn publish_unsynced(&self, written: &super::segment::Written) {
        self.state.send_modify(|state| state.durable = Durable::from(&written.pretend_synced()));
    }

    /// Says that the disk refuses.
    pub(super) fn fail(&self, failure: FileFailure) {
        self.state.send_modify(|state| state.failure = Some(Arc::new(failure)));
    }

    /// Sleeps between two attempts; false where the log is closing.
    pub(super) fn rest(&self) -> bool {
        let until = Instant::now() + self.options.retry_delay;
        let mut queue = self.queue();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if queue.closing || left.is_zero() {
                return !queue.closing;
            }
            queue = self.work.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Counts bytes of files that come or go beside the records.
    pub(super) fn count_used(&self, grown: u64, shrunk: u64) {
        let mut queue = self.queue();
        queue.used = (queue.used + grown).saturating_sub(shrunk);
    }

    /// Bytes of all files, and of all records that are not in one yet.
    pub(super) fn used(&self) -> u64 {
        self.queue().used
    }

    /// The last position that was given out.
    pub(super) fn last(&self) -> u64 {
        self.queue().next - 1
    }

    /// Takes no more records; the writer ends after one more attempt at those it has.
    pub(super) fn close(&self) {
        self.queue().closing = true;
        self.room.close();
        self.work.notify_all();
    }

    /// The writer has ended: what is not durable now will not be.
    pub(super) fn ended(&self) {
        self.close();
        self.state.send_modify(|state| state.is_closed = true);
    }
}

impl Queue {
    fn take(&mut self, most: u64) -> Vec<Entry> {
        let mut bytes = 0;
        let mut count = 0;
        for entry in &self.entries {
            if count > 0 && (bytes + entry.frame_bytes()) as u64 > most {
                break;
            }
            bytes += entry.frame_bytes();
            count += 1;
        }
        let group = self.entries.drain(..count).collect();
        self.bytes -= bytes;
        // What stays has waited since before the group was taken, and so is due at once.
        if self.entries.is_empty() {
            self.since = None;
        }
        group
    }
}
