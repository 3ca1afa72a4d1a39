//! The KV connectors of a configuration.

use serde_json::Value;

use crate::Configuration;

/// A connector and what it does for its engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connector {
    pub(crate) name: String,
    /// `kv_producer`, `kv_consumer` or `kv_both`.
    pub(crate) role: String,
}

/// The connector and, of a `MultiConnector`, its children: one level, which is what vLLM itself looks at.
pub(crate) fn connectors(configuration: &Configuration) -> Vec<Connector> {
    let Some(config) = configuration.flags.get("kv-transfer-config") else { return offloading(configuration) };
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let role = text(config, "kv_role").unwrap_or_default();
    let Some(name) = text(config, "kv_connector") else { return offloading(configuration) };
    let mut all = vec![Connector { name: name.clone(), role: role.clone() }];
    if name == "MultiConnector" {
        let children = config.pointer("/kv_connector_extra_config/connectors").and_then(Value::as_array);
        all.extend(children.into_iter().flatten().filter_map(|child| {
            Some(Connector {
                name: text(child, "kv_connector")?,
                role: text(child, "kv_role").unwrap_or_else(|| role.clone()),
            })
        }));
    }
    all
}

/// `--kv-offloading-size` is a connector by another name.
fn offloading(configuration: &Configuration) -> Vec<Connector> {
    match configuration.number("kv-offloading-size") {
        Some(1..) => vec![Connector { name: "OffloadingConnector".to_owned(), role: "kv_both".to_owned() }],
        _ => Vec::new(),
    }
}
