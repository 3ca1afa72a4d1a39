//! From the types in which engines send ids to the two in which rows are kept, without loss.
//!
//! `uint8` and `uint16` stay as they are: that width is the model's. Every other type becomes `u8` where all ids of the
//! payload fit, else `u16`. In signed types `-1`, and nothing else below 0, is the mark for "unknown".

use bytes::Bytes;

use super::Payload;
use crate::{
    rows::Rows,
    shape::{IdWidth, MAX_EXPERTS, RowShape},
    span::{Unknown, WireType},
};

/// Highest id that is kept; the one above it is what `-1` reads as in `u16`.
pub const MAX_ID: u16 = (MAX_EXPERTS - 1) as u16;
/// Most runs of adjacent rows with unknown marks in one payload: bounds what a payload of marks can allocate.
pub const MAX_UNKNOWN_RUNS: usize = 16_384;

/// Ids that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// An id that no expert has.
    #[error(
        "id {id} in row {row}, layer {layer}, slot {slot}: expected 0 to {MAX_ID}, or -1 for unknown in a signed type"
    )]
    OutOfRange {
        /// The id.
        id: i128,
        /// Index of its row in the payload.
        row: usize,
        /// Its layer.
        layer: usize,
        /// Its slot.
        slot: usize,
    },
    /// Marks for "unknown" all over the payload.
    #[error("rows with unknown marks (-1) in more than {MAX_UNKNOWN_RUNS} places: expected whole runs of rows")]
    ScatteredMarks,
    /// More rows than there are positions.
    #[error("{0} rows: expected at most 4294967295")]
    TooManyRows(usize),
    /// Bytes that are not whole rows.
    #[error("{bytes} bytes: expected a multiple of {row_bytes}, the bytes of one row ({shape}, {})", wire_type.name())]
    PartOfRow {
        /// Bytes that were given.
        bytes: usize,
        /// Bytes of a row.
        row_bytes: usize,
        /// Geometry of a row.
        shape: RowShape,
        /// The type of an id.
        wire_type: WireType,
    },
}

/// Rows of this type, from byte `skip` of the buffer to its end, which stay in the buffer.
pub(super) fn narrow(
    mut buffer: Vec<u8>,
    skip: usize,
    wire_type: WireType,
    shape: RowShape,
) -> Result<Payload, IdError> {
    let skip = skip.min(buffer.len());
    let (width, unknown) = match wire_type {
        WireType::U8 => (IdWidth::U8, Vec::new()),
        WireType::U16 => (IdWidth::U16, Vec::new()),
        WireType::I8 => in_place::<i8, 1>(&mut buffer, skip, shape, wire_type)?,
        WireType::I16 => in_place::<i16, 2>(&mut buffer, skip, shape, wire_type)?,
        WireType::U32 => in_place::<u32, 4>(&mut buffer, skip, shape, wire_type)?,
        WireType::I32 => in_place::<i32, 4>(&mut buffer, skip, shape, wire_type)?,
        WireType::U64 => in_place::<u64, 8>(&mut buffer, skip, shape, wire_type)?,
        WireType::I64 | WireType::Json => in_place::<i64, 8>(&mut buffer, skip, shape, wire_type)?,
    };
    let bytes = Bytes::from(buffer);
    let bytes = if matches!(wire_type, WireType::U8 | WireType::U16) { bytes.slice(skip..) } else { bytes };
    finish(bytes, width, wire_type, shape, unknown)
}

/// A payload of these ids.
pub(super) fn finish(
    bytes: Bytes,
    width: IdWidth,
    wire_type: WireType,
    shape: RowShape,
    unknown: Vec<Unknown>,
) -> Result<Payload, IdError> {
    let rows = Rows::new(bytes, shape, width).map_err(|error| IdError::PartOfRow {
        bytes: error.bytes,
        row_bytes: error.row_bytes,
        shape,
        wire_type,
    })?;
    if u32::try_from(rows.len()).is_err() {
        return Err(IdError::TooManyRows(rows.len()));
    }
    Ok(Payload { rows, wire_type, start: None, unknown })
}

/// A numeric type that is wider than what is kept, or signed.
trait WireId<const BYTES: usize>: Copy + Ord + Into<i128> {
    fn from_le(bytes: [u8; BYTES]) -> Self;
    /// The lowest 16 bits.
    fn low(self) -> u16;
}

macro_rules! wire_id {
    ($($id:ty, $bytes:literal;)*) => {$(
        impl WireId<$bytes> for $id {
            fn from_le(bytes: [u8; $bytes]) -> Self {
                Self::from_le_bytes(bytes)
            }
            fn low(self) -> u16 {
                self as u16
            }
        }
    )*};
}

wire_id! { i8, 1; i16, 2; u32, 4; i32, 4; u64, 8; i64, 8; }

/// Narrows the ids from byte `skip` on into the front of the buffer, and cuts it there.
fn in_place<T: WireId<BYTES>, const BYTES: usize>(
    buffer: &mut Vec<u8>,
    skip: usize,
    shape: RowShape,
    wire_type: WireType,
) -> Result<(IdWidth, Vec<Unknown>), IdError> {
    let (bytes, row_bytes) = (buffer.len() - skip, shape.ids() * BYTES);
    if !bytes.is_multiple_of(row_bytes) {
        return Err(IdError::PartOfRow { bytes, row_bytes, shape, wire_type });
    }
    let ids = buffer[skip..].as_chunks::<BYTES>().0;
    let lowest_and_highest = ids.iter().map(|&id| T::from_le(id)).fold(None, |ends: Option<(T, T)>, id| match ends {
        None => Some((id, id)),
        Some((lowest, highest)) => Some((lowest.min(id), highest.max(id))),
    });
    let (lowest, highest) = lowest_and_highest.map_or((0, 0), |(lowest, highest)| (lowest.into(), highest.into()));
    if lowest < -1 || highest > i128::from(MAX_ID) {
        let kept = -1..=i128::from(MAX_ID);
        let ids = ids.iter().map(|&id| T::from_le(id).into());
        let (index, id) = ids.enumerate().find(|(_, id)| !kept.contains(id)).unwrap_or_default();
        return Err(out_of_range(id, index, shape));
    }
    let mut unknown = Marks::default();
    if lowest < 0 {
        for (row, ids) in ids.chunks_exact(shape.ids()).enumerate() {
            if let Some(at) = ids.iter().position(|&id| T::from_le(id).into() < 0) {
                unknown.mark(row, at / shape.top_k())?;
            }
        }
    }
    let width = if highest <= 255 { IdWidth::U8 } else { IdWidth::U16 };
    let count = ids.len();
    // Blocks through a buffer of their own, so that the compiler sees no overlap and uses vector instructions.
    const BLOCK: usize = 128;
    let mut block = [0; 2 * BLOCK];
    for first in (0..count).step_by(BLOCK) {
        let many = BLOCK.min(count - first);
        let ids = buffer[skip + first * BYTES..][..many * BYTES].as_chunks::<BYTES>().0;
        let known = |id: &[u8; BYTES]| {
            let id = T::from_le(*id);
            if id.into() < 0 { 0 } else { id.low() }
        };
        match width {
            IdWidth::U8 => block.iter_mut().zip(ids).for_each(|(to, id)| *to = known(id) as u8),
            IdWidth::U16 => {
                block.as_chunks_mut::<2>().0.iter_mut().zip(ids).for_each(|(to, id)| *to = known(id).to_le_bytes());
            }
        }
        buffer[first * width.bytes()..][..many * width.bytes()].copy_from_slice(&block[..many * width.bytes()]);
    }
    buffer.truncate(count * width.bytes());
    buffer.shrink_to_fit();
    Ok((width, unknown.runs))
}

/// The error for this id, the one of this index among all ids of the payload.
pub(super) fn out_of_range(id: i128, index: usize, shape: RowShape) -> IdError {
    let (row, rest) = (index / shape.ids(), index % shape.ids());
    IdError::OutOfRange { id, row, layer: rest / shape.top_k(), slot: rest % shape.top_k() }
}

/// Gathers rows with unknown marks into runs.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) runs: Vec<Unknown>,
}

impl Marks {
    /// Notes a row, above all noted before, and the first layer of it that has the mark.
    pub(super) fn mark(&mut self, row: usize, layer: usize) -> Result<(), IdError> {
        let row = u32::try_from(row).map_err(|_| IdError::TooManyRows(row))?;
        let full = self.runs.len() == MAX_UNKNOWN_RUNS;
        match self.runs.last_mut() {
            Some(run) if run.rows.end == row => run.rows.end += 1,
            _ if full => return Err(IdError::ScatteredMarks),
            _ => self.runs.push(Unknown { rows: row..row + 1, layer: layer as u16 }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::wire, *};

    fn shape(layers: u64, top_k: u64) -> RowShape {
        RowShape::new(layers, top_k).unwrap()
    }

    fn wire(ids: &[i64], wire_type: WireType) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_le_bytes()[..wire::bytes(wire_type)].to_vec()).collect()
    }

    fn all_ids(payload: &Payload) -> Vec<u16> {
        crate::rows::ids(payload.rows.bytes(), payload.rows.width())
    }

    #[test]
    fn unsigned_bytes_and_words_keep_their_width_and_their_buffer() {
        for (wire_type, width) in [(WireType::U8, IdWidth::U8), (WireType::U16, IdWidth::U16)] {
            let buffer = wire(&[9, 9, 1, 2, 3, 4], wire_type);
            let address = buffer.as_ptr().addr();
            let skip = 2 * width.bytes();

            let payload = narrow(buffer, skip, wire_type, shape(2, 2)).unwrap();

            assert_eq!(payload.rows.bytes().as_ptr().addr(), address + skip);
            assert_eq!(payload.rows.width(), width);
            assert_eq!(all_ids(&payload), [1, 2, 3, 4]);
        }
    }

    #[test]
    fn unknown_marks_become_runs_of_rows_and_zeros() {
        let ids = [1, 2, 3, 4, 1, 2, 3, -1, -1, 2, 3, 4, 1, 2, 3, 4, 1, 2, -1, -1];
        for wire_type in [WireType::I8, WireType::I16, WireType::I32, WireType::I64] {
            let payload = narrow(wire(&ids, wire_type), 0, wire_type, shape(2, 2)).unwrap();

            assert_eq!(payload.unknown, [Unknown { rows: 1..3, layer: 1 }, Unknown { rows: 4..5, layer: 1 }]);
            assert_eq!(all_ids(&payload), ids.map(|id| id.max(0) as u16));
        }
    }

    #[test]
    fn an_id_out_of_range_is_named_with_its_place() {
        let place = |id| IdError::OutOfRange { id, row: 1, layer: 0, slot: 1 };
        let cases = [
            (WireType::I8, -2_i64),
            (WireType::I16, -300),
            (WireType::I32, -2),
            (WireType::I32, 65_535),
            (WireType::U32, 4_294_967_295),
            (WireType::I64, i64::MIN),
            (WireType::I64, 65_535),
        ];
        for (wire_type, id) in cases {
            let ids = wire(&[0, 1, 2, 3, 4, id, 6, 7], wire_type);
            assert_eq!(narrow(ids, 0, wire_type, shape(2, 2)).unwrap_err(), place(i128::from(id)));
        }
        let ids = wire(&[0, 1, 2, 3, 4, -1, 6, 7], WireType::U64);
        assert_eq!(narrow(ids, 0, WireType::U64, shape(2, 2)).unwrap_err(), place(i128::from(u64::MAX)));
    }

    #[test]
    fn marks_all_over_are_refused() {
        let alternating = [0xff, 0x01].repeat(MAX_UNKNOWN_RUNS);
        assert!(narrow(alternating.clone(), 0, WireType::I8, shape(1, 1)).is_ok());

        let one_more = [&alternating[..], &[0xff]].concat();
        assert_eq!(narrow(one_more, 0, WireType::I8, shape(1, 1)), Err(IdError::ScatteredMarks));
    }

    #[test]
    fn half_a_row_is_refused() {
        let error = narrow(wire(&[1, 2, 3], WireType::I32), 0, WireType::I32, shape(1, 2)).unwrap_err();
        assert!(matches!(error, IdError::PartOfRow { bytes: 12, row_bytes: 8, .. }), "{error}");
    }

    fn wider_type() -> impl Strategy<Value = (WireType, i64)> {
        prop_oneof![
            Just((WireType::I8, 127)),
            Just((WireType::I16, 32_767)),
            Just((WireType::U32, i64::from(MAX_ID))),
            Just((WireType::I32, i64::from(MAX_ID))),
            Just((WireType::U64, i64::from(MAX_ID))),
            Just((WireType::I64, i64::from(MAX_ID))),
        ]
    }

    proptest! {
        #[test]
        fn narrowing_loses_no_id(
            ((wire_type, ids), skip) in wider_type()
                .prop_flat_map(|(wire_type, highest)| (Just(wire_type), prop_oneof![
                    prop::collection::vec(0..=highest, 0..400),
                    prop::collection::vec(0..=highest.min(255), 0..400),
                ]))
                .prop_flat_map(|case| (Just(case), 0..80_usize))
        ) {
            let buffer = [vec![0xaa; skip], wire(&ids, wire_type)].concat();
            let payload = narrow(buffer, skip, wire_type, shape(1, 1)).unwrap();

            let expected: Vec<u16> = ids.iter().map(|&id| id as u16).collect();
            prop_assert_eq!(all_ids(&payload), expected);
            prop_assert_eq!(payload.rows.width() == IdWidth::U8, ids.iter().all(|&id| id <= 255));
            prop_assert_eq!(payload.wire_type, wire_type);
        }
    }
}
