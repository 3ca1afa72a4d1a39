//! `gatescope sql`: a query on a data folder.

use std::{
    io::{IsTerminal, Read},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::ValueEnum;
use gatescope_query::{Catalog, Format};
use hyper::Uri;

use super::{DataFolder, Engine, at, output::Output};
use crate::settings::Settings;

/// Run SQL on a data folder or a running server
///
/// Tables: requests, mismatches, captures, expert_load and a routing_<shape> for each model shape. The view experts has a
/// row per position, layer and slot; experts(l07) is the list of a layer's experts, expert_counts(l07) counts them, and
/// routing('request id') is the routing of one request in order. SHOW TABLES and DESCRIBE list what there is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  gatescope sql \"SELECT status, count(*) FROM requests GROUP BY status\"
  gatescope sql \"SELECT position, experts FROM routing('chatcmpl-17') WHERE layer = 7\" --format json
  gatescope sql --at http://127.0.0.1:7878 \"SELECT count(*) FROM requests WHERE status = 'open'\"
  gatescope sql --data /srv/routing --format csv < load.sql > load.csv

Queries only read. Exit codes: 0 answered, 2 no answer.")]
pub(crate) struct Arguments {
    /// The query; without it or with -, it is read from standard input
    #[arg(value_name = "QUERY")]
    query: Option<String>,
    /// Ask a running server instead, as http://127.0.0.1:7878
    #[arg(long, value_name = "URL", env = "GATESCOPE_AT", hide_env_values = true, conflicts_with = "data")]
    at: Option<Uri>,
    #[command(flatten)]
    data: DataFolder,
    #[command(flatten)]
    engine: Engine,
    /// How the rows are written
    #[arg(long, value_enum, default_value_t = FormatName::Table)]
    format: FormatName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    /// Aligned columns
    Table,
    /// One array of objects; binary as hex
    Json,
    /// Comma-separated values with a header line
    Csv,
    /// A Parquet file
    Parquet,
    /// An Arrow IPC stream
    Arrow,
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Table => Self::Table,
            FormatName::Json => Self::Json,
            FormatName::Csv => Self::Csv,
            FormatName::Parquet => Self::Parquet,
            FormatName::Arrow => Self::Arrow,
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, settings: &Settings) -> anyhow::Result<ExitCode> {
    let query = query(arguments.query.as_deref())?;
    if matches!(arguments.format, FormatName::Parquet | FormatName::Arrow) && std::io::stdout().is_terminal() {
        bail!("a Parquet file or Arrow stream is binary: send it to a file (`> rows.parquet`)");
    }
    if let Some(at) = arguments.at {
        return arguments.engine.run(async |_| {
            let output = Output::new();
            let written = at::sql(&at, &query, arguments.format.into(), output.writer()).await?;
            output.unless_closed(written.map(|()| ExitCode::SUCCESS))
        });
    }
    let folder = arguments.data.path(settings);
    arguments.engine.run(async |options| {
        let catalog = Catalog::open(&folder, &options).await?;
        let answer = catalog.query(&query).await?;
        let output = Output::new();
        let written = answer.write(arguments.format.into(), output.writer()).await;
        output.unless_closed(written.map(|_| ExitCode::SUCCESS))
    })
}

fn query(argument: Option<&str>) -> anyhow::Result<String> {
    let query = match argument {
        Some(query) if query != "-" => query.to_owned(),
        _ => {
            let mut query = String::new();
            std::io::stdin().read_to_string(&mut query).context("reading the query from standard input")?;
            query
        }
    };
    if query.trim().is_empty() {
        bail!("the query is empty");
    }
    Ok(query)
}
