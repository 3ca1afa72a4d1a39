//! Everything that an agent and its exporter count, by name: what `/metrics` and Python's `stats()` show.

use super::AgentMetrics;
use crate::Metrics;

/// One number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// Its name, without prefix and suffix.
    pub name: &'static str,
    /// One sentence on what it counts.
    pub help: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// The number.
    pub value: u64,
}

pub(super) fn figures(agent: &AgentMetrics, export: &Metrics) -> impl Iterator<Item = Figure> + use<> {
    let counters = [
        ("steps", "Engine steps captured.", agent.steps),
        ("captured_positions", "Rows captured.", agent.positions),
        ("captured_bytes", "Bytes of rows captured.", agent.bytes),
        ("dropped_positions", "Rows dropped.", agent.dropped_positions + export.dropped_positions),
        (
            "unreported_positions",
            "Dropped rows that no gap record tells.",
            agent.unreported_positions + export.unreported_positions,
        ),
        ("dropped_events", "Events dropped.", agent.dropped_events + export.dropped_events),
        ("refused_calls", "Calls with arguments that cannot be.", agent.refused_calls),
        ("refused_events", "Events that the collector refused for good.", export.refused_events),
        ("gap_records", "Gap records made.", export.gap_records),
        ("sent_messages", "Messages sent, each once.", export.sent_messages),
        ("sent_bytes", "Bytes of messages sent, each once.", export.sent_bytes),
        ("resent_messages", "Messages sent again.", export.resent_messages),
        ("acked_messages", "Messages that the collector has made durable.", export.acked_messages),
        ("acked_events", "Events that the collector has made durable.", export.acked_events),
        ("connects", "Streams opened.", export.connects),
    ];
    let gauges = [
        ("ring_bytes", "Bytes of steps that wait for the agent's thread.", agent.ring_bytes),
        ("ring_capacity_bytes", "Room for them.", agent.ring_capacity),
        ("parked_bytes", "Bytes that wait for a start.", agent.parked_bytes),
        ("requests", "Requests known.", agent.requests),
        ("spool_bytes", "Bytes in the spool.", agent.spool_bytes),
        ("spool_events", "Events spooled by this process and not handed over.", agent.spool_events),
        ("queue_bytes", "Bytes of events that wait to be sent.", export.queue_bytes),
        ("in_flight_bytes", "Bytes of messages that are not acknowledged.", export.in_flight_bytes),
        ("connected", "Whether the collector answers.", u64::from(export.connected)),
    ];
    let figure = |is_counter| move |(name, help, value)| Figure { name, help, is_counter, value };
    counters.into_iter().map(figure(true)).chain(gauges.into_iter().map(figure(false)))
}
