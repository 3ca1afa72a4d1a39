//! Settings: flags go before the environment, that before `gatescope.toml`, that before defaults.
//!
//! Flags and their variables are clap's business; this is the file, and the refusal of what nobody knows.

use std::{
    io::ErrorKind,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::logging;

const FILE: &str = "gatescope.toml";
const PREFIX: &str = "GATESCOPE_";

/// What `gatescope.toml` says. A key means what the flag of that name means.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) data: Option<PathBuf>,
    pub(crate) run: Option<String>,
    pub(crate) policy: Option<String>,
    pub(crate) model_config: Option<PathBuf>,
    pub(crate) shape: Option<String>,
    pub(crate) experts: Option<u32>,
    pub(crate) dense_layers: Option<String>,
    pub(crate) max_line: Option<NonZeroUsize>,
    pub(crate) http: Option<String>,
    pub(crate) flight: Option<String>,
    pub(crate) postgres: Option<String>,
    pub(crate) postgres_password_file: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) join_timeout: Option<String>,
    pub(crate) commit_interval: Option<String>,
    pub(crate) open_memory: Option<usize>,
    pub(crate) log_disk: Option<u64>,
    pub(crate) retention: Option<String>,
    pub(crate) keep_replaced: Option<String>,
    pub(crate) query_memory: Option<usize>,
    pub(crate) query_time: Option<String>,
    pub(crate) queries: Option<usize>,
    pub(crate) otlp: Option<String>,
}

impl Settings {
    /// Reads `gatescope.toml` of the working folder, if it is there.
    pub(crate) fn load() -> anyhow::Result<Self> {
        match std::fs::read_to_string(FILE) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).context(FILE),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|&byte| byte == b'\n').count());
            anyhow::anyhow!("{FILE}:{line}: {}", error.message())
        })
    }

    /// The data folder: the flag's or variable's, else the file's, else `gatescope-data`.
    pub(crate) fn data(&self, flag: Option<&Path>) -> PathBuf {
        flag.or(self.data.as_deref()).unwrap_or(Path::new("gatescope-data")).to_owned()
    }
}

/// Variables of the agent in an engine: a shell that starts both has them.
const AGENT: [&str; 5] =
    ["GATESCOPE_COLLECTOR", "GATESCOPE_ROLE", "GATESCOPE_RUN", "GATESCOPE_TOKEN", "GATESCOPE_SPOOL"];

/// Refuses variables that begin like ours and are none of `command`'s.
pub(crate) fn check_environment(command: &clap::Command) -> anyhow::Result<()> {
    let mut known = vec![logging::VARIABLE.to_owned(), logging::FORMAT.to_owned()];
    known.extend(AGENT.map(str::to_owned));
    #[cfg(feature = "fail-points")]
    known.extend(gatescope_collector::fail_point::VARIABLES.map(str::to_owned));
    collect_variables(command, &mut known);
    known.sort();
    known.dedup();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && !known.iter().any(|known| **known == *name) {
            bail!("environment variable {name}: unknown; expected one of {}", known.join(", "));
        }
    }
    Ok(())
}

fn collect_variables(command: &clap::Command, known: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|command| collect_variables(command, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_like_flags() {
        let settings = Settings::parse("data = \"/srv/routing\"\nmax-line = 1000\n").unwrap();
        assert_eq!(settings.data, Some("/srv/routing".into()));
        assert_eq!(settings.max_line.map(NonZeroUsize::get), Some(1000));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it_and_its_line() {
        let error = Settings::parse("run = \"a\"\ndta = \"/srv\"\n").unwrap_err().to_string();
        assert!(error.starts_with("gatescope.toml:2: unknown field `dta`, expected one of `data`"), "{error}");
    }

    #[test]
    fn the_flag_goes_before_the_file_and_that_before_the_default() {
        let file = Settings { data: Some("file".into()), ..Settings::default() };
        assert_eq!(file.data(Some(Path::new("flag"))), Path::new("flag"));
        assert_eq!(file.data(None), Path::new("file"));
        assert_eq!(Settings::default().data(None), Path::new("gatescope-data"));
    }
}
