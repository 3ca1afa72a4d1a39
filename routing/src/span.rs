//! Spans, where they come from, and what else is told of a request.

use std::{fmt, ops::Range, str::FromStr, sync::Arc};

use crate::{rows::Rows, shape::IdWidth};

/// What the source of a span does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Computes prompts and hands their KV to a decode instance.
    Prefill,
    /// Computes completions on KV that another instance computed.
    Decode,
    /// One engine does both.
    Colocated,
    /// Routing that a trainer recomputed: compared, never accepted.
    Trainer,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Colocated, Self::Trainer];

    /// `prefill`, `decode`, `colocated` or `trainer`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Colocated => "colocated",
            Self::Trainer => "trainer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("role {0:?}: expected prefill, decode, colocated or trainer")]
pub struct UnknownRole(pub String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL.into_iter().find(|role| role.name() == name).ok_or_else(|| UnknownRole(name.to_owned()))
    }
}

/// Names a request: one sampled sequence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey {
    /// Label of the deployment or experiment.
    pub run: Arc<str>,
    /// The outer id: the one that the client or router gave.
    pub request_id: Arc<str>,
    /// Index among the sequences sampled for this id.
    pub choice: u32,
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.request_id)?;
        if self.choice != 0 { write!(f, " choice {}", self.choice) } else { Ok(()) }
    }
}

/// Where rows were computed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// What the instance does for this request.
    pub role: Role,
    /// Engine id and data-parallel rank.
    pub instance: Arc<str>,
    /// How often this instance has started the request again.
    pub attempt: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An instance that nobody named has its role's name.
        match &*self.instance == self.role.name() {
            true => write!(f, "{}", self.role)?,
            false => write!(f, "{} {}", self.role, self.instance)?,
        }
        if self.attempt != 0 { write!(f, " attempt {}", self.attempt) } else { Ok(()) }
    }
}

/// How a span is placed among the positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The first row is this position's.
    Start(u32),
    /// The answer did not say: the last row is position `prompt + completion_tokens - 2`, where `completion_tokens`
    /// is what this one answer sampled (1 for a prefill).
    End {
        /// Tokens that the answer sampled.
        completion_tokens: u32,
    },
}

impl Anchor {
    /// The first row's position, where it was said.
    pub const fn start(self) -> Option<u32> {
        match self {
            Self::Start(start) => Some(start),
            Self::End { .. } => None,
        }
    }
}

/// The numeric type in which an engine sent ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum WireType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    /// JSON numbers in nested lists.
    Json,
}

impl WireType {
    /// The type of ids of this width.
    pub const fn of(width: IdWidth) -> Self {
        match width {
            IdWidth::U8 => Self::U8,
            IdWidth::U16 => Self::U16,
        }
    }

    /// numpy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::Json => "list",
        }
    }
}

/// A run of rows of one request from one source.
#[derive(Debug, Clone)]
pub struct Span {
    /// Who computed the rows.
    pub source: Source,
    /// Where they belong.
    pub anchor: Anchor,
    /// The rows.
    pub rows: Rows,
    /// The type in which the engine sent them.
    pub wire_type: WireType,
    /// Rows (indices into `rows`) in which the engine marked an id as unknown (`-1`), ascending and apart, each with
    /// the first layer that has the mark. They are not accepted; their ids read 0 where the mark was.
    pub unknown: Vec<Unknown>,
    /// How many prefix-cache resets the engine had seen.
    pub generation: u32,
    /// Hash of the KV block that the span is, where it is one.
    pub block: Option<BlockHash>,
}

/// Rows of a span that carry the mark for "unknown" (`-1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Indices into the span's rows.
    pub rows: Range<u32>,
    /// First layer with the mark in the first of these rows.
    pub layer: u16,
}

/// An engine's hash of a KV block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub Arc<[u8]>);

/// What an instance calls a request that it prefilled: the target of a decode's link (`remote_engine_id` and
/// `remote_request_id` in vLLM's `kv_transfer_params`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KvLink {
    /// Engine id of the prefill instance.
    pub engine_id: Arc<str>,
    /// The request's id inside that engine.
    pub request_id: Arc<str>,
}
