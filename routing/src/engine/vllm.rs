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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{base64::Base64Error, npy::NpyError},
        shape::{IdWidth, RowShape},
        span::WireType,
    };

    #[test]
    fn rows_come_back_as_they_were_sent() {
        let shape = RowShape::new(2, 3).unwrap();
        for width in [IdWidth::U8, IdWidth::U16] {
            let rows = Rows::new((0..24).collect::<Vec<u8>>().into(), shape, width).unwrap();

            let payload = decode(encode(&rows).into()).unwrap();

            assert_eq!(payload.rows, rows);
            assert_eq!(payload.wire_type, if width == IdWidth::U8 { WireType::U8 } else { WireType::U16 });
            assert_eq!((payload.start, payload.unknown), (None, Vec::new()));
        }
    }

    #[test]
    fn truncated_text_is_refused() {
        let shape = RowShape::new(2, 2).unwrap();
        let text = encode(&Rows::new(vec![1; 40].into(), shape, IdWidth::U8).unwrap());

        assert_eq!(decode(text[..text.len() - 1].into()), Err(Base64Error::Length(text.len() - 1).into()));
        let cut = decode(text[..text.len() - 4].into());
        assert!(matches!(cut, Err(PayloadError::Npy(NpyError::Length { expected: 40, .. }))), "{cut:?}");
    }
}
