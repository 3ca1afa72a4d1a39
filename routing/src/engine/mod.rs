//! One codec per engine payload.

use crate::{
    rows::Rows,
    span::{Unknown, WireType},
};

/// Routed experts as an engine sent them, decoded.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The rows.
    pub rows: Rows,
    /// The type in which the engine sent them.
    pub wire_type: WireType,
    /// Position of the first row, where the payload says it.
    pub start: Option<u32>,
    /// Rows in which the engine marked ids as unknown (`-1`).
    pub unknown: Vec<Unknown>,
}
