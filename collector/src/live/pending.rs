//! Closed requests that no commit has stored yet.

use std::{collections::HashSet, sync::Arc};

use gatescope_routing::span::RequestKey;

use crate::tables::ClosedRequest;

/// What a closed request weighs besides its rows.
const REQUEST_BYTES: usize = 2 << 10;

/// Closed requests, those of a commit under way apart from later ones.
#[derive(Debug, Default)]
pub(super) struct Pending {
    committing: Option<Closed>,
    next: Closed,
    /// The last record of the log that a commit covers.
    covered: u64,
}

#[derive(Debug, Default)]
struct Closed {
    requests: Vec<Arc<ClosedRequest>>,
    keys: HashSet<RequestKey>,
    bytes: usize,
}

impl Pending {
    pub(super) fn push(&mut self, request: Arc<ClosedRequest>) {
        let rows: usize = request.joined.segments.iter().map(|segment| segment.rows.bytes().len()).sum();
        self.next.bytes += rows + REQUEST_BYTES;
        self.next.keys.insert(request.key.clone());
        self.next.requests.push(request);
    }

    /// A closed request that may be stored already: it is not shown before the commit.
    pub(super) fn hide(&mut self, key: &RequestKey) {
        self.next.bytes += REQUEST_BYTES;
        self.next.keys.insert(key.clone());
    }

    /// Whether the request is closed and not yet committed.
    pub(super) fn has(&self, key: &RequestKey) -> bool {
        self.next.keys.contains(key) || self.committing.as_ref().is_some_and(|closed| closed.keys.contains(key))
    }

    /// Bytes of rows and what else the requests weigh.
    pub(super) fn bytes(&self) -> usize {
        self.next.bytes + self.committing.as_ref().map_or(0, |closed| closed.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.keys.is_empty() && self.committing.is_none()
    }

    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// The last record of the log that a commit covers.
    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// All closed so far goes into a commit.
    pub(super) fn begin_commit(&mut self) {
        self.committing = Some(std::mem::take(&mut self.next));
    }

    /// The commit that covers this position is done.
    pub(super) fn committed(&mut self, position: u64) {
        self.committing = None;
        self.covered = position;
    }

    /// The requests, for those who look.
    pub(super) fn requests(&self) -> Vec<Arc<ClosedRequest>> {
        self.committing.iter().flat_map(|closed| &closed.requests).chain(&self.next.requests).cloned().collect()
    }
}
