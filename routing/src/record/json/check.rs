//! The grammar of JSON.

use std::ops::Range;

use memchr::memchr2;

use super::{JsonError, MAX_DEPTH};

/// Checks text against the grammar of RFC 8259.
pub(super) struct Check<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Check<'_> {
    /// Where the one value of the text stands.
    pub(super) fn of(text: &str) -> Result<Range<usize>, JsonError> {
        let mut check = Check { bytes: text.as_bytes(), at: 0 };
        check.space();
        let start = check.at;
        check.value()?;
        let end = check.at;
        check.space();
        match check.bytes.get(check.at) {
            None => Ok(start..end),
            Some(_) => Err(check.error("nothing behind the value")),
        }
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn error(&self, expected: &'static str) -> JsonError {
        match self.bytes.get(self.at) {
            None => JsonError::End(expected),
            Some(_) => JsonError::Expected { at: self.at, expected },
        }
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), JsonError> {
        if self.bytes.get(self.at) != Some(&byte) {
            return Err(self.error(expected));
        }
        self.at += 1;
        Ok(())
    }

    /// Steps over one value. The open lists and objects are the bits of a number, so that no nesting costs memory.
    fn value(&mut self) -> Result<(), JsonError> {
        let (mut depth, mut objects) = (0_u32, 0_u128);
        loop {
            let open = self.bytes.get(self.at).copied();
            match open {
                Some(b'[' | b'{') => {
                    if depth == MAX_DEPTH {
                        return Err(JsonError::Depth(self.at));
                    }
                    depth += 1;
                    objects = objects << 1 | u128::from(open == Some(b'{'));
                    self.at += 1;
                    self.space();
                    let close = if objects & 1 == 1 { b'}' } else { b']' };
                    if self.bytes.get(self.at) != Some(&close) {
                        if objects & 1 == 1 {
                            self.name()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => self.string("a string")?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return Err(self.error("a value")),
            }
            // Behind a value: what it stands in may end here, and so on outwards, or go on.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                self.space();
                let in_object = objects & 1 == 1;
                match self.bytes.get(self.at) {
                    Some(b'}') if in_object => {}
                    Some(b']') if !in_object => {}
                    Some(b',') => {
                        self.at += 1;
                        self.space();
                        if in_object {
                            self.name()?;
                        }
                        break;
                    }
                    _ => return Err(self.error(if in_object { "',' or '}'" } else { "',' or ']'" })),
                }
                self.at += 1;
                depth -= 1;
                objects >>= 1;
            }
        }
    }

    /// Steps over a field's name and the colon behind it.
    fn name(&mut self) -> Result<(), JsonError> {
        self.string("a field's name")?;
        self.space();
        self.expect(b':', "':' behind the field's name")?;
        self.space();
        Ok(())
    }

    /// Steps over a string, a block at a time, so that the second look at a block finds it in the cache.
    fn string(&mut self, expected: &'static str) -> Result<(), JsonError> {
        const BLOCK: usize = 4096;
        self.expect(b'"', expected)?;
        loop {
            let rest = &self.bytes[self.at..];
            let block = &rest[..rest.len().min(BLOCK)];
            let special = memchr2(b'"', b'\\', block);
            let plain = &block[..special.unwrap_or(block.len())];
            if plain.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
                self.at += plain.iter().take_while(|&&byte| byte >= 0x20).count();
                return Err(self.error("no bare control character inside a string"));
            }
            self.at += plain.len();
            match special.map(|at| block[at]) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => self.escape()?,
                None if block.len() < BLOCK => return Err(JsonError::End("the end of a string")),
                None => {}
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.bytes.get(self.at) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.bytes.get(self.at).is_some_and(u8::is_ascii_hexdigit) {
                        return Err(self.error("four hexadecimal digits"));
                    }
                    self.at += 1;
                }
            }
            _ => return Err(self.error("an escape")),
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        self.at += usize::from(self.bytes.get(self.at) == Some(&b'-'));
        if self.bytes.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.bytes.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let digits = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Err(self.error("a digit"));
        }
        self.at += digits;
        Ok(())
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), JsonError> {
        for &byte in word {
            self.expect(byte, "null, true or false")?;
        }
        Ok(())
    }
}
