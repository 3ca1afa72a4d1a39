//! The join: many spans of one request, one table of positions.

mod accept;
mod blocks;
mod close;
mod compare;
mod extent;
mod layer_moves;
mod lengths;
mod open;
mod part;
mod place;
mod positions;
mod request;
mod shift;

use std::{ops::Range, sync::Arc};

pub use open::Join;
pub use part::{BlockReference, Finish, Lost, Part, Start};
pub use positions::Positions;
pub use request::RequestJoin;

use crate::{
    finding::Finding,
    rows::Rows,
    shape::{IdWidth, LayerSet, ModelShape, RowShape},
    span::{BlockHash, Source},
};

/// Whose row is accepted where several sources have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Prefill's where prefill has one, else decode's (vLLM's router from v0.2.3).
    #[default]
    Prefill,
    /// That of the instance whose KV the answer used: decode's from its first forward on.
    Kv,
}

impl Policy {
    /// `prefill` or `kv`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Kv => "kv",
        }
    }
}

/// What holds for every request of a join.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Whose row is accepted.
    pub policy: Policy,
    /// The model, where the user has described it.
    pub model: Option<Arc<ModelShape>>,
}

/// What closing one request may know beyond its own parts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// Layers that other requests of the model have shown to have a gate.
    pub live_layers: Option<&'a LayerSet>,
    /// Rows of the earlier request that has the prefix left out: see [`RequestJoin::parent`].
    pub parent: Option<&'a [Segment]>,
}

/// The state of a closed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Every expected position has exactly one accepted row.
    Whole,
    /// Some expected position has none.
    Incomplete,
    /// Sources contradict each other in a way that leaves open which rows are right.
    Conflict,
}

impl Status {
    /// `whole`, `incomplete` or `conflict`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Incomplete => "incomplete",
            Self::Conflict => "conflict",
        }
    }
}

/// Accepted rows of adjacent positions from one source.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Position of the first row.
    pub start: u32,
    /// The rows, shared with the span that they came in.
    pub rows: Rows,
    /// Who computed them.
    pub source: Source,
}

impl Segment {
    /// The position behind the last row.
    pub fn end(&self) -> u32 {
        self.start + self.rows.len() as u32
    }
}

/// A span that was received, for the record.
#[derive(Debug, Clone)]
pub struct Capture {
    /// Who sent it.
    pub source: Source,
    /// Where it was placed; `None` where the request's length stayed unknown.
    pub start: Option<u32>,
    /// Rows in it.
    pub rows: u32,
    /// XXH3 (64 bit) of its rows' bytes.
    pub payload_hash: u64,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
    /// The KV block that it is, if it is one.
    pub block: Option<BlockHash>,
}

/// A closed request.
#[derive(Debug, Clone)]
pub struct Joined {
    /// Tokens of the prompt, where anyone said.
    pub prompt_tokens: Option<u32>,
    /// Tokens sampled.
    pub completion_tokens: Option<u32>,
    /// The row geometry and id width of `segments`; `None` where there is no row.
    pub shape: Option<(RowShape, IdWidth)>,
    /// Accepted rows, ascending by position, apart.
    pub segments: Vec<Segment>,
    /// Expected positions without a row, ascending; prefixes left out at the caller's wish are not among them.
    pub gaps: Vec<Range<u32>>,
    /// Rows below this position were left out at the caller's wish and not found in the request it names.
    pub prefix_omitted: u32,
    /// State.
    pub status: Status,
    /// Whose rows were accepted where several sources had one.
    pub policy: Policy,
    /// Instance of the accepted prefill.
    pub prefill_instance: Option<Arc<str>>,
    /// Instance of the decode.
    pub decode_instance: Option<Arc<str>>,
    /// First position that the decode computed itself.
    pub first_forward: Option<u32>,
    /// Positions that more than one source captured.
    pub overlap_rows: u32,
    /// Overlap positions in which any two sources differ (slot order alone does not count).
    pub mismatched_rows: u32,
    /// Highest number of attempts of any instance.
    pub attempts: u32,
    /// Prefix-cache resets that the engine had seen.
    pub generation: u32,
    /// Layers with an id above 0 in any row.
    pub live_layers: LayerSet,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Every span received.
    pub captures: Vec<Capture>,
}

impl Joined {
    /// Positions that should have a row: `prompt + completion - 1`.
    pub fn expected_rows(&self) -> Option<u32> {
        Some((self.prompt_tokens? + self.completion_tokens?).saturating_sub(1))
    }

    /// Accepted rows.
    pub fn rows(&self) -> u32 {
        self.segments.iter().map(|segment| segment.rows.len() as u32).sum()
    }

    /// The accepted rows of adjacent positions in one piece: `[positions, layers, top_k]`; `None` where there is none
    /// or a gap. This copies each row once.
    pub fn routing(&self) -> Option<Rows> {
        let (shape, width) = self.shape?;
        let adjacent = self.segments.windows(2).all(|pair| pair[0].end() == pair[1].start);
        if self.segments.is_empty() || !adjacent {
            return None;
        }
        let mut bytes = Vec::with_capacity(self.rows() as usize * shape.row_bytes(width));
        for segment in &self.segments {
            bytes.extend_from_slice(segment.rows.with_width(width)?.bytes());
        }
        Rows::new(bytes.into(), shape, width).ok()
    }

    /// Which source gave which positions, adjacent ones together, ascending.
    pub fn provenance(&self) -> Vec<(Range<u32>, &Source)> {
        let mut provenance: Vec<(Range<u32>, &Source)> = Vec::new();
        for segment in &self.segments {
            match provenance.last_mut() {
                Some((range, source)) if range.end == segment.start && **source == segment.source => {
                    range.end = segment.end();
                }
                _ => provenance.push((segment.start..segment.end(), &segment.source)),
            }
        }
        provenance
    }
}

/// What became of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// New.
    Taken,
    /// Already there, byte for byte: nothing changed.
    Duplicate,
}
