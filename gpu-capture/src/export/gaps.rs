//! What was dropped, until it can be told.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
};

use gatescope_routing::{Anchor, RequestKey, Source, join::Lost};
use gatescope_wire::{Event, Request, Told};

/// Bytes that a gap is taken to hold: its request's names, which events share, its range and its places in two tables.
const GAP_BYTES: usize = 256;

/// Positions that were dropped, by request and source.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Ranges are ascending and apart.
    of: HashMap<(RequestKey, Source), Vec<Range<u32>>>,
    /// The keys of `of`, the oldest first.
    order: VecDeque<(RequestKey, Source)>,
    ranges: usize,
    most: usize,
}

/// The positions that an event has rows for, and where they begin if that is known.
pub(super) fn positions(event: &Event) -> (Option<u32>, u32) {
    match event {
        Event::Request(Request { told: Told::Span(span), .. }) => match span.anchor {
            Anchor::Start(start) => (Some(start), span.rows.len() as u32),
            Anchor::End { .. } => (None, span.rows.len() as u32),
        },
        Event::Request(Request { told: Told::Block(block), .. }) => (Some(block.reference.start), block.rows),
        _ => (None, 0),
    }
}

impl Gaps {
    /// Gaps of at most these many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self { of: HashMap::new(), order: VecDeque::new(), ranges: 0, most: (bytes / GAP_BYTES).max(16) }
    }

    /// Remembers the positions of a dropped event; says how many it cannot remember.
    pub(super) fn add(&mut self, event: &Event) -> u32 {
        let (start, count) = positions(event);
        let Event::Request(request) = event else { return 0 };
        let Some(start) = start else { return count };
        let range = start..start.saturating_add(count);
        let key = (request.key.clone(), request.told.source().clone());
        let full = self.ranges >= self.most;
        let known = match self.of.get_mut(&key) {
            Some(ranges) => ranges,
            None if full => return count,
            None => {
                self.order.push_back(key.clone());
                self.of.entry(key).or_default()
            }
        };
        let before = known.len();
        // A gap that grows takes no memory.
        if full && !known.iter().any(|gap| gap.start <= range.end && range.start <= gap.end) {
            return count;
        }
        merge(known, range);
        self.ranges = self.ranges + known.len() - before;
        0
    }

    /// Takes some gaps as events, the oldest request's first.
    pub(super) fn take(&mut self, most: usize, at: i64) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < most
            && let Some(of) = self.order.pop_front()
        {
            let mut ranges = self.of.remove(&of).unwrap_or_default();
            let left = ranges.split_off(ranges.len().min(most - events.len()));
            self.ranges -= ranges.len();
            let (key, source) = &of;
            events.extend(ranges.into_iter().map(|range| {
                let lost = Lost { source: source.clone(), start: range.start, positions: range.end - range.start };
                Event::Request(Request { key: key.clone(), at, told: Told::Lost(lost) })
            }));
            if !left.is_empty() {
                self.order.push_front(of.clone());
                self.of.insert(of, left);
            }
        }
        events
    }
}

/// Adds a range to ranges that are ascending and apart, so that they stay so.
fn merge(ranges: &mut Vec<Range<u32>>, mut new: Range<u32>) {
    let first = ranges.partition_point(|range| range.end < new.start);
    let behind = ranges.partition_point(|range| range.start <= new.end);
    if let Some(touched) = ranges.get(first..behind)
        && let (Some(low), Some(high)) = (touched.first(), touched.last())
    {
        new = new.start.min(low.start)..new.end.max(high.end);
    }
    ranges.splice(first..behind, [new]);
}

#[cfg(test)]
mod tests {
    use gatescope_routing::{Role, span::BlockHash};
    use gatescope_wire::Block;

    use super::*;

    fn dropped(request: &str, start: u32, rows: u32) -> Event {
        let source = Source { role: Role::Decode, instance: "d0".into(), attempt: 0 };
        let hash = BlockHash([1u8][..].into());
        let reference = gatescope_routing::join::BlockReference { source, start, hash, generation: 0 };
        let key = RequestKey { run: "default".into(), request_id: request.into(), choice: 0 };
        Event::Request(Request { key, at: 0, told: Told::Block(Block { reference, rows }) })
    }

    fn told(events: &[Event]) -> Vec<(String, u32, u32)> {
        events
            .iter()
            .map(|event| match event {
                Event::Request(Request { key, told: Told::Lost(lost), .. }) => {
                    (key.request_id.to_string(), lost.start, lost.positions)
                }
                other => panic!("{other:?} is no gap"),
            })
            .collect()
    }

    #[test]
    fn gaps_that_touch_are_one() {
        let mut gaps = Gaps::new(1 << 20);
        for (request, start, rows) in
            [("a", 32, 16), ("b", 0, 16), ("a", 0, 16), ("a", 16, 16), ("a", 100, 1), ("a", 99, 5)]
        {
            assert_eq!(gaps.add(&dropped(request, start, rows)), 0);
        }

        let events = gaps.take(10, 0);

        assert_eq!(told(&events), [("a".into(), 0, 48), ("a".into(), 99, 5), ("b".into(), 0, 16)]);
        assert!(gaps.ranges == 0 && gaps.of.is_empty());
    }

    #[test]
    fn gaps_are_bounded_and_what_does_not_fit_is_counted() {
        let mut gaps = Gaps::new(16 * GAP_BYTES);
        for i in 0..16 {
            assert_eq!(gaps.add(&dropped("a", i * 10, 1)), 0);
        }

        assert_eq!(gaps.add(&dropped("a", 1000, 7)), 7);
        assert_eq!(gaps.add(&dropped("b", 0, 9)), 9);
        assert_eq!(gaps.add(&dropped("a", 1, 3)), 0, "a gap that grows takes no memory");

        assert_eq!(told(&gaps.take(1, 0)), [("a".into(), 0, 4)]);
        assert_eq!(gaps.add(&dropped("b", 0, 9)), 0);
        assert_eq!(gaps.take(100, 0).len(), 16);
    }
}
