//! The live collector: what is acknowledged is durable, joined and in view.
//!
//! ```text
//! ingest -> Intake: log -> joiner (one thread, in the order of the log) -> committer (one thread) -> tables
//!                    |       |                                              |
//!                    |       +-- View: what the tables do not have          +-- state, log deleted below what is needed
//!                    +-- durable: acknowledged
//! ```
//!
//! Reading what came and looking at every id is done by those who bring it, on all cores; so is writing Parquet. What one
//! thread does is what must be done in order: placing and linking, which moves ranges and copies no row.

mod about;
mod aliases;
mod committer;
mod error;
mod families;
mod intake;
mod joiner;
mod known;
mod maintenance;
mod parked;
mod pending;
pub(crate) mod record;
mod replay;
mod settle;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod told;
mod view;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam_channel::Sender;
use gatescope_routing::{
    join::{Policy, Rules},
    record::RecordOptions,
    shape::{ModelShape, RowShape},
};
use tokio::sync::{Semaphore, oneshot};

use self::{
    committer::Committer,
    intake::Agents,
    joiner::{Beginning, Call, Joiner},
    known::Known,
    maintenance::Caretaker,
    state::{State, States},
};
pub use self::{
    error::LiveError,
    intake::{Intake, NotTaken},
    maintenance::Maintenance,
    record::RecordError,
    view::View,
};
pub(crate) use self::{intake::Turn, state::AgentSeen};
use crate::{
    log::{self, Log, Watermark},
    metrics::Metrics,
    tables::Tables,
};

/// What a collector is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whose row is accepted where several sources have one.
    pub policy: Policy,
    /// The model, where the user has described it; instances say theirs themselves.
    pub model: Option<Arc<ModelShape>>,
    /// Geometry of a row, for recorded answers that do not say it (SGLang).
    pub row_shape: Option<RowShape>,
    /// A request is closed as it is when nothing came for it for so long. 10 minutes.
    pub join_timeout: Duration,
    /// Bytes of open requests in memory; above it the oldest go to a temporary file. 256 MiB.
    pub open_bytes: usize,
    /// Bytes of closed requests at which they are committed at once. 128 MiB.
    pub commit_bytes: usize,
    /// Bytes of closed requests that are not committed above which nothing more is joined. 256 MiB.
    pub pending_bytes: usize,
    /// How often closed requests are committed. 10 s.
    pub commit_interval: Duration,
    /// Bytes of records between ingest and the join, above which ingest waits. 64 MiB.
    pub queue_bytes: usize,
    /// Care of the tables.
    pub maintenance: Maintenance,
    /// The write-ahead log.
    pub log: log::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            model: None,
            row_shape: None,
            join_timeout: Duration::from_secs(600),
            open_bytes: 256 << 20,
            commit_bytes: 128 << 20,
            pending_bytes: 256 << 20,
            commit_interval: Duration::from_secs(10),
            queue_bytes: 64 << 20,
            maintenance: Maintenance::default(),
            log: log::Options { record_bytes: 40 << 20, pending_bytes: 96 << 20, ..log::Options::default() },
        }
    }
}

impl Options {
    fn rules(&self) -> Rules {
        Rules { policy: self.policy, model: self.model.clone() }
    }

    fn record_options(&self) -> RecordOptions {
        RecordOptions { shape: self.row_shape.or_else(|| self.model.as_ref().map(|model| model.row())) }
    }
}

/// A collector at work on one data folder.
#[derive(Debug)]
pub struct Collector {
    intake: Intake,
    calls: Sender<Call>,
    log: Arc<Log>,
    giving_up: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    replayed: Option<oneshot::Receiver<Result<(), LiveError>>>,
}

impl Collector {
    /// Opens the folder and begins to replay the log. Nothing is taken in before [`Self::replayed`]. Blocks on files.
    ///
    /// # Errors
    /// Where the tables or the log cannot be opened: another process has them, or they are damaged.
    pub fn start(data: &Path, options: Options, metrics: Arc<Metrics>) -> Result<Self, LiveError> {
        let tables = Tables::open(data)?;
        let data = tables.root().to_owned();
        let states = States::open(&data)?;
        let state = beginning_state(&tables, &states, options.log.salvage)?;
        let known = Known::of(&tables)?;
        let committed = state.replay_from.saturating_sub(1);
        let (log, replay) = Log::open(&data.join("log"), committed, options.log.clone())?;
        let log = Arc::new(log);

        let (to_join, received) = crossbeam_channel::unbounded();
        let (calls, called) = crossbeam_channel::unbounded();
        let (to_commit, from_joiner) = crossbeam_channel::unbounded();
        let giving_up = Arc::new(AtomicBool::new(false));
        let intake = Intake::new(
            Arc::clone(&log),
            to_join,
            Arc::new(Semaphore::new(options.queue_bytes)),
            Agents::of(&state.agents, committed),
            &options,
            Arc::clone(&metrics),
        );
        let committer = Committer {
            log: Arc::clone(&log),
            states,
            from_joiner,
            to_joiner: calls.clone(),
            metrics: Arc::clone(&metrics),
            giving_up: Arc::clone(&giving_up),
            caretaker: Caretaker::new(options.maintenance.clone()),
            tables,
        };
        let number = committer.tables.position();
        let beginning = Beginning { number, state, known, folder: data };
        let joiner = Joiner::new(options, metrics, received, called, to_commit, beginning);
        let (done, replayed) = oneshot::channel();
        let replaying = replay::Replaying { replay, last: log.durable().position(), intake: intake.clone() };
        let threads = vec![
            spawn("gatescope-commit", move || committer.run())?,
            spawn("gatescope-join", move || joiner.run())?,
            spawn("gatescope-replay", move || {
                // Who waits for it may have gone.
                let _ = done.send(replaying.run());
            })?,
        ];
        Ok(Self { intake, calls, log, giving_up, threads, replayed: Some(replayed) })
    }

    /// Waits until the log is replayed; from then on the collector takes what comes.
    ///
    /// # Errors
    /// Where the log is damaged.
    pub async fn replayed(&mut self) -> Result<(), LiveError> {
        match self.replayed.take() {
            Some(replayed) => replayed.await.unwrap_or(Err(LiveError::Stopped)),
            None => Ok(()),
        }
    }

    /// Where what comes goes in.
    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// Where to ask for a look at what is not in the tables.
    pub fn viewer(&self) -> Viewer {
        Viewer { calls: self.calls.clone(), watermark: self.log.watermark() }
    }

    /// Takes nothing more, joins and commits what was taken, and ends. Requests that are open stay in the log.
    ///
    /// # Errors
    /// Where that takes longer than `within`: nothing is lost, the next start goes on from the log.
    pub async fn stop(mut self, within: Duration) -> Result<(), LiveError> {
        self.intake.close();
        let position = match tokio::time::timeout(within, self.log.close()).await {
            Ok(Ok(durable)) => durable.position(),
            _ => self.log.durable().position(),
        };
        // A joiner that has ended has nothing to commit.
        let _ = self.calls.send(Call::Stop { position });
        let threads = std::mem::take(&mut self.threads);
        let ended = tokio::task::spawn_blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    return Err(LiveError::Stopped);
                }
            }
            Ok(())
        });
        match tokio::time::timeout(within, ended).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(_)) => Err(LiveError::Stopped),
            Err(_) => {
                self.giving_up.store(true, Ordering::Relaxed);
                Err(LiveError::StopTooSlow(within))
            }
        }
    }
}

/// Looks at what is not in the tables.
#[derive(Debug, Clone)]
pub struct Viewer {
    calls: Sender<Call>,
    watermark: Watermark,
}

impl Viewer {
    /// Everything acknowledged that is not in the tables, and the number of the commit that they are at.
    ///
    /// # Errors
    /// Where the collector has stopped.
    pub async fn view(&self) -> Result<View, LiveError> {
        let (reply, glimpse) = oneshot::channel();
        // What is acknowledged may still be on its way to the joiner.
        let position = self.watermark.now().position();
        self.calls.send(Call::View { position, reply }).map_err(|_| LiveError::Stopped)?;
        let glimpse = glimpse.await.map_err(|_| LiveError::Stopped)?;
        tokio::task::spawn_blocking(|| glimpse.view()).await.map_err(|_| LiveError::Stopped)
    }
}

/// What the tables cover, and what was open then.
fn beginning_state(tables: &Tables, states: &States, salvage: bool) -> Result<State, LiveError> {
    let Some(position) = tables.log_position() else {
        return Ok(State { replay_from: 1, ..State::default() });
    };
    match states.read(position) {
        Ok(Some(state)) => Ok(state),
        Ok(None) if !salvage => Err(LiveError::NoState { position, path: states.path(position) }),
        Err(error) if !salvage => Err(error),
        lost => {
            let reason = lost.err().map_or_else(|| "it is not there".to_owned(), |error| error.to_string());
            tracing::warn!(position, reason, "which requests were open at the last commit is not known: they are lost");
            Ok(State { position, replay_from: position + 1, ..State::default() })
        }
    }
}

impl Known {
    /// The stored requests.
    fn of(tables: &Tables) -> Result<Self, LiveError> {
        let mut known = Self::new();
        let complete = tables.request_keys(|key| {
            known.insert(&key);
            known.is_complete()
        })?;
        known.had_all(complete);
        Ok(known)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, LiveError> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(LiveError::Thread)
}
