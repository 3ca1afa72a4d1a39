//! Between those who capture and the thread that sends.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
    mpsc::SyncSender,
};

use gatescope_wire::{Event, Told, wire_bytes};
use tokio::sync::{Notify, mpsc};

use super::{
    Sent,
    gaps::{Gaps, positions},
    metrics::{Counters, add},
};

/// What waits in the queue.
pub(super) enum Item {
    /// An event and the bytes that it holds of the queue's.
    Event(Event, usize),
    /// Everything before this is to be sent at once; the answer comes when all of it is settled.
    Flush(SyncSender<()>),
}

/// The entrance: shared by those who capture.
#[derive(Debug)]
pub(super) struct Queue {
    items: mpsc::UnboundedSender<Item>,
    capacity: usize,
    closed: AtomicBool,
    pub(super) shared: Arc<Shared>,
}

/// What both sides see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) counters: Counters,
    gaps: Mutex<Gaps>,
    /// Wakes the sending thread when something was dropped or it is to end.
    pub(super) wake: Notify,
    pub(super) ending: AtomicBool,
}

impl Shared {
    pub(super) fn new(gap_bytes: usize) -> Self {
        Self {
            counters: Counters::default(),
            gaps: Mutex::new(Gaps::new(gap_bytes)),
            wake: Notify::new(),
            ending: AtomicBool::new(false),
        }
    }

    pub(super) fn gaps(&self) -> MutexGuard<'_, Gaps> {
        // Gaps are whole after each of their methods: a panic elsewhere says nothing about them.
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that an event's rows will never come.
    pub(super) fn lose(&self, event: &Event) {
        let unreported = self.gaps().add(event);
        add(&self.counters.unreported_positions, u64::from(unreported));
    }

    /// Gives back the bytes of an event that has left the queue.
    pub(super) fn release(&self, bytes: usize) {
        self.counters.queue_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Queue {
    pub(super) fn new(capacity: usize, shared: Arc<Shared>) -> (Self, mpsc::UnboundedReceiver<Item>) {
        let (items, receiver) = mpsc::unbounded_channel();
        (Self { items, capacity, closed: AtomicBool::new(false), shared }, receiver)
    }

    pub(super) fn send(&self, event: Event) -> Sent {
        match self.offer(event) {
            Ok(()) => Sent::Queued,
            Err(event) => {
                self.drop(&event);
                Sent::Dropped
            }
        }
    }

    /// Takes an event, or gives it back where there is no room for it.
    pub(super) fn offer(&self, event: Event) -> Result<(), Box<Event>> {
        let rows = u64::from(positions(&event).1);
        let bytes = wire_bytes(&event);
        if self.closed.load(Ordering::Acquire) || !self.take_room(&event, bytes) {
            return Err(Box::new(event));
        }
        match self.items.send(Item::Event(event, bytes)) {
            Ok(()) => {
                add(&self.shared.counters.captured_events, 1);
                add(&self.shared.counters.captured_positions, rows);
                Ok(())
            }
            Err(mpsc::error::SendError(item)) => {
                self.shared.release(bytes);
                match item {
                    Item::Event(event, _) => Err(Box::new(event)),
                    Item::Flush(_) => Ok(()),
                }
            }
        }
    }

    /// Remembers that an event was dropped.
    pub(super) fn drop(&self, event: &Event) {
        add(&self.shared.counters.dropped_events, 1);
        add(&self.shared.counters.dropped_positions, u64::from(positions(event).1));
        self.shared.lose(event);
        self.shared.wake.notify_one();
    }

    fn take_room(&self, event: &Event, bytes: usize) -> bool {
        // A finish that is lost keeps its request open until a timeout: small events get more room than rows do.
        let has_rows = matches!(event, Event::Request(request) if matches!(request.told, Told::Span(_)));
        let most = if has_rows { self.capacity } else { self.capacity.saturating_add(self.capacity / 8) };
        let queued = &self.shared.counters.queue_bytes;
        queued
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |queued| {
                queued.checked_add(bytes).filter(|&queued| queued <= most)
            })
            .is_ok()
    }

    /// Asks for everything so far to be sent; `false` where the sending thread has ended.
    pub(super) fn flush(&self, done: SyncSender<()>) -> bool {
        self.items.send(Item::Flush(done)).is_ok()
    }

    /// Takes nothing more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
