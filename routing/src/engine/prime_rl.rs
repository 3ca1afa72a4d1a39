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
