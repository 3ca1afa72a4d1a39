//! One codec per engine payload, each a `decode` with its `encode` beside it.
//!
//! | module | engine | payload |
//! |---|---|---|
//! | [`vllm`] | vLLM >= 0.22 | base64 of a `.npy` file |
//! | [`vllm_021`] | vLLM 0.21 | nested lists, prompt and completion apart |
//! | [`prime_rl`] | prime-rl, verifiers | `{"data", "shape", "start", "dtype"}`; of old, base85 without `dtype` |
//! | [`sglang`] | SGLang | base64 of bare ids, without a shape |
//! | [`npy`] | numpy | `.npy` files |
//!
//! A decoder trusts no length: a header, shape or type that does not fit the bytes is an error that says what was found
//! and what was expected, and nothing allocates more than the payload's own size plus a constant. `uint8` and `uint16`
//! rows stay in the buffer that they were decoded into; wider ids are narrowed in place, without loss or not at all.

pub mod base64;
pub mod base85;
pub mod narrow;
pub mod npy;
pub mod prime_rl;
pub mod sglang;
pub mod vllm;
pub mod vllm_021;
mod wire;

use self::{
    base64::Base64Error, base85::Base85Error, narrow::IdError, npy::NpyError, prime_rl::PackedError, sglang::RawError,
    vllm_021::ListError,
};
use crate::{
    rows::Rows,
    shape::ShapeError,
    span::{Unknown, WireType},
};

/// Routed experts as an engine sent them, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Why a payload cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Not base64.
    #[error(transparent)]
    Base64(#[from] Base64Error),
    /// Not base85.
    #[error(transparent)]
    Base85(#[from] Base85Error),
    /// Not a `.npy` file of expert ids.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// Not a packed object of expert ids.
    #[error(transparent)]
    Packed(#[from] PackedError),
    /// Not bare ids of whole rows.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// Not nested lists of expert ids.
    #[error(transparent)]
    List(#[from] ListError),
    /// An id that no expert has.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A row that no model has.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}
