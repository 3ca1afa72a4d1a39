//! Sets of positions, as ranges.

use std::{collections::BTreeMap, ops::Range};

/// A set of positions, kept as ranges that neither meet nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Positions {
    /// Start to end.
    ranges: BTreeMap<u32, u32>,
}

impl Positions {
    /// Adds a range.
    pub fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // The one range that may begin before and reach into this one, then all that begin inside it.
        if let Some((&left, &right)) = self.ranges.range(..=start).next_back()
            && right >= start
        {
            start = left;
            end = end.max(right);
        }
        while let Some((&left, &right)) = self.ranges.range(start..=end).next() {
            end = end.max(right);
            self.ranges.remove(&left);
        }
        self.ranges.insert(start, end);
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The parts of `within` that are not in the set, ascending.
    pub fn missing(&self, within: Range<u32>) -> Vec<Range<u32>> {
        let mut missing = Vec::new();
        let mut next = within.start;
        let before = self.ranges.range(..within.start).next_back();
        for (&start, &end) in before.into_iter().chain(self.ranges.range(within.clone())) {
            if start > next {
                missing.push(next..start);
            }
            next = next.max(end);
        }
        if next < within.end {
            missing.push(next..within.end);
        }
        missing
    }

    /// How many positions.
    pub fn len(&self) -> u32 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The first position.
    pub fn first(&self) -> Option<u32> {
        self.ranges.keys().next().copied()
    }

    /// Whether all of the range is in the set.
    pub fn covers(&self, range: Range<u32>) -> bool {
        range.is_empty() || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_as_a_set_of_numbers(ranges in prop::collection::vec((0u32..60, 0u32..12), 0..20)) {
            let mut set = Positions::default();
            let mut numbers = BTreeSet::new();
            for (start, length) in ranges {
                set.insert(start..start + length);
                numbers.extend(start..start + length);
            }
            prop_assert_eq!(set.iter().flatten().collect::<Vec<_>>(), numbers.iter().copied().collect::<Vec<_>>());
            let missing: Vec<u32> = set.missing(5..50).into_iter().flatten().collect();
            prop_assert_eq!(missing, (5..50).filter(|n| !numbers.contains(n)).collect::<Vec<_>>());
            prop_assert_eq!(set.len() as usize, numbers.len());
            prop_assert_eq!(set.covers(7..13), (7..13).all(|n| numbers.contains(&n)));
        }
    }
}
