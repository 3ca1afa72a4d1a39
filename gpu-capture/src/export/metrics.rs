//! What an exporter counts.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What an exporter has done so far. Each number is read by itself: while it runs they may be a moment apart.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes of events that wait.
            pub queue_bytes: u64,
            /// Bytes of messages that are not acknowledged.
            pub in_flight_bytes: u64,
            /// Whether the collector answers.
            pub connected: bool,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
            pub(super) queue_bytes: AtomicUsize,
            pub(super) in_flight_bytes: AtomicUsize,
            pub(super) connected: AtomicBool,
        }

        impl Counters {
            pub(super) fn read(&self) -> Metrics {
                Metrics {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    queue_bytes: self.queue_bytes.load(Ordering::Relaxed) as u64,
                    in_flight_bytes: self.in_flight_bytes.load(Ordering::Relaxed) as u64,
                    connected: self.connected.load(Ordering::Relaxed),
                }
            }
        }
    };
}

counters! {
    /// Events that `send` took.
    captured_events,
    /// Positions in them: rows of spans and of blocks by hash.
    captured_positions,
    /// Messages put on a stream, each once.
    sent_messages,
    /// Their bytes.
    sent_bytes,
    /// Messages put on a stream again.
    resent_messages,
    /// Messages that the collector has said are durable.
    acked_messages,
    /// Events in them, gap records among them.
    acked_events,
    /// Events dropped since the queue was full or the exporter stopped.
    dropped_events,
    /// Positions in them.
    dropped_positions,
    /// Dropped positions that no gap record tells: there were too many, or where they began was not known.
    unreported_positions,
    /// Gap records made.
    gap_records,
    /// Events that the collector refused for good.
    refused_events,
    /// Answers of the collector that could not be read, or spoke of what was never sent.
    bad_acks,
    /// Streams opened.
    connects,
}

pub(super) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}
