//! prime-rl's packed object `{"data", "shape", "start", "dtype"}`: base64 of bare ids, `uint8` unless `dtype` says
//! otherwise. Older prime-rl and verifiers sent `{"data", "shape"}` with base85 of `int32`.
//!
//! An object without `dtype` may be either. Its size tells: for `n` ids, base64 of `uint8` has `4 * ceil(n / 3)`
//! characters and base85 of `int32` has `5 * n`, and these differ for every `n` above 0.

use std::borrow::Cow;

use serde::Serialize;

use super::{Payload, PayloadError, base64, base85, narrow, sglang, wire};
use crate::{
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::WireType,
};

/// A packed object, as it stands in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Packed<'a> {
    /// The ids as text.
    pub data: Cow<'a, str>,
    /// `[rows, layers, top_k]`.
    pub shape: [u64; 3],
    /// Position of the first row; older engines do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// numpy's name of the ids' type; older engines do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Cow<'a, str>>,
}

/// Not a packed object of expert ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackedError {
    /// A type that is none of ids.
    #[error("dtype {0:?}: expected uint8 or uint16")]
    Type(String),
    /// More ids than can be.
    #[error("shape {0:?}: expected [rows, layers, top_k] of an array that fits in memory")]
    TooLarge([u64; 3]),
    /// Data shorter or longer than the shape says.
    #[error("data of {found} characters: expected {expected}, base64 of shape {shape:?} of {}", wire_type.name())]
    Length {
        /// Characters that were given.
        found: usize,
        /// Characters that shape and type promise.
        expected: u64,
        /// The shape that the object says.
        shape: [u64; 3],
        /// The type that the object says.
        wire_type: WireType,
    },
    /// Data that fits neither of the two things that an object without `dtype` can be.
    #[error(
        "data of {found} characters without a dtype: expected {base64} (base64 of uint8) or {base85} (base85 of int32) \
         for shape {shape:?}"
    )]
    Untyped {
        /// Characters that were given.
        found: usize,
        /// Characters of base64 of `uint8`.
        base64: u64,
        /// Characters of base85 of `int32`.
        base85: u64,
        /// The shape that the object says.
        shape: [u64; 3],
    },
    /// Base64 that decodes to a byte more or less than its characters can hold.
    #[error("data of {found} bytes: expected {expected} for shape {shape:?} of {}", wire_type.name())]
    Bytes {
        /// Bytes decoded.
        found: usize,
        /// Bytes that shape and type promise.
        expected: u64,
        /// The shape that the object says.
        shape: [u64; 3],
        /// The type that the object says.
        wire_type: WireType,
    },
}

/// The rows of a packed object.
///
/// # Errors
/// Where data, shape and type do not fit together.
pub fn decode(packed: Packed<'_>) -> Result<Payload, PayloadError> {
    let Packed { data, shape, start, dtype } = packed;
    let [rows, layers, top_k] = shape;
    let too_large = || PackedError::TooLarge(shape);
    let ids = rows.checked_mul(layers).and_then(|n| n.checked_mul(top_k)).ok_or_else(too_large)?;
    let found = data.len();
    let (bytes, wire_type) = match dtype {
        Some(name) => {
            let wire_type = wire::named(&name).ok_or_else(|| PackedError::Type(name.chars().take(64).collect()))?;
            let bytes = ids.checked_mul(wire::bytes(wire_type) as u64).ok_or_else(too_large)?;
            let expected = base64::encoded_length(bytes).ok_or_else(too_large)?;
            if found as u64 != expected {
                return Err(PackedError::Length { found, expected, shape, wire_type }.into());
            }
            (base64::decode(data)?, wire_type)
        }
        None => {
            let as_base64 = base64::encoded_length(ids).ok_or_else(too_large)?;
            let as_base85 = ids.checked_mul(5).ok_or_else(too_large)?;
            match found as u64 {
                length if length == as_base64 => (base64::decode(data)?, WireType::U8),
                length if length == as_base85 => (base85::decode(&data)?, WireType::I32),
                _ => {
                    return Err(PackedError::Untyped { found, base64: as_base64, base85: as_base85, shape }.into());
                }
            }
        }
    };
    // As many characters of base64 can stand for up to two bytes less.
    let expected = ids.checked_mul(wire::bytes(wire_type) as u64).ok_or_else(too_large)?;
    if bytes.len() as u64 != expected {
        return Err(PackedError::Bytes { found: bytes.len(), expected, shape, wire_type }.into());
    }
    let payload = narrow::narrow(bytes, 0, wire_type, RowShape::new(layers, top_k)?)?;
    Ok(Payload { start, ..payload })
}

/// What prime-rl would send for these rows from position `start` on.
pub fn encode(rows: &Rows, start: u32) -> Packed<'static> {
    let dtype = match rows.width() {
        IdWidth::U8 => "uint8",
        IdWidth::U16 => "uint16",
    };
    Packed {
        data: base64::encode(rows.bytes()).into(),
        shape: shape(rows),
        start: Some(start),
        dtype: Some(dtype.into()),
    }
}

/// What older prime-rl would have sent for these rows: base85 of `int32`.
pub fn encode_base85(rows: &Rows) -> Packed<'static> {
    Packed { data: base85::encode(&sglang::int32(rows)).into(), shape: shape(rows), start: None, dtype: None }
}

fn shape(rows: &Rows) -> [u64; 3] {
    [rows.len(), rows.shape().layers(), rows.shape().top_k()].map(|length| length as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows;

    fn packed<'a>(data: &'a str, shape: [u64; 3], dtype: Option<&'a str>) -> Packed<'a> {
        Packed { data: data.into(), shape, start: None, dtype: dtype.map(Cow::Borrowed) }
    }

    fn refusal(data: &str, shape: [u64; 3], dtype: Option<&str>) -> String {
        decode(packed(data, shape, dtype)).unwrap_err().to_string()
    }

    fn some_rows() -> impl Strategy<Value = Rows> {
        (any::<bool>(), 1..4_u64, 1..4_u64, 0..8_u64).prop_flat_map(|(wide, layers, top_k, count)| {
            let highest = if wide { narrow::MAX_ID } else { 255 };
            prop::collection::vec(0..=highest, (layers * top_k * count) as usize).prop_map(move |ids| {
                let (bytes, width): (Vec<u8>, _) = if wide {
                    (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), IdWidth::U16)
                } else {
                    (ids.iter().map(|&id| id as u8).collect(), IdWidth::U8)
                };
                Rows::new(bytes.into(), RowShape::new(layers, top_k).unwrap(), width).unwrap()
            })
        })
    }

    #[test]
    fn objects_stand_in_json_as_prime_rl_writes_them() {
        let rows = Rows::new(vec![1, 2, 3, 4].into(), RowShape::new(1, 2).unwrap(), IdWidth::U8).unwrap();

        let new = serde_json::to_string(&encode(&rows, 9)).unwrap();
        let old = serde_json::to_string(&encode_base85(&rows)).unwrap();

        assert_eq!(new, r#"{"data":"AQIDBA==","shape":[2,1,2],"start":9,"dtype":"uint8"}"#);
        assert_eq!(old, r#"{"data":"0RR910ssI20{{R31ONa4","shape":[2,1,2]}"#);
    }

    #[test]
    fn without_a_dtype_the_size_tells_base64_from_base85() {
        let base64 = decode(packed("AQIDBA==", [2, 1, 2], None)).unwrap();
        // Python's `base64.b85encode(numpy.array([7, 300], "int32").tobytes())`.
        let base85 = decode(packed("2LJ#7ECB!j", [1, 1, 2], None)).unwrap();

        assert_eq!((base64.wire_type, base64.rows.experts(1, 0)), (WireType::U8, vec![3, 4]));
        assert_eq!((base85.wire_type, base85.rows.experts(0, 0)), (WireType::I32, vec![7, 300]));
        assert_eq!(
            refusal("AQIDBA==", [2, 1, 4], None),
            "data of 8 characters without a dtype: expected 12 (base64 of uint8) or 40 (base85 of int32) for shape \
             [2, 1, 4]"
        );
    }

    #[test]
    fn the_sizes_of_base64_and_base85_never_meet() {
        for ids in 1..10_000 {
            assert!(base64::encoded_length(ids).unwrap() < 5 * ids);
        }
    }

    #[test]
    fn data_shape_and_dtype_must_fit() {
        assert_eq!(
            refusal("AQIDBA==", [2, 1, 2], Some("uint16")),
            "data of 8 characters: expected 12, base64 of shape [2, 1, 2] of uint16"
        );
        assert_eq!(
            refusal("AQIDBA==", [3, 1, 2], Some("uint8")),
            "data of 4 bytes: expected 6 for shape [3, 1, 2] of uint8"
        );
        assert_eq!(refusal("AQIDBA==", [2, 1, 2], Some("float16")), "dtype \"float16\": expected uint8 or uint16");
        assert_eq!(
            refusal("", [u64::MAX, 2, 2], None),
            "shape [18446744073709551615, 2, 2]: expected [rows, layers, top_k] of an array that fits in memory"
        );
        assert_eq!(
            refusal("AQID", [3, 1, 0], Some("uint8")),
            "data of 4 characters: expected 0, base64 of shape [3, 1, 0] of uint8"
        );
        assert_eq!(refusal("", [3, 1, 0], Some("uint8")), "top_k 0: expected 1 to 256");
        assert_eq!(
            refusal("AQID_A==", [4, 1, 1], None),
            "character '_' at 4 of the base64: expected A-Z, a-z, 0-9, + or /"
        );
    }

    proptest! {
        #[test]
        fn what_was_sent_is_read(rows in some_rows(), start: u32) {
            let payload = decode(encode(&rows, start)).unwrap();
            prop_assert_eq!(payload.start, Some(start));
            prop_assert_eq!(payload.rows, rows);
        }

        #[test]
        fn what_was_sent_of_old_is_read(rows in some_rows()) {
            let payload = decode(encode_base85(&rows)).unwrap();
            prop_assert_eq!(payload.start, None);
            prop_assert_eq!(
                rows::ids(payload.rows.bytes(), payload.rows.width()),
                rows::ids(rows.bytes(), rows.width())
            );
        }
    }
}
