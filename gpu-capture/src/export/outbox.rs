//! Messages from their making until the collector has said what has become of them.

use std::collections::VecDeque;

use arrow_flight::FlightData;

/// Numbered messages, ascending, those in front sent and those behind not. A spool would be another of these.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    messages: VecDeque<Message>,
    /// Index of the first message that this stream has not carried.
    next: usize,
    bytes: usize,
    last_seq: u64,
    /// Highest number that any stream has carried.
    last_sent: u64,
}

/// A message on its way.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) seq: u64,
    pub(super) data: FlightData,
    pub(super) events: u64,
    pub(super) bytes: usize,
}

/// What one stream carries next.
pub(super) struct Next {
    pub(super) data: FlightData,
    pub(super) bytes: usize,
    /// Whether an earlier stream has carried it.
    pub(super) again: bool,
}

impl Outbox {
    /// The number that the next message has.
    pub(super) fn next_seq(&self) -> u64 {
        self.last_seq + 1
    }

    /// Takes a message made under [`Outbox::next_seq`].
    pub(super) fn push(&mut self, data: FlightData, events: usize) {
        let bytes = data.data_header.len() + data.data_body.len() + data.app_metadata.len();
        self.last_seq += 1;
        self.bytes += bytes;
        self.messages.push_back(Message { seq: self.last_seq, data, events: events as u64, bytes });
    }

    /// Bytes of all messages that are not settled.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of the oldest message that is not settled; the next one where all are.
    pub(super) fn unsettled(&self) -> u64 {
        self.messages.front().map_or(self.next_seq(), |message| message.seq)
    }

    /// Whether this stream has carried every message.
    pub(super) fn all_sent(&self) -> bool {
        self.next >= self.messages.len()
    }

    /// Whether this stream has carried a message that is not settled.
    pub(super) fn any_sent(&self) -> bool {
        self.next > 0
    }

    /// The next message for this stream.
    pub(super) fn send(&mut self) -> Option<Next> {
        let message = self.messages.get(self.next)?;
        let again = message.seq <= self.last_sent;
        self.last_sent = self.last_sent.max(message.seq);
        self.next += 1;
        Some(Next { data: message.data.clone(), bytes: message.bytes, again })
    }

    /// A new stream begins: everything is to be sent again.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
    }

    /// Whether a message of this number was ever sent.
    pub(super) fn knows(&self, seq: u64) -> bool {
        seq <= self.last_sent
    }

    /// Takes out what is durable: every message up to this number.
    pub(super) fn settle(&mut self, durable: u64) -> Vec<Message> {
        let count = self.messages.partition_point(|message| message.seq <= durable);
        self.next = self.next.saturating_sub(count);
        let settled: Vec<Message> = self.messages.drain(..count).collect();
        self.bytes -= settled.iter().map(|message| message.bytes).sum::<usize>();
        settled
    }

    /// A message that is not settled.
    pub(super) fn get(&self, seq: u64) -> Option<&Message> {
        self.position(seq).and_then(|at| self.messages.get(at))
    }

    /// Takes out a message that was refused for good.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Message> {
        let at = self.position(seq)?;
        let message = self.messages.remove(at)?;
        self.bytes -= message.bytes;
        if at < self.next {
            self.next -= 1;
        }
        Some(message)
    }

    /// One event of a message was refused for good: it is not among those that will be durable.
    pub(super) fn refuse_event(&mut self, seq: u64) -> bool {
        let Some(message) = self.position(seq).and_then(|at| self.messages.get_mut(at)) else { return false };
        let left = message.events.checked_sub(1);
        message.events = left.unwrap_or(0);
        left.is_some()
    }

    fn position(&self, seq: u64) -> Option<usize> {
        self.messages.binary_search_by_key(&seq, |message| message.seq).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize) -> Outbox {
        let mut outbox = Outbox::default();
        for i in 0..count {
            outbox.push(FlightData::new().with_data_body(vec![0; 10 + i]), 2);
        }
        outbox
    }

    fn seqs(outbox: &mut Outbox) -> Vec<(usize, bool)> {
        std::iter::from_fn(|| outbox.send().map(|next| (next.bytes - 9, next.again))).collect()
    }

    #[test]
    fn a_new_stream_carries_everything_that_is_not_settled_in_order() {
        let mut outbox = filled(5);
        outbox.send();
        outbox.send();
        outbox.send();
        assert_eq!(outbox.settle(1).len(), 1);

        outbox.rewind();

        assert_eq!(seqs(&mut outbox), [(2, true), (3, true), (4, false), (5, false)]);
        assert!(outbox.all_sent() && outbox.unsettled() == 2);
        assert_eq!(outbox.settle(5).iter().map(|message| message.seq).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!((outbox.bytes(), outbox.unsettled(), outbox.next_seq()), (0, 6, 6));
    }

    #[test]
    fn a_message_taken_out_leaves_the_others_where_they_were() {
        for removed in 1..=4 {
            let mut outbox = filled(4);
            outbox.send();
            outbox.send();

            assert_eq!(outbox.remove(removed).map(|message| message.seq), Some(removed));

            assert!(outbox.remove(removed).is_none() && outbox.get(removed).is_none());
            let left: Vec<_> =
                [3, 4].into_iter().filter(|&seq| seq != removed as usize).map(|seq| (seq, false)).collect();
            assert_eq!(seqs(&mut outbox), left);
            assert_eq!(outbox.bytes(), 10 + 11 + 12 + 13 - (9 + removed as usize));
        }
    }

    #[test]
    fn only_what_was_sent_is_known() {
        let mut outbox = filled(2);
        outbox.send();
        outbox.rewind();

        assert!(outbox.knows(1) && !outbox.knows(2) && !outbox.any_sent());
        assert!(outbox.refuse_event(2) && outbox.refuse_event(2) && !outbox.refuse_event(2) && !outbox.refuse_event(3));
    }
}
