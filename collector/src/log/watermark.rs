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
    pub(super) health: Health,
}

/// Whether more will be durable.
#[derive(Debug, Clone)]
pub(super) enum Health {
    Writable,
    Failing(Arc<FileFailure>),
    Closed,
}

impl Health {
    pub(super) fn is_writable(&self) -> bool {
        matches!(self, Self::Writable)
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
        match &self.state.borrow().health {
            Health::Failing(failure) => Some(failure.clone()),
            Health::Writable | Health::Closed => None,
        }
    }

    /// Waits until `position`, which an append must have returned, is durable.
    ///
    /// Dropped half-way it has no effect: the record is written all the same.
    ///
    /// # Errors
    /// When the disk refuses, at once, so that the sender can be told why; and when the log closes before.
    pub async fn reached(&mut self, position: u64) -> Result<Durable, NotDurable> {
        let settled = |state: &State| state.durable.0 >= position || !state.health.is_writable();
        let state = self.wait_for(settled).await;
        match state.health {
            _ if state.durable.0 >= position => Ok(state.durable),
            Health::Failing(failure) => Err(NotDurable::Failing(failure)),
            Health::Writable | Health::Closed => Err(NotDurable::Closed),
        }
    }

    /// Waits until the durable position is above `seen`; returns at once where it is. A failing disk makes it wait.
    ///
    /// Dropped half-way it has no effect.
    ///
    /// # Errors
    /// When the log closes.
    pub async fn above(&mut self, seen: Durable) -> Result<Durable, NotDurable> {
        let settled = |state: &State| state.durable > seen || matches!(state.health, Health::Closed);
        let durable = self.wait_for(settled).await.durable;
        if durable > seen { Ok(durable) } else { Err(NotDurable::Closed) }
    }

    /// The first state that is settled, or the last one of all.
    async fn wait_for(&mut self, settled: impl FnMut(&State) -> bool) -> State {
        let state = self.state.wait_for(settled).await.map(|state| state.clone());
        state.unwrap_or_else(|_| self.state.borrow().clone())
    }
}
