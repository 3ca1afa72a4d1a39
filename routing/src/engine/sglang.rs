//! SGLang: base64 of bare ids, `int32` unless `meta_info.routed_experts_dtype` says otherwise; the layers and slots of a
//! row are the model's.

use std::borrow::Cow;

use super::{Payload, PayloadError, base64, narrow, wire};
use crate::{
    rows::{self, Rows},
    shape::RowShape,
    span::WireType,
};

/// Bytes that are not whole rows of ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// A type that is none of ids.
    #[error("dtype {0:?}: expected int32, uint16 or uint8")]
    Type(String),
    /// Bytes that are not whole ids.
    #[error("{bytes} bytes: expected a multiple of {}, the bytes of one {}", wire::bytes(*wire_type), wire_type.name())]
    PartOfId {
        /// Bytes that were given.
        bytes: usize,
        /// The type of an id.
        wire_type: WireType,
    },
    /// Ids that are not whole rows.
    #[error("{ids} ids: expected a multiple of {}, the ids of one row ({shape})", shape.ids())]
    PartOfRow {
        /// Ids that were given.
        ids: usize,
        /// Geometry of a row.
        shape: RowShape,
    },
}

/// The ids of an answer, before anyone says how many make a row.
#[derive(Debug)]
pub struct RawIds {
    bytes: Vec<u8>,
    wire_type: WireType,
}

impl RawIds {
    /// The ids in `meta_info.routed_experts`.
    ///
    /// # Errors
    /// Where the text is not base64 of whole ids of this type.
    pub fn decode(text: Cow<'_, str>, dtype: Option<&str>) -> Result<Self, PayloadError> {
        let wire_type = match dtype {
            None => WireType::I32,
            Some(name) => wire::named(name).ok_or_else(|| RawError::Type(name.chars().take(64).collect()))?,
        };
        let bytes = base64::decode(text)?;
        if !bytes.len().is_multiple_of(wire::bytes(wire_type)) {
            return Err(RawError::PartOfId { bytes: bytes.len(), wire_type }.into());
        }
        Ok(Self { bytes, wire_type })
    }

    /// How many ids.
    pub fn len(&self) -> usize {
        self.bytes.len() / wire::bytes(self.wire_type)
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The ids as rows of this geometry.
    ///
    /// # Errors
    /// Where they are not whole rows, or an id is none.
    pub fn into_rows(self, shape: RowShape) -> Result<Payload, PayloadError> {
        if !self.len().is_multiple_of(shape.ids()) {
            return Err(RawError::PartOfRow { ids: self.len(), shape }.into());
        }
        Ok(narrow::narrow(self.bytes, 0, self.wire_type, shape)?)
    }
}

/// What SGLang would send for these rows, as `int32`.
pub fn encode(rows: &Rows) -> String {
    base64::encode(&int32(rows))
}

/// The ids as little-endian `int32`.
pub(super) fn int32(rows: &Rows) -> Vec<u8> {
    let ids = rows::ids(rows.bytes(), rows.width());
    ids.into_iter().flat_map(|id| i32::from(id).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::{base64::Base64Error, narrow::IdError},
        shape::IdWidth,
        span::Unknown,
    };

    /// Python's `base64.b64encode(numpy.array([[[7, 300]], [[-1, 2]]], "int32").tobytes())`.
    const INT32: &str = "BwAAACwBAAD/////AgAAAA==";

    fn shape(layers: u64, top_k: u64) -> RowShape {
        RowShape::new(layers, top_k).unwrap()
    }

    #[test]
    fn ids_are_int32_unless_the_answer_says_otherwise() {
        let payload = RawIds::decode(INT32.into(), None).unwrap().into_rows(shape(1, 2)).unwrap();

        assert_eq!(payload.wire_type, WireType::I32);
        assert_eq!((payload.rows.experts(0, 0), payload.rows.experts(1, 0)), (vec![7, 300], vec![0, 2]));
        assert_eq!(payload.unknown, [Unknown { rows: 1..2, layer: 0 }]);
        for (dtype, wire_type, ids) in [("uint8", WireType::U8, 4), ("uint16", WireType::U16, 2)] {
            let ids_of_four_bytes = RawIds::decode("AQACAA==".into(), Some(dtype)).unwrap();
            assert_eq!(ids_of_four_bytes.len(), ids);
            assert_eq!(ids_of_four_bytes.into_rows(shape(1, 2)).unwrap().wire_type, wire_type);
        }
    }

    #[test]
    fn ids_that_are_no_whole_rows_are_refused() {
        let ids = RawIds::decode(INT32.into(), None).unwrap();
        let error = ids.into_rows(shape(3, 1)).unwrap_err().to_string();
        assert_eq!(error, "4 ids: expected a multiple of 3, the ids of one row (3 layers x 1 slots)");
    }

    #[test]
    fn what_are_no_ids_is_refused() {
        let refusal = |text: &str, dtype| RawIds::decode(text.to_owned().into(), dtype).unwrap_err();

        assert_eq!(refusal("AAAA", None).to_string(), "3 bytes: expected a multiple of 4, the bytes of one int32");
        assert_eq!(refusal("AAAAA", None), Base64Error::Length(5).into());
        assert_eq!(refusal("AAAA", Some("float32")).to_string(), "dtype \"float32\": expected int32, uint16 or uint8");
        let beyond = RawIds::decode("//8AAA==".into(), None).unwrap().into_rows(shape(1, 1)).unwrap_err();
        assert_eq!(beyond, IdError::OutOfRange { id: 65_535, row: 0, layer: 0, slot: 0 }.into());
    }

    proptest! {
        #[test]
        fn what_was_sent_is_read(ids in prop::collection::vec(0..65_535_u16, 0..40)) {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let rows = Rows::new(bytes.into(), shape(1, 1), IdWidth::U16).unwrap();

            let read = RawIds::decode(encode(&rows).into(), None).unwrap().into_rows(shape(1, 1)).unwrap();

            prop_assert_eq!(rows::ids(read.rows.bytes(), read.rows.width()), ids);
        }
    }
}
