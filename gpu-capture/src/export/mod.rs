/*!
From events to a collector: a bounded queue, a thread that batches and sends, and a memory of what is not yet durable.

`queue` -> `worker` (batches, numbers) -> `outbox` (until settled) -> `link` (one stream); what `queue` cannot take goes to
`gaps` and comes out as gap records.
*/

mod backoff;
mod gaps;
mod link;
mod metrics;
mod options;
mod outbox;
mod queue;
mod settle;
mod worker;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use gatescope_wire::Event;
pub use metrics::Metrics;
pub use options::{Options, StartError};
use queue::{Queue, Shared};
use worker::Worker;

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a block whose rows were dropped cannot be referred to by its hash"]
pub enum Sent {
    /// It will be sent until it is durable.
    Queued,
    /// There was no room, or the exporter has stopped. Its positions are told as lost when there is room.
    Dropped,
}

/// Not everything was acknowledged in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} were not enough for the collector to acknowledge everything")]
pub struct NotFlushed(pub Duration);

/// How an exporter ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Events taken and never acknowledged: whether the collector has them is not known.
    pub left_events: u64,
    /// What was counted.
    pub metrics: Metrics,
}

/// Sends events to a collector from a thread of its own.
///
/// Dropping it ends the thread at once; [`Exporter::stop`] waits for what is on its way.
#[derive(Debug)]
pub struct Exporter {
    queue: Queue,
    shared: Arc<Shared>,
    ended: Mutex<mpsc::Receiver<Vec<Event>>>,
}

impl Exporter {
    /// Starts the thread. It connects by itself, now and after every failure.
    ///
    /// # Errors
    /// Where the options cannot work at all. A collector that is away is no such case.
    pub fn start(options: Options) -> Result<Self, StartError> {
        if !(1..=256).contains(&options.agent.len()) {
            return Err(StartError::Agent(options.agent.len()));
        }
        // A sixteenth of the queue for what did not fit in it.
        let shared = Arc::new(Shared::new(options.queue_bytes / 16));
        let (queue, items) = Queue::new(options.queue_bytes, shared.clone());
        let worker = Worker::new(&options, items, shared.clone())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ending, ended) = mpsc::sync_channel(1);
        thread::Builder::new().name("gatescope-export".into()).spawn(move || {
            let left = runtime.block_on(worker.run());
            // A name look-up may still run; it has nobody to answer to.
            runtime.shutdown_background();
            // Whoever asked may have stopped waiting.
            let _ = ending.try_send(left);
        })?;
        Ok(Self { queue, shared, ended: Mutex::new(ended) })
    }

    /// Takes an event, or drops it where there is no room; never waits.
    ///
    /// Events are sent in the order in which they are taken.
    #[allow(clippy::must_use_candidate)]
    pub fn send(&self, event: Event) -> Sent {
        self.queue.send(event)
    }

    /// Takes an event, or gives it back where there is no room for it; never waits.
    ///
    /// # Errors
    /// The event, which is not counted as dropped: who gets it back keeps it, or says so with [`Exporter::lose`].
    pub(crate) fn offer(&self, event: Event) -> Result<(), Box<Event>> {
        self.queue.offer(event)
    }

    /// Whether no collector answers and more than so many bytes wait for one.
    pub(crate) fn waiting_for_nobody(&self, most: u64) -> bool {
        let metrics = self.metrics();
        !metrics.connected && metrics.queue_bytes + metrics.in_flight_bytes > most
    }

    /// Counts an event as dropped and tells its positions as lost.
    pub(crate) fn lose(&self, event: &Event) {
        self.queue.drop(event);
    }

    /// Waits until everything taken so far is acknowledged.
    ///
    /// # Errors
    /// Where that takes longer than `within`. It goes on being sent.
    pub fn flush(&self, within: Duration) -> Result<(), NotFlushed> {
        let (done, flushed) = mpsc::sync_channel(1);
        if !self.queue.flush(done) {
            return Err(NotFlushed(within));
        }
        flushed.recv_timeout(within).map_err(|_| NotFlushed(within))
    }

    /// What was done so far.
    pub fn metrics(&self) -> Metrics {
        self.shared.counters.read()
    }

    /// Takes nothing more, waits at most `within` for acknowledgements, ends.
    pub fn stop(&self, within: Duration) -> Stopped {
        self.stop_with_rest(within).0
    }

    /// As [`Exporter::stop`], and gives back what was not acknowledged, in its order.
    pub(crate) fn stop_with_rest(&self, within: Duration) -> (Stopped, Vec<Event>) {
        let deadline = Instant::now() + within;
        self.queue.close();
        let _ = self.flush(within);
        self.end();
        // The thread is between two messages at most: it ends in milliseconds. Longer than a second would be a
        // fault of the system's, and no reason to hold the engine up.
        let grace = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let left = ended.recv_timeout(grace);
        if matches!(left, Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("the exporter's thread did not end in time");
        }
        let metrics = self.metrics();
        let taken = metrics.captured_events + metrics.gap_records;
        let left_events = taken.saturating_sub(metrics.acked_events + metrics.refused_events);
        (Stopped { left_events, metrics }, left.unwrap_or_default())
    }

    fn end(&self) {
        self.queue.close();
        self.shared.ending.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end();
    }
}
