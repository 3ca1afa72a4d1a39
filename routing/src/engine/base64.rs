//! Base64 as engines write it: standard alphabet, padded.

use std::borrow::Cow;

use base64_simd::STANDARD;

/// Text that is not base64.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Base64Error {
    /// A length that no padded base64 has.
    #[error("base64 of {0} characters: expected a multiple of 4 (cut short, or without its padding)")]
    Length(usize),
    /// A character outside the alphabet.
    #[error("character {character:?} at {at} of the base64: expected A-Z, a-z, 0-9, + or /")]
    Character {
        /// What is there.
        character: char,
        /// Its byte in the text.
        at: usize,
    },
    /// Padding that encodes something, or stands in the middle.
    #[error("base64 that ends wrongly: expected at most two \"=\" at its end, and no bits in what they pad")]
    Padding,
}

/// The bytes; decoded in place where the text is owned already.
pub fn decode(text: Cow<'_, str>) -> Result<Vec<u8>, Base64Error> {
    match text {
        Cow::Borrowed(text) => STANDARD.decode_to_vec(text).map_err(|_| reason(text)),
        Cow::Owned(text) => {
            STANDARD.check(text.as_bytes()).map_err(|_| reason(&text))?;
            let mut bytes = text.into_bytes();
            let length = STANDARD.decode_inplace(&mut bytes).map_err(|_| Base64Error::Padding)?.len();
            bytes.truncate(length);
            bytes.shrink_to_fit();
            Ok(bytes)
        }
    }
}

/// The text.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode_to_string(bytes)
}

/// Characters of the text for so many bytes.
pub(super) fn encoded_length(bytes: u64) -> Option<u64> {
    bytes.div_ceil(3).checked_mul(4)
}

/// What is wrong with text that did not decode.
fn reason(text: &str) -> Base64Error {
    let payload = text.trim_end_matches('=');
    let in_alphabet = |character: char| character.is_ascii_alphanumeric() || character == '+' || character == '/';
    match payload.char_indices().find(|&(_, character)| !in_alphabet(character)) {
        Some((_, '=')) => Base64Error::Padding,
        Some((at, character)) => Base64Error::Character { character, at },
        None if !text.len().is_multiple_of(4) => Base64Error::Length(text.len()),
        None => Base64Error::Padding,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_wrong_with_base64_is_said() {
        assert_eq!(decode("AAA".into()), Err(Base64Error::Length(3)));
        assert_eq!(decode("AA-A".into()), Err(Base64Error::Character { character: '-', at: 2 }));
        assert_eq!(decode("AAAAé===".into()), Err(Base64Error::Character { character: 'é', at: 4 }));
        assert_eq!(decode("AA=A".into()), Err(Base64Error::Padding));
        assert_eq!(decode("AAAA====".into()), Err(Base64Error::Padding));
        assert_eq!(decode("AB==".into()), Err(Base64Error::Padding));
    }

    proptest! {
        #[test]
        fn owned_and_borrowed_text_decode_alike(text in "[A-Za-z0-9+/]{0,40}={0,3}") {
            prop_assert_eq!(decode(Cow::Borrowed(&text)), decode(Cow::Owned(text.clone())));
        }

        #[test]
        fn what_was_encoded_is_decoded(bytes: Vec<u8>) {
            let text = encode(&bytes);
            prop_assert_eq!(encoded_length(bytes.len() as u64), Some(text.len() as u64));
            prop_assert_eq!(decode(Cow::Owned(text)), Ok(bytes));
        }
    }
}
