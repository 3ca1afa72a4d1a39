//! What the servers of queries count, through OpenTelemetry.

use std::time::Duration;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter, UpDownCounter},
};

use crate::error::QueryError;

/// Bounds of times between a millisecond and the longest that a query may usually take.
const SECONDS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// Which server was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Flight,
    Postgres,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Flight => "flight",
            Self::Postgres => "postgres",
        }
    }
}

/// How a query ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    /// All rows were read.
    Answered,
    /// The client went away or took it back.
    Cancelled,
    /// The query was wrong, or asked for what it may not have.
    Refused,
    /// It took too long.
    TooSlow,
    /// It needed too much memory.
    Memory,
    /// Anything else.
    Failed,
}

impl Outcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::TooSlow => "too_slow",
            Self::Memory => "memory",
            Self::Failed => "failed",
        }
    }

    /// Of a query with this error.
    pub(crate) fn of(error: &QueryError) -> Self {
        match error {
            QueryError::TooSlow(_) => Self::TooSlow,
            QueryError::Memory(_) => Self::Memory,
            QueryError::Query(_)
            | QueryError::ReadOnly(_)
            | QueryError::TooManyRows(_)
            | QueryError::Unwritable { .. }
            | QueryError::Busy { .. } => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl From<u8> for Outcome {
    fn from(number: u8) -> Self {
        let all = [Self::Answered, Self::Cancelled, Self::Refused, Self::TooSlow, Self::Memory, Self::Failed];
        all.into_iter().find(|outcome| *outcome as u8 == number).unwrap_or(Self::Failed)
    }
}

/// The instruments.
#[derive(Debug)]
pub(crate) struct QueryMetrics {
    queries: Counter<u64>,
    seconds: Histogram<f64>,
    connections: UpDownCounter<i64>,
    refused: Counter<u64>,
}

impl QueryMetrics {
    fn new(meter: &Meter) -> Self {
        Self {
            queries: meter
                .u64_counter("gatescope_queries")
                .with_description("Queries that ended, by protocol and outcome")
                .build(),
            seconds: meter
                .f64_histogram("gatescope_query_latency")
                .with_unit("s")
                .with_description("Time of a query from its arrival until its answer was read, by protocol")
                .with_boundaries(SECONDS.to_vec())
                .build(),
            connections: meter
                .i64_up_down_counter("gatescope_postgres_connections")
                .with_description("Connections to the Postgres port that are open")
                .build(),
            refused: meter
                .u64_counter("gatescope_postgres_refused_connections")
                .with_description("Connections to the Postgres port above its limit")
                .build(),
        }
    }

    pub(crate) fn ended(&self, protocol: Protocol, outcome: Outcome, took: Duration) {
        let protocol = KeyValue::new("protocol", protocol.name());
        self.queries.add(1, &[protocol.clone(), KeyValue::new("outcome", outcome.name())]);
        self.seconds.record(took.as_secs_f64(), &[protocol]);
    }

    pub(crate) fn connected(&self, change: i64) {
        self.connections.add(change, &[]);
    }

    pub(crate) fn connection_refused(&self) {
        self.refused.add(1, &[]);
    }
}

impl Default for QueryMetrics {
    fn default() -> Self {
        Self::new(&opentelemetry::global::meter("gatescope"))
    }
}
