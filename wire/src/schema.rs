//! The columns of a message.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::WireError;

/// Major version of the schema. Within it, columns and kinds are only added.
pub const VERSION: u32 = 1;

/// The key of the version in the schema's metadata.
pub(crate) const VERSION_KEY: &str = "gatescope.wire";

macro_rules! columns {
    ($($variant:ident $name:literal $form:ident,)*) => {
        /// A column of version 1, in the order in which [`encode`](crate::encode) lays them out.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Column {
            $($variant,)*
        }

        impl Column {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant),*];
            pub(crate) const COUNT: usize = Self::ALL.len();

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub(crate) const fn form(self) -> Form {
                match self { $(Self::$variant => Form::$form),* }
            }
        }
    };
}

columns! {
    Kind "kind" Text,
    At "at" Time,
    Run "run" Text,
    RequestId "request_id" Text,
    Choice "choice" U32,
    Role "role" Text,
    Instance "instance" Text,
    Attempt "attempt" U32,
    Generation "generation" U32,
    Start "start" U32,
    Rows "rows" U32,
    Layers "layers" U32,
    TopK "top_k" U32,
    Width "width" Text,
    WireType "wire_type" Text,
    Payload "payload" LargeBinary,
    PayloadHash "payload_hash" U64,
    Unknown "unknown" Binary,
    BlockHash "block_hash" Binary,
    PromptTokens "prompt_tokens" U32,
    CompletionTokens "completion_tokens" U32,
    UniformPrompt "uniform_prompt" Boolean,
    FirstForward "first_forward" U32,
    PromptStart "prompt_start" U32,
    Parent "parent" Text,
    EngineId "engine_id" Text,
    InnerRequestId "inner_request_id" Text,
    Model "model" Text,
    NumExperts "num_experts" U32,
    MoeLayers "moe_layers" Binary,
    RepeatingLayers "repeating_layers" Binary,
    Weights "weights" LargeBinary,
}

impl Column {
    /// Whether every message has it, without nulls.
    pub(crate) const fn is_required(self) -> bool {
        matches!(self, Self::Kind | Self::At | Self::Run)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|column| column.name() == name)
    }
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    U32,
    U64,
    Time,
    Boolean,
    Binary,
    LargeBinary,
}

impl Form {
    fn data_type(self) -> DataType {
        match self {
            Self::Text => DataType::Utf8,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Boolean => DataType::Boolean,
            Self::Binary => DataType::Binary,
            Self::LargeBinary => DataType::LargeBinary,
        }
    }

    /// Binary columns may have offsets of either width: which one is right depends on the size of a message alone.
    pub(crate) fn takes(self, data_type: &DataType) -> bool {
        match self {
            Self::Binary | Self::LargeBinary => matches!(data_type, DataType::Binary | DataType::LargeBinary),
            _ => *data_type == self.data_type(),
        }
    }

    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Text => "Utf8",
            Self::U32 => "UInt32",
            Self::U64 => "UInt64",
            Self::Time => "Timestamp(us, \"UTC\")",
            Self::Boolean => "Boolean",
            Self::Binary | Self::LargeBinary => "Binary or LargeBinary",
        }
    }
}

/// The schema of a message: version 1.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let fields: Vec<Field> = Column::ALL
            .iter()
            .map(|column| Field::new(column.name(), column.form().data_type(), !column.is_required()))
            .collect();
        let version = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_string())]);
        Arc::new(Schema::new_with_metadata(fields, version))
    });
    SCHEMA.clone()
}

/// Whether the schema is of a version that this build reads: 1 and what was added to it.
pub(crate) fn check_version(metadata: &HashMap<String, String>) -> Result<(), WireError> {
    match metadata.get(VERSION_KEY) {
        None => Err(WireError::NoVersion),
        Some(version) if version.parse() == Ok(VERSION) => Ok(()),
        Some(version) => Err(WireError::Version(crate::error::shortened(version))),
    }
}
