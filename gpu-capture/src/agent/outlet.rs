//! The way from the agent's thread to the exporter, with the spool beside it for when the collector is away.

use std::sync::Arc;

use gatescope_wire::Event;

use super::{Shared, spool::Spool};
use crate::Exporter;

pub(super) struct Outlet {
    exporter: Arc<Exporter>,
    spool: Option<Spool>,
    shared: Arc<Shared>,
}

impl Outlet {
    pub(super) fn new(exporter: Arc<Exporter>, spool: Option<Spool>, shared: Arc<Shared>) -> Self {
        Self { exporter, spool, shared }
    }

    /// Sends an event, or spools it, or tells its rows as lost. Says whether it is on its way.
    pub(super) fn send(&mut self, event: Event) -> bool {
        let event = match &mut self.spool {
            // What was spooled comes first.
            Some(spool) if !spool.is_empty() => event,
            _ => match self.exporter.offer(event) {
                Ok(()) => return true,
                Err(event) => *event,
            },
        };
        let spooled = self.spool.as_mut().map(|spool| spool.append(&event));
        match spooled {
            Some(Ok(true)) => {
                self.report();
                return true;
            }
            Some(Err(error)) => {
                self.shared.refuse_once(&format!("the spool cannot be written: {error}"));
            }
            Some(Ok(false)) | None => {}
        }
        self.exporter.lose(&event);
        false
    }

    /// Hands spooled events over, as many as there is room for.
    pub(super) fn drain(&mut self) {
        let Some(spool) = &mut self.spool else { return };
        if !spool.is_empty() {
            let exporter = &self.exporter;
            if let Err(error) = spool.drain(|event| exporter.offer(event)) {
                self.shared.refuse_once(&format!("the spool cannot be read: {error}"));
            }
        }
        let metrics = self.exporter.metrics();
        spool.settle(metrics.captured_events, metrics.acked_events + metrics.refused_events);
        self.report();
    }

    fn report(&self) {
        if let Some(spool) = &self.spool {
            self.shared.spooled(spool.bytes(), spool.events());
        }
    }
}
