//! A model's shape out of the `config.json` that Hugging Face keeps with its weights.

use serde_json::{Map, Value};

use crate::shape::{LayerSet, ModelShape, RowShape, ShapeError};

/// Why a `config.json` does not describe a mixture-of-experts model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelConfigError {
    /// Not JSON.
    #[error("not JSON: {0}")]
    Json(String),
    /// JSON, but not an object.
    #[error("expected a JSON object, as in a model's config.json")]
    NotAnObject,
    /// None of the keys that models use for this.
    #[error("no {what}: expected one of the keys {}", keys.join(", "))]
    Missing {
        /// What is missing.
        what: &'static str,
        /// Keys that were looked for.
        keys: &'static [&'static str],
    },
    /// A value that cannot be.
    #[error("{key}: expected {expected}, found {found}")]
    Value {
        /// The key.
        key: &'static str,
        /// What its value should be.
        expected: &'static str,
        /// Its value.
        found: String,
    },
    /// Values that do not fit together.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

const LAYERS: &[&str] = &["num_hidden_layers"];
const EXPERTS: &[&str] = &["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"];
// `top_k` last: configurations of old carry the sampling parameter of that name.
const TOP_K: &[&str] = &["num_experts_per_tok", "moe_topk", "moe_k", "top_k"];

/// Reads a model's shape from the text of its `config.json`. Where a model wraps its language model, that is looked for
/// under `text_config`.
///
/// Which layers have a gate follows the models' own code in `transformers`: `first_k_dense_replace` and
/// `moe_layer_freq` (DeepSeek and kin), `mlp_only_layers` and `decoder_sparse_step` (Qwen),
/// `interleave_moe_layer_step` (Llama 4), `moe_layer_start_index`, `moe_layer_end_index` and `moe_layer_interval`
/// (ERNIE 4.5). A rule whose keys are absent leaves no layer out.
pub fn model_shape(config: &str) -> Result<ModelShape, ModelConfigError> {
    let config: Value = serde_json::from_str(config).map_err(|error| ModelConfigError::Json(error.to_string()))?;
    let top = config.as_object().ok_or(ModelConfigError::NotAnObject)?;
    let model = match top.get("text_config").and_then(Value::as_object) {
        Some(text) if EXPERTS.iter().any(|key| text.get(*key).is_some_and(|value| !value.is_null())) => text,
        _ => top,
    };
    let config = Config(model);
    let layers = config.first_of("number of hidden layers", LAYERS)?;
    let experts = config.first_of("number of experts", EXPERTS)?;
    let top_k = config.first_of("number of experts per token", TOP_K)?;
    let row = RowShape::new(layers, top_k)?;
    Ok(ModelShape::new(row, experts, config.moe_layers(row.layers())?)?)
}

struct Config<'a>(&'a Map<String, Value>);

impl Config<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn first_of(&self, what: &'static str, keys: &'static [&'static str]) -> Result<u64, ModelConfigError> {
        let key = keys.iter().find(|key| self.value(key).is_some());
        let key = key.ok_or(ModelConfigError::Missing { what, keys })?;
        // Some configurations give one number per layer; a row has one width for all.
        let number = match self.value(key) {
            Some(Value::Array(each)) => each.first().filter(|first| each.iter().all(|other| other == *first)),
            other => other,
        };
        number.and_then(Value::as_u64).ok_or_else(|| self.wrong(key, "a number, the same for all layers"))
    }

    fn number(&self, key: &'static str) -> Result<Option<u64>, ModelConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        Ok(Some(value.as_u64().ok_or_else(|| self.wrong(key, "a number from 0"))?))
    }

    /// Every how many layers there is a gate; 1 where the key is absent.
    fn step(&self, key: &'static str) -> Result<u64, ModelConfigError> {
        match self.number(key)? {
            Some(0) => Err(self.wrong(key, "a number from 1")),
            step => Ok(step.unwrap_or(1)),
        }
    }

    fn numbers(&self, key: &'static str) -> Result<Vec<u64>, ModelConfigError> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
        numbers.ok_or_else(|| self.wrong(key, "a list of layer numbers"))
    }

    fn moe_layers(&self, layers: usize) -> Result<LayerSet, ModelConfigError> {
        let first = self.number("first_k_dense_replace")?.unwrap_or(0);
        let (every, listed) = self.layer_frequency(layers)?;
        let dense = self.numbers("mlp_only_layers")?;
        let sparse_step = self.step("decoder_sparse_step")?;
        let interleave = self.step("interleave_moe_layer_step")?;
        let start = self.number("moe_layer_start_index")?.unwrap_or(0);
        let end = self.end_index(layers)?;
        let interval = self.step("moe_layer_interval")?;
        let has_gate = |layer: u64| {
            layer >= first
                && layer.is_multiple_of(every)
                && listed.as_ref().is_none_or(|listed| listed.contains(layer as usize))
                && !dense.contains(&layer)
                && (layer + 1).is_multiple_of(sparse_step)
                && (layer + 1).is_multiple_of(interleave)
                && (start..=end).contains(&layer)
                && (layer + 1).is_multiple_of(interval)
        };
        Ok((0..layers).filter(|&layer| has_gate(layer as u64)).collect())
    }

    /// `moe_layer_freq`: a step, or one 0 or 1 per layer.
    fn layer_frequency(&self, layers: usize) -> Result<(u64, Option<LayerSet>), ModelConfigError> {
        const KEY: &str = "moe_layer_freq";
        let Some(list) = self.value(KEY).and_then(Value::as_array) else { return Ok((self.step(KEY)?, None)) };
        if list.len() != layers {
            return Err(self.wrong(KEY, "a number, or a 0 or 1 for each of num_hidden_layers"));
        }
        let gated =
            list.iter().enumerate().filter(|(_, gate)| gate.as_u64() != Some(0) && *gate != &Value::Bool(false));
        Ok((1, Some(gated.map(|(layer, _)| layer).collect())))
    }

    /// `moe_layer_end_index`: the last layer with a gate; negative numbers count from the end.
    fn end_index(&self, layers: usize) -> Result<u64, ModelConfigError> {
        const KEY: &str = "moe_layer_end_index";
        let Some(value) = self.value(KEY) else { return Ok(u64::MAX) };
        let end = value.as_i64().ok_or_else(|| self.wrong(KEY, "a layer number"))?;
        let end = if end < 0 { layers as i64 + end } else { end };
        u64::try_from(end).map_err(|_| self.wrong(KEY, "a layer number"))
    }

    fn wrong(&self, key: &'static str, expected: &'static str) -> ModelConfigError {
        let mut found = self.value(key).map_or_else(|| "nothing".to_owned(), Value::to_string);
        if found.len() > 80 {
            found = format!("{}...", found.chars().take(77).collect::<String>());
        }
        ModelConfigError::Value { key, expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(config: &str) -> (usize, usize, u32, String) {
        let shape = model_shape(config).unwrap();
        (shape.row().layers(), shape.row().top_k(), shape.num_experts(), shape.moe_layers().to_string())
    }

    #[test]
    fn every_layer_has_a_gate_where_no_rule_leaves_it_out() {
        let config = r#"{"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8,
            "decoder_sparse_step": 1, "mlp_only_layers": []}"#;
        assert_eq!(shape(config), (48, 8, 128, "0-47".into()));
    }

    #[test]
    fn first_layers_are_dense_in_deepseek() {
        let config = r#"{"num_hidden_layers": 61, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "first_k_dense_replace": 3, "moe_layer_freq": 1}"#;
        assert_eq!(shape(config), (61, 8, 256, "3-60".into()));
    }

    #[test]
    fn layer_frequency_counts_from_layer_0() {
        let config = r#"{"num_hidden_layers": 6, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "moe_layer_freq": 2}"#;
        assert_eq!(shape(config).3, "2,4");
    }

    #[test]
    fn layer_frequency_may_name_each_layer() {
        let config = r#"{"num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
            "moe_layer_freq": [0, 1, 1, 0]}"#;
        assert_eq!(shape(config).3, "1-2");
    }

    #[test]
    fn sparse_step_and_listed_layers_are_dense_in_qwen() {
        let config = r#"{"num_hidden_layers": 8, "num_experts": 60, "num_experts_per_tok": 4,
            "decoder_sparse_step": 2, "mlp_only_layers": [3]}"#;
        assert_eq!(shape(config).3, "1,5,7");
    }

    #[test]
    fn interleaved_layers_of_a_wrapped_language_model() {
        let config = r#"{"model_type": "llama4", "num_hidden_layers": null, "text_config": {"num_hidden_layers": 6,
            "num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}}"#;
        assert_eq!(shape(config), (6, 1, 128, "1,3,5".into()));
    }

    #[test]
    fn start_end_and_interval_of_ernie() {
        let config = r#"{"num_hidden_layers": 8, "moe_num_experts": 64, "moe_k": 6, "moe_layer_start_index": 1,
            "moe_layer_end_index": -2, "moe_layer_interval": 1}"#;
        assert_eq!(shape(config), (8, 6, 64, "1-6".into()));
    }

    #[test]
    fn one_number_per_layer_counts_where_they_are_equal() {
        let config = r#"{"num_hidden_layers": 3, "num_experts": 16, "moe_topk": [8, 8, 8], "top_k": 50}"#;
        assert_eq!(shape(config).1, 8);
        let config = r#"{"num_hidden_layers": 3, "num_experts": 16, "moe_topk": [8, 4, 8]}"#;
        let error = model_shape(config).unwrap_err().to_string();
        assert_eq!(error, "moe_topk: expected a number, the same for all layers, found [8,4,8]");
    }

    #[test]
    fn errors_name_the_key() {
        let errors = [
            ("[]", "expected a JSON object, as in a model's config.json"),
            (
                r#"{"num_hidden_layers": 4}"#,
                "no number of experts: expected one of the keys num_experts, n_routed_experts, num_local_experts, \
                 moe_num_experts",
            ),
            (
                r#"{"num_hidden_layers": "4", "num_experts": 8, "num_experts_per_tok": 2}"#,
                "num_hidden_layers: expected a number, the same for all layers, found \"4\"",
            ),
            (
                r#"{"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 0}"#,
                "decoder_sparse_step: expected a number from 1, found 0",
            ),
            (
                r#"{"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 9}"#,
                "top_k 9 of 8 experts: expected no more slots than experts",
            ),
        ];
        for (config, expected) in errors {
            assert_eq!(model_shape(config).unwrap_err().to_string(), expected);
        }
    }
}
