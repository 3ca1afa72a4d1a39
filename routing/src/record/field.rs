//! Fields of a line: their values, and where they stand for messages.

use std::{fmt, sync::Arc};

use super::{
    PayloadProblem,
    json::{Json, Kind},
};

/// Highest number of tokens or position that a line may state; sums of two fit the tables' 32 bits.
const MAX_COUNT: u32 = (1 << 30) - 1;
/// Longest id or name, in bytes.
const MAX_NAME: usize = 1024;
/// Longest text of an engine that a message quotes, in characters.
const MAX_QUOTE: usize = 200;

/// An object of the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    base: Base,
    inner: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Base {
    Line,
    Response,
    Item(usize),
    Choice(usize),
}

impl Place {
    /// The line itself.
    pub(super) const LINE: Self = Self { base: Base::Line, inner: "" };
    /// The answer.
    pub(super) const RESPONSE: Self = Self { base: Base::Response, inner: "" };

    /// One of several answers.
    pub(super) const fn item(index: usize) -> Self {
        Self { base: Base::Item(index), inner: "" }
    }

    /// A choice of the answer.
    pub(super) const fn choice(index: usize) -> Self {
        Self { base: Base::Choice(index), inner: "" }
    }

    /// Something wrong with the object itself.
    pub(super) fn problem(self, problem: impl Into<String>) -> PayloadProblem {
        PayloadProblem { field: self.to_string(), problem: problem.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            Base::Line => return f.write_str(if self.inner.is_empty() { "the line" } else { self.inner }),
            Base::Response => f.write_str("response")?,
            Base::Item(index) => write!(f, "response[{index}]")?,
            Base::Choice(index) => write!(f, "response.choices[{index}]")?,
        }
        if self.inner.is_empty() { Ok(()) } else { write!(f, ".{}", self.inner) }
    }
}

/// A field that is there and not null.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    /// Its value.
    pub(super) json: Json<'a>,
    pub(super) place: Place,
    pub(super) name: &'static str,
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place { base: Base::Line, inner: "" } => f.write_str(self.name),
            place => write!(f, "{place}.{}", self.name),
        }
    }
}

impl<'a> Field<'a> {
    /// Something wrong with it.
    pub(super) fn problem(&self, problem: impl Into<String>) -> PayloadProblem {
        PayloadProblem { field: self.to_string(), problem: problem.into() }
    }

    fn wrong_kind(&self, expected: &str) -> PayloadProblem {
        self.problem(format!("{}: expected {expected}", self.json.kind().name()))
    }

    /// Its value, if it is an object, and the place of that object's fields.
    pub(super) fn object(&self) -> Result<(Json<'a>, Place), PayloadProblem> {
        match self.json.kind() {
            Kind::Object => Ok((self.json, Place { base: self.place.base, inner: self.name })),
            _ => Err(self.wrong_kind("an object")),
        }
    }

    /// Its value as a number of tokens, a position or an index.
    pub(super) fn count(&self) -> Result<u32, PayloadProblem> {
        if self.json.kind() != Kind::Number {
            return Err(self.wrong_kind("a whole number"));
        }
        self.json.text().parse().ok().filter(|&count| count <= MAX_COUNT).ok_or_else(|| {
            self.problem(format!("{}: expected a whole number from 0 to {MAX_COUNT}", bounded(self.json.text())))
        })
    }

    /// Its value as any number.
    pub(super) fn number(&self) -> Result<f64, PayloadProblem> {
        match self.json.kind() {
            // Digits without end are a number all the same.
            Kind::Number => Ok(self.json.text().parse().unwrap_or(f64::NAN)),
            _ => Err(self.wrong_kind("a number")),
        }
    }

    /// Its value as an id or name.
    pub(super) fn name(&self) -> Result<Arc<str>, PayloadProblem> {
        if self.json.kind() != Kind::String {
            return Err(self.wrong_kind("a string"));
        }
        // Six characters stand for one at most, as in "\u0061"; and two are the quotes.
        let length = self.json.text().len();
        let text = if length > 6 * MAX_NAME + 2 { None } else { self.json.characters() };
        match text {
            Some(text) if text.is_empty() => Err(self.problem("empty: expected an id or name")),
            Some(text) if text.contains(char::is_control) => {
                Err(self.problem("a control character: expected an id or name without any"))
            }
            Some(text) if text.len() <= MAX_NAME => Ok(text.into()),
            _ => Err(self.problem(format!("{length} bytes: expected an id or name of at most {MAX_NAME}"))),
        }
    }

    /// How many token ids it lists, and whether they are all one and the same.
    pub(super) fn tokens(&self) -> Result<(u32, Option<bool>), PayloadProblem> {
        if self.json.kind() != Kind::List {
            return Err(self.wrong_kind("a list of token ids"));
        }
        let (mut count, mut uniform, mut first) = (0_usize, true, None);
        for item in self.json.items() {
            if item.kind() != Kind::Number {
                return Err(self.problem(format!("{} at {count}: expected token ids", item.kind().name())));
            }
            uniform &= *first.get_or_insert(item.text()) == item.text();
            count += 1;
        }
        Ok((self.bound(count)?, (count > 0).then_some(uniform)))
    }

    /// As many tokens as it has items.
    pub(super) fn bound(&self, items: usize) -> Result<u32, PayloadProblem> {
        u32::try_from(items)
            .ok()
            .filter(|&tokens| tokens <= MAX_COUNT)
            .ok_or_else(|| self.problem(format!("{items} tokens: expected at most {MAX_COUNT}")))
    }
}

/// What an engine says in this value, for a message.
pub(super) fn quoted(json: Json<'_>) -> String {
    let short = json.text().len() <= 32 * MAX_QUOTE;
    match json.characters().filter(|_| short) {
        Some(text) => bounded(&text),
        None => bounded(json.text().trim_start_matches('"')),
    }
}

/// Text for people: bounded, and on one line.
pub(super) fn bounded(text: &str) -> String {
    let shown = text.char_indices().nth(MAX_QUOTE).map_or(text, |(end, _)| &text[..end]);
    let mut line: String =
        shown.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    if shown.len() < text.len() {
        line.push_str("...");
    }
    line
}

/// A struct of the fields that are read from one kind of object. Where a name comes twice, the last one counts, as in
/// Python; `null` is as good as absent.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $($key:literal)|+,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(super) struct $name<'a> {
            $(pub(super) $field: Option<$crate::record::field::Field<'a>>,)*
        }

        impl<'a> $name<'a> {
            /// The fields of this object.
            pub(super) fn of(
                object: $crate::record::json::Json<'a>,
                place: $crate::record::field::Place,
            ) -> Self {
                let mut found = Self { $($field: None,)* };
                for (name, json) in object.fields() {
                    let set = |name| {
                        (json.kind() != $crate::record::json::Kind::Null)
                            .then_some($crate::record::field::Field { json, place, name })
                    };
                    match &*name {
                        $($($key => found.$field = set($key),)+)*
                        _ => {}
                    }
                }
                found
            }
        }
    };
}
pub(super) use fields;
