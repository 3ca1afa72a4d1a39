//! The `gatescope` command line.
#![forbid(unsafe_code)]

mod command;
mod duration;
mod logging;
mod settings;
mod shutdown;
mod telemetry;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::{command::Command, settings::Settings};

/// Observability for the expert routing of mixture-of-experts models: whole requests out of what prefill and decode
/// engines captured, checked and in SQL.
#[derive(Debug, Parser)]
#[command(
    name = "gatescope",
    version,
    after_help = "Settings come from flags, then the environment (GATESCOPE_...), then gatescope.toml in the working \
                  folder. Exit codes: 0 all well, 1 something was refused or found, 2 wrong usage or a fatal error."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let command_line = CommandLine::parse();
    let settings = settings::check_environment(&CommandLine::command()).and_then(|()| Settings::load());
    match settings.and_then(|settings| command_line.command.run(&settings)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gatescope: {error:#}");
            ExitCode::from(2)
        }
    }
}
