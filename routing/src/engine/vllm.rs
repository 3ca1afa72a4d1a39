//! vLLM from 0.22 on: base64 of a `.npy` file, `uint8` up to 256 experts, else `uint16`.

use std::borrow::Cow;

use super::{Payload, PayloadError, base64, npy};
use crate::rows::Rows;

/// The rows in `choices[].routed_experts`.
///
/// # Errors
/// Where the text is not base64 of a `.npy` file of expert ids.
pub fn decode(text: Cow<'_, str>) -> Result<Payload, PayloadError> {
    npy::decode(base64::decode(text)?)
}

/// What vLLM would send for these rows.
pub fn encode(rows: &Rows) -> String {
    base64::encode(&npy::encode(rows))
}
