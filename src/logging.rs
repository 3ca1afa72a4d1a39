//! Logs, on stderr.

use std::io::IsTerminal;

use opentelemetry_sdk::trace::SdkTracer;
use tracing::Level;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// The variable that says what is logged, as `info` or `gatescope_collector=debug`.
pub(crate) const VARIABLE: &str = "GATESCOPE_LOG";
/// The variable that says how: `text` or `json`, an object a line.
pub(crate) const FORMAT: &str = "GATESCOPE_LOG_FORMAT";

/// Starts logging as `GATESCOPE_LOG` says, else what is at least as grave as `level` of our own. Spans go to the tracer too.
pub(crate) fn start(level: Level, tracer: Option<SdkTracer>) {
    let filter = match std::env::var(VARIABLE) {
        Ok(told) => EnvFilter::new(told),
        // Libraries tell more than anyone wants to know.
        Err(_) => EnvFilter::new(format!("warn,gatescope={level}")),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = if std::env::var(FORMAT).is_ok_and(|format| format == "json") {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.with_ansi(std::io::stderr().is_terminal()).boxed()
    };
    let traces = tracer.map(|tracer| tracing_opentelemetry::layer().with_tracer(tracer));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(traces).init();
}
