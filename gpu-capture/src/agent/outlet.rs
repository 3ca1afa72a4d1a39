//! The way from the agent's thread to the exporter, with the spool beside it for when the collector is away.

use std::{io, sync::Arc};

use gatescope_wire::Event;

use super::{Shared, spool::Spool};
use crate::Exporter;

/// Bytes of events that wait in memory for a collector that is away, where there is a spool.
const MOST_IN_MEMORY: u64 = 1 << 20;

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is on its way.
    Yes,
    /// There was no room: its rows are told as lost.
    No,
    /// The spool failed, and what it had gathered is lost with it.
    SpoolFailed,
}

#[derive(Debug)]
pub(super) struct Outlet {
    exporter: Arc<Exporter>,
    spool: Option<Spool>,
    shared: Arc<Shared>,
}

impl Outlet {
    pub(super) fn new(exporter: Arc<Exporter>, spool: Option<Spool>, shared: Arc<Shared>) -> Self {
        Self { exporter, spool, shared }
    }

    /// Sends an event, or spools it, or tells its rows as lost.
    pub(super) fn send(&mut self, event: Event) -> Taken {
        let event = match &mut self.spool {
            // What was spooled comes first; and what waits for a collector that is away waits on disk, where it outlives the process.
            Some(spool) if !spool.is_empty() || self.exporter.waiting_for_nobody(MOST_IN_MEMORY) => event,
            _ => match self.exporter.offer(event) {
                Ok(()) => return Taken::Yes,
                Err(event) => *event,
            },
        };
        match self.spool.as_mut().map(|spool| spool.append(&event)) {
            Some(Ok(true)) => {
                self.report();
                return Taken::Yes;
            }
            Some(Err(error)) => {
                self.failed(&error);
                return Taken::SpoolFailed;
            }
            Some(Ok(false)) | None => {}
        }
        self.exporter.lose(&event);
        Taken::No
    }

    /// The spool could not be written: what it had gathered is lost, and told so.
    fn failed(&mut self, error: &io::Error) {
        self.shared.refuse_once(&format!("the spool cannot be used: {error}"));
        let lost = self.spool.as_mut().map(Spool::take_unwritten).unwrap_or_default();
        lost.iter().for_each(|event| self.exporter.lose(event));
        self.report();
    }

    /// Puts on disk what the exporter could not bring to the collector. What came from a file that is still there is then in two: the
    /// collector recognises it.
    pub(super) fn keep(&mut self, left: &[Event]) {
        let Some(spool) = &mut self.spool else { return };
        let kept = left.iter().try_for_each(|event| spool.append(event).map(|_| ())).and_then(|()| spool.write());
        if let Err(error) = kept {
            self.failed(&error);
        }
        self.report();
    }

    /// Hands spooled events over, as many as there is room for.
    pub(super) fn drain(&mut self) {
        let Some(spool) = &mut self.spool else { return };
        if !spool.is_empty() {
            let exporter = &self.exporter;
            // No more goes ahead to a collector that is away than shows that it is back.
            spool.drain(|event| {
                if exporter.waiting_for_nobody(MOST_IN_MEMORY) { Err(Box::new(event)) } else { exporter.offer(event) }
            });
        }
        let metrics = self.exporter.metrics();
        // Gap records are acknowledged as well, and were never taken.
        let settled = (metrics.acked_events + metrics.refused_events).saturating_sub(metrics.gap_records);
        spool.settle(metrics.captured_events, settled);
        self.report();
    }

    fn report(&self) {
        if let Some(spool) = &self.spool {
            self.shared.spooled(spool.bytes(), spool.events());
        }
    }
}
