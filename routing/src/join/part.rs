//! What is told of a request, piece by piece.

use crate::{
    check::Inspection,
    span::{BlockHash, Source, Span},
};

/// One thing told of a request. Parts may come in any order, any number of times.
#[derive(Debug, Clone)]
pub enum Part {
    /// Rows.
    Span(Span),
    /// Rows that [`inspect`](crate::check::inspect) has looked at already, on another thread.
    Inspected(Span, Inspection),
    /// An instance began the request.
    Start(Start),
    /// An instance finished the request.
    Finish(Finish),
    /// Rows of a block that the same instance sent before, by hash alone.
    Block(BlockReference),
    /// Rows that the agent captured and had to drop.
    Lost(Lost),
}

/// An instance began the request.
#[derive(Debug, Clone)]
pub struct Start {
    /// Who.
    pub source: Source,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// First position that this instance computes itself.
    pub first_forward: Option<u32>,
    /// Rows below this position were left out at the caller's wish (`routed_experts_prompt_start` in vLLM,
    /// `routed_experts_start_len` in SGLang).
    pub prompt_start: Option<u32>,
    /// The earlier request of this run that has the rows left out.
    pub parent: Option<std::sync::Arc<str>>,
}

/// An instance finished the request.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Who.
    pub source: Source,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens that this instance sampled: 1 for a prefill whose decode runs elsewhere.
    pub completion_tokens: Option<u32>,
    /// Whether all tokens of the prompt are one and the same; `None` where the answer does not say.
    pub uniform_prompt: Option<bool>,
}

/// Rows of a block that the same instance sent before.
#[derive(Debug, Clone)]
pub struct BlockReference {
    /// Who.
    pub source: Source,
    /// Position of the block's first row.
    pub start: u32,
    /// The block.
    pub hash: BlockHash,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
}

/// Rows that the agent captured and had to drop.
#[derive(Debug, Clone)]
pub struct Lost {
    /// Who.
    pub source: Source,
    /// First position dropped.
    pub start: u32,
    /// Positions dropped.
    pub positions: u32,
}
