//! What the collector counts, through OpenTelemetry: whoever runs it decides where the numbers go.

mod agents;
mod load;
mod names;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gatescope_routing::{
    Check,
    join::{Joined, Status},
    span::RequestKey,
};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, Meter},
};

use self::{
    agents::LastSeen,
    load::{Figure, LoadWindow},
    names::Names,
};
use crate::tables::{ClosedRequest, SourceLoad};

/// Values that the labels `run`, `model` and `instance` may have each, beside `other`.
const MOST_NAMES: usize = 64;

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
    missing_positions: Counter<u64>,
    lost_positions: Counter<u64>,
    join_lag: Histogram<f64>,
    runs: Names,
    models: Names,
    instances: Names,
    agents: Arc<LastSeen>,
    load: Arc<LoadWindow>,
}

/// Bounds of times between 0.5 ms and a minute.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

impl Metrics {
    /// Instruments of this meter.
    pub fn new(meter: &Meter) -> Self {
        let (agents, load) = (Arc::default(), Arc::default());
        observe_agents(meter, &agents);
        observe_load(meter, &load);
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
            missing_positions: counter("gatescope_missing_positions", "Expected positions without a row"),
            lost_positions: counter("gatescope_capture_lost_positions", "Positions that agents captured and dropped"),
            join_lag: seconds(
                "gatescope_join_lag",
                "Time from the arrival of a request's last rows until it was in the tables",
            ),
            runs: Names::new(MOST_NAMES),
            models: Names::new(MOST_NAMES),
            instances: Names::new(MOST_NAMES),
            agents,
            load,
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

    pub(crate) fn closed(&self, key: &RequestKey, model: Option<&Arc<str>>, joined: &Joined) {
        let status = match joined.status {
            Status::Whole => "whole",
            Status::Incomplete => "incomplete",
            Status::Conflict => "conflict",
        };
        let model = model.cloned().unwrap_or_else(|| "".into());
        let of = [
            KeyValue::new("run", self.runs.label(&key.run)),
            KeyValue::new("model", self.models.label(&model)),
            KeyValue::new("status", status),
        ];
        let [run, model, _] = &of;
        self.requests.add(1, &of);
        let of = &of[..2];
        self.positions.add(joined.rows().into(), of);
        self.overlap_positions.add(joined.overlap_rows.into(), of);
        self.mismatched_positions.add(joined.mismatched_rows.into(), of);
        self.missing_positions.add(joined.gaps.iter().map(|gap| u64::from(gap.end - gap.start)).sum(), of);
        for finding in &joined.findings {
            // Where two sides differ, the one whose row was not accepted is named.
            let side = finding.b.as_ref().or(finding.a.as_ref());
            let (role, instance) = match side {
                Some(side) => (side.role.name(), self.instances.label(&side.instance)),
                None => ("", "".into()),
            };
            let of = [
                run.clone(),
                model.clone(),
                KeyValue::new("role", role),
                KeyValue::new("instance", instance),
                KeyValue::new("check", finding.check.code()),
                KeyValue::new("severity", finding.severity.name()),
            ];
            self.findings.add(1, &of);
            if finding.check == Check::CaptureLost {
                self.lost_positions.add(finding.positions.into(), &of[..4]);
            }
        }
    }

    /// An instance said how many experts its model has.
    pub(crate) fn model(&self, seen: &gatescope_wire::ModelSeen) {
        self.load.experts(&seen.run, &seen.instance, seen.shape.num_experts());
    }

    /// An agent's message was taken.
    pub(crate) fn heard(&self, agent: &Arc<str>, at: i64) {
        self.agents.saw(agent, at);
    }

    /// What a commit has stored.
    pub(crate) fn stored(&self, requests: &[Arc<ClosedRequest>], load: Vec<SourceLoad>) {
        let now = chrono::Utc::now().timestamp_micros();
        for request in requests {
            let Some(last) = request.arrivals.iter().map(|arrival| arrival.at).max() else { continue };
            let run = [KeyValue::new("run", self.runs.label(&request.key.run))];
            self.join_lag.record((now - last).max(0) as f64 / 1e6, &run);
        }
        self.load.add(load, Instant::now());
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

fn observe_agents(meter: &Meter, agents: &Arc<LastSeen>) {
    let agents = Arc::clone(agents);
    meter
        .f64_observable_gauge("gatescope_agent_last_seen_timestamp")
        .with_unit("s")
        .with_description("When the last message of an agent was taken, in seconds since 1970; for an hour after it")
        .with_callback(move |observer| {
            for (agent, at) in agents.all(chrono::Utc::now().timestamp_micros()) {
                observer.observe(at as f64 / 1e6, &[KeyValue::new("agent", agent)]);
            }
        })
        .build();
}

/// Name, unit, description and value of a gauge of each layer.
type LayerGauge = (&'static str, &'static str, &'static str, fn(&Figure) -> f64);

fn observe_load(meter: &Meter, load: &Arc<LoadWindow>) {
    let gauges: [LayerGauge; 4] = [
        (
            "gatescope_layer_imbalance",
            "1",
            "Tokens of a layer's busiest expert over the mean of its experts, of the last 5 minutes",
            |figure| figure.load.max_over_mean,
        ),
        (
            "gatescope_layer_entropy",
            "1",
            "Entropy of a layer's load over that of an even load, of the last 5 minutes",
            |figure| figure.load.normalized_entropy,
        ),
        (
            "gatescope_layer_dead_experts",
            "{expert}",
            "Experts of a layer without a token in the last 5 minutes",
            |figure| figure.load.dead as f64,
        ),
        (
            "gatescope_layer_top_expert_share",
            "1",
            "Share of a layer's tokens that its busiest expert got, of the last 5 minutes",
            |figure| figure.load.top_share,
        ),
    ];
    for (name, unit, about, value) in gauges {
        let load = Arc::clone(load);
        let gauge = meter.f64_observable_gauge(name).with_unit(unit).with_description(about);
        gauge
            .with_callback(move |observer| {
                for figure in load.figures(Instant::now()) {
                    observer.observe(value(&figure), &labels(&figure));
                }
            })
            .build();
    }
}

fn labels(figure: &Figure) -> [KeyValue; 5] {
    let source = &figure.source;
    [
        KeyValue::new("run", Arc::clone(&source.run)),
        KeyValue::new("model", Arc::clone(&source.model)),
        KeyValue::new("role", source.role.name()),
        KeyValue::new("instance", Arc::clone(&source.instance)),
        KeyValue::new("layer", figure.layer as i64),
    ]
}
