//! The commands, a file each.

mod at;
mod check;
mod demo;
mod engine;
mod import;
mod output;
mod preflight;
mod role;
mod serve;
mod simulate;
mod sql;
mod tap;
mod vacuum;

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use tracing::Level;

use self::engine::Engine;
use crate::{logging, settings::Settings};

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Import(import::Arguments),
    Sql(sql::Arguments),
    Check(check::Arguments),
    Serve(Box<serve::Arguments>),
    Demo(demo::Arguments),
    Preflight(preflight::Arguments),
    Tap(Box<tap::Arguments>),
    Vacuum(vacuum::Arguments),
    Simulate(Box<simulate::Arguments>),
}

impl Command {
    /// Runs the command. An error is fatal (exit code 2).
    pub(crate) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        match self {
            // Start their own, with traces.
            Self::Serve(_) | Self::Demo(_) => {}
            Self::Tap(_) => logging::start(Level::INFO, None),
            _ => logging::start(Level::WARN, None),
        }
        match self {
            Self::Import(arguments) => import::run(arguments, settings),
            Self::Sql(arguments) => sql::run(arguments, settings),
            Self::Check(arguments) => check::run(arguments, settings),
            Self::Serve(arguments) => serve::run(*arguments, settings),
            Self::Demo(arguments) => demo::run(&arguments, settings),
            Self::Preflight(arguments) => preflight::run(arguments),
            Self::Tap(arguments) => tap::run(*arguments),
            Self::Vacuum(arguments) => vacuum::run(arguments, settings),
            Self::Simulate(arguments) => simulate::run(*arguments, settings),
        }
    }
}

/// Where the tables are.
#[derive(Debug, clap::Args)]
pub(crate) struct DataFolder {
    /// Folder of the tables [default: gatescope-data]
    #[arg(long, value_name = "DIR", env = "GATESCOPE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
}

impl DataFolder {
    /// The folder: as given, else as in the settings, else the default.
    pub(crate) fn path(&self, settings: &Settings) -> PathBuf {
        settings.data(self.data.as_deref())
    }
}
