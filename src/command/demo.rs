//! `gatescope demo`: a collector and a simulated fleet in front of it, in one process.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_simulation::{Delivery, Fault, Files, Fleet, Options, drive};
use tempfile::TempDir;
use tracing::Level;

use super::serve;
use crate::{duration, settings::Settings};

/// Requests until nearly all are about one topic, whose experts are hot then.
const SURGE: u64 = 900;

/// Look around: a collector with a simulated fleet in front of it, faults and a hot expert included
///
/// Two prefill and two decode instances send rows through the real capture agent. One topic takes over, so that its experts get
/// hot; the decode instance d1 sends rows that are wrong. Nothing is needed and nothing stays: without --data the folder is removed
/// at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope demo
  gatescope demo --http 127.0.0.1:0 --flight 127.0.0.1:0 --postgres 127.0.0.1:0 --rate 20000 --data demo-data")]
pub(crate) struct Arguments {
    /// Folder for the tables, kept at the end [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where the page and HTTP listen; port 0 takes any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7878")]
    http: SocketAddr,
    /// Where Arrow Flight listens; port 0 takes any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7879")]
    flight: SocketAddr,
    /// Where Postgres clients connect; port 0 takes any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7880")]
    postgres: SocketAddr,
    /// Positions a second
    #[arg(long, value_name = "N", default_value_t = 3000)]
    rate: u64,
    /// Traffic ends after this time, so that a forgotten demo does not fill the disk; the page stays
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1h")]
    duration: Duration,
}

/// `serve`'s own flags, to be told as on a command line.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Serve {
    #[command(flatten)]
    arguments: serve::Arguments,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let temporary = || tempfile::Builder::new().prefix("gatescope-demo-").tempdir().context("a temporary folder");
    let temporary = arguments.data.is_none().then(temporary).transpose()?;
    let data = arguments.data.as_deref().or_else(|| temporary.as_ref().map(TempDir::path)).context("--data")?;
    let (http, flight, postgres) = (free(arguments.http)?, free(arguments.flight)?, free(arguments.postgres)?);
    let flags = [
        ("--data", data.display().to_string()),
        ("--http", http.to_string()),
        ("--flight", flight.to_string()),
        ("--postgres", postgres.to_string()),
        ("--commit-interval", "2s".to_owned()),
        ("--join-timeout", "1m".to_owned()),
    ];
    let told = flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()]);
    let serving = Serve::try_parse_from(told)?.arguments;

    let stop = AtomicBool::new(false);
    let mut fleet = Fleet::new(options()?)?;
    let delivery = Delivery {
        collector: format!("grpc://{flight}"),
        token: None,
        rate: arguments.rate,
        duration: Some(arguments.duration),
        drain: Duration::from_secs(2),
    };
    let (ready, begin) = mpsc::channel();
    let (fleet, delivery, stop) = (&mut fleet, &delivery, &stop);
    thread::scope(|scope| {
        scope.spawn(move || {
            // Nothing comes where the collector did not get ready.
            if begin.recv().is_err() {
                return;
            }
            eprint!("{}", greeting([http, flight, postgres], data, arguments));
            if let Err(error) = drive(fleet, delivery, &mut Files::default(), stop, &mut |_| ()) {
                tracing::error!("the simulated fleet has ended: {error}");
            }
        });
        let served = serve::run_with(serving, settings, Level::WARN, move || {
            // The fleet waits for this.
            let _ = ready.send(());
        });
        stop.store(true, Ordering::Relaxed);
        served
    })
}

/// A 2P2D fleet of a 24 x 8 of 128 model, d1 faulty.
fn options() -> anyhow::Result<Options> {
    let shape = ModelShape::new(RowShape::new(24, 8)?, 128, LayerSet::all(24))?;
    Ok(Options {
        seed: 7,
        model: "simulated-24x8".into(),
        prefill: 2,
        decode: 2,
        concurrency: 24,
        prompt_tokens: 160,
        completion_tokens: 48,
        faults: vec![Fault::Shifted, Fault::Overlap, Fault::DuplicateExpert],
        fault_rate: 0.08,
        faulty_decode: Some(1),
        surge: Some(SURGE),
        ..Options::new(shape)
    })
}

/// The address, with a port that is free now where any would do. One that is taken is refused before the fleet starts: another
/// collector may answer there, and would be sent simulated rows.
fn free(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let bound = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    Ok(bound.local_addr()?)
}

fn greeting([http, flight, postgres]: [SocketAddr; 3], data: &Path, arguments: &Arguments) -> String {
    let kept = if arguments.data.is_some() { "" } else { ", removed at the end" };
    format!(
        "Gatescope demo: two prefill and two decode instances, {rate} positions a second.
  page     http://{http}/
  metrics  http://{http}/metrics
  Flight   grpc://{flight}
  psql     psql -h {postgres_host} -p {postgres_port} gatescope
  tables   {data}{kept}

Five things to try:
  1. Open the page. One topic takes over in the next minutes: watch its experts get hot.
  2. Under \"Needs you\", follow a finding of decode instance d1 to a request, and look at both sides' rows.
  3. gatescope sql --at http://{http} \"SELECT status, count(*) FROM requests GROUP BY status\"
  4. curl -s http://{http}/metrics | grep gatescope_
  5. python -c \"import polars; print(polars.scan_delta('{data}/requests').collect())\"
Ctrl-C ends it.
",
        postgres_host = postgres.ip(),
        postgres_port = postgres.port(),
        rate = arguments.rate,
        data = data.display(),
    )
}
