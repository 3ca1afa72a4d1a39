//! Who watches an import.

use std::{fmt, sync::Arc};

/// Watches an import. All calls come from the thread that called it.
pub trait Observer {
    /// How far it is. Called often: at least once for each few MiB of input, and while nothing comes in.
    fn progressed(&mut self, progress: Progress) {
        let _ = progress;
    }

    /// A line, or an answer in it, or a whole input could not be used.
    fn refused(&mut self, refusal: &Refusal) {
        let _ = refusal;
    }
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes read of all inputs.
    pub bytes: u64,
    /// Lines read, blank ones aside.
    pub lines: u64,
    /// Requests closed.
    pub requests: u64,
}

/// Something that could not be used. Everything else is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the input.
    pub input: Arc<str>,
    /// Number of the line, from 1; `None` where the input as a whole cannot be read.
    pub line: Option<u64>,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// `FILE:LINE: what is wrong`.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.input)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.problem)
    }
}

/// Nobody watches.
impl Observer for () {}
