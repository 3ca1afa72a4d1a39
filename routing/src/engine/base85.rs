//! Base85 as Python's `base64.b85encode` writes it (alphabet of RFC 1924, big-endian groups of four bytes).

/// Text that is not base85.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Base85Error {
    /// A character outside the alphabet.
    #[error("character {character:?} at {at} of the base85: expected the alphabet of RFC 1924")]
    Character {
        /// What is there.
        character: char,
        /// Its byte in the text.
        at: usize,
    },
    /// Five characters that stand for more than four bytes hold.
    #[error("characters {at} to {} of the base85 stand for more than 4 bytes hold", at + 4)]
    Overflow {
        /// Byte of the first of them in the text.
        at: usize,
    },
    /// A last group of one character, which stands for no byte.
    #[error("base85 of {0} characters: expected no single character after the last group of 5 (cut short)")]
    Length(usize),
}

const ALPHABET: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const INVALID: u8 = u8::MAX;
const DIGITS: [u8; 256] = {
    let mut digits = [INVALID; 256];
    let mut digit = 0;
    while digit < ALPHABET.len() {
        digits[ALPHABET[digit] as usize] = digit as u8;
        digit += 1;
    }
    digits
};

/// The bytes.
pub fn decode(text: &str) -> Result<Vec<u8>, Base85Error> {
    let rest = text.len() % 5;
    if rest == 1 {
        return Err(Base85Error::Length(text.len()));
    }
    let mut bytes = Vec::with_capacity(text.len() / 5 * 4 + rest.saturating_sub(1));
    for (group, characters) in text.as_bytes().chunks(5).enumerate() {
        // A short last group is decoded as if it ended in the highest digit, and the bytes that this makes up are cut.
        let mut value = 0_u64;
        for index in 0..5 {
            let digit = characters.get(index).map_or(84, |&character| DIGITS[usize::from(character)]);
            if digit == INVALID {
                return Err(unknown_character(text));
            }
            value = value * 85 + u64::from(digit);
        }
        let value = u32::try_from(value).map_err(|_| Base85Error::Overflow { at: group * 5 })?;
        bytes.extend_from_slice(&value.to_be_bytes()[..characters.len() - 1]);
    }
    Ok(bytes)
}

/// The text.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() / 4 * 5 + 5);
    for group in bytes.chunks(4) {
        let mut padded = [0; 4];
        padded[..group.len()].copy_from_slice(group);
        let value = u32::from_be_bytes(padded);
        let digits = [85_u32.pow(4), 85_u32.pow(3), 85_u32.pow(2), 85, 1].map(|unit| value / unit % 85);
        text.extend(digits[..=group.len()].iter().map(|&digit| char::from(ALPHABET[digit as usize])));
    }
    text
}

fn unknown_character(text: &str) -> Base85Error {
    text.char_indices()
        .find(|&(_, character)| !u8::try_from(character).is_ok_and(|byte| DIGITS[usize::from(byte)] != INVALID))
        .map_or(Base85Error::Length(text.len()), |(at, character)| Base85Error::Character { character, at })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Made with Python 3.11: `base64.b85encode(bytes)`.
    const PYTHON: [(&[u8], &str); 7] = [
        (b"", ""),
        (b"\xff", "{{"),
        (b"\xff\xff", "|Nj"),
        (b"\xff\xff\xff", "|Ns9"),
        (b"\xff\xff\xff\xff", "|NsC0"),
        (b"\x00\x01\x02\x03\x04", "009C61O"),
        (b"gatescope", "XJK?@b7OCCWd"),
    ];

    #[test]
    fn text_is_that_of_python() {
        for (bytes, text) in PYTHON {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text).as_deref(), Ok(bytes));
        }
    }

    #[test]
    fn what_is_wrong_with_base85_is_said() {
        assert_eq!(decode("00000~~~~~"), Err(Base85Error::Overflow { at: 5 }));
        assert_eq!(decode("|NsC1"), Err(Base85Error::Overflow { at: 0 }));
        assert_eq!(decode("000000"), Err(Base85Error::Length(6)));
        assert_eq!(decode("0000\""), Err(Base85Error::Character { character: '"', at: 4 }));
        assert_eq!(decode("00é00000"), Err(Base85Error::Character { character: 'é', at: 2 }));
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }
    }
}
