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
            eprintln!("gatescope: {}", sentence(&error));
            ExitCode::from(2)
        }
    }
}

/// An error and its causes, in one line. Many errors say what their cause says, and nothing is said twice.
fn sentence(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|said, cause| if said.contains(&cause) { said } else { said + ": " + &cause })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_error_and_its_causes_are_said_once() {
        // given
        #[derive(Debug)]
        struct Nested(std::io::Error);
        impl std::fmt::Display for Nested {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a file: cannot write: {}", self.0)
            }
        }
        impl std::error::Error for Nested {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }

        // when
        let nested = Err::<(), _>(Nested(std::io::Error::other("disk is full")));
        let error = nested.context("commit").unwrap_err();

        // then
        assert_eq!(sentence(&error), "commit: a file: cannot write: disk is full");
    }
}
