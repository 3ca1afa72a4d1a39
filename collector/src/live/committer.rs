//! The thread that stores: closed requests go into Parquet files as they come; a barrier makes them a commit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{
    error::LiveError,
    joiner::Call,
    maintenance::Caretaker,
    settle::{Settler, Unsure},
    state::{State, States},
};
use crate::{
    fail_point::{self, Step},
    import::encode::Encoders,
    log::Log,
    metrics::Metrics,
    tables::{Batch, ClosedRequest, Tables},
};

/// How long to wait after a failed commit before the next try.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// What the joiner hands over, in order.
#[derive(Debug)]
pub(super) enum ToCommit {
    /// A closed request that is not stored.
    Request(Arc<ClosedRequest>),
    /// A closed request that may be stored, or that needs rows of one that is.
    Unsure(Box<Unsure>),
    /// All before this is one commit.
    Barrier(Box<Barrier>),
}

/// The end of a commit.
#[derive(Debug)]
pub(super) struct Barrier {
    pub(super) state: State,
}

pub(super) struct Committer {
    pub(super) tables: Tables,
    pub(super) log: Arc<Log>,
    pub(super) states: States,
    pub(super) from_joiner: Receiver<ToCommit>,
    pub(super) to_joiner: Sender<Call>,
    pub(super) metrics: Arc<Metrics>,
    /// Set when the process is about to end: a commit that keeps failing is given up.
    pub(super) giving_up: Arc<AtomicBool>,
    pub(super) caretaker: Caretaker,
}

/// What goes into the next commit.
#[derive(Default)]
struct Closed {
    requests: Vec<Arc<ClosedRequest>>,
    unsure: Vec<Unsure>,
}

impl Committer {
    pub(super) fn run(mut self) {
        let mut closed = Closed::default();
        let mut writing: Option<(Batch, Encoders)> = None;
        loop {
            match self.from_joiner.recv_timeout(Duration::from_secs(1)) {
                Ok(ToCommit::Request(request)) => {
                    if writing.is_none() {
                        writing = self.begin();
                    }
                    if let Some((_, encoders)) = &writing {
                        // Where the writers have failed, the commit starts anew and says why.
                        let _ = encoders.send(Arc::clone(&request));
                    }
                    closed.requests.push(request);
                }
                Ok(ToCommit::Unsure(unsure)) => closed.unsure.push(*unsure),
                Ok(ToCommit::Barrier(barrier)) => {
                    let Some(number) = self.commit_until_done(&closed, writing.take(), &barrier.state) else { return };
                    closed = Closed::default();
                    let position = barrier.state.position;
                    if self.to_joiner.send(Call::Committed { number, position }).is_err() {
                        return;
                    }
                    self.clean_up(&barrier.state);
                    self.caretaker.care(&mut self.tables, &self.metrics);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn begin(&mut self) -> Option<(Batch, Encoders)> {
        let batch = self.tables.begin();
        match Encoders::start(&batch) {
            Ok(encoders) => Some((batch, encoders)),
            Err(error) => {
                tracing::error!(%error, "cannot start threads that write tables; the commit will try again");
                None
            }
        }
    }

    /// Commits, however often it takes. `None` where it was given up: the log has everything.
    fn commit_until_done(
        &mut self,
        closed: &Closed,
        mut writing: Option<(Batch, Encoders)>,
        state: &State,
    ) -> Option<u64> {
        let begun = Instant::now();
        let before = self.tables.position();
        let mut wait = RETRY;
        loop {
            // An attempt that failed may have happened all the same.
            if self.tables.position() > before {
                return Some(self.tables.position());
            }
            match self.commit(closed, writing.take(), state) {
                Ok(number) => {
                    self.metrics.committed(closed.requests.len() as u64, begun.elapsed());
                    return Some(number);
                }
                Err(error) => {
                    self.metrics.commit_failed();
                    tracing::error!(%error, "a commit failed; nothing is lost, it will be tried again");
                }
            }
            if self.giving_up.load(Ordering::Relaxed) {
                return None;
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_RETRY);
        }
    }

    fn commit(&mut self, closed: &Closed, writing: Option<(Batch, Encoders)>, state: &State) -> Result<u64, LiveError> {
        let (batch, encoders) = match writing {
            Some(writing) => writing,
            None => {
                let batch = self.tables.begin();
                let encoders = Encoders::start(&batch).map_err(LiveError::Thread)?;
                closed.requests.iter().all(|request| encoders.send(Arc::clone(request)));
                (batch, encoders)
            }
        };
        let settler = Settler { tables: &self.tables, metrics: &self.metrics, closed: &closed.requests };
        for request in settler.settle(&closed.unsure)? {
            if !encoders.send(Arc::new(request)) {
                break;
            }
        }
        fail_point::reach(Step::CommitBeforeWrite);
        encoders.finish()?;
        fail_point::reach(Step::CommitAfterWrite);
        let load = batch.load();
        // A commit must not be ahead of the log: its agents would send again what is stored.
        self.log.reached_blocking(state.position).map_err(LiveError::NotDurable)?;
        self.states.write(state)?;
        fail_point::reach(Step::CommitAfterState);
        let committed = self.tables.commit_covering(batch, state.position)?;
        fail_point::reach(Step::CommitAfterTables);
        self.metrics.stored(&closed.requests, load);
        Ok(committed.position)
    }

    /// Removes what the commit has made unneeded. What cannot be removed now is removed after a later commit.
    fn clean_up(&mut self, state: &State) {
        if let Err(error) = self.states.keep_only(state.position) {
            tracing::warn!(%error, "an old state file stays");
        }
        match self.log.delete_below(state.replay_from.saturating_sub(1)) {
            Ok(deleted) => self.metrics.log_deleted(deleted.bytes),
            Err(error) => tracing::warn!(%error, "old log files stay"),
        }
        self.metrics.log_bytes(self.log.used_bytes());
    }
}
