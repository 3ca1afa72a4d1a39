//! `gatescope check`: a verdict per request.

use std::process::ExitCode;

use clap::ValueEnum;
use gatescope_query::{
    Catalog,
    verdict::{Outcome, Report, Scope, Style},
};

use super::{DataFolder, Engine, output::Output};
use crate::settings::Settings;

/// Say which requests are not clean, and whether two runs routed alike
///
/// Prints a line for each request that is not whole or has a finding: where, and what either side computed; then a
/// summary. With --against, the accepted rows of two runs are compared byte by byte: a prefill/decode deployment and
/// a colocated twin that answered the same request ids.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope check
  gatescope check --request chatcmpl-17 --format json
  gatescope import twin.jsonl --run twin && gatescope check --run default --against twin

Exit codes: 0 all clean, 1 a finding or a difference, 2 no verdict.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    data: DataFolder,
    #[command(flatten)]
    engine: Engine,
    /// Only this run [default: all; with --against: the only other one]
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Only this request id
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Compare with this run, row by row
    #[arg(long, value_name = "NAME")]
    against: Option<String>,
    /// How the verdict is printed
    #[arg(long, value_enum, default_value_t = FormatName::Table)]
    format: FormatName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    /// Lines for people
    Table,
    /// One JSON document
    Json,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let folder = arguments.data.path(settings);
    let report = Report {
        scope: Scope { run: arguments.run, request_id: arguments.request },
        against: arguments.against,
        style: match arguments.format {
            FormatName::Table => Style::Text,
            FormatName::Json => Style::Json,
        },
    };
    arguments.engine.run(async |options| {
        let catalog = Catalog::open(&folder, &options).await?;
        let output = Output::new();
        let outcome = report.write(&catalog, output.writer()).await;
        output.unless_closed(outcome.map(|outcome| match outcome {
            Outcome::Clean => ExitCode::SUCCESS,
            Outcome::Findings => ExitCode::from(1),
        }))
    })
}
