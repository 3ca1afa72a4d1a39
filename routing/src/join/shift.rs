//! Whether rows that disagree where they were placed agree somewhere else.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::{
    accept::{Accepted, Placed},
    positions::Positions,
};
use crate::span::Source;

/// A shift after which rows agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shift {
    /// What to add to the positions of the rows.
    pub(super) positions: i64,
    /// Differing rows that have a counterpart after the shift.
    pub(super) compared: u32,
    /// Of these, the rows that equal it.
    pub(super) agreeing: u32,
    /// Rows of the source that the shift moves past the last position.
    pub(super) past_the_end: u32,
    /// Where the first row of the source was placed.
    pub(super) placed_at: u32,
}

impl Shift {
    /// Whether the rows were placed at the beginning of a KV block inside of which they begin, and not at the beginning of all
    /// (then their start was lost, which is another fault).
    pub(super) fn inside_block(&self) -> bool {
        let block = 1i64 << self.placed_at.trailing_zeros().min(LARGEST_BLOCK);
        self.placed_at > 0 && block >= SMALLEST_BLOCK && (1..block).contains(&self.positions)
    }
}

/// Positions of the smallest KV block that engines use.
const SMALLEST_BLOCK: i64 = 16;
/// Of the largest, as a power of two.
const LARGEST_BLOCK: u32 = 8;

/// Differing rows looked at: enough to tell a shift, and no more than a bad request may cost.
const LOOKED_AT: usize = 4096;
/// Counterparts kept per distinct row: decode loops repeat one row many times.
const COUNTERPARTS: usize = 16;
/// Share of the rows compared that must agree after the shift.
const AGREE: f64 = 0.9;
/// A shift explains either most of the overlap or a run of at least this many rows; single rows that differ by
/// numerics may equal a neighbour by chance.
const RUN: u32 = 8;

/// Looks for one shift that explains the rows of `source` that differ from the accepted ones.
pub(super) fn find_shift(
    placed: &[Placed<'_>],
    accepted: &Accepted,
    source: &Source,
    differing: &Positions,
    overlap: u32,
    expected: Option<u32>,
) -> Option<Shift> {
    let mut counterparts: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut reference = Positions::default();
    for (&start, piece) in &accepted.pieces {
        if placed[piece.span].source() == source {
            continue;
        }
        reference.insert(start..start + piece.rows.len() as u32);
        for row in 0..piece.rows.len() {
            let positions = counterparts.entry(xxh3_64(piece.rows.row(row))).or_default();
            if positions.len() < COUNTERPARTS {
                positions.push(start + row as u32);
            }
        }
    }
    let rows = rows_of(placed, source, differing);
    let mut votes: HashMap<i64, u32> = HashMap::new();
    for (position, hash) in &rows {
        for &there in counterparts.get(hash).into_iter().flatten() {
            *votes.entry(i64::from(there) - i64::from(*position)).or_default() += 1;
        }
    }
    let (positions, agreeing) = votes
        .into_iter()
        .filter(|(shift, _)| *shift != 0)
        .max_by_key(|(shift, agreeing)| (*agreeing, std::cmp::Reverse(shift.abs()), *shift))?;
    let moved = |position: u32| u32::try_from(i64::from(position) + positions).ok();
    let compared = rows
        .iter()
        .filter(|(position, _)| moved(*position).is_some_and(|there| reference.covers(there..there + 1)))
        .count() as u32;
    let explains =
        f64::from(agreeing) >= AGREE * f64::from(compared) && (2 * differing.len() >= overlap || agreeing >= RUN);
    let past_the_end = |span: &Placed<'_>| {
        let end = i64::from(span.place.start) + (span.place.rows + span.place.extra) as i64;
        (end + positions - i64::from(expected?)).try_into().ok()
    };
    let past_the_end = placed.iter().filter(|span| span.source() == source).filter_map(past_the_end).max().unwrap_or(0);
    let placed_at =
        placed.iter().filter(|span| span.source() == source).map(|span| span.place.start).min().unwrap_or(0);
    explains.then_some(Shift { positions, compared, agreeing, past_the_end, placed_at })
}

/// The differing rows of a source, by position, as hashes.
fn rows_of(placed: &[Placed<'_>], source: &Source, differing: &Positions) -> Vec<(u32, u64)> {
    let mut rows = Vec::new();
    for span in placed.iter().filter(|span| span.source() == source) {
        for (range, known) in span.place.known(&span.held.span) {
            for position in differing.iter().flatten().filter(|position| range.contains(position)) {
                if rows.len() == LOOKED_AT {
                    return rows;
                }
                rows.push((position, xxh3_64(known.row((position - range.start) as usize))));
            }
        }
    }
    rows
}
