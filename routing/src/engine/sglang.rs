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
