//! The acknowledgement: what is durable, and how to wait for it.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    error::{FileFailure, NotDurable},
    segment::Synced,
};

/// Proof that every record up to a position is on the disk. Only a sync makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Durable(u64);

impl Durable {
    /// What opening the log has read and synced.
    pub(super) fn recovered(position: u64) -> Self {
        Self(position)
    }

    /// The last durable position; 0 before the first.
    pub fn position(self) -> u64 {
        self.0
    }
}

impl From<&Synced> for Durable {
    fn from(synced: &Synced) -> Self {
        Self(synced.through())
    }
}

/// What there is to tell.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) durable: Durable,
    /// Why the disk refuses, while it does.
    pub(super) failure: Option<Arc<FileFailure>>,
    /// The writer has ended: what is not durable now will not be.
    pub(super) is_closed: bool,
}

impl State {
    /// Whether records are taken.
    pub(super) fn is_writable(&self) -> bool {
        self.failure.is_none() && !self.is_closed
    }

    fn reached(self, position: u64) -> Result<Durable, NotDurable> {
        match self.failure {
            _ if self.durable.0 >= position => Ok(self.durable),
            Some(failure) => Err(NotDurable::Failing(failure)),
            None => Err(NotDurable::Closed),
        }
    }
}

/// The durable position, to look at and to wait for. Clones see the same log.
#[derive(Debug, Clone)]
pub struct Watermark {
    state: watch::Receiver<State>,
}

impl Watermark {
    pub(super) fn new(state: watch::Receiver<State>) -> Self {
        Self { state }
    }

    /// What is durable now.
    pub fn now(&self) -> Durable {
        self.state.borrow().durable
    }

    /// The failure that keeps the log from being written, where there is one.
    pub fn failure(&self) -> Option<Arc<FileFailure>> {
        self.state.borrow().failure.clone()
    }

    /// Waits until `position`, which an append must have returned, is durable.
    ///
    /// Dropped half-way it has no effect: the record is written all the same.
    ///
    /// # Errors
    /// When the disk refuses, at once, so that the sender can be told why; and when the log closes before.
    pub async fn reached(&mut self, position: u64) -> Result<Durable, NotDurable> {
        let settled = |state: &State| state.durable.0 >= position || !state.is_writable();
        self.wait_for(settled).await.reached(position)
    }

    /// As [`Watermark::reached`], but a failing disk makes it wait until the writer has given up.
    pub(super) async fn reached_or_closed(&mut self, position: u64) -> Result<Durable, NotDurable> {
        let settled = |state: &State| state.durable.0 >= position || state.is_closed;
        self.wait_for(settled).await.reached(position)
    }

    /// Whether records are taken.
    ///
    /// # Errors
    /// When the disk refuses or the log has closed.
    pub fn check_writable(&self) -> Result<(), NotDurable> {
        let state = self.state.borrow().clone();
        if state.is_writable() { Ok(()) } else { state.reached(u64::MAX).map(|_| ()) }
    }

    /// Waits until the durable position is above `seen`; returns at once where it is. A failing disk makes it wait.
    ///
    /// Dropped half-way it has no effect.
    ///
    /// # Errors
    /// When the log closes.
    pub async fn above(&mut self, seen: Durable) -> Result<Durable, NotDurable> {
        let settled = |state: &State| state.durable > seen || state.is_closed;
        self.wait_for(settled).await.reached(seen.0 + 1)
    }

    /// The first state that is settled, or the last one of all.
    async fn wait_for(&mut self, settled: impl FnMut(&State) -> bool) -> State {
        let state = self.state.wait_for(settled).await.map(|state| state.clone());
        state.unwrap_or_else(|_| self.state.borrow().clone())
    }
}
