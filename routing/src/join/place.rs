//! Where a span's rows belong.

use std::ops::Range;

use super::lengths::Lengths;
use crate::{
    rows::Rows,
    span::{Anchor, Span},
};

/// A span's place among the positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Position of the first row.
    pub(super) start: u32,
    /// Rows that lie inside the request.
    pub(super) rows: usize,
    /// Rows past the last position that the source can have fed to the model.
    pub(super) extra: usize,
}

/// Places a span; `None` while the request's length is not known and the span does not say its start.
pub(super) fn place(span: &Span, lengths: &Lengths) -> Option<Place> {
    let rows = u32::try_from(span.rows.len()).ok()?;
    let (start, limit) = match span.anchor {
        Anchor::Start(start) => (start, lengths.limit(&span.source)),
        Anchor::End { completion_tokens } => {
            let prompt = lengths.prompt?;
            let end = match completion_tokens {
                // Nothing was sampled: engines answer with the last token of the prompt or without.
                0 => rows.clamp(prompt.saturating_sub(1), prompt),
                sampled => prompt.saturating_add(sampled).saturating_sub(1),
            };
            // More rows than positions: nothing says which are too many, so the answer is read from its beginning.
            (end.saturating_sub(rows), Some(end))
        }
    };
    let end = start.checked_add(rows)?;
    let extra = limit.map_or(0, |limit| end.saturating_sub(limit.max(start)));
    Some(Place { start, rows: (rows - extra) as usize, extra: extra as usize })
}

impl Place {
    /// The rows that are known (not marked as unknown by the engine), with their positions.
    pub(super) fn known<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = (Range<u32>, Rows)> + 'a {
        let ends = span.unknown.iter().map(|unknown| unknown.rows.start as usize).chain([self.rows]);
        let starts = [0].into_iter().chain(span.unknown.iter().map(|unknown| unknown.rows.end as usize));
        starts.zip(ends).filter_map(|(from, to)| {
            let to = to.min(self.rows);
            (from < to).then(|| (self.start + from as u32..self.start + to as u32, span.rows.slice(from..to)))
        })
    }

    /// Positions whose rows the engine marked as unknown.
    pub(super) fn unknown<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = Range<u32>> + 'a {
        span.unknown.iter().filter_map(|unknown| {
            let to = (unknown.rows.end as usize).min(self.rows) as u32;
            (unknown.rows.start < to).then(|| self.start + unknown.rows.start..self.start + to)
        })
    }
}
