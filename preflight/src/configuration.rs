//! What an engine was told.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::words::{self, Unclosed};

/// The engines whose configurations are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM: `vllm serve`, `python -m vllm.entrypoints...`, the image `vllm/vllm-openai`.
    Vllm,
    /// SGLang: `sglang serve`, `python -m sglang.launch_server`.
    Sglang,
}

/// Why a configuration could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    /// A quote without its end.
    #[error("the command line has a {0} that nothing closes")]
    Quote(char),
    /// No engine in the command.
    #[error("neither vllm nor sglang is started by this command: {0:?}")]
    NoEngine(String),
    /// A value that must be JSON and is not.
    #[error("--{flag}: not a JSON object: {cause}")]
    Json {
        /// The flag.
        flag: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A flag's value is of the wrong kind.
    #[error("--{flag} {value}: expected {expected}")]
    Value {
        /// The flag.
        flag: String,
        /// What was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// A file that is neither YAML nor JSON.
    #[error("{0}")]
    File(String),
}

/// What an engine was told, by flag name without dashes.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    pub(crate) engine: Engine,
    pub(crate) model: Option<String>,
    pub(crate) flags: BTreeMap<String, Value>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) complete: bool,
}

/// Short forms, and other names of the same.
const ALIASES: [(&str, &str); 8] = [
    ("tp", "tensor-parallel-size"),
    ("pp", "pipeline-parallel-size"),
    ("dcp", "decode-context-parallel-size"),
    ("pcp", "prefill-context-parallel-size"),
    ("dp", "data-parallel-size"),
    ("sc", "speculative-config"),
    ("tp-size", "tensor-parallel-size"),
    ("pp-size", "pipeline-parallel-size"),
];
/// Flags whose value is JSON.
const OBJECTS: [&str; 3] = ["kv-transfer-config", "speculative-config", "aux-output-config"];
/// Flags whose value is a number that must be understood.
const NUMBERS: [&str; 3] = ["pipeline-parallel-size", "decode-context-parallel-size", "prefill-context-parallel-size"];

impl Configuration {
    /// From a command line: its words, or one word that has all of them, quoted as for a shell. Assignments (`NAME=value`)
    /// before the engine's name are its environment.
    pub fn from_arguments<I>(arguments: I) -> Result<Self, ConfigurationError>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut words: Vec<String> = arguments.into_iter().map(Into::into).collect();
        if let [one] = words.as_slice() {
            words = words::split(one).map_err(|Unclosed(quote)| ConfigurationError::Quote(quote))?;
        }
        let mut environment = BTreeMap::new();
        let mut words = words.into_iter();
        let mut before = String::new();
        let engine = loop {
            let Some(word) = words.next() else { return Err(ConfigurationError::NoEngine(shortened(&before))) };
            if let Some(engine) = engine_of(&word) {
                break engine;
            }
            if let Some((name, value)) = assignment(&word) {
                environment.insert(name.to_owned(), value.to_owned());
            }
            before.extend([if before.is_empty() { "" } else { " " }, word.as_str()]);
        };
        let mut configuration = Self { engine, model: None, flags: BTreeMap::new(), environment, complete: true };
        configuration.take_words(words.collect())?;
        configuration.checked()
    }

    fn take_words(&mut self, words: Vec<String>) -> Result<(), ConfigurationError> {
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = flag_of(&word) else {
                if !matches!(word.as_str(), "serve" | "launch_server") && self.model.is_none() {
                    self.model = Some(word);
                }
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            let name = canonical(name);
            let value = match value {
                Some(value) => Some(value),
                None if is_switch(&name) => None,
                None => words.next_if(|next| flag_of(next).is_none()),
            };
            self.set(&name, value)?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Option<String>) -> Result<(), ConfigurationError> {
        // `--kv-transfer-config.kv_connector NAME`: one key of an object.
        if let Some((object, path)) = name.split_once('.')
            && let Some(value) = value
        {
            let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
            let at = self.flags.entry(canonical(object)).or_insert_with(|| Value::Object(Map::new()));
            return put(at, path, value).ok_or_else(|| ConfigurationError::Json {
                flag: object.to_owned(),
                cause: format!("{path} lies in something that is no object"),
            });
        }
        let (name, value) = match value {
            Some(text) if OBJECTS.contains(&name) => {
                let value = serde_json::from_str(&text)
                    .map_err(|error| ConfigurationError::Json { flag: name.to_owned(), cause: error.to_string() })?;
                (name, value)
            }
            Some(text) => (name, serde_json::from_str(&text).unwrap_or(Value::String(text))),
            None => match name.strip_prefix("no-") {
                Some(name) => (name, Value::Bool(false)),
                None => (name, Value::Bool(true)),
            },
        };
        self.flags.insert(name.to_owned(), value);
        Ok(())
    }

    /// Refuses what the rules would misread.
    pub(crate) fn checked(mut self) -> Result<Self, ConfigurationError> {
        for flag in OBJECTS {
            match self.flags.get_mut(flag) {
                Some(Value::Object(_)) | None => {}
                Some(Value::Null) => {
                    self.flags.remove(flag);
                }
                // In a file an object may be written as the text that the flag would take.
                Some(value) => {
                    let parsed = value.as_str().map(serde_json::from_str::<Map<String, Value>>);
                    match parsed {
                        Some(Ok(object)) => *value = Value::Object(object),
                        Some(Err(error)) => {
                            return Err(ConfigurationError::Json { flag: flag.to_owned(), cause: error.to_string() });
                        }
                        None => {
                            let cause = format!("found {value}");
                            return Err(ConfigurationError::Json { flag: flag.to_owned(), cause });
                        }
                    }
                }
            }
        }
        for flag in NUMBERS {
            if let Some(value) = self.flags.get(flag)
                && !value.is_null()
                && value.as_u64().is_none()
            {
                return Err(ConfigurationError::Value {
                    flag: flag.to_owned(),
                    value: shortened(&value.to_string()),
                    expected: "a number",
                });
            }
        }
        if self.model.is_none() {
            self.model =
                ["model", "model-path"].iter().find_map(|flag| Some(self.flags.get(*flag)?.as_str()?.to_owned()));
        }
        Ok(self)
    }

    /// Adds to the environment of the engine, e.g. that of the calling shell.
    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        self
    }

    /// The engine.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The model, where it is named.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// The file that `--config` names: the engine reads it as well.
    pub fn config_file(&self) -> Option<&str> {
        self.flags.get("config")?.as_str()
    }

    /// Takes from a file what the command line does not say itself, as engines do.
    pub fn or_from(mut self, file: Self) -> Self {
        for (flag, value) in file.flags {
            self.flags.entry(flag).or_insert(value);
        }
        self.model = self.model.or(file.model);
        self.flags.remove("config");
        self
    }

    /// A switch, where it was given.
    pub(crate) fn switch(&self, flag: &str) -> Option<bool> {
        match self.flags.get(flag)? {
            Value::Bool(on) => Some(*on),
            Value::String(text) => Some(matches!(text.to_ascii_lowercase().as_str(), "true" | "1" | "yes")),
            Value::Number(number) => Some(number.as_i64() != Some(0)),
            _ => None,
        }
    }

    /// A number, where it was given.
    pub(crate) fn number(&self, flag: &str) -> Option<u64> {
        self.flags.get(flag)?.as_u64()
    }

    /// A text, where it was given.
    pub(crate) fn text(&self, flag: &str) -> Option<&str> {
        self.flags.get(flag)?.as_str()
    }

    /// A key of a JSON flag.
    pub(crate) fn key(&self, flag: &str, key: &str) -> Option<&Value> {
        self.flags.get(flag)?.get(key)
    }

    /// A variable of the engine's environment, where it is not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Sets `a.b.c` in an object. `None` where the path leads through something else.
fn put(at: &mut Value, path: &str, value: Value) -> Option<()> {
    let mut at = at;
    for key in path.split('.') {
        at = at.as_object_mut()?.entry(key).or_insert_with(|| Value::Object(Map::new()));
    }
    *at = value;
    Some(())
}

/// Flag names are written with dashes or underscores; keys behind a dot stay as they are.
pub(crate) fn canonical(name: &str) -> String {
    let (flag, path) = match name.split_once('.') {
        Some((flag, path)) => (flag, Some(path)),
        None => (name, None),
    };
    let flag = flag.replace('_', "-");
    let flag = ALIASES.iter().find(|(short, _)| *short == flag).map_or(flag.as_str(), |(_, long)| long).to_owned();
    match path {
        Some(path) => format!("{flag}.{path}"),
        None => flag,
    }
}

/// `--flag` and `-f` are flags, `-1` is a value.
fn flag_of(word: &str) -> Option<&str> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    name.starts_with(|letter: char| letter.is_ascii_alphabetic()).then_some(name)
}

/// Flags that stand alone, so that the word behind them is not theirs.
fn is_switch(name: &str) -> bool {
    ["enable-", "disable-", "no-"].iter().any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "async-scheduling" | "trust-remote-code" | "enforce-eager" | "headless" | "skip-tokenizer-init"
        )
}

fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    named.then_some((name, value))
}

fn engine_of(word: &str) -> Option<Engine> {
    let name = word.rsplit('/').next().unwrap_or(word);
    let name = name.split(':').next().unwrap_or(name);
    match name.split('.').next().unwrap_or(name) {
        "vllm" | "vllm-openai" | "vllm-openai-cpu" => Some(Engine::Vllm),
        "sglang" => Some(Engine::Sglang),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}
