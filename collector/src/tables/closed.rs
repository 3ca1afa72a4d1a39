//! When the requests were closed whose rows a file has: what retention goes by.
//!
//! Every file of a commit says when the commit's requests were closed, the same in each table, as two tags of its add
//! action. Files are merged only with files of the same day, and rows that are written again keep to the day that they
//! had. So a request's rows are, in every table, in files of one and the same day, and whole days can go.

use std::collections::HashMap;

/// The tags' names; their values are microseconds since 1970 UTC.
const MIN: &str = "gatescope.closed_min";
const MAX: &str = "gatescope.closed_max";

/// Microseconds of a day: what retention cuts by.
pub(super) const DAY: i64 = 24 * 3600 * 1_000_000;

/// The first and the last time at which a request was closed, microseconds since 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    min: i64,
    max: i64,
}

impl Closed {
    pub(super) fn at(time: i64) -> Self {
        Self { min: time, max: time }
    }

    pub(super) fn from_tags(tags: &HashMap<String, Option<String>>) -> Option<Self> {
        let time = |name: &str| tags.get(name)?.as_deref()?.parse().ok();
        Some(Self { min: time(MIN)?, max: time(MAX)? })
    }

    pub(super) fn to_tags(self) -> HashMap<String, Option<String>> {
        HashMap::from([(MIN, self.min), (MAX, self.max)].map(|(name, time)| (name.to_owned(), Some(time.to_string()))))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The day that the rows belong to, counted from 1970 UTC.
    pub(super) fn day(self) -> i64 {
        self.max.div_euclid(DAY)
    }
}

/// The range of both; of one where the other is empty.
pub(super) fn both(one: Option<Closed>, other: Option<Closed>) -> Option<Closed> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.and(other)),
        (one, other) => one.or(other),
    }
}
