//! A closed request, as the tables take it.

use std::sync::Arc;

use gatescope_routing::{
    join::Joined,
    shape::{IdWidth, LayerSet},
    span::RequestKey,
};

/// A closed request. Its rows are stored from the bytes that its segments share: nothing is copied on the way in.
#[derive(Debug, Clone)]
pub struct ClosedRequest {
    /// Its name.
    pub key: RequestKey,
    /// The model that answered, where anyone said.
    pub model: Option<Arc<str>>,
    /// When the first instance began it, microseconds since 1970 UTC.
    pub started_at: Option<i64>,
    /// When the last instance finished it.
    pub finished_at: Option<i64>,
    /// When it was closed. Its load counts for the minute of `started_at`, or of this where that is unknown.
    pub closed_at: i64,
    /// The layers to store: those that have a gate. Layers that the rows do not have are left out.
    pub layers: LayerSet,
    /// The width to store ids in; rows of another width are converted, and refused where an id does not fit.
    pub width: IdWidth,
    /// When and as what each of `joined.captures` came, in their order.
    pub arrivals: Vec<Arrival>,
    /// The verdict, the accepted rows, the findings and the spans.
    ///
    /// Every capture in it becomes a row of `captures`: a request that `replaces` its stored self must name only those
    /// that are not stored yet.
    pub joined: Joined,
    /// Whether the request is stored already and this is its new self: the stored rows in `requests`, `routing_*` and
    /// `mismatches` go in the same commit, and `expert_load` is corrected by them. Its `captures` stay.
    pub replaces: bool,
}

/// How a span came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, microseconds since 1970 UTC.
    pub at: i64,
    /// Its number in the order of arrival: a line number, or the log's position.
    pub seq: i64,
}

impl ClosedRequest {
    /// The start of the minute that its load counts for, microseconds since 1970 UTC.
    pub fn minute(&self) -> i64 {
        minute(self.started_at.unwrap_or(self.closed_at))
    }
}

/// The start of the minute that holds this time.
pub(super) fn minute(at: i64) -> i64 {
    at - at.rem_euclid(60_000_000)
}
