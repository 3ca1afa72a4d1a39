//! What a query may use.

use std::{num::NonZeroUsize, process::ExitCode};

use anyhow::Context;
use gatescope_query::Options;

/// Limits of a query.
#[derive(Debug, clap::Args)]
pub(crate) struct Engine {
    /// Memory for sorts, joins and aggregates, in MiB; what is above goes to temporary files
    #[arg(long, value_name = "MIB", env = "GATESCOPE_MEMORY", hide_env_values = true, default_value = "1024")]
    memory: NonZeroUsize,
    /// Threads [default: all cores]
    #[arg(long, value_name = "N", env = "GATESCOPE_THREADS", hide_env_values = true)]
    threads: Option<NonZeroUsize>,
}

impl Engine {
    /// Runs a piece of work on threads of its own.
    pub(crate) fn run(&self, work: impl AsyncFnOnce(Options) -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        let mut options = Options { memory_bytes: self.memory.get().saturating_mul(1 << 20), ..Options::default() };
        if let Some(threads) = self.threads {
            options.threads = threads.get();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads).enable_all().build();
        runtime.context("starting threads")?.block_on(work(options))
    }
}
