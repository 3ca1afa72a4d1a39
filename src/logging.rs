//! Logs, on stderr.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The variable that says what is logged, as `info` or `gatescope_collector=debug`.
pub(crate) const VARIABLE: &str = "GATESCOPE_LOG";

/// Starts logging as `GATESCOPE_LOG` says; warnings and errors unless told otherwise.
pub(crate) fn start() {
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::Level::WARN.into())
        .with_env_var(VARIABLE)
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
