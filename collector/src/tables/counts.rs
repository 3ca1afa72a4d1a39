//! Counting ids.

use fearless_simd::{Level, dispatch};
use gatescope_routing::shape::IdWidth;

/// How often each expert of each hidden layer was chosen: `[layers][experts]`.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerCounts {
    layers: Vec<Vec<i64>>,
}

/// Below this many ids, setting up the histograms costs more than they save.
const FEW_IDS: usize = 512;

impl LayerCounts {
    /// Adds these ids, or takes them away.
    pub(super) fn count(&mut self, layer: usize, ids: &[u8], width: IdWidth, sign: i64) {
        if layer >= self.layers.len() {
            self.layers.resize_with(layer + 1, Vec::new);
        }
        let counts = &mut self.layers[layer];
        match width {
            IdWidth::U8 => count_u8(counts, ids, sign),
            IdWidth::U16 => count_u16(counts, ids, sign),
        }
    }

    /// `(layer, expert, tokens)` for every count that is not 0, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, usize, i64)> + '_ {
        self.layers.iter().enumerate().flat_map(|(layer, counts)| {
            counts
                .iter()
                .enumerate()
                .filter(|&(_, &tokens)| tokens != 0)
                .map(move |(expert, &tokens)| (layer, expert, tokens))
        })
    }

    /// `[layers][experts]`
    pub(super) fn layers(&self) -> &[Vec<i64>] {
        &self.layers
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.layers.len() < other.layers.len() {
            self.layers.resize_with(other.layers.len(), Vec::new);
        }
        for (counts, others) in self.layers.iter_mut().zip(&other.layers) {
            if counts.len() < others.len() {
                counts.resize(others.len(), 0);
            }
            counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.layers.iter().map(|counts| counts.len() * size_of::<i64>()).sum()
    }
}

fn count_u8(counts: &mut Vec<i64>, ids: &[u8], sign: i64) {
    counts.resize(256, 0);
    if ids.len() < FEW_IDS {
        ids.iter().for_each(|&id| counts[usize::from(id)] += sign);
        return;
    }
    for part in ids.chunks(MOST_IDS) {
        dispatch!(Level::new(), _ => count_part(counts, part, sign));
    }
}

/// Most ids that the histograms of [`count_part`] can hold.
const MOST_IDS: usize = u16::MAX as usize;

#[inline(always)]
fn count_part(counts: &mut [i64], ids: &[u8], sign: i64) {
    // Neighbours often name the same expert, and an increment has to wait for the one before it on the same counter:
    // neighbours get histograms of their own, narrow ones, which the first-level cache holds beside the ids.
    let mut histograms = [[0u16; 256]; 8];
    let (eights, rest) = ids.as_chunks::<8>();
    for eight in eights {
        let eight = u64::from_le_bytes(*eight);
        for (slot, histogram) in histograms.iter_mut().enumerate() {
            histogram[usize::from((eight >> (8 * slot)) as u8)] += 1;
        }
    }
    rest.iter().for_each(|&id| histograms[0][usize::from(id)] += 1);
    for (id, count) in counts.iter_mut().enumerate() {
        let tokens: u32 = histograms.iter().map(|histogram| u32::from(histogram[id])).sum();
        *count += sign * i64::from(tokens);
    }
}

fn count_u16(counts: &mut Vec<i64>, ids: &[u8], sign: i64) {
    for id in ids.chunks_exact(2) {
        let id = usize::from(u16::from_le_bytes([id[0], id[1]]));
        if id >= counts.len() {
            counts.resize((id + 1).next_power_of_two(), 0);
        }
        counts[id] += sign;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_id_is_counted_once_in_its_layer(ids in proptest::collection::vec(any::<u8>(), 0..3000), layer in 0usize..5) {
            let mut counts = LayerCounts::default();

            counts.count(layer, &ids, IdWidth::U8, 1);

            let mut expected = [0i64; 256];
            ids.iter().for_each(|&id| expected[usize::from(id)] += 1);
            let counted: Vec<_> = counts.iter().collect();
            let wanted: Vec<_> = (0..256).filter(|&id| expected[id] != 0).map(|id| (layer, id, expected[id])).collect();
            prop_assert_eq!(counted, wanted);
        }

        #[test]
        fn what_is_taken_away_cancels_what_was_added(ids in proptest::collection::vec(any::<u16>(), 0..600)) {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let mut counts = LayerCounts::default();

            counts.count(0, &bytes, IdWidth::U16, 1);
            counts.count(0, &bytes, IdWidth::U16, -1);

            prop_assert_eq!(counts.iter().count(), 0);
        }
    }
}
