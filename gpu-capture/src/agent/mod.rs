/*!
From engine steps to events.

The engine's threads call [`Agent::capture_step`] and the like: they copy what they were given and return. `step` is the bounded
memory in between; `assembler` is the agent's own thread, which cuts rows where KV blocks end (`request`), refers to blocks by
hash that it has sent before (`sent_blocks`), and hands events to the exporter through `outlet`, which spools them to disk
(`spool`) while the collector is away.
*/

mod assembler;
mod figures;
mod metrics_port;
mod outlet;
mod request;
mod sent_blocks;
mod shared;
mod spool;
mod step;

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use assembler::{Assembler, CachedRows, Item};
use bytes::Bytes;
use crossbeam_channel::{Sender, TrySendError};
pub use figures::Figure;
use gatescope_routing::{IdWidth, ModelShape, Role, RowShape, span::BlockHash};
use gatescope_wire::MAX_POSITIONS;
use metrics_port::MetricsPort;
use outlet::Outlet;
pub use request::Begun;
use shared::Shared;
pub use shared::{AgentMetrics, STEP_MICROS};
use spool::Spool;
pub use spool::SpoolOptions;

use crate::{Exporter, Metrics, Options, StartError};

/// Steps and other things told that may wait at once.
const MOST_ITEMS: usize = 1 << 16;

/// What an agent is told.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// How it sends.
    pub export: Options,
    /// Label of the deployment.
    pub run: Arc<str>,
    /// Engine id and data-parallel rank.
    pub instance: Arc<str>,
    /// What the instance does for requests of which nobody says otherwise.
    pub role: Role,
    /// The model's name.
    pub model: Option<Arc<str>>,
    /// Positions of a KV block.
    pub block_size: u32,
    /// Bytes of steps that may wait for the agent's thread.
    pub ring_bytes: usize,
    /// Bytes of rows that may wait for a start to say which request they are of.
    pub parked_bytes: usize,
    /// Blocks that are remembered as sent.
    pub sent_blocks: usize,
    /// How long rows of a block that is not whole wait for the rest of it.
    pub linger: Duration,
    /// Where events go while the collector is away; `None`: nowhere, they are told as lost when the queue is full.
    pub spool: Option<SpoolOptions>,
    /// Where `/metrics` of this agent is served, as `HOST:PORT`; `None`: nowhere.
    pub metrics: Option<String>,
}

impl AgentOptions {
    /// The defaults.
    pub fn new(export: Options, instance: impl Into<Arc<str>>) -> Self {
        Self {
            export,
            run: "default".into(),
            instance: instance.into(),
            role: Role::Colocated,
            model: None,
            block_size: 16,
            ring_bytes: 256 << 20,
            parked_bytes: 64 << 20,
            sent_blocks: 1 << 18,
            linger: Duration::from_millis(500),
            spool: None,
            metrics: None,
        }
    }
}

/// The rows of one engine step, as the engine has them in memory.
#[derive(Debug, Clone, Copy)]
pub struct StepRows<'a> {
    /// `[rows, layers, top_k]`, little-endian, C order.
    pub bytes: &'a [u8],
    /// `(layers, top_k)`.
    pub shape: RowShape,
    /// Bytes of an id.
    pub width: IdWidth,
}

/// Where the rows of one request are in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepPart<'a> {
    /// The engine's own id of the request.
    pub request: &'a str,
    /// Position of the first row.
    pub first_position: i64,
    /// Its rows are `from..to` of the step's.
    pub from: i64,
    /// See `from`.
    pub to: i64,
    /// How many of these, at the end, belong to tokens that were rejected.
    pub rejected: i64,
}

/// Rows from an engine, on their way to a collector.
///
/// No call waits for the collector, the disk, or the agent's thread. What cannot be taken is dropped, counted, and told to the
/// collector position by position.
#[derive(Debug)]
pub struct Agent {
    items: Sender<Item>,
    shared: Arc<Shared>,
    exporter: Arc<Exporter>,
    thread: Mutex<Option<JoinHandle<Outlet>>>,
    metrics_port: Option<MetricsPort>,
}

impl Agent {
    /// Starts the agent's threads.
    ///
    /// # Errors
    /// Where the options cannot work at all: the collector's address, the spool's folder, the metrics port. A collector that is away is no such
    /// case.
    pub fn start(options: &AgentOptions) -> Result<Self, StartError> {
        let spool = options
            .spool
            .as_ref()
            .map(|spool| {
                Spool::open(spool).map_err(|source| StartError::Spool { folder: spool.folder.clone(), source })
            })
            .transpose()?;
        let shared = Arc::new(Shared::new(options.ring_bytes));
        let exporter = Arc::new(Exporter::start(options.export.clone())?);
        let metrics_port = options
            .metrics
            .as_ref()
            .map(|address| {
                MetricsPort::open(address, options, shared.clone(), exporter.clone())
                    .map_err(|source| StartError::Metrics { address: address.clone(), source })
            })
            .transpose()?;
        let outlet = Outlet::new(exporter.clone(), spool, shared.clone());
        let assembler = Assembler::new(options, shared.clone(), outlet);
        let (items, taken) = crossbeam_channel::bounded(MOST_ITEMS);
        let thread = thread::Builder::new().name("gatescope-agent".into()).spawn(move || assembler.run(&taken))?;
        Ok(Self { items, shared, exporter, thread: Mutex::new(Some(thread)), metrics_port })
    }

    /// Takes one engine step: copies the accepted rows and returns.
    ///
    /// A part that cannot be, since its rows lie outside of the step's, is refused and counted; the others are taken.
    pub fn capture_step<'a>(&self, rows: StepRows<'_>, parts: impl Iterator<Item = StepPart<'a>> + Clone) {
        let begun = Instant::now();
        let row = rows.shape.row_bytes(rows.width);
        let total = rows.bytes.len() / row.max(1);
        let accepted = |part: StepPart<'a>| {
            let first = u32::try_from(part.first_position).ok()?;
            let from = usize::try_from(part.from).ok()?;
            let to = usize::try_from(part.to.checked_sub(part.rejected.max(0))?).ok()?;
            if to <= from {
                // Every token of it was rejected, or it had none.
                return (to == from || part.rejected > 0).then_some((part.request, first, 0..0));
            }
            let end = u32::try_from(to - from).ok()?.checked_add(first)?;
            (to <= total && end <= MAX_POSITIONS).then_some((part.request, first, from..to))
        };
        let bytes = parts.clone().filter_map(accepted).map(|(.., range)| range.len() * row).sum();
        match self.shared.ring.begin(rows.shape, rows.width, bytes) {
            Some(mut step) => {
                let mut positions = 0;
                for part in parts {
                    match accepted(part) {
                        Some((_, _, range)) if range.is_empty() => {}
                        Some((request, first, range)) => {
                            positions += range.len();
                            let from = &rows.bytes[range.start * row..range.end * row];
                            step.push(request, first, range.len() as u32, from);
                        }
                        None => self.shared.refuse("a step's rows, rejected tokens or positions that cannot be"),
                    }
                }
                let counters = &self.shared.counters;
                if step.is_empty() {
                    self.shared.ring.end(step);
                } else {
                    match self.items.try_send(Item::Step(step)) {
                        Ok(()) => {
                            counters.positions.fetch_add(positions as u64, Relaxed);
                            counters.bytes.fetch_add(bytes as u64, Relaxed);
                        }
                        Err(TrySendError::Full(item) | TrySendError::Disconnected(item)) => {
                            if let Item::Step(step) = item {
                                for piece in step.pieces() {
                                    self.drop_rows(piece.request, piece.first, piece.rows);
                                }
                                self.shared.ring.end(step);
                            }
                        }
                    }
                }
                counters.steps.fetch_add(1, Relaxed);
            }
            None => {
                for (request, first, range) in parts.filter_map(accepted) {
                    self.drop_rows(request, first, range.len() as u32);
                }
            }
        }
        self.shared.took(begun.elapsed());
    }

    fn drop_rows(&self, request: &str, first: u32, rows: u32) {
        if rows > 0 {
            self.shared.counters.dropped_positions.fetch_add(u64::from(rows), Relaxed);
            self.shared.dropped.add(request, first, rows);
        }
    }

    /// The engine has begun, or begun again, a request: `request` is its own id.
    pub fn begun(&self, request: &str, begun: Begun) {
        self.tell(Item::Begun(request.to_owned(), Box::new(begun)));
    }

    /// Hashes of a request's KV blocks, from the block at this index on.
    pub fn block_hashes(&self, request: &str, first_block: u32, hashes: Vec<BlockHash>) {
        self.tell(Item::Hashes { request: request.to_owned(), first_block, hashes });
    }

    /// KV blocks that the engine found in its prefix cache: no forward computes their rows. `rows` are those that the engine
    /// has kept of them, `block_size` per hash: they are sent unless they were sent before.
    pub fn cached_blocks(&self, request: &str, first_block: u32, hashes: Vec<BlockHash>, rows: Option<StepRows<'_>>) {
        // These are rows as well, and bounded with them. Without room the blocks are referred to: whether the collector knows them
        // shows there.
        let rows = rows.filter(|rows| {
            let room = self.shared.ring.hold(rows.bytes.len());
            if !room {
                self.shared.refuse_once("rows of cached blocks found no room in the ring");
            }
            room
        });
        let held = rows.map_or(0, |rows| rows.bytes.len());
        let rows = rows.map(|rows| CachedRows {
            bytes: Bytes::copy_from_slice(rows.bytes),
            shape: rows.shape,
            width: rows.width,
        });
        if !self.tell(Item::Cached { request: request.to_owned(), first_block, hashes, rows }) {
            self.shared.ring.release(held);
        }
    }

    /// The engine took a request's KV cache away and will start it again.
    pub fn preempted(&self, request: &str) {
        self.tell(Item::Preempt(request.to_owned()));
    }

    /// The engine has finished a request, having sampled so many tokens of it.
    pub fn finished(&self, request: &str, completion_tokens: Option<u32>) {
        self.tell(Item::Finish { request: request.to_owned(), completion_tokens });
    }

    /// The engine has reset its prefix cache: rows from here on are of this generation.
    pub fn generation(&self, generation: u32) {
        self.tell(Item::Generation(generation));
    }

    /// The shape of the model.
    pub fn model_shape(&self, shape: ModelShape) {
        self.tell(Item::Shape(Box::new(shape)));
    }

    fn tell(&self, item: Item) -> bool {
        let told = self.items.try_send(item).is_ok();
        if !told {
            self.shared.counters.dropped_events.fetch_add(1, Relaxed);
            self.shared.refuse_once("more is told of requests than the agent's thread can take");
        }
        told
    }

    /// Sends all that was captured, whole blocks or not, and waits for the collector to have it. Says whether it has.
    #[must_use]
    pub fn flush(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let (done, flushed) = crossbeam_channel::bounded(1);
        if self.items.send_timeout(Item::Flush(done), within).is_err() {
            return false;
        }
        if flushed.recv_deadline(deadline).is_err() {
            return false;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Looked at first: what leaves the spool while the exporter is waited for is not waited for.
            let spooled = self.shared.metrics().spool_bytes > 0;
            if self.exporter.flush(left).is_err() {
                return false;
            }
            if !spooled {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            thread::sleep(Duration::from_millis(20).min(left));
        }
    }

    /// What the agent counted, and what its exporter did.
    pub fn metrics(&self) -> (AgentMetrics, Metrics) {
        (self.shared.metrics(), self.exporter.metrics())
    }

    /// The same by name, times of steps aside.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + use<> {
        let (agent, export) = self.metrics();
        figures::figures(&agent, &export)
    }

    /// Where `/metrics` is served, if anywhere.
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.metrics_port.as_ref().map(MetricsPort::address)
    }

    /// Counts a call that its caller found wrong, and says why, once.
    pub fn refuse(&self, why: &str) {
        self.shared.refuse(why);
    }

    /// Sends what there is and waits for the collector, at most so long, then ends the threads. What is not acknowledged by then goes
    /// to the spool, where there is one: the next process sends it. Says whether nothing is left.
    pub fn stop(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let flushed = self.flush(within);
        let _ = self.items.send_timeout(Item::Stop, Duration::from_millis(100));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let grace = deadline.max(Instant::now() + Duration::from_millis(500));
        while let Some(thread) = &thread
            && !thread.is_finished()
            && Instant::now() < grace
        {
            thread::sleep(Duration::from_millis(5));
        }
        let outlet = thread.filter(JoinHandle::is_finished).and_then(|thread| thread.join().ok());
        let (stopped, left) = self.exporter.stop_with_rest(deadline.saturating_duration_since(Instant::now()));
        if let Some(mut outlet) = outlet {
            outlet.keep(&left);
        }
        flushed && stopped.left_events == 0
    }
}
