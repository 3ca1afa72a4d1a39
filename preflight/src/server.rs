//! What a running server says of itself: `/server_info?config_format=json` of vLLM (with `VLLM_SERVER_DEV_MODE=1`), `/server_info`
//! or `/get_server_info` of SGLang.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::configuration::{Configuration, ConfigurationError, Engine, canonical};

/// Where vLLM's configuration keeps what flags set.
const VLLM: [(&str, &str); 8] = [
    ("/parallel_config/pipeline_parallel_size", "pipeline-parallel-size"),
    ("/parallel_config/decode_context_parallel_size", "decode-context-parallel-size"),
    ("/parallel_config/prefill_context_parallel_size", "prefill-context-parallel-size"),
    ("/cache_config/enable_prefix_caching", "enable-prefix-caching"),
    ("/scheduler_config/async_scheduling", "async-scheduling"),
    ("/model_config/runner_type", "runner"),
    ("/kv_transfer_config", "kv-transfer-config"),
    ("/speculative_config", "speculative-config"),
];

impl Configuration {
    /// From what the server answered to the question for its configuration; `None` where it does not give it out, so that only what
    /// its version says is known.
    pub fn from_server(engine: Engine, model: Option<&str>, info: Option<&Value>) -> Result<Self, ConfigurationError> {
        let mut flags = BTreeMap::new();
        let mut environment = BTreeMap::new();
        let complete = match (engine, info) {
            (Engine::Vllm, Some(info)) => match info.get("vllm_config") {
                Some(config @ Value::Object(_)) => {
                    take_vllm(config, &mut flags);
                    take_environment(info.get("vllm_env"), &mut environment);
                    true
                }
                _ => false,
            },
            (Engine::Sglang, Some(Value::Object(arguments))) => {
                flags.extend(arguments.iter().map(|(name, value)| (canonical(name), value.clone())));
                arguments.contains_key("enable_return_routed_experts")
            }
            _ => false,
        };
        flags.retain(|_, value| !value.is_null());
        Self { engine, model: model.map(str::to_owned), flags, environment, complete }.checked()
    }
}

fn take_vllm(config: &Value, flags: &mut BTreeMap<String, Value>) {
    for (at, flag) in VLLM {
        if let Some(value) = config.pointer(at) {
            flags.insert(flag.to_owned(), value.clone());
        }
    }
    // From 0.31 on, and before.
    let captured = config
        .pointer("/aux_output_config/enable_return_routed_experts")
        .or_else(|| config.pointer("/model_config/enable_return_routed_experts"));
    if let Some(captured) = captured {
        flags.insert("enable-return-routed-experts".to_owned(), captured.clone());
    }
    // A configuration without a connector is an object all the same.
    let connector = flags.get("kv-transfer-config").and_then(|config| config.get("kv_connector"));
    if connector.is_none_or(Value::is_null) {
        flags.remove("kv-transfer-config");
    }
    if let Some(Value::String(method)) = config.pointer("/speculative_config/method") {
        flags.entry("speculative-config".to_owned()).or_insert_with(|| json!({"method": method}));
    }
}

fn take_environment(variables: Option<&Value>, environment: &mut BTreeMap<String, String>) {
    for (name, value) in variables.and_then(Value::as_object).unwrap_or(&Map::new()) {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Bool(on) => u8::from(*on).to_string(),
            Value::Null => continue,
            other => other.to_string(),
        };
        environment.insert(name.clone(), text);
    }
}
