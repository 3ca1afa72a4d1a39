//! Which requests are stored, so that a new one is told from one to which something came late without reading a file.

use std::collections::HashSet;

use gatescope_routing::span::RequestKey;

use crate::import::fingerprint;

/// Requests that are remembered, in 64 bits each.
const MOST: usize = 4 << 20;

/// Fingerprints of stored requests.
#[derive(Debug)]
pub(super) struct Known {
    requests: HashSet<u64>,
    most: usize,
    /// Whether every stored request is among them.
    is_complete: bool,
}

impl Known {
    pub(super) fn new() -> Self {
        Self { requests: HashSet::new(), most: MOST, is_complete: true }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether every stored request was inserted.
    pub(super) fn had_all(&mut self, all: bool) {
        self.is_complete &= all;
    }

    /// Whether the request may be stored; where not, it is not.
    pub(super) fn may_have(&self, key: &RequestKey) -> bool {
        !self.is_complete || self.requests.contains(&fingerprint(key))
    }

    /// Whether the request is remembered: it was closed not too long ago.
    pub(super) fn remembers(&self, key: &RequestKey) -> bool {
        self.requests.contains(&fingerprint(key))
    }

    /// The request is stored, or on its way there.
    pub(super) fn insert(&mut self, key: &RequestKey) {
        if self.requests.len() >= self.most {
            self.is_complete = false;
            self.requests.clear();
        }
        self.requests.insert(fingerprint(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: usize) -> RequestKey {
        RequestKey { run: "r".into(), request_id: id.to_string().into(), choice: 0 }
    }

    #[test]
    fn a_request_that_was_forgotten_may_still_be_stored() {
        // given
        let mut known = Known { most: 2, ..Known::new() };
        assert!(!known.may_have(&key(0)));

        // when
        (0..3).for_each(|id| known.insert(&key(id)));

        // then
        assert!(known.may_have(&key(0)) && known.may_have(&key(2)) && known.may_have(&key(9)));
        assert!(known.remembers(&key(2)) && !known.remembers(&key(0)));
    }
}
