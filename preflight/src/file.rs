//! Configuration files: what `vllm serve --config` reads.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::configuration::{Configuration, ConfigurationError, Engine, canonical};

/// A configuration file is a page, not a book.
const MOST_BYTES: usize = 1 << 20;

impl Configuration {
    /// From the text of a file: YAML or JSON, a flag (without dashes) per key.
    pub fn from_file(engine: Engine, text: &str) -> Result<Self, ConfigurationError> {
        if text.len() > MOST_BYTES {
            return Err(ConfigurationError::File(format!("{} bytes: expected at most {MOST_BYTES}", text.len())));
        }
        let keys: BTreeMap<String, Value> =
            serde_saphyr::from_str(text).map_err(|error| ConfigurationError::File(first_line(&error.to_string())))?;
        let mut flags = BTreeMap::new();
        for (key, value) in keys {
            let key = canonical(key.trim_start_matches('-'));
            match (key.strip_prefix("no-"), value.as_bool()) {
                // `no-enable-prefix-caching: true`
                (Some(flag), Some(on)) => flags.insert(flag.to_owned(), Value::Bool(!on)),
                _ => flags.insert(key, value),
            };
        }
        Self { engine, model: None, flags, environment: BTreeMap::new(), complete: true }.checked()
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
