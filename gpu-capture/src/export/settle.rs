//! What the collector's answers do to the outbox.

use std::collections::HashSet;

use gatescope_wire::{Ack, Event, Nack, NackCode, decode, ipc};
use uuid::Uuid;

use super::{
    metrics::add,
    outbox::{Message, Outbox},
    queue::Shared,
};

/// What is to be done after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Something was settled.
    Progress,
    /// Nothing was.
    Nothing,
    /// The collector wants the messages again, later.
    Again,
}

/// Reads answers.
pub(super) struct Settler {
    agent: std::sync::Arc<str>,
    boot: Uuid,
    /// Reads back messages that were refused, to say which positions are lost.
    reader: ipc::Reader,
    /// Codes that were logged: each once.
    logged: HashSet<NackCode>,
    logged_bad_ack: bool,
}

impl Settler {
    pub(super) fn new(agent: std::sync::Arc<str>, boot: Uuid, reader: ipc::Reader) -> Self {
        Self { agent, boot, reader, logged: HashSet::new(), logged_bad_ack: false }
    }

    /// Takes the `app_metadata` of an answer.
    pub(super) fn take(&mut self, metadata: &[u8], outbox: &mut Outbox, shared: &Shared) -> Verdict {
        let ack = match Ack::read(metadata) {
            Ok(ack) => ack,
            Err(error) => return self.bad(&error.to_string(), shared),
        };
        if (&*ack.agent, ack.boot) != (&*self.agent, self.boot) {
            return self.bad("it is for another agent", shared);
        }
        if !(ack.durable == 0 || outbox.knows(ack.durable)) {
            return self.bad(&format!("message {} was never sent", ack.durable), shared);
        }
        let mut verdict = Verdict::Nothing;
        let mut again = false;
        // Refusals first: the watermark passes a message that is refused for good.
        for nack in &ack.nacks {
            if nack.retryable {
                again |= outbox.get(nack.seq).is_some();
                self.log(nack, "refused for now");
            } else if self.refuse(nack, outbox, shared) {
                verdict = Verdict::Progress;
            }
        }
        for message in outbox.settle(ack.durable) {
            add(&shared.counters.acked_messages, 1);
            add(&shared.counters.acked_events, message.events);
            verdict = Verdict::Progress;
        }
        if again { Verdict::Again } else { verdict }
    }

    /// Takes out what was refused for good; says whether there was something.
    fn refuse(&mut self, nack: &Nack, outbox: &mut Outbox, shared: &Shared) -> bool {
        let counters = &shared.counters;
        match nack.row {
            None => {
                let Some(message) = outbox.remove(nack.seq) else { return false };
                add(&counters.refused_events, message.events);
                for event in self.events(&message) {
                    shared.lose(&event);
                }
            }
            Some(row) => {
                let Some(message) = outbox.get(nack.seq) else { return false };
                let events = self.events(message);
                if let Some(event) = events.get(row as usize) {
                    shared.lose(event);
                }
                if !outbox.refuse_event(nack.seq) {
                    return false;
                }
                add(&counters.refused_events, 1);
            }
        }
        self.log(nack, "refused");
        true
    }

    /// The events of a message; none where even its maker cannot read it.
    pub(super) fn events(&self, message: &Message) -> Vec<Event> {
        self.reader
            .batch(&message.data.data_header, message.data.data_body.clone())
            .and_then(|batch| decode(&batch))
            .map(|decoded| decoded.events)
            .unwrap_or_default()
    }

    fn log(&mut self, nack: &Nack, what: &str) {
        if self.logged.len() < 64 && self.logged.insert(nack.code.clone()) {
            tracing::warn!(seq = nack.seq, row = nack.row, code = ?nack.code, reason = %nack.reason,
                "the collector {what} what was sent; the next of this kind are counted only");
        }
    }

    fn bad(&mut self, what: &str, shared: &Shared) -> Verdict {
        add(&shared.counters.bad_acks, 1);
        if !self.logged_bad_ack {
            self.logged_bad_ack = true;
            tracing::warn!("an answer of the collector's is passed over: {what}; the next are counted only");
        }
        Verdict::Nothing
    }
}
