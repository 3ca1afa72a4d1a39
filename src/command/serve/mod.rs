//! `gatescope serve`: the collector and its servers in one process.

mod configuration;
mod http;
mod live;
mod page;
mod servers;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use gatescope_collector::{live::Collector, metrics::Metrics};
use tracing::Level;

pub(crate) use self::configuration::Arguments;
use self::{configuration::Configuration, servers::Servers};
use crate::{logging, settings::Settings, shutdown, telemetry::Telemetry};

/// How long the end may take: joining and committing what was acknowledged, then the servers.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// Of each thread: walking a deep statement takes some. What is not used is not taken.
const STACK: usize = 16 << 20;
/// So many steps of queries are made before it is looked whether time is up, or anybody has sent or taken something back. A step may
/// take a while.
const EVENTS: u32 = 3;

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    run_with(arguments, settings, Level::INFO, || ())
}

/// Runs the command, logging from this level on unless the environment says otherwise; calls `ready` when it takes what comes.
pub(crate) fn run_with(
    arguments: Arguments,
    settings: &Settings,
    level: Level,
    ready: impl FnOnce(),
) -> anyhow::Result<ExitCode> {
    let print = arguments.print_config;
    let configuration = Configuration::of(arguments, settings)?;
    if print {
        print!("{}", configuration.toml()?);
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(STACK)
        .event_interval(EVENTS)
        .enable_all()
        .build()
        .context("starting threads")?;
    let telemetry = {
        let _inside = runtime.enter();
        Telemetry::start(configuration.otlp.as_deref())?
    };
    logging::start(level, telemetry.tracer());
    let served = runtime.block_on(serve(&configuration, &telemetry, ready));
    runtime.shutdown_timeout(Duration::from_secs(1));
    telemetry.stop();
    served
}

async fn serve(configuration: &Configuration, telemetry: &Telemetry, ready: impl FnOnce()) -> anyhow::Result<ExitCode> {
    let mut signal = shutdown::Signals::install().context("cannot watch for signals")?;
    let listeners = servers::Listeners::bind(configuration).await?;
    let (data, options) = (configuration.data.clone(), configuration.collector());
    let metrics = Arc::new(Metrics::default());
    let starting = tokio::task::spawn_blocking(move || Collector::start(&data, options, metrics));
    let mut collector = starting.await.context("starting the collector")??;
    let servers = Servers::start(listeners, &collector, telemetry, configuration)?;
    let replayed = tokio::select! {
        replayed = collector.replayed() => replayed.map(|()| true),
        () = signal.next() => Ok(false),
    };
    let outcome = match replayed {
        Ok(true) => {
            tracing::info!(data = %configuration.data.display(), "ready");
            ready();
            signal.next().await;
            tracing::info!("stopping: joining and committing what was acknowledged");
            tokio::spawn(async move {
                signal.next().await;
                tracing::warn!("stopping at once; what is not committed is in the log");
                std::process::exit(1);
            });
            Ok(ExitCode::SUCCESS)
        }
        Ok(false) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    };
    servers.refuse();
    let stopped = collector.stop(STOP_WITHIN).await;
    servers.stop().await;
    match (outcome, stopped) {
        (Err(error), _) => Err(error.into()),
        (Ok(_), Err(error)) => Err(error.into()),
        (Ok(code), Ok(())) => Ok(code),
    }
}
