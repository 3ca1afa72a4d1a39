/*!
What engines of which version do with a configuration. One table per engine, a rule per reason, each with the source that it was read
in and how well it is known.
*/

mod sglang;
mod vllm;

use serde::Serialize;

use crate::configuration::{Configuration, Engine};
use crate::connector::connectors;
use crate::report::{Finding, Level, Role};
use crate::version::Version;

/// How well a rule is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// Seen when running that engine.
    Ran,
    /// Read in the source of all versions that it names.
    Read,
    /// Concluded, neither read nor run.
    Unverified,
}

/// What a rule sees beside the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) version: Version,
    pub(crate) role: Role,
}

/// A reason why routing cannot be captured as it is.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Stable name.
    pub name: &'static str,
    /// First release (`major.minor`) that it is true of.
    pub since: (u16, u16),
    /// Last one.
    pub until: (u16, u16),
    /// How bad it is.
    pub level: Level,
    /// What the engine says, `{}` standing for what the configuration has there.
    pub says: &'static str,
    /// What to do.
    pub change: &'static str,
    /// Where it was read.
    pub source: &'static str,
    /// How well it is known.
    pub known: Known,
    /// Whether the configuration is meant, and what in it.
    applies: fn(&Configuration, &Facts) -> Option<Cause>,
}

/// What in a configuration a rule is about.
pub(crate) struct Cause {
    /// For the reader.
    because: String,
    /// Stands for `{}` in what the engine says.
    named: String,
}

impl Cause {
    fn of(because: impl Into<String>) -> Option<Self> {
        Some(Self { because: because.into(), named: String::new() })
    }

    fn named(because: impl Into<String>, named: impl Into<String>) -> Option<Self> {
        Some(Self { because: because.into(), named: named.into() })
    }
}

/// All rules of an engine.
pub fn all(engine: Engine) -> &'static [Rule] {
    match engine {
        Engine::Vllm => vllm::RULES,
        Engine::Sglang => sglang::RULES,
    }
}

/// Oldest and newest release whose source the rules were read in.
pub fn known_versions(engine: Engine) -> (Version, Version) {
    match engine {
        Engine::Vllm => (Version::new(0, 11, 0), Version::new(0, 33, 0)),
        Engine::Sglang => (Version::new(0, 5, 6), Version::new(0, 5, 23)),
    }
}

pub(crate) fn findings(configuration: &Configuration, facts: &Facts) -> Vec<Finding> {
    let (oldest, newest) = known_versions(configuration.engine());
    let version = facts.version.clamp(oldest, newest);
    let facts = Facts { version, role: facts.role };
    let release = (version.major, version.minor);
    let in_force = all(configuration.engine()).iter().filter(|rule| (rule.since..=rule.until).contains(&release));
    in_force
        .filter_map(|rule| {
            let cause = (rule.applies)(configuration, &facts)?;
            Some(Finding {
                rule: rule.name,
                level: rule.level,
                because: cause.because,
                says: rule.says.replace("{}", &cause.named),
                change: rule.change.to_owned(),
                source: rule.source,
                known: rule.known,
            })
        })
        .collect()
}

pub(crate) fn not_checked(configuration: &Configuration, facts: &Facts) -> Vec<String> {
    let mut open = match configuration.engine() {
        Engine::Vllm => vllm::not_checked(configuration, facts),
        Engine::Sglang => sglang::not_checked(),
    };
    if !configuration.complete {
        open.insert(0, "the server does not give out its configuration: only its version was looked at".to_owned());
    }
    if let Some(file) = configuration.config_file() {
        open.insert(0, format!("what {file} (--config) says"));
    }
    open
}

/// The role that a KV connector gives an engine.
pub(crate) fn role_of(configuration: &Configuration) -> Role {
    if configuration.engine() == Engine::Sglang {
        return match configuration.text("disaggregation-mode") {
            Some("prefill") => Role::Prefill,
            Some("decode") => Role::Decode,
            _ => Role::Colocated,
        };
    }
    let of = |role: &str| connectors(configuration).iter().any(|connector| connector.role == role);
    match (of("kv_producer"), of("kv_consumer")) {
        (true, false) => Role::Prefill,
        (false, true) => Role::Decode,
        _ => Role::Colocated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_names_its_source_and_lies_within_what_is_known() {
        for engine in [Engine::Vllm, Engine::Sglang] {
            let (oldest, newest) = known_versions(engine);
            for rule in all(engine) {
                assert!(!rule.source.is_empty() && !rule.says.is_empty() && !rule.change.is_empty(), "{}", rule.name);
                assert!((oldest.major, oldest.minor) <= rule.since && rule.since <= rule.until, "{}", rule.name);
                assert!(rule.until <= (newest.major, newest.minor), "{}", rule.name);
            }
        }
    }
}
