//! JSON read in place: values are slices of the line, found again rather than built.
//!
//! A line is checked once, in full; after that a value is only searched through. Nothing here allocates, however the
//! line is made, and long strings (a line is mostly one) are stepped over at the speed of `memchr`.

mod check;

use std::borrow::Cow;

use memchr::{memchr2, memchr3};

use self::check::Check;

/// Deepest nesting that is read: lists and objects inside each other.
pub(super) const MAX_DEPTH: u32 = 100;
/// Longest text of a field's name that is looked at; no field that anyone reads has a longer one.
const MAX_KEY: usize = 256;

/// Text that is not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum JsonError {
    #[error("cut short: expected {0}")]
    End(&'static str),
    #[error("not JSON at byte {at}: expected {expected}")]
    Expected { at: usize, expected: &'static str },
    #[error("nested deeper than {MAX_DEPTH} levels at byte {0}")]
    Depth(usize),
}

/// What kind of value it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    List,
    Object,
}

impl Kind {
    /// The kind with its article, for messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::List => "a list",
            Self::Object => "an object",
        }
    }
}

/// A JSON value that was found to be one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json<'a> {
    text: &'a str,
}

impl<'a> Json<'a> {
    /// Checks the whole text, which must be one value.
    pub(super) fn parse(text: &'a str) -> Result<Self, JsonError> {
        Check::of(text).map(|value| Self { text: &text[value] })
    }

    /// The start of a value that is cut short or broken somewhere, to look for what can still be found in it.
    pub(super) fn broken(text: &'a str) -> Self {
        Self { text: text.trim_start() }
    }

    /// Its text.
    pub(super) const fn text(self) -> &'a str {
        self.text
    }

    /// Its kind.
    pub(super) fn kind(self) -> Kind {
        match self.text.as_bytes().first() {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::List,
            Some(b'"') => Kind::String,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') | None => Kind::Null,
            Some(_) => Kind::Number,
        }
    }

    /// The fields of an object; none of any other value.
    pub(super) fn fields(self) -> impl Iterator<Item = (Cow<'a, str>, Json<'a>)> {
        let mut items = Items::of(self, Kind::Object);
        std::iter::from_fn(move || {
            let name = items.next()?.name();
            Some((name, items.next()?))
        })
    }

    /// The items of a list; none of any other value.
    pub(super) fn items(self) -> impl Iterator<Item = Json<'a>> {
        let mut items = Items::of(self, Kind::List);
        std::iter::from_fn(move || items.next())
    }

    /// The characters of a string, as they are or without their escapes; `None` for any other value.
    ///
    /// Allocates where there are escapes, and no more than the text has.
    pub(super) fn characters(self) -> Option<Cow<'a, str>> {
        let inside = self.text.strip_prefix('"')?.strip_suffix('"')?;
        Some(match memchr::memchr(b'\\', inside.as_bytes()) {
            None => Cow::Borrowed(inside),
            Some(first) => Cow::Owned(unescape(inside, first)),
        })
    }

    /// The name of a field; empty where it is too long to be one that anyone reads.
    fn name(self) -> Cow<'a, str> {
        if self.text.len() > MAX_KEY { Cow::Borrowed("") } else { self.characters().unwrap_or_default() }
    }
}

/// The values inside a list or an object that was checked, names and values of an object in turn.
struct Items<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Items<'a> {
    fn of(value: Json<'a>, kind: Kind) -> Self {
        Self { text: if value.kind() == kind { value.text } else { "" }, at: 1 }
    }

    /// The next value, past white space and at most one separator before it.
    fn next(&mut self) -> Option<Json<'a>> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r' | b',' | b':')) {
            self.at += 1;
        }
        let start = self.at;
        self.at = match bytes.get(start)? {
            b']' | b'}' => return None,
            b'"' => string_end(bytes, start),
            b'[' | b'{' => container_end(bytes, start),
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
                start + bytes[start..].iter().position(ends).unwrap_or(bytes.len() - start)
            }
        };
        self.text.get(start..self.at).map(|text| Json { text })
    }
}

/// The byte behind a checked string.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        if bytes[at + found] == b'"' {
            return at + found + 1;
        }
        at += found + 2;
    }
    bytes.len()
}

/// The byte behind a checked list or object. Brackets of the other kind come in pairs inside, so they need no counting.
fn container_end(bytes: &[u8], start: usize) -> usize {
    let (open, close) = if bytes[start] == b'[' { (b'[', b']') } else { (b'{', b'}') };
    let (mut at, mut depth) = (start + 1, 1_usize);
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr3(b'"', open, close, rest)) {
        at += found;
        match bytes[at] {
            b'"' => {
                at = string_end(bytes, at);
                continue;
            }
            bracket if bracket == open => depth += 1,
            _ => depth -= 1,
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The characters of a checked string with escapes, the first of them at `first`.
fn unescape(inside: &str, first: usize) -> String {
    let mut text = String::with_capacity(inside.len());
    text.push_str(&inside[..first]);
    let mut rest = &inside[first..];
    while let Some(escape) = rest.strip_prefix('\\') {
        let (character, length) = match escape.as_bytes().first() {
            Some(b'n') => ('\n', 1),
            Some(b't') => ('\t', 1),
            Some(b'r') => ('\r', 1),
            Some(b'b') => ('\u{8}', 1),
            Some(b'f') => ('\u{c}', 1),
            Some(b'u') => unicode(escape),
            Some(&other) => (char::from(other), 1),
            None => break,
        };
        text.push(character);
        // Only text that was not checked can end inside an escape.
        let behind = escape.get(length..).unwrap_or_default();
        let plain = memchr::memchr(b'\\', behind.as_bytes()).unwrap_or(behind.len());
        text.push_str(&behind[..plain]);
        rest = &behind[plain..];
    }
    text
}

/// The character of `uXXXX` or of a pair of surrogates, and the length of the escape without its first backslash. A lone
/// surrogate is no character, and reads as the replacement character.
fn unicode(escape: &str) -> (char, usize) {
    let unit = |text: &str, at: usize| text.get(at..at + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let high = unit(escape, 1).unwrap_or(0xfffd);
    let low = escape.get(5..7).filter(|&next| next == "\\u").and_then(|_| unit(escape, 7));
    match (high, low) {
        (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
            let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
        _ => (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 5),
    }
}

#[cfg(test)]
mod tests;
