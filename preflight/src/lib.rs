/*!
Says, from an engine's configuration alone, whether its expert routing can be captured: as it is, with the Gatescope plugin, after a
change, or not at all, with the engine's own words and what to change.

[`Configuration`] is what the engine was told: its command line ([`Configuration::from_arguments`]), a file in the form of
`vllm serve --config` ([`Configuration::from_file`]), or what a running server says of itself
([`Configuration::from_server`]). [`examine`] holds it to the rules of the engine's version, all of which are in one table,
[`rules`], each with where it was read.

```
use gatescope_preflight::{Configuration, Level, Question, Version, examine};

let command = "vllm serve Qwen/Qwen3-30B-A3B --enable-return-routed-experts \
               --kv-transfer-config '{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_both\"}'";
let configuration = Configuration::from_arguments([command])?;
let question = Question { version: Some(Version::new(0, 31, 0)), ..Question::default() };
let report = examine(&configuration, &question);
assert_eq!(report.level, Level::Plugin);
assert!(report.findings[0].says.contains("PD auxiliary output is not supported"));
# Ok::<(), gatescope_preflight::ConfigurationError>(())
```
*/
#![forbid(unsafe_code)]

mod configuration;
mod connector;
mod file;
mod report;
pub mod rules;
mod server;
mod version;
mod words;

pub use configuration::{Configuration, ConfigurationError, Engine};
pub use report::{Finding, Level, Question, Report, Role, examine};
pub use version::{Version, VersionError};
