//! What the collector counts, through OpenTelemetry: whoever runs it decides where the numbers go.

use std::time::Duration;

use gatescope_routing::join::{Joined, Status};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter},
};

/// The instruments of a collector.
#[derive(Debug)]
pub struct Metrics {
    received_messages: Counter<u64>,
    received_bytes: Counter<u64>,
    received_events: Counter<u64>,
    refused: Counter<u64>,
    duplicates: Counter<u64>,
    ack_seconds: Histogram<f64>,
    joined_records: Counter<u64>,
    late_parts: Counter<u64>,
    open_requests: Gauge<u64>,
    open_bytes: Gauge<u64>,
    parked_bytes: Counter<u64>,
    lost_parked: Counter<u64>,
    requests: Counter<u64>,
    positions: Counter<u64>,
    overlap_positions: Counter<u64>,
    mismatched_positions: Counter<u64>,
    findings: Counter<u64>,
    duplicate_requests: Counter<u64>,
    commits: Counter<u64>,
    committed_requests: Counter<u64>,
    commit_seconds: Histogram<f64>,
    commit_failures: Counter<u64>,
    merged_files: Counter<u64>,
    maintenance_failures: Counter<u64>,
    log_bytes: Gauge<u64>,
    log_deleted_bytes: Counter<u64>,
    streams: opentelemetry::metrics::UpDownCounter<i64>,
}

/// Bounds of times between 0.5 ms and a minute.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

impl Metrics {
    /// Instruments of this meter.
    pub fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, about: &'static str| meter.u64_counter(name).with_description(about).build();
        let bytes = |name: &'static str, about: &'static str| {
            meter.u64_counter(name).with_unit("By").with_description(about).build()
        };
        let gauge = |name: &'static str, about: &'static str| meter.u64_gauge(name).with_description(about).build();
        let seconds = |name: &'static str, about: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(about);
            histogram.with_boundaries(SECONDS.to_vec()).build()
        };
        Self {
            received_messages: counter("gatescope_received_messages", "Messages and posted bodies that came, by kind"),
            received_bytes: bytes("gatescope_received", "Bytes of messages and posted bodies that came, by kind"),
            received_events: counter(
                "gatescope_received_events",
                "Events and recorded answers that were taken, by kind",
            ),
            refused: counter("gatescope_refused", "Messages, events and lines that were refused, by reason"),
            duplicates: counter("gatescope_duplicate_messages", "Messages that had been taken before"),
            ack_seconds: seconds("gatescope_ack_latency", "Time from a message's arrival until it was durable"),
            joined_records: counter("gatescope_joined_records", "Records of the log that were joined"),
            late_parts: counter("gatescope_late_parts", "Parts that came for a request after it was closed"),
            open_requests: gauge("gatescope_open_requests", "Requests (with their choices) that are not closed yet"),
            open_bytes: meter
                .u64_gauge("gatescope_open_rows")
                .with_unit("By")
                .with_description("Bytes of rows of open requests in memory")
                .build(),
            parked_bytes: bytes("gatescope_parked", "Bytes of open requests put on disk for want of memory"),
            lost_parked: counter("gatescope_parked_unreadable", "Open requests that could not be read back from disk"),
            requests: counter("gatescope_requests", "Closed requests, by status"),
            positions: counter("gatescope_positions", "Positions of closed requests that have a row"),
            overlap_positions: counter("gatescope_overlap_positions", "Positions that more than one source captured"),
            mismatched_positions: counter(
                "gatescope_mismatched_positions",
                "Overlap positions in which sources differ",
            ),
            findings: counter("gatescope_row_mismatches", "Findings in closed requests, by check and severity"),
            duplicate_requests: counter("gatescope_duplicate_requests", "Closed requests that were stored before"),
            commits: counter("gatescope_commits", "Commits to the tables"),
            committed_requests: counter("gatescope_committed_requests", "Requests in commits"),
            commit_seconds: seconds("gatescope_commit_latency", "Time that a commit took, retries included"),
            commit_failures: counter("gatescope_commit_failures", "Commits that failed and were tried again"),
            merged_files: counter("gatescope_merged_files", "Small files that were merged into larger ones"),
            maintenance_failures: counter("gatescope_maintenance_failures", "Merges and clearings that failed"),
            log_bytes: meter
                .u64_gauge("gatescope_log_size")
                .with_unit("By")
                .with_description("Bytes of the write-ahead log")
                .build(),
            log_deleted_bytes: bytes("gatescope_log_deleted", "Bytes of log files deleted after commits"),
            streams: meter
                .i64_up_down_counter("gatescope_agent_streams")
                .with_description("Streams of agents that are open")
                .build(),
        }
    }

    pub(crate) fn received(&self, kind: &'static str, bytes: usize, events: usize) {
        let kind = [KeyValue::new("kind", kind)];
        self.received_messages.add(1, &kind);
        self.received_bytes.add(bytes as u64, &kind);
        self.received_events.add(events as u64, &kind);
    }

    pub(crate) fn refused(&self, reason: &'static str, count: usize) {
        if count > 0 {
            self.refused.add(count as u64, &[KeyValue::new("reason", reason)]);
        }
    }

    pub(crate) fn duplicate_message(&self) {
        self.duplicates.add(1, &[]);
    }

    pub(crate) fn acknowledged(&self, after: Duration) {
        self.ack_seconds.record(after.as_secs_f64(), &[]);
    }

    pub(crate) fn stream(&self, change: i64) {
        self.streams.add(change, &[]);
    }

    pub(crate) fn joined(&self, records: u64) {
        self.joined_records.add(records, &[]);
    }

    pub(crate) fn late(&self, parts: u64) {
        self.late_parts.add(parts, &[]);
    }

    pub(crate) fn open(&self, requests: u64, bytes: u64) {
        self.open_requests.record(requests, &[]);
        self.open_bytes.record(bytes, &[]);
    }

    pub(crate) fn parked(&self, bytes: u64) {
        self.parked_bytes.add(bytes, &[]);
    }

    pub(crate) fn lost_parked(&self) {
        self.lost_parked.add(1, &[]);
    }

    pub(crate) fn closed(&self, joined: &Joined) {
        let status = match joined.status {
            Status::Whole => "whole",
            Status::Incomplete => "incomplete",
            Status::Conflict => "conflict",
        };
        self.requests.add(1, &[KeyValue::new("status", status)]);
        self.positions.add(joined.rows().into(), &[]);
        self.overlap_positions.add(joined.overlap_rows.into(), &[]);
        self.mismatched_positions.add(joined.mismatched_rows.into(), &[]);
        for finding in &joined.findings {
            let check = KeyValue::new("check", finding.check.code());
            self.findings.add(1, &[check, KeyValue::new("severity", finding.severity.name())]);
        }
    }

    pub(crate) fn duplicate_requests(&self, requests: u64) {
        self.duplicate_requests.add(requests, &[]);
    }

    pub(crate) fn committed(&self, requests: u64, took: Duration) {
        self.commits.add(1, &[]);
        self.committed_requests.add(requests, &[]);
        self.commit_seconds.record(took.as_secs_f64(), &[]);
    }

    pub(crate) fn commit_failed(&self) {
        self.commit_failures.add(1, &[]);
    }

    pub(crate) fn merged(&self, files: u64) {
        self.merged_files.add(files, &[]);
    }

    pub(crate) fn maintenance_failed(&self) {
        self.maintenance_failures.add(1, &[]);
    }

    pub(crate) fn log_bytes(&self, bytes: u64) {
        self.log_bytes.record(bytes, &[]);
    }

    pub(crate) fn log_deleted(&self, bytes: u64) {
        self.log_deleted_bytes.add(bytes, &[]);
    }
}

impl Default for Metrics {
    /// Instruments of the process's meter.
    fn default() -> Self {
        Self::new(&opentelemetry::global::meter("gatescope"))
    }
}
