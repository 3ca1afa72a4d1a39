//! One pass over a span's rows that collects what the value checks need, before it is known which model they are of.

use fearless_simd::{Level, dispatch};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    rows::Rows,
    shape::{IdWidth, LayerSet},
};

/// What one layer's rows of a span look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerValues {
    /// Highest id.
    pub highest: u16,
    /// Rows whose ids are all 0.
    pub zero_rows: u32,
    /// Rows that name an expert twice, all-zero rows aside.
    pub repeating_rows: u32,
}

/// What a span's rows look like. Made by [`inspect`], which may run on any thread, before the join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// XXH3 (64 bit) of the rows' bytes.
    pub payload_hash: u64,
    /// Per layer.
    pub layers: Vec<LayerValues>,
}

impl Inspection {
    /// Layers with an id above 0.
    pub fn live_layers(&self) -> LayerSet {
        self.layers.iter().enumerate().filter(|(_, values)| values.highest > 0).map(|(layer, _)| layer).collect()
    }
}

/// Looks at every id once.
pub fn inspect(rows: &Rows) -> Inspection {
    // With the widest registers that this machine has.
    let level = Level::new();
    let mut layers = vec![LayerValues::default(); rows.shape().layers()];
    dispatch!(level, _ => highest(rows, &mut layers));
    if rows.shape().top_k() > 1 {
        // A list of zeros repeats itself; in a layer without any id that needs no count, as in a dense layer.
        let repeating = dispatch!(level, _ => layers_that_repeat(rows));
        for (layer, values) in layers.iter_mut().enumerate() {
            if values.highest == 0 {
                values.zero_rows = rows.len() as u32;
            } else if repeating.contains(&layer) {
                count(rows, layer, values);
            }
        }
    }
    Inspection { payload_hash: xxh3_64(rows.bytes()), layers }
}

/// Layers in which any list names an expert twice; lists of zeros do.
#[inline(always)]
fn layers_that_repeat(rows: &Rows) -> Vec<usize> {
    let list = ListLayout { top_k: rows.shape().top_k(), width: rows.width() };
    // Literal layouts let the compiler unroll and use wide registers for the common shapes.
    match (list.top_k, list.width) {
        (8, IdWidth::U8) => any_repeat::<u64>(rows, ListLayout { top_k: 8, width: IdWidth::U8 }),
        (4, IdWidth::U8) => any_repeat::<u32>(rows, ListLayout { top_k: 4, width: IdWidth::U8 }),
        (4, IdWidth::U16) => any_repeat::<u64>(rows, ListLayout { top_k: 4, width: IdWidth::U16 }),
        (8, IdWidth::U16) => any_repeat::<u128>(rows, ListLayout { top_k: 8, width: IdWidth::U16 }),
        _ => match list.bytes() {
            0..=8 => any_repeat::<u64>(rows, list),
            9..=16 => any_repeat::<u128>(rows, list),
            _ => (0..rows.shape().layers())
                .filter(|&layer| (0..rows.len()).any(|row| repeats(rows.layer(row, layer), list.width)))
                .collect(),
        },
    }
}

/// Only layers that [`layers_that_repeat`] names come here: on healthy rows, none.
fn count(rows: &Rows, layer: usize, values: &mut LayerValues) {
    for row in 0..rows.len() {
        let list = rows.layer(row, layer);
        if list.iter().all(|&byte| byte == 0) {
            values.zero_rows += 1;
        } else if repeats(list, rows.width()) {
            values.repeating_rows += 1;
        }
    }
}

/// Whether a top-k list names an expert twice.
pub(crate) fn repeats(list: &[u8], width: IdWidth) -> bool {
    let mut seen = Vec::with_capacity(list.len() / width.bytes());
    list.chunks_exact(width.bytes()).any(|id| {
        let again = seen.contains(&id);
        seen.push(id);
        again
    })
}

#[inline(always)]
fn highest(rows: &Rows, layers: &mut [LayerValues]) {
    let top_k = rows.shape().top_k();
    // Element-wise over whole rows, so that the compiler can use wide registers.
    match rows.width() {
        IdWidth::U8 => {
            let mut most = vec![0u8; rows.shape().ids()];
            for row in rows.bytes().chunks_exact(rows.row_bytes()) {
                most.iter_mut().zip(row).for_each(|(most, &id)| *most = (*most).max(id));
            }
            for (values, slots) in layers.iter_mut().zip(most.chunks_exact(top_k)) {
                values.highest = slots.iter().copied().max().map_or(0, u16::from);
            }
        }
        IdWidth::U16 => {
            let mut most = vec![0u16; rows.shape().ids()];
            for row in rows.bytes().chunks_exact(rows.row_bytes()) {
                let ids = row.chunks_exact(2).map(|id| u16::from_le_bytes([id[0], id[1]]));
                most.iter_mut().zip(ids).for_each(|(most, id)| *most = (*most).max(id));
            }
            for (values, slots) in layers.iter_mut().zip(most.chunks_exact(top_k)) {
                values.highest = slots.iter().copied().max().unwrap_or(0);
            }
        }
    }
}

/// How a top-k list lies in memory.
#[derive(Clone, Copy)]
struct ListLayout {
    top_k: usize,
    width: IdWidth,
}

impl ListLayout {
    fn bytes(self) -> usize {
        self.top_k * self.width.bytes()
    }
}

/// An integer that holds a whole top-k list, one lane per id.
trait Lanes: Copy + Default + std::ops::BitOrAssign + PartialEq {
    fn load(list: &[u8]) -> Self;
    /// Not 0 where two lanes are equal.
    fn equal_lanes(self, list: ListLayout) -> Self;
}

macro_rules! lanes {
    ($int:ty) => {
        impl Lanes for $int {
            #[inline(always)]
            fn load(list: &[u8]) -> Self {
                if let Ok(bytes) = list.try_into() {
                    return Self::from_le_bytes(bytes);
                }
                let mut bytes = [0; size_of::<Self>()];
                bytes[..list.len()].copy_from_slice(list);
                Self::from_le_bytes(bytes)
            }

            /// Compares each lane with each other one by rotating the list against itself: lanes `i` and `i + r` meet
            /// at rotation `r`, and rotations past the half meet the same pairs again.
            #[inline(always)]
            fn equal_lanes(self, list: ListLayout) -> Self {
                let lane = 8 * list.width.bytes() as u32;
                let used = 8 * list.bytes() as u32;
                let unused = if used == Self::BITS { 0 } else { Self::MAX << used };
                let ones = Self::MAX / (((1 as $int) << lane) - 1);
                let tops = ones << (lane - 1);
                let mut found: Self = 0;
                for turn in 1..=(list.top_k as u32 / 2) {
                    let shift = lane * turn;
                    let turned = (self >> shift) | (self << (used - shift));
                    let difference = (self ^ turned) | unused;
                    // A lane is zero where subtracting 1 borrows into its top bit; "any lane" is exact.
                    found |= difference.wrapping_sub(ones) & !difference & tops;
                }
                found
            }
        }
    };
}

lanes!(u32);
lanes!(u64);
lanes!(u128);

/// One accumulator per layer, so that the inner loop runs over adjacent lists without a branch.
#[inline(always)]
fn any_repeat<L: Lanes>(rows: &Rows, list: ListLayout) -> Vec<usize> {
    let mut found = vec![L::default(); rows.shape().layers()];
    for row in rows.bytes().chunks_exact(rows.row_bytes()) {
        for (found, ids) in found.iter_mut().zip(row.chunks_exact(list.bytes())) {
            *found |= L::load(ids).equal_lanes(list);
        }
    }
    found.iter().enumerate().filter(|(_, found)| **found != L::default()).map(|(layer, _)| layer).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape::RowShape;

    fn slowly(rows: &Rows) -> Vec<LayerValues> {
        (0..rows.shape().layers())
            .map(|layer| {
                let mut values = LayerValues::default();
                for row in 0..rows.len() {
                    let ids = rows.experts(row, layer);
                    values.highest = values.highest.max(ids.iter().copied().max().unwrap_or(0));
                    if ids.len() > 1 {
                        let zero = ids.iter().all(|&id| id == 0);
                        let repeats = (1..ids.len()).any(|i| ids[..i].contains(&ids[i]));
                        values.zero_rows += u32::from(zero);
                        values.repeating_rows += u32::from(!zero && repeats);
                    }
                }
                values
            })
            .collect()
    }

    proptest! {
        #[test]
        fn one_pass_counts_what_a_slow_look_at_every_id_counts(
            (layers, top_k, wide, ids) in (1usize..5, 1usize..20, any::<bool>()).prop_flat_map(|(layers, top_k, wide)| {
                let id = if wide { 0u16..400 } else { 0u16..12 };
                (Just(layers), Just(top_k), Just(wide),
                 prop::collection::vec(prop_oneof![3 => id, 1 => Just(0u16)], layers * top_k * 5))
            })
        ) {
            let width = if wide { IdWidth::U16 } else { IdWidth::U8 };
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()[..width.bytes()].to_vec()).collect();
            let rows = Rows::new(bytes.into(), RowShape::new(layers as u64, top_k as u64).unwrap(), width).unwrap();
            prop_assert_eq!(inspect(&rows).layers, slowly(&rows));
        }
    }
}
