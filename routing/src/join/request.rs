//! What is held of one request until it closes.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Applied, Finish, Lost, Part, Start,
    blocks::Blocks,
    lengths::{Lengths, Told},
    place::place,
    positions::Positions,
};
use crate::{
    check::{Inspection, LayerValues, inspect},
    finding::Finding,
    rows::Rows,
    span::{Anchor, Role, Source, Span, Unknown},
};

/// A span with what a look at its values gave.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) span: Span,
    pub(super) inspection: Inspection,
}

impl Held {
    fn weight(&self) -> usize {
        let layers = self.inspection.layers.capacity() * size_of::<LayerValues>();
        // The rows' own bytes are behind a shared owner.
        size_of::<Self>() + layers + self.span.unknown.capacity() * size_of::<Unknown>() + 4 * size_of::<usize>()
    }
}

/// Bytes of a text on the heap, with its counts.
pub(super) fn text(text: &Arc<str>) -> usize {
    2 * size_of::<usize>() + text.len()
}

/// Bytes of room that is not used.
fn vacant<T>(list: &Vec<T>) -> usize {
    (list.capacity() - list.len()) * size_of::<T>()
}

/// Most requests have one or two of anything, and a list that doubles would begin with room for four.
pub(super) fn push_tight<T>(list: &mut Vec<T>, item: T) {
    if list.len() < 4 {
        list.reserve_exact(1);
    }
    list.push(item);
}

/// The join of one request: parts in, in any order and any number of times; accepted rows and findings out.
#[derive(Debug, Clone, Default)]
pub struct RequestJoin {
    /// In the order in which they came.
    pub(super) spans: Vec<Held>,
    /// What each source said of the request; one entry a source.
    pub(super) told: Vec<Told>,
    pub(super) lost: Vec<Lost>,
    /// Blocks that were named by hash and have not been seen yet.
    pub(super) awaited: Blocks,
    /// Prefill rows of the first choice: the same prompt was prefilled once for all choices.
    pub(super) adopted: Vec<Held>,
    pub(super) parent: Option<Arc<str>>,
    /// What was found while parts came.
    pub(super) noted: Vec<Finding>,
}

/// Most findings that are kept of what came.
const MOST_NOTED: usize = 8;

impl RequestJoin {
    /// Takes one part.
    pub fn apply(&mut self, part: Part) -> Applied {
        match part {
            Part::Span(span) => {
                let inspection = inspect(&span.rows);
                self.hold(Held { span, inspection })
            }
            Part::Inspected(span, inspection) => self.hold(Held { span, inspection }),
            Part::Start(start) => self.start(start),
            Part::Finish(finish) => self.finish(finish),
            Part::Block(block) => self.awaited.insert(block),
            Part::Lost(lost) => {
                self.lost.push(lost);
                Applied::Taken
            }
        }
    }

    fn hold(&mut self, held: Held) -> Applied {
        let same = |other: &Held| {
            other.inspection.payload_hash == held.inspection.payload_hash
                && other.span.source == held.span.source
                && other.span.anchor == held.span.anchor
                && other.span.rows == held.span.rows
                && other.span.unknown == held.span.unknown
        };
        if self.spans.iter().any(same) {
            return Applied::Duplicate;
        }
        push_tight(&mut self.spans, held);
        Applied::Taken
    }

    /// Adds a finding that only whoever sees other requests, or the time, can have.
    pub fn note(&mut self, finding: Finding) {
        if self.noted.len() < MOST_NOTED && !self.noted.contains(&finding) {
            push_tight(&mut self.noted, finding);
        }
    }

    fn start(&mut self, start: Start) -> Applied {
        if start.parent.is_some() {
            self.parent = start.parent;
        }
        let (prompt_tokens, first_forward, prompt_start) =
            (start.prompt_tokens, start.first_forward, start.prompt_start);
        self.tell(Told { prompt_tokens, first_forward, prompt_start, ..Told::by(start.source) })
    }

    fn finish(&mut self, finish: Finish) -> Applied {
        let (prompt_tokens, completion_tokens, uniform_prompt) =
            (finish.prompt_tokens, finish.completion_tokens, finish.uniform_prompt);
        let source = finish.source;
        self.tell(Told { prompt_tokens, completion_tokens, uniform_prompt, finished: true, ..Told::by(source) })
    }

    fn tell(&mut self, told: Told) -> Applied {
        match self.told.iter_mut().find(|known| known.source == told.source) {
            Some(known) => known.merge(told),
            None => {
                push_tight(&mut self.told, told);
                Applied::Taken
            }
        }
    }

    /// The earlier request that has the rows left out at the caller's wish.
    pub fn parent(&self) -> Option<&Arc<str>> {
        self.parent.as_ref()
    }

    /// Whether an instance that ends requests has finished this one and every expected position has a row. A prefill
    /// alone does not say so: its decode may still come.
    pub fn is_whole(&self) -> bool {
        let ended = |told: &Told| told.finished && matches!(told.source.role, Role::Decode | Role::Colocated);
        if !self.told.iter().any(ended) {
            return false;
        }
        let lengths = Lengths::of(self);
        let Some(expected) = lengths.expected() else { return false };
        let mut covered = Positions::default();
        for held in self.spans.iter().chain(self.adopted()) {
            if held.span.source.role != Role::Trainer
                && let Some(placed) = place(&held.span, &lengths)
            {
                placed.known(&held.span).for_each(|(range, _)| covered.insert(range));
            }
        }
        covered.covers(lengths.prompt_start.min(expected)..expected)
    }

    /// Bytes of rows held.
    pub fn held_bytes(&self) -> usize {
        self.spans.iter().map(|held| held.span.rows.bytes().len()).sum()
    }

    /// Bytes that the request takes, its rows and all that is kept beside them; rows of another choice's prefill count
    /// there.
    pub fn weight(&self) -> usize {
        let spans = self.spans.iter().chain(&self.adopted).map(Held::weight).sum::<usize>();
        let names = self.told.iter().map(|told| text(&told.source.instance)).sum::<usize>();
        size_of::<Self>()
            + self.held_bytes()
            + spans
            + names
            + vacant(&self.spans)
            + vacant(&self.adopted)
            + self.told.capacity() * size_of::<Told>()
            + self.lost.capacity() * size_of::<Lost>()
            + self.awaited.weight()
            + self.parent.as_ref().map_or(0, text)
    }

    /// Who has told anything of this request.
    pub fn sources(&self) -> BTreeSet<&Source> {
        let spans = self.spans.iter().map(|held| &held.span.source);
        spans.chain(self.told.iter().map(|told| &told.source)).collect()
    }

    /// Rows of another choice's prefill, where this choice has no prefill of its own.
    pub(super) fn adopted(&self) -> &[Held] {
        let own = self.spans.iter().any(|held| held.span.source.role == Role::Prefill);
        if own { &[] } else { &self.adopted }
    }

    /// Blocks that were named by hash and have not been seen.
    pub fn awaited(&self) -> impl Iterator<Item = &super::BlockReference> {
        self.awaited.iter()
    }

    /// Takes the prefill rows of the first choice: the same prompt was prefilled once for all choices. Choices of other
    /// prompts (a list of prompts in one call) keep to themselves.
    pub fn adopt(&mut self, first: &Self) {
        let other = first.prompt_told().zip(self.prompt_told()).is_some_and(|(first, own)| first != own);
        self.adopted = if other { Vec::new() } else { first.prefilled() };
    }

    /// Tokens of the prompt, as the first who says so has it.
    fn prompt_told(&self) -> Option<u32> {
        self.told.iter().find_map(|told| told.prompt_tokens)
    }

    /// The prefill's rows, for the other choices of the same prompt.
    fn prefilled(&self) -> Vec<Held> {
        self.spans.iter().filter(|held| held.span.source.role == Role::Prefill).cloned().collect()
    }

    /// Takes the rows of blocks that were named by hash.
    pub fn resolve(&mut self, find: impl FnMut(&super::BlockReference) -> Option<Rows>) {
        for (reference, rows) in self.awaited.resolve(find) {
            let wire_type = crate::span::WireType::of(rows.width());
            let span = Span {
                source: reference.source,
                anchor: Anchor::Start(reference.start),
                rows,
                wire_type,
                unknown: Vec::new(),
                generation: reference.generation,
                block: Some(reference.hash),
            };
            self.apply(Part::Span(span));
        }
    }
}
