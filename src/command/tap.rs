//! `gatescope tap`: a proxy before an engine that tells a collector what answers say about routing.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::Context;
use gatescope_tap::{Options, Role, Tap};
use hyper::Uri;
use tokio::sync::watch;

use super::role::RoleName;
use crate::shutdown::Signals;

/// Stand before an engine and tell a collector what its answers say about routing
///
/// A reverse proxy for engines that nothing can be installed into. Every byte passes unchanged, streams as they come. Answers that have
/// routing (vLLM's and prime-rl's choices[].routed_experts, SGLang's meta_info, in whole answers and in events) are copied while
/// they pass and posted to the collector as recorded responses. That never holds up what passes: where the collector stays away
/// or there is no room for a copy, the answer is not told, and counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope tap --role prefill --upstream http://127.0.0.1:8100 --listen 127.0.0.1:8200
  gatescope tap --role decode --upstream http://10.0.0.7:8000 --collector http://10.0.0.1:7878 --instance d3

Exit codes: 0 stopped and all delivered, 1 stopped with something left, 2 wrong usage or a fatal error.")]
pub(crate) struct Arguments {
    /// What the engine is for
    #[arg(long, value_enum)]
    role: RoleName,
    /// The engine
    #[arg(long, value_name = "URL")]
    upstream: Uri,
    /// Where clients connect
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8200")]
    listen: SocketAddr,
    /// The server (`gatescope serve`) that is told
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7878")]
    collector: Uri,
    /// Token that the collector asks for
    #[arg(long, value_name = "TOKEN", env = "GATESCOPE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Name of the engine [default: of a prefill its engine id, else the upstream's HOST:PORT]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Label of the deployment [default: default]
    #[arg(long, value_name = "NAME", env = "GATESCOPE_RUN", hide_env_values = true)]
    run: Option<String>,
    /// Where /metrics is [default: nowhere]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// Most memory for copies, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    copies: u32,
    /// Most answers that wait for delivery
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    queue: u32,
    /// How long an answer is tried to be delivered, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    deliver_within: u64,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let options = options(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting threads")?;
    runtime.block_on(async {
        let mut signals = Signals::install().context("cannot watch for signals")?;
        let upstream = options.upstream.clone();
        let tap = Tap::start(options).await?;
        tracing::info!(listen = %tap.address()?, metrics = ?tap.metrics_address(), %upstream, "tapping");
        let metrics = tap.metrics();
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(tap.serve(stopped));
        signals.next().await;
        stop.send_replace(true);
        let all = tokio::select! {
            all = serving => all.context("the tap has ended by itself")?,
            // The second signal ends it at once.
            () = signals.next() => false,
        };
        let (delivered, undelivered) = (metrics.delivered.get(), metrics.undelivered.get());
        tracing::info!(delivered, undelivered, all, "stopped");
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(1) })
    })
}

fn options(arguments: Arguments) -> Options {
    let role = Role::from(arguments.role);
    // A prefill's answer names its engine, and decodes name it by that.
    let named = (role != Role::Prefill).then(|| arguments.upstream.authority().map(ToString::to_string)).flatten();
    Options {
        listen: arguments.listen,
        token: arguments.token,
        instance: arguments.instance.or(named),
        run: arguments.run,
        metrics: arguments.metrics,
        copies_bytes: (arguments.copies as usize).saturating_mul(1 << 20),
        queue: arguments.queue as usize,
        deliver_within: Duration::from_secs(arguments.deliver_within),
        ..Options::new(role, arguments.upstream, arguments.collector)
    }
}
