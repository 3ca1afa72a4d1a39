//! `gatescope import`: recorded engine responses into a data folder.

pub(crate) mod model;
mod progress;
mod report;

use std::{num::NonZeroUsize, path::PathBuf, process::ExitCode, sync::Arc};

use clap::ValueEnum;
use gatescope_collector::import::{ImportOptions, Input, Stop, import};
use gatescope_routing::join::Policy;

use super::DataFolder;
use crate::{settings::Settings, shutdown};

/// Import recorded engine responses (JSON Lines) into a data folder
///
/// Each line is one answer of an engine: {"role": "prefill", "instance": "p0", "request_id": "...", "response": {...}},
/// where "response" is the body that the engine's HTTP server answered, unchanged. Answers of one request are joined by
/// position into whole-request routing. Importing a file again stores nothing twice; answers that arrive in a later
/// import complete the requests stored before.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope import responses.jsonl
  zstd -dc responses.jsonl.zst | gatescope import - --data /srv/routing --run rl-17
  gatescope import prefill.jsonl decode.jsonl --model-config Qwen3-30B-A3B/config.json --format json

A line that cannot be used is reported as FILE:LINE on stderr and skipped; the exit code is then 1.")]
pub(crate) struct Arguments {
    /// Files of recorded responses; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    data: DataFolder,
    /// Run of the requests: a label of the deployment or experiment [default: default]
    #[arg(long, value_name = "NAME", env = "GATESCOPE_RUN", hide_env_values = true)]
    run: Option<String>,
    /// Whose row is accepted where prefill and decode both have one [default: prefill]
    #[arg(long, env = "GATESCOPE_POLICY", hide_env_values = true)]
    policy: Option<PolicyName>,
    #[command(flatten)]
    model: model::ModelArguments,
    /// Stop at the first line that cannot be used; what came before it is stored
    #[arg(long)]
    strict: bool,
    /// Longest line to read; longer ones are refused without being held in memory, one of this length takes up to three
    /// times as much [default: 134217728]
    #[arg(long, value_name = "BYTES", env = "GATESCOPE_MAX_LINE", hide_env_values = true)]
    max_line: Option<NonZeroUsize>,
    /// Unfinished requests to keep in memory, in bytes; what is above is read again when needed
    #[arg(long, value_name = "BYTES", hide = true, default_value_t = ImportOptions::HELD_BYTES)]
    held_bytes: usize,
    /// No progress bar and no summary for people
    #[arg(long, short)]
    quiet: bool,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = report::Format::Text)]
    format: report::Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Prefill's row where prefill has one, else decode's
    Prefill,
    /// The row of the instance whose KV the answer used: decode's from its first forward on
    Kv,
}

impl PolicyName {
    /// The flag's, else the file's, else the default.
    pub(crate) fn of(flag: Option<Self>, settings: &Settings) -> anyhow::Result<Self> {
        match (flag, settings.policy.as_deref()) {
            (Some(policy), _) => Ok(policy),
            (None, Some(name)) => Self::from_str(name, false)
                .map_err(|_| anyhow::anyhow!("gatescope.toml: policy {name:?}: expected prefill or kv")),
            (None, None) => Ok(Self::Prefill),
        }
    }
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Prefill => Self::Prefill,
            PolicyName::Kv => Self::Kv,
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let options = options(&arguments, settings)?;
    let inputs: Vec<Input> = arguments.files.iter().map(|file| Input::from_argument(file)).collect();
    let data = arguments.data.path(settings);
    let interrupted = shutdown::on_signal()?;
    let mut progress = progress::Console::new(&inputs, arguments.quiet);
    let summary = import(&inputs, &data, &options, &mut progress, &interrupted)?;
    progress.finish();
    report::print(&summary, arguments.format, arguments.quiet)?;
    if summary.stopped == Some(Stop::Interrupted) {
        eprintln!("gatescope: {}", report::interrupted(&summary));
    }
    Ok(if summary.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn options(arguments: &Arguments, settings: &Settings) -> anyhow::Result<ImportOptions> {
    let policy = PolicyName::of(arguments.policy, settings)?;
    let (row_shape, model) = arguments.model.describe(settings)?;
    let run = arguments.run.as_deref().or(settings.run.as_deref()).unwrap_or("default");
    let max_line = arguments.max_line.or(settings.max_line).unwrap_or(ImportOptions::MAX_LINE);
    Ok(ImportOptions {
        run: run.into(),
        policy: policy.into(),
        model: model.map(Arc::new),
        row_shape,
        strict: arguments.strict,
        max_line,
        held_bytes: arguments.held_bytes,
    })
}
