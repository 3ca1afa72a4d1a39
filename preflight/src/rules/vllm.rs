//! vLLM. Read in the packages 0.11.0 to 0.33.0, the first release of every minor version.

use super::{Cause, Facts, Known, Rule};
use crate::configuration::Configuration;
use crate::connector::{Connector, connectors};
use crate::report::{Level, Role};

const FLAG: &str = "enable-return-routed-experts";
/// Connectors between prefill and decode that vLLM >= 0.31 refuses, in the order in which it looks.
const REFUSED: [&str; 5] =
    ["NixlConnector", "NixlPullConnector", "NixlPushConnector", "MoRIIOConnector", "MooncakeConnector"];
/// Those of them that the plugin makes work.
const NIXL: [&str; 3] = ["NixlConnector", "NixlPullConnector", "NixlPushConnector"];
/// Connectors that keep KV of one engine elsewhere, so that nothing is computed by another.
const OFFLOADING: [&str; 4] =
    ["OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnectorV1", "LMCacheMPConnector"];

/// The table.
pub(super) static RULES: &[Rule] = &[
    Rule {
        name: "too-old",
        since: (0, 11),
        until: (0, 13),
        level: Level::Cannot,
        says: "vllm: error: unrecognized arguments: --enable-return-routed-experts",
        change: "take vLLM 0.31 or newer for prefill and decode, 0.22 or newer for one engine by itself",
        source: "vllm/engine/arg_utils.py",
        known: Known::Read,
        applies: |_, facts| Cause::of(format!("vLLM {}", facts.version)),
    },
    Rule {
        name: "no-routing-in-answers",
        since: (0, 14),
        until: (0, 20),
        level: Level::Cannot,
        says: "nothing: routing comes out of LLM.generate() alone; the server's answers have no field for it",
        change: "take vLLM 0.31 or newer for prefill and decode, 0.22 or newer for one engine by itself",
        source: "vllm/entrypoints/**/protocol.py",
        known: Known::Read,
        applies: |_, facts| Cause::of(format!("vLLM {}", facts.version)),
    },
    Rule {
        name: "flag",
        since: (0, 14),
        until: (0, 33),
        level: Level::Change,
        says: "nothing: the server starts, and answers have no routed_experts",
        change: "add --enable-return-routed-experts",
        source: "vllm/engine/arg_utils.py; vllm/config/aux_output.py from 0.31 on",
        known: Known::Read,
        applies: |configuration, _| {
            (configuration.complete && !asked(configuration))
                .then(|| Cause::of("--enable-return-routed-experts is not given"))?
        },
    },
    Rule {
        name: "async-scheduling",
        since: (0, 21),
        until: (0, 21),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is not yet validated with: async scheduling. Disable these features or omit \
               --enable-return-routed-experts.",
        change: "add --no-async-scheduling: it is on by default",
        source: "vllm/config/vllm.py (_validate_return_routed_experts)",
        known: Known::Read,
        applies: |configuration, _| {
            let draft = configuration.key("speculative-config", "method").is_some();
            match configuration.switch("async-scheduling") {
                Some(true) => Cause::of("--async-scheduling"),
                None if !draft => Cause::of("--no-async-scheduling is not given"),
                _ => None,
            }
        },
    },
    Rule {
        name: "parallelism-not-validated",
        since: (0, 21),
        until: (0, 21),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is not yet validated with: {}. Disable these features or omit \
               --enable-return-routed-experts.",
        change: "leave it out: use tensor, expert or data parallelism instead",
        source: "vllm/config/vllm.py (_validate_return_routed_experts)",
        known: Known::Read,
        applies: |configuration, _| {
            let pipeline = above_one(configuration, "pipeline-parallel-size");
            let named = |what: &str, key: &str, size: u64| format!("{what} parallelism ({key}={size})");
            match (pipeline, context(configuration)) {
                (Some(size), _) => Cause::named(
                    format!("--pipeline-parallel-size {size}"),
                    named("pipeline", "pipeline_parallel_size", size),
                ),
                (_, Some((flag, size))) => {
                    let which = if flag.starts_with("decode") { "decode context" } else { "prefill context" };
                    Cause::named(format!("--{flag} {size}"), named(which, &flag.replace('-', "_"), size))
                }
                _ => None,
            }
        },
    },
    Rule {
        name: "pipeline-parallelism",
        since: (0, 22),
        until: (0, 33),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with pipeline parallelism (PP > 1).",
        change: "leave --pipeline-parallel-size out: use tensor, expert or data parallelism instead",
        source: "vllm/config/vllm.py",
        known: Known::Read,
        applies: |configuration, _| {
            let size = above_one(configuration, "pipeline-parallel-size")?;
            Cause::of(format!("--pipeline-parallel-size {size}"))
        },
    },
    Rule {
        name: "context-parallelism",
        since: (0, 22),
        until: (0, 27),
        level: Level::Cannot,
        says: "AssertionError: enable_return_routed_experts does not support context parallelism \
               (dcp_world_size > 1 or pcp_world_size > 1)",
        change: "leave it out: use tensor, expert or data parallelism instead",
        source: "vllm/v1/core/sched/scheduler.py",
        known: Known::Read,
        applies: in_context_parallel,
    },
    Rule {
        name: "context-parallelism",
        since: (0, 28),
        until: (0, 30),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with context parallelism (DCP > 1 or PCP > 1).",
        change: "leave it out: use tensor, expert or data parallelism instead",
        source: "vllm/config/vllm.py",
        known: Known::Read,
        applies: in_context_parallel,
    },
    Rule {
        name: "context-parallelism",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with context parallelism (DCP/PCP > 1).",
        change: "leave it out: use tensor, expert or data parallelism instead",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: in_context_parallel,
    },
    Rule {
        name: "kv-connector-unguarded",
        since: (0, 21),
        until: (0, 21),
        level: Level::Cannot,
        says: "nothing: it starts, and a decode's rows of the prompt are of nobody, since it never computed them",
        change: "take vLLM 0.31 or newer, with the plugin",
        source: "vllm/config/vllm.py, where 0.22 has the check that 0.21 lacks",
        known: Known::Unverified,
        applies: with_any_connector,
    },
    Rule {
        name: "kv-connector",
        since: (0, 22),
        until: (0, 30),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with KV connectors (PD disaggregation, KV cache offload).",
        change: "take vLLM 0.31 or newer: offloading works there as it is, prefill and decode over NIXL with the plugin",
        source: "vllm/config/vllm.py",
        known: Known::Read,
        applies: with_any_connector,
    },
    Rule {
        name: "model-runner",
        since: (0, 21),
        until: (0, 21),
        level: Level::Cannot,
        says: "VLLM_USE_V2_MODEL_RUNNER does not yet support: routed experts capture",
        change: "leave VLLM_USE_V2_MODEL_RUNNER unset",
        source: "vllm/config/vllm.py",
        known: Known::Read,
        applies: told_v2,
    },
    Rule {
        name: "model-runner",
        since: (0, 22),
        until: (0, 27),
        level: Level::Cannot,
        says: "Model Runner V2 does not yet support: routed experts capture",
        change: "leave VLLM_USE_V2_MODEL_RUNNER unset",
        source: "vllm/config/vllm.py (_get_v2_model_runner_unsupported_features)",
        known: Known::Read,
        applies: told_v2,
    },
    Rule {
        name: "model-runner",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1.",
        change: "leave VLLM_USE_V2_MODEL_RUNNER unset or set it to 1",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: |configuration, _| match configuration.variable("VLLM_USE_V2_MODEL_RUNNER").map(is_on) {
            Some(false) => Cause::of("VLLM_USE_V2_MODEL_RUNNER=0"),
            _ => None,
        },
    },
    Rule {
        name: "speculative-method",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "Model Runner V2 does not yet support speculative method '{}'; using the V1 model runner instead. Then: \
               AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1.",
        change: "take another speculative method (eagle, eagle3, mtp) or none",
        source: "vllm/config/vllm.py (_get_v2_model_runner_unsupported_features)",
        known: Known::Read,
        applies: |configuration, facts| {
            let method = configuration.key("speculative-config", "method")?.as_str()?;
            let old: &[&str] = match facts.version.minor {
                31 => &["ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "custom_class"],
                32 => &["suffix", "medusa", "mlp_speculator", "custom_class"],
                _ => &["suffix", "custom_class"],
            };
            old.contains(&method).then(|| Cause::named(format!("speculative method {method}"), method))?
        },
    },
    Rule {
        name: "adaptive-verification",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with adaptive speculative verification.",
        change: "leave enable_adaptive_verification out of --speculative-config",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: |configuration, _| {
            let on = configuration.key("speculative-config", "enable_adaptive_verification")?.as_bool()?;
            on.then(|| Cause::of("adaptive verification in --speculative-config"))?
        },
    },
    Rule {
        name: "prefix-caching",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "AuxOutput Connector requires prefix caching.",
        change: "leave --no-enable-prefix-caching out",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: |configuration, _| {
            let off = configuration.switch("enable-prefix-caching") == Some(false)
                || configuration.switch("disable-prefix-caching") == Some(true);
            off.then(|| Cause::of("prefix caching is switched off"))?
        },
    },
    Rule {
        name: "runner",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "AuxOutput Connector only supports generate runners.",
        change: "leave --runner out for a model that generates",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: |configuration, _| match configuration.text("runner") {
            Some(runner @ ("pooling" | "draft")) => Cause::of(format!("--runner {runner}")),
            _ => None,
        },
    },
    Rule {
        name: "nixl",
        since: (0, 31),
        until: (0, 33),
        level: Level::Plugin,
        says: "--enable-return-routed-experts is incompatible with {}; PD auxiliary output is not supported.",
        change: "install the Gatescope plugin with prefill and decode, and set GATESCOPE_COLLECTOR (grpc://HOST:7879)",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Ran,
        applies: |configuration, _| refused(configuration, |name| NIXL.contains(&name)),
    },
    Rule {
        name: "pd-connector",
        since: (0, 31),
        until: (0, 33),
        level: Level::Cannot,
        says: "--enable-return-routed-experts is incompatible with {}; PD auxiliary output is not supported.",
        change: "bring prefill and decode together over NixlConnector, with the plugin",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Read,
        applies: |configuration, _| refused(configuration, |name| !NIXL.contains(&name)),
    },
    Rule {
        name: "other-connector",
        since: (0, 31),
        until: (0, 33),
        level: Level::Change,
        says: "nothing: vLLM does not refuse this connector. Where it brings a prompt's KV from another engine, the worker has no rows \
               for it, and what then comes is not known",
        change: "bring prefill and decode together over NixlConnector, with the plugin, or try with `gatescope check`",
        source: "vllm/config/vllm.py (_verify_aux_output_compatibility)",
        known: Known::Unverified,
        applies: |configuration, _| {
            let all = connectors(configuration);
            let other = all.iter().find(|connector| is_other(connector))?;
            Cause::of(format!("{} as {}", other.name, other.role))
        },
    },
    Rule {
        name: "role",
        since: (0, 21),
        until: (0, 33),
        level: Level::Change,
        says: "nothing: the engine does what its kv_role says",
        change: "set kv_role to kv_producer or kv_both for prefill, kv_consumer or kv_both for decode",
        source: "vllm/config/kv_transfer.py",
        known: Known::Read,
        applies: |configuration, facts| {
            let wrong = match facts.role {
                Role::Prefill => "kv_consumer",
                Role::Decode => "kv_producer",
                Role::Colocated => return None,
            };
            let all = connectors(configuration);
            let other = all.iter().find(|connector| connector.role == wrong)?;
            Cause::of(format!("{} has the role {wrong}", other.name))
        },
    },
];

fn asked(configuration: &Configuration) -> bool {
    let in_object = configuration.key("aux-output-config", "enable_return_routed_experts");
    configuration.switch(FLAG).or_else(|| in_object?.as_bool()) == Some(true)
}

fn above_one(configuration: &Configuration, flag: &str) -> Option<u64> {
    configuration.number(flag).filter(|size| *size > 1)
}

fn context(configuration: &Configuration) -> Option<(&'static str, u64)> {
    ["decode-context-parallel-size", "prefill-context-parallel-size"]
        .into_iter()
        .find_map(|flag| Some((flag, above_one(configuration, flag)?)))
}

fn in_context_parallel(configuration: &Configuration, _: &Facts) -> Option<Cause> {
    let (flag, size) = context(configuration)?;
    Cause::of(format!("--{flag} {size}"))
}

fn with_any_connector(configuration: &Configuration, _: &Facts) -> Option<Cause> {
    Cause::of(format!("KV connector {}", connectors(configuration).first()?.name))
}

fn told_v2(configuration: &Configuration, _: &Facts) -> Option<Cause> {
    let told = configuration.variable("VLLM_USE_V2_MODEL_RUNNER").is_some_and(is_on);
    told.then(|| Cause::of("VLLM_USE_V2_MODEL_RUNNER=1"))?
}

/// As vLLM reads a switch of its environment.
fn is_on(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true")
}

/// The first connector that vLLM would name, if it is one of these.
fn refused(configuration: &Configuration, of: fn(&str) -> bool) -> Option<Cause> {
    let all = connectors(configuration);
    let present = |name: &&&str| all.iter().any(|connector| connector.name == **name);
    let name = REFUSED.iter().filter(|name| of(name)).find(present)?;
    let within = if all.first().is_some_and(|first| first.name == **name) { "" } else { " inside MultiConnector" };
    Cause::named(format!("KV connector {name}{within}"), *name)
}

fn is_other(connector: &Connector) -> bool {
    let name = connector.name.as_str();
    let between = matches!(connector.role.as_str(), "kv_producer" | "kv_consumer");
    let known = REFUSED.contains(&name) || name == "MultiConnector";
    !known && (between || !OFFLOADING.contains(&name))
}

pub(super) fn not_checked(configuration: &Configuration, facts: &Facts) -> Vec<String> {
    let mut open = vec!["whether the model is a mixture of experts".to_owned()];
    if facts.version.minor >= 28 {
        open.push(
            "whether its MoE kernels can be captured: vLLM refuses monolithic ones and custom routers".to_owned(),
        );
    }
    if let Some(plugins) = configuration.variable("VLLM_PLUGINS")
        && !plugins.split(',').any(|plugin| plugin.trim() == "gatescope")
    {
        open.push(format!("VLLM_PLUGINS={plugins} leaves the plugin (gatescope) out"));
    }
    open
}
