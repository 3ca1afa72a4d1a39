//! `gatescope simulate`: a simulated fleet that captures through the real agent.

mod report;

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, bail};
use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_simulation::{Delivery, Fault, Files, Fleet, Options, drive};

use super::import::model::ModelArguments;
use crate::{duration, settings::Settings, shutdown};

/// Simulate prefill and decode instances that send routing rows to a collector, through the real capture agent
///
/// A fleet serves made-up requests: prompts with shared prefixes in chunks, completions by blocks of 16 positions,
/// preemptions, aborts, several choices, two ids for one request. The same --seed gives the same requests and rows, not the
/// same timing. --truth says what must come out; --faults puts in what goes wrong with real engines.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope simulate --requests 1000
  gatescope simulate --prefill 2 --decode 4 --rate 200000 --duration 5m --shape 58x8 --experts 256
  gatescope simulate --requests 1000 --faults all --fault-rate 0.05 --faults-log faults.jsonl

Whether the collector has every row where it belongs:
  gatescope simulate --requests 1000 --seed 7 --truth truth.jsonl
  gatescope import truth.jsonl --run truth --data DIR
  gatescope check --data DIR --run default --against truth

Ctrl-C ends it: open requests are answered and what was sent is acknowledged first. Exit codes: 0 everything was
acknowledged, 1 something was dropped, refused or not acknowledged, 2 wrong usage or a fatal error.")]
pub(crate) struct Arguments {
    /// Where the collector takes Arrow Flight [default: grpc://127.0.0.1:7879]
    #[arg(long, value_name = "URL", env = "GATESCOPE_COLLECTOR", hide_env_values = true)]
    collector: Option<String>,
    /// Bearer token, where the collector wants one
    #[arg(long, value_name = "TOKEN", env = "GATESCOPE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Run of the requests: a label of the deployment or experiment [default: default]
    #[arg(long, value_name = "NAME", env = "GATESCOPE_RUN", hide_env_values = true)]
    run: Option<String>,
    /// Prefill instances [default: 1, or 0 where only --colocated is given]
    #[arg(long, value_name = "N")]
    prefill: Option<u32>,
    /// Decode instances [default: as --prefill]
    #[arg(long, value_name = "N")]
    decode: Option<u32>,
    /// Instances that do both
    #[arg(long, value_name = "N", default_value_t = 0)]
    colocated: u32,
    #[command(flatten)]
    model: ModelArguments,
    /// What the instances call their model
    #[arg(long, value_name = "NAME", default_value = "simulated")]
    model_name: String,
    /// Positions a second over all instances; 0 for as fast as the collector takes them
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u64,
    /// Requests in all [default: no end]
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// No request begins after this time [default: no end]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    duration: Option<Duration>,
    /// Everything that chance decides follows from it [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Requests open at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    concurrency: u32,
    /// Tokens of a typical prompt, beside a shared prefix: half are longer
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt_tokens: u32,
    /// Tokens of a typical completion: half are longer
    #[arg(long, value_name = "N", default_value_t = 128)]
    completion_tokens: u32,
    /// Update the weights after so many requests, which empties prefix caches; 0 for never
    #[arg(long, value_name = "N", default_value_t = 0)]
    update_every: u64,
    /// Write the rows as they should be, as recorded responses of a colocated engine
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
    /// Write what the instances answered, as recorded responses
    #[arg(long, value_name = "FILE", conflicts_with = "faults")]
    record: Option<PathBuf>,
    /// Faults to put in, by name, or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    faults: Vec<String>,
    /// Share of the requests that get a fault
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, requires = "faults")]
    fault_rate: f64,
    /// Write the faults that were put in and the checks that must find them, as JSON Lines
    #[arg(long, value_name = "FILE", requires = "faults")]
    faults_log: Option<PathBuf>,
    /// Longest wait for acknowledgements at the end
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    drain: Duration,
    /// Print what each agent counted, too
    #[arg(long)]
    metrics: bool,
    /// No progress bar
    #[arg(long, short)]
    quiet: bool,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = report::Format::Text)]
    format: report::Format,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let options = options(&arguments, settings)?;
    let delivery = Delivery {
        collector: arguments.collector.clone().unwrap_or_else(|| "grpc://127.0.0.1:7879".to_owned()),
        token: arguments.token.clone(),
        rate: arguments.rate,
        duration: arguments.duration,
        drain: arguments.drain,
    };
    let mut truth = arguments.truth.as_deref().map(create).transpose()?;
    let mut record = arguments.record.as_deref().map(create).transpose()?;
    let mut faults = arguments.faults_log.as_deref().map(create).transpose()?;
    let mut files = Files {
        truth: truth.as_mut().map(|file| file as &mut dyn Write),
        record: record.as_mut().map(|file| file as &mut dyn Write),
        faults: faults.as_mut().map(|file| file as &mut dyn Write),
    };
    let seed = options.seed;
    let mut fleet = Fleet::new(options)?;
    let interrupted = shutdown::on_signal()?;
    let mut console = report::Console::new(arguments.requests, arguments.quiet);
    let summary = drive(&mut fleet, &delivery, &mut files, &interrupted, &mut |progress| console.progressed(progress))?;
    console.finish();
    report::print(&summary, seed, arguments.format, arguments.metrics)?;
    Ok(if summary.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::with_capacity(1 << 20, file))
}

fn options(arguments: &Arguments, settings: &Settings) -> anyhow::Result<Options> {
    let pairs = u32::from(arguments.colocated == 0 || arguments.decode.is_some());
    let prefill = arguments.prefill.unwrap_or(pairs);
    let mut options = Options {
        seed: arguments.seed.unwrap_or_else(rand::random),
        run: arguments.run.as_deref().or(settings.run.as_deref()).unwrap_or("default").into(),
        model: arguments.model_name.as_str().into(),
        prefill,
        decode: arguments.decode.unwrap_or(prefill),
        colocated: arguments.colocated,
        requests: arguments.requests,
        concurrency: arguments.concurrency,
        prompt_tokens: arguments.prompt_tokens,
        completion_tokens: arguments.completion_tokens,
        update_every: arguments.update_every,
        fault_rate: arguments.fault_rate,
        ..Options::new(model(&arguments.model, settings)?)
    };
    options.faults = match &*arguments.faults {
        [all] if all == "all" => options.possible_faults(),
        names => names.iter().map(|name| name.parse()).collect::<Result<Vec<Fault>, _>>()?,
    };
    Ok(options)
}

/// The model as it was described, else one of 48 layers with 8 of 128 experts.
fn model(arguments: &ModelArguments, settings: &Settings) -> anyhow::Result<ModelShape> {
    match arguments.describe(settings)? {
        (_, Some(model)) => Ok(model),
        (Some(_), None) => bail!("--shape: expected --experts beside it"),
        (None, None) => Ok(ModelShape::new(RowShape::new(48, 8)?, 128, LayerSet::all(48))?),
    }
}
