//! One row per position.

use std::{collections::BTreeMap, ops::Range};

use super::{Policy, place::Place, request::Held};
use crate::{
    rows::Rows,
    span::{Role, Source},
};

/// A span with its place.
#[derive(Debug, Clone)]
pub(super) struct Placed<'a> {
    pub(super) held: &'a Held,
    pub(super) place: Place,
}

impl<'a> Placed<'a> {
    pub(super) fn source(&self) -> &'a Source {
        &self.held.span.source
    }
}

/// The order in which sources are asked for a row. Trainers are compared, never accepted.
pub(super) fn rank(policy: Policy, source: &Source) -> (u8, u32) {
    let by_role = match (policy, source.role) {
        (Policy::Prefill, Role::Prefill) | (Policy::Kv, Role::Decode) => 0,
        (Policy::Prefill, Role::Decode) | (Policy::Kv, Role::Prefill) => 1,
        (_, Role::Colocated) => 2,
        (_, Role::Trainer) => 3,
    };
    (by_role, source.attempt)
}

/// Adjacent rows of one span.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) rows: Rows,
    /// Index of the span among the placed ones.
    pub(super) span: usize,
}

/// Positions for which two spans have a row: the accepted one and another.
#[derive(Debug, Clone)]
pub(super) struct Overlap {
    pub(super) start: u32,
    pub(super) accepted: Piece,
    pub(super) other: Piece,
}

/// Accepted rows, by position, and all that they have to be compared with.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    pub(super) pieces: BTreeMap<u32, Piece>,
    pub(super) overlaps: Vec<Overlap>,
}

impl Accepted {
    /// Asks the spans in this order: the first to have a row for a position gives it.
    pub(super) fn of(placed: &[Placed<'_>]) -> Self {
        let mut accepted = Self::default();
        for (index, span) in placed.iter().enumerate() {
            for (range, rows) in span.place.known(&span.held.span) {
                accepted.offer(range, rows, index, span.source().role != Role::Trainer);
            }
        }
        accepted
    }

    fn offer(&mut self, range: Range<u32>, rows: Rows, span: usize, acceptable: bool) {
        let slice =
            |part: &Range<u32>| rows.slice((part.start - range.start) as usize..(part.end - range.start) as usize);
        let mut free = Vec::new();
        let mut next = range.start;
        let before = self.pieces.range(..range.start).next_back();
        for (&start, piece) in before.into_iter().chain(self.pieces.range(range.clone())) {
            let end = start + piece.rows.len() as u32;
            let common = start.max(range.start)..end.min(range.end);
            if common.is_empty() {
                continue;
            }
            if common.start > next {
                free.push(next..common.start);
            }
            next = common.end;
            let inside = (common.start - start) as usize..(common.end - start) as usize;
            let accepted = Piece { rows: piece.rows.slice(inside), span: piece.span };
            let other = Piece { rows: slice(&common), span };
            self.overlaps.push(Overlap { start: common.start, accepted, other });
        }
        if next < range.end {
            free.push(next..range.end);
        }
        if acceptable {
            for part in free {
                self.pieces.insert(part.start, Piece { rows: slice(&part), span });
            }
        }
    }
}
