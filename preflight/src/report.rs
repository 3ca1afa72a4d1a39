//! The verdict.

use serde::Serialize;

use crate::configuration::{Configuration, Engine};
use crate::rules::{self, Known};
use crate::version::Version;

/// How a configuration fares, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Routing comes out as it is.
    Works,
    /// It does with the Gatescope plugin.
    Plugin,
    /// It does after a change of the configuration that costs nothing else.
    Change,
    /// It does not: the engine refuses to start, or what it answers has no rows or wrong ones.
    Cannot,
}

/// What an engine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes prompts for others.
    Prefill,
    /// Goes on where a prefill ended.
    Decode,
    /// Does both.
    Colocated,
}

/// What is asked of a configuration.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Version of the engine; the newest known one if not told.
    pub version: Option<Version>,
    /// What the engine is for; taken from its KV connector if not told.
    pub role: Option<Role>,
    /// Whether the Gatescope plugin is installed with the engine.
    pub plugin: bool,
}

/// One thing that stands in the way, or must be known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What in the configuration it is about.
    pub because: String,
    /// What the engine itself says then, or what happens where it says nothing.
    pub says: String,
    /// What to do.
    pub change: String,
    /// Where the rule was read.
    pub source: &'static str,
    /// How well it is known.
    pub known: Known,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The engine.
    pub engine: Engine,
    /// The version that the rules were taken for.
    pub version: Version,
    /// Whether that version was told, not assumed.
    pub version_told: bool,
    /// The model, where it is named.
    pub model: Option<String>,
    /// The role.
    pub role: Role,
    /// The worst of the findings.
    pub level: Level,
    /// What stands in the way, worst first.
    pub findings: Vec<Finding>,
    /// What this verdict takes for granted: not to be read from a configuration, or not from this one.
    pub not_checked: Vec<String>,
}

/// Holds a configuration to the rules of its engine's version.
pub fn examine(configuration: &Configuration, question: &Question) -> Report {
    let engine = configuration.engine();
    let (oldest, newest) = rules::known_versions(engine);
    let version = question.version.unwrap_or(newest);
    let role = question.role.unwrap_or_else(|| rules::role_of(configuration));
    // The environment of a plugin that does something.
    let plugin = question.plugin || configuration.variable("GATESCOPE_COLLECTOR").is_some();
    let facts = rules::Facts { version, role };

    let mut findings = rules::findings(configuration, &facts);
    let mut not_checked = rules::not_checked(configuration, &facts);
    // Patches of the newest minor version are taken as known.
    let last = Version { patch: u16::MAX, ..newest };
    if version < oldest || version > last {
        not_checked
            .push(format!("version {version}: rules are known from {oldest} to {newest}, and the nearest were taken"));
    }
    if plugin {
        // What the plugin takes care of is no finding any more; that it must match the version is.
        let before = findings.len();
        findings.retain(|finding| finding.level != Level::Plugin);
        if findings.len() < before {
            not_checked.push("whether the plugin took: it says so in the engine's log when it starts".to_owned());
        }
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    Report {
        engine,
        version,
        version_told: question.version.is_some(),
        model: configuration.model().map(str::to_owned),
        role,
        level: findings.first().map_or(Level::Works, |finding| finding.level),
        findings,
        not_checked,
    }
}

/// For people.
impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engine = match self.engine {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
        };
        let role = match self.role {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Colocated => "colocated",
        };
        let assumed = if self.version_told { "" } else { " (assumed: --engine-version tells)" };
        let verdict = match self.level {
            Level::Works => "works",
            Level::Plugin => "works with the plugin",
            Level::Change => "works after a change",
            Level::Cannot => "cannot",
        };
        writeln!(f, "{engine} {}{assumed}, {role}: {verdict}", self.version)?;
        for finding in &self.findings {
            let known = match finding.known {
                Known::Ran | Known::Read => "",
                Known::Unverified => "  [not verified]",
            };
            writeln!(f, "\n{}: {}{known}", finding.rule, finding.because)?;
            writeln!(f, "  what happens: {}", finding.says)?;
            writeln!(f, "  what to do:   {}", finding.change)?;
            writeln!(f, "  source:       {}", finding.source)?;
        }
        if !self.not_checked.is_empty() {
            writeln!(f, "\nNot checked:")?;
            for what in &self.not_checked {
                writeln!(f, "- {what}")?;
            }
        }
        Ok(())
    }
}
