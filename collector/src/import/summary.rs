//! What an import did.

use std::{collections::BTreeMap, time::Duration};

use gatescope_routing::{
    finding::{Check, Finding},
    join::Status,
};

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
    pub(super) fn add(&mut self, stored: &Tally) {
        let counts = [
            (&mut self.requests, stored.requests),
            (&mut self.whole, stored.whole),
            (&mut self.incomplete, stored.incomplete),
            (&mut self.conflict, stored.conflict),
            (&mut self.duplicates, stored.duplicates),
            (&mut self.completed, stored.completed),
            (&mut self.rows, stored.rows),
        ];
        for (sum, change) in counts {
            *sum = sum.saturating_add_signed(change);
        }
        for (check, change) in &stored.findings {
            let sum = self.findings.entry(*check).or_default();
            *sum = sum.saturating_add_signed(*change);
        }
        self.findings.retain(|_, count| *count > 0);
    }
}

/// What a commit changes in the summary. A request that the same import has stored before is taken back first.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: i64,
    whole: i64,
    incomplete: i64,
    conflict: i64,
    pub(super) duplicates: i64,
    pub(super) completed: i64,
    rows: i64,
    findings: BTreeMap<Check, i64>,
}

impl Tally {
    /// Counts a request that is to be stored.
    pub(super) fn count<'f>(&mut self, status: Status, rows: u32, findings: impl IntoIterator<Item = &'f Finding>) {
        self.change(1, status, rows, findings);
    }

    /// Takes back a request that was counted, because it is stored anew.
    pub(super) fn take_back<'f>(&mut self, status: Status, rows: u32, findings: impl IntoIterator<Item = &'f Finding>) {
        self.change(-1, status, rows, findings);
    }

    fn change<'f>(&mut self, by: i64, status: Status, rows: u32, findings: impl IntoIterator<Item = &'f Finding>) {
        self.requests += by;
        *match status {
            Status::Whole => &mut self.whole,
            Status::Incomplete => &mut self.incomplete,
            Status::Conflict => &mut self.conflict,
        } += by;
        self.rows += by * i64::from(rows);
        for finding in findings {
            *self.findings.entry(finding.check).or_default() += by;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_stored_anew_counts_once() {
        // given
        let mut summary = Summary::default();
        let gap = Finding::new(Check::MissingRows, "");
        let mut first = Tally::default();
        first.count(Status::Incomplete, 5, [&gap]);
        summary.add(&first);

        // when
        let mut second = Tally::default();
        second.take_back(Status::Incomplete, 5, [&gap]);
        second.count(Status::Whole, 8, []);
        summary.add(&second);

        // then
        assert_eq!(summary, Summary { requests: 1, whole: 1, rows: 8, ..Summary::default() });
    }
}
