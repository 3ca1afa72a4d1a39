//! What a tap counts.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $field:ident: $name:literal,)+) => {
        /// What a tap has counted since it began.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $field: Counter,)+
        }

        impl Metrics {
            /// As Prometheus text.
            pub fn text(&self) -> String {
                let mut text = String::new();
                $(
                    let (name, value) = ($name, self.$field.get());
                    let help = concat!($($help),+).trim();
                    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
                )+
                text
            }
        }
    };
}

counters! {
    /// Requests that were passed to the engine.
    requests: "gatescope_tap_requests_total",
    /// Requests that the engine could not be reached for.
    unreachable: "gatescope_tap_unreachable_total",
    /// Answers that did not come to their end: the engine or the client broke off.
    broken: "gatescope_tap_broken_answers_total",
    /// Answers without routing.
    without_routing: "gatescope_tap_answers_without_routing_total",
    /// Answers with a content encoding, which are not looked into.
    encoded: "gatescope_tap_encoded_answers_total",
    /// Answers not told: longer than an answer may be, or no room among the copies.
    too_large: "gatescope_tap_dropped_too_large_total",
    /// Answers not told: the queue was full.
    queue_full: "gatescope_tap_dropped_queue_full_total",
    /// Recorded responses not told: the collector stayed away.
    undelivered: "gatescope_tap_dropped_undelivered_total",
    /// Recorded responses that the collector refused.
    refused: "gatescope_tap_refused_responses_total",
    /// Recorded responses that the collector has made durable.
    delivered: "gatescope_tap_delivered_responses_total",
    /// Attempts to deliver that failed and were repeated.
    retries: "gatescope_tap_delivery_retries_total",
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
