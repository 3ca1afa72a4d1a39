//! The header of a `.npy` file: a Python dictionary with the keys `descr`, `fortran_order` and `shape`.

use super::NpyError;

/// Most axes that numpy has; more are not read.
const MAX_AXES: usize = 64;
/// Longest name of a type that is quoted.
const MAX_DESCR: usize = 64;

/// A header that is not numpy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Something else at this place.
    #[error("at byte {at}: expected {expected}")]
    Expected {
        /// Byte in the header.
        at: usize,
        /// What should be there.
        expected: &'static str,
    },
    /// A key is not there.
    #[error("no {0:?}: expected 'descr', 'fortran_order' and 'shape'")]
    Missing(&'static str),
    /// A key that numpy does not write, or one twice.
    #[error("key {0:?}: expected 'descr', 'fortran_order' and 'shape', each once")]
    Key(String),
    /// A structured type.
    #[error("a structured dtype: expected one integer type")]
    Structured,
    /// A length below zero.
    #[error("a negative length in 'shape': expected [rows, layers, top_k]")]
    NegativeLength,
    /// A length beyond 64 bits.
    #[error("a length in 'shape' of more than 64 bits: expected [rows, layers, top_k]")]
    LengthTooLarge,
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) descr: String,
    pub(super) fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Reads the text behind the header's length.
    pub(super) fn parse(text: &[u8]) -> Result<Self, HeaderError> {
        let mut literal = Literal { text, at: 0 };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        literal.expect(b'{', "a dictionary")?;
        while !literal.next_is(b'}') {
            let key = literal.string("a key")?;
            literal.expect(b':', "':' behind the key")?;
            match key {
                b"descr" if descr.is_none() => descr = Some(literal.descr()?),
                b"fortran_order" if fortran_order.is_none() => fortran_order = Some(literal.boolean()?),
                b"shape" if shape.is_none() => shape = Some(literal.tuple()?),
                other => return Err(HeaderError::Key(quoted(other))),
            }
            if !literal.next_is(b',') {
                literal.expect(b'}', "',' or '}'")?;
                break;
            }
        }
        literal.end()?;
        Ok(Self {
            descr: descr.ok_or(HeaderError::Missing("descr"))?,
            fortran_order: fortran_order.ok_or(HeaderError::Missing("fortran_order"))?,
            shape: shape.ok_or(HeaderError::Missing("shape"))?,
        })
    }

    /// The three lengths of an array of ids.
    pub(super) fn axes(&self) -> Result<[u64; 3], NpyError> {
        self.shape[..].try_into().map_err(|_| NpyError::Axes(self.shape.len()))
    }
}

/// The part of Python's literals that headers use.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Literal<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Steps over this byte if it comes next.
    fn next_is(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn error(&self, expected: &'static str) -> HeaderError {
        HeaderError::Expected { at: self.at, expected }
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), HeaderError> {
        if self.next_is(byte) { Ok(()) } else { Err(self.error(expected)) }
    }

    fn end(&mut self) -> Result<(), HeaderError> {
        self.peek().map_or(Ok(()), |_| Err(self.error("nothing behind the dictionary")))
    }

    fn string(&mut self, expected: &'static str) -> Result<&'a [u8], HeaderError> {
        let quote = self.peek().filter(|byte| matches!(byte, b'\'' | b'"')).ok_or_else(|| self.error(expected))?;
        let rest = &self.text[self.at + 1..];
        let length = rest.iter().position(|&byte| byte == quote).ok_or_else(|| self.error("a closing quote"))?;
        self.at += length + 2;
        Ok(&rest[..length])
    }

    fn descr(&mut self) -> Result<String, HeaderError> {
        if matches!(self.peek(), Some(b'[' | b'(')) {
            return Err(HeaderError::Structured);
        }
        Ok(quoted(self.string("the dtype as a string")?))
    }

    fn boolean(&mut self) -> Result<bool, HeaderError> {
        self.peek();
        for (word, value) in [(&b"True"[..], true), (&b"False"[..], false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("True or False"))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, HeaderError> {
        self.expect(b'(', "the shape as a tuple")?;
        let mut lengths = Vec::new();
        while !self.next_is(b')') {
            if lengths.len() == MAX_AXES {
                return Err(self.error("at most 64 axes"));
            }
            lengths.push(self.length()?);
            if !self.next_is(b',') {
                self.expect(b')', "',' or ')'")?;
                break;
            }
        }
        Ok(lengths)
    }

    fn length(&mut self) -> Result<u64, HeaderError> {
        if self.peek() == Some(b'-') {
            return Err(HeaderError::NegativeLength);
        }
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Err(self.error("a length"));
        }
        let length = self.text[self.at..self.at + digits]
            .iter()
            .try_fold(0_u64, |length, &digit| length.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
            .ok_or(HeaderError::LengthTooLarge)?;
        self.at += digits;
        // Python 2 wrote long integers with this suffix.
        if self.text.get(self.at) == Some(&b'L') {
            self.at += 1;
        }
        Ok(length)
    }
}

/// Text for people, bounded.
fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(MAX_DESCR)]).into_owned()
}
