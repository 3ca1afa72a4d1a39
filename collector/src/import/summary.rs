//! What an import did.

use std::{collections::BTreeMap, time::Duration};

use gatescope_routing::{finding::Check, join::Status};

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Inputs read to their end.
    pub files: u64,
    /// Lines read, blank ones aside.
    pub lines: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Inputs, lines and answers in lines that could not be used.
    pub refused: u64,
    /// Requests stored, new ones and those in `completed`.
    pub requests: u64,
    /// Stored requests that are whole.
    pub whole: u64,
    /// Stored requests of which positions are missing.
    pub incomplete: u64,
    /// Stored requests whose sources contradict each other.
    pub conflict: u64,
    /// Requests that were stored before and to which the input added nothing.
    pub duplicates: u64,
    /// Requests that were stored before and to which the input added something.
    pub completed: u64,
    /// Rows stored: the rows of `requests`, those that were stored before included.
    pub rows: u64,
    /// Findings of the stored requests.
    pub findings: BTreeMap<Check, u64>,
    /// Time from beginning to end.
    pub elapsed: Duration,
    /// Why it ended before the input did.
    pub stopped: Option<Stop>,
}

/// Why an import ended before its input did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A line was refused, and that was to stop it. What came before is stored.
    Strict,
    /// It was interrupted. Nothing that was not committed before is stored; importing the same again is safe.
    Interrupted,
}

impl Stop {
    /// `strict` or `interrupted`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Interrupted => "interrupted",
        }
    }
}

impl Summary {
    /// Whether everything that was given is stored.
    pub fn is_complete(&self) -> bool {
        self.refused == 0 && self.stopped.is_none()
    }

    /// Adds what a commit stored.
    pub(super) fn add(&mut self, stored: &Self) {
        self.requests += stored.requests;
        self.whole += stored.whole;
        self.incomplete += stored.incomplete;
        self.conflict += stored.conflict;
        self.duplicates += stored.duplicates;
        self.completed += stored.completed;
        self.rows += stored.rows;
        for (check, count) in &stored.findings {
            *self.findings.entry(*check).or_default() += count;
        }
    }

    /// Counts a request that is to be stored.
    pub(super) fn count(&mut self, status: Status, rows: u32, findings: impl IntoIterator<Item = Check>) {
        self.requests += 1;
        *match status {
            Status::Whole => &mut self.whole,
            Status::Incomplete => &mut self.incomplete,
            Status::Conflict => &mut self.conflict,
        } += 1;
        self.rows += u64::from(rows);
        for check in findings {
            *self.findings.entry(check).or_default() += 1;
        }
    }
}
