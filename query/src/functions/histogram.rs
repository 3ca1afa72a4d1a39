//! How often each id occurs, straight from the bytes of a layer column.

use arrow::array::{Array, FixedSizeBinaryArray};
use gatescope_routing::shape::IdWidth;

/// Counting into one table, equal ids in a row wait for each other's store; four tables keep them apart.
const LANES: usize = 4;

/// Tokens per id.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    width: IdWidth,
    /// `[lanes][ids]`, all of one length.
    lanes: [Vec<u64>; LANES],
}

impl Histogram {
    pub(super) fn new(width: IdWidth) -> Self {
        let ids = match width {
            IdWidth::U8 => 256,
            // Grows with the ids that are seen: few models have a hundredth of what fits.
            IdWidth::U16 => 0,
        };
        Self { width, lanes: std::array::from_fn(|_| vec![0; ids]) }
    }

    /// Counts every id of every row that is not null.
    pub(super) fn add(&mut self, column: &FixedSizeBinaryArray) {
        let row = column.value_size();
        match column.nulls() {
            None => self.add_ids(column.value_data()),
            Some(nulls) => {
                nulls.valid_slices().for_each(|(start, end)| self.add_ids(&column.value_data()[start * row..end * row]))
            }
        }
    }

    fn add_ids(&mut self, ids: &[u8]) {
        match self.width {
            IdWidth::U8 => self.add_bytes(ids),
            IdWidth::U16 => self.add_pairs(ids),
        }
    }

    fn add_bytes(&mut self, ids: &[u8]) {
        let [a, b, c, d] = &mut self.lanes;
        let (Ok(a), Ok(b), Ok(c), Ok(d)) = (table(a), table(b), table(c), table(d)) else { return };
        let mut words = ids.chunks_exact(8);
        for word in &mut words {
            // One load for eight ids; the shifts are free beside the stores.
            let word = u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
            a[usize::from(word as u8)] += 1;
            b[usize::from((word >> 8) as u8)] += 1;
            c[usize::from((word >> 16) as u8)] += 1;
            d[usize::from((word >> 24) as u8)] += 1;
            a[usize::from((word >> 32) as u8)] += 1;
            b[usize::from((word >> 40) as u8)] += 1;
            c[usize::from((word >> 48) as u8)] += 1;
            d[usize::from((word >> 56) as u8)] += 1;
        }
        for &id in words.remainder() {
            a[usize::from(id)] += 1;
        }
    }

    fn add_pairs(&mut self, ids: &[u8]) {
        let (ids, _) = ids.as_chunks::<2>();
        let Some(greatest) = ids.iter().map(|&id| u16::from_le_bytes(id)).max() else { return };
        self.reserve(usize::from(greatest) + 1);
        let [a, b, c, d] = &mut self.lanes;
        let (quads, rest) = ids.as_chunks::<LANES>();
        for quad in quads {
            a[usize::from(u16::from_le_bytes(quad[0]))] += 1;
            b[usize::from(u16::from_le_bytes(quad[1]))] += 1;
            c[usize::from(u16::from_le_bytes(quad[2]))] += 1;
            d[usize::from(u16::from_le_bytes(quad[3]))] += 1;
        }
        for &id in rest {
            a[usize::from(u16::from_le_bytes(id))] += 1;
        }
    }

    /// Adds counts by id, as another histogram told them.
    pub(super) fn add_counts(&mut self, counts: &[i64]) {
        self.reserve(counts.len());
        for (sum, &count) in self.lanes[0].iter_mut().zip(counts) {
            *sum += count as u64;
        }
    }

    fn reserve(&mut self, ids: usize) {
        if ids > self.lanes[0].len() {
            self.lanes.iter_mut().for_each(|lane| lane.resize(ids.next_power_of_two(), 0));
        }
    }

    /// Counts by id, up to the greatest id that occurs.
    pub(super) fn counts(&self) -> Vec<i64> {
        let [a, b, c, d] = &self.lanes;
        let mut counts: Vec<i64> =
            a.iter().zip(b).zip(c).zip(d).map(|(((a, b), c), d)| (a + b + c + d) as i64).collect();
        counts.truncate(counts.iter().rposition(|&count| count != 0).map_or(0, |last| last + 1));
        counts
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.lanes.iter().map(|lane| lane.capacity() * size_of::<u64>()).sum::<usize>()
    }
}

/// A table with a length that the compiler knows: no bounds check per id.
fn table(lane: &mut [u64]) -> Result<&mut [u64; 256], std::array::TryFromSliceError> {
    lane.try_into()
}
