//! The way in: into the log, and then to the joiner.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_channel::Sender;
use gatescope_routing::record::RecordOptions;
use gatescope_wire::MessageId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use super::{Options, joiner::Received, record::Header, state::AgentSeen, told::Told};
use crate::{
    log::{AppendError, Log, Watermark},
    metrics::Metrics,
};

/// Lives of agents that are remembered.
const MOST_AGENTS: usize = 1 << 16;

/// Why something was not taken. It is nowhere: it may be sent again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NotTaken {
    /// The log is being replayed, or the collector is stopping.
    #[error("the collector {0}")]
    NotReady(&'static str),
    /// The log did not take it.
    #[error(transparent)]
    Log(#[from] AppendError),
}

impl NotTaken {
    /// Whether the same may be taken later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotReady(_) => true,
            Self::Log(error) => error.is_retryable(),
        }
    }
}

/// Takes what comes: clones share one.
#[derive(Debug, Clone)]
pub struct Intake {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Arc<Log>,
    to_join: Sender<Received>,
    room: Arc<Semaphore>,
    queue_bytes: usize,
    agents: Mutex<Agents>,
    streams: AtomicU64,
    record_options: RecordOptions,
    is_replayed: AtomicBool,
    is_closed: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

impl Intake {
    pub(super) fn new(
        log: Arc<Log>,
        to_join: Sender<Received>,
        room: Arc<Semaphore>,
        agents: Agents,
        options: &Options,
        metrics: Arc<Metrics>,
    ) -> Self {
        let shared = Shared {
            log,
            to_join,
            room,
            queue_bytes: options.queue_bytes,
            agents: Mutex::new(agents),
            streams: AtomicU64::new(0),
            record_options: options.record_options(),
            is_replayed: AtomicBool::new(false),
            is_closed: watch::Sender::new(false),
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes what was told and its record; waits while much waits to be joined. Says the record's position, which is not
    /// durable yet.
    pub(crate) async fn take(
        &self,
        header: &Header,
        body: &[u8],
        told: Vec<Told>,
        agent: Option<AgentSeen>,
    ) -> Result<u64, NotTaken> {
        self.check_ready()?;
        let record = header.record(body);
        let rows: usize = told.iter().map(row_bytes).sum();
        let room = self.room(record.len().max(rows)).await?;
        let position = self.shared.log.append(record).await?;
        // No await from here on: a position that was given out must reach the joiner.
        self.hand_over(Received { position, at: header.at, told, replayed: false, agent, _room: Some(room) });
        Ok(position)
    }

    /// Whether anything is taken now.
    ///
    /// # Errors
    /// While the log is replayed and when the collector stops.
    pub fn check_ready(&self) -> Result<(), NotTaken> {
        if *self.shared.is_closed.borrow() {
            return Err(NotTaken::NotReady("is stopping"));
        }
        if !self.shared.is_replayed.load(Ordering::Acquire) {
            return Err(NotTaken::NotReady("is starting: it replays its log"));
        }
        Ok(())
    }

    /// Whether the log is replayed and takes records.
    ///
    /// # Errors
    /// Says why not.
    pub fn check_writable(&self) -> Result<(), String> {
        self.check_ready().map_err(|error| error.to_string())?;
        self.shared.log.watermark().check_writable().map_err(|error| error.to_string())
    }

    /// Waits until the collector stops.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.shared.is_closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// What the log has durably.
    pub(crate) fn watermark(&self) -> Watermark {
        self.shared.log.watermark()
    }

    pub(crate) fn record_options(&self) -> &RecordOptions {
        &self.shared.record_options
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    pub(super) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, NotTaken> {
        let bytes = bytes.clamp(1, self.shared.queue_bytes) as u32;
        let room = Arc::clone(&self.shared.room).acquire_many_owned(bytes).await;
        room.map_err(|_| NotTaken::NotReady("is stopping"))
    }

    pub(super) fn hand_over(&self, received: Received) {
        // A joiner that has ended leaves it in the log, for the next start.
        let _ = self.shared.to_join.send(received);
    }

    pub(super) fn open(&self) {
        self.shared.is_replayed.store(true, Ordering::Release);
    }

    pub(super) fn close(&self) {
        self.shared.is_closed.send_replace(true);
        self.shared.room.close();
    }

    /// A number for a new stream of messages.
    pub(crate) fn stream(&self) -> u64 {
        self.shared.streams.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What to do with a message that came on a stream.
    pub(crate) fn turn(&self, id: &MessageId, stream: u64) -> Turn {
        let mut agents = self.agents();
        let life = agents.life(&id.agent, id.boot);
        if life.stream > stream {
            return Turn::Fenced;
        }
        life.stream = stream;
        if id.seq <= life.seq { Turn::Taken { position: life.position } } else { Turn::New }
    }

    /// A message was taken at this position.
    pub(crate) fn saw(&self, seen: &AgentSeen, position: u64) {
        let mut agents = self.agents();
        let life = agents.life(&seen.agent, seen.boot);
        if seen.seq > life.seq {
            (life.seq, life.position) = (seen.seq, position);
        }
    }

    fn agents(&self) -> MutexGuard<'_, Agents> {
        self.shared.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn row_bytes(told: &Told) -> usize {
    match told {
        Told::Request(told) => told.row_bytes(),
        Told::Model(_) => 0,
    }
}

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Take it.
    New,
    /// It was taken before: it is durable once this position is.
    Taken {
        /// The position of it or of a later message.
        position: u64,
    },
    /// A newer stream of the same agent speaks now.
    Fenced,
}

/// How far each life of each agent has come.
#[derive(Debug, Default)]
pub(super) struct Agents {
    lives: HashMap<(Arc<str>, Uuid), Life>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Life {
    /// The last message that was taken, and where.
    seq: u64,
    position: u64,
    /// The stream that speaks for it.
    stream: u64,
}

impl Agents {
    /// As a state has them, all of it below `position`.
    pub(super) fn of(seen: &[AgentSeen], position: u64) -> Self {
        let life = |seen: &AgentSeen| {
            ((Arc::clone(&seen.agent), seen.boot), Life { seq: seen.seq, position, ..Life::default() })
        };
        Self { lives: seen.iter().map(life).collect() }
    }

    fn life(&mut self, agent: &Arc<str>, boot: Uuid) -> &mut Life {
        if self.lives.len() >= MOST_AGENTS {
            self.forget_half();
        }
        self.lives.entry((Arc::clone(agent), boot)).or_default()
    }

    /// Forgets the lives that have sent least lately: what they send again is told apart by its content.
    fn forget_half(&mut self) {
        let mut positions: Vec<u64> = self.lives.values().map(|life| life.position).collect();
        positions.sort_unstable();
        let middle = positions[positions.len() / 2];
        self.lives.retain(|_, life| life.position > middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_that_sent_least_lately_are_forgotten_first() {
        // given
        let mut agents = Agents::default();
        for boot in 0..MOST_AGENTS as u128 {
            agents.life(&"a".into(), Uuid::from_u128(boot)).position = boot as u64;
        }

        // when
        agents.life(&"b".into(), Uuid::from_u128(0));

        // then
        assert!(agents.lives.len() <= MOST_AGENTS / 2 + 1);
        assert!(agents.lives.contains_key(&("a".into(), Uuid::from_u128(MOST_AGENTS as u128 - 1))));
        assert!(!agents.lives.contains_key(&("a".into(), Uuid::from_u128(0))));
    }
}
