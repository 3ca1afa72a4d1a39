//! Which requests this import has closed, in 16 bytes each.

use std::{collections::HashMap, hash::Hash};

use gatescope_routing::{join::Joined, span::RequestKey};

use super::components::fingerprint;

/// Requests closed by this import: what was in them, and in which of its commits they are.
#[derive(Debug, Default)]
pub(super) struct Closed {
    requests: HashMap<u64, Entry>,
    commit: u16,
}

/// 48 bits of a digest, 16 bits of a commit's number.
#[derive(Debug, Clone, Copy)]
struct Entry(u64);

/// What this import knows of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    No,
    /// It was closed with the very same content.
    Same,
    /// It was closed with other content, which is committed.
    Committed,
    /// It was closed with other content, which is not committed yet.
    Uncommitted,
}

impl Closed {
    /// What is known of a request.
    pub(super) fn known(&self, key: &RequestKey, digest: u64) -> Known {
        match self.requests.get(&fingerprint(key)) {
            None => Known::No,
            Some(entry) if entry.0 >> 16 == digest >> 16 => Known::Same,
            Some(entry) if entry.0 as u16 == self.commit => Known::Uncommitted,
            Some(_) => Known::Committed,
        }
    }

    /// Whether the request was closed since the last commit.
    pub(super) fn is_uncommitted(&self, key: &RequestKey) -> bool {
        self.requests.get(&fingerprint(key)).is_some_and(|entry| entry.0 as u16 == self.commit)
    }

    /// Whether the request was closed before the last commit, and not again since.
    pub(super) fn is_committed(&self, key: &RequestKey) -> bool {
        self.requests.get(&fingerprint(key)).is_some_and(|entry| entry.0 as u16 != self.commit)
    }

    /// A request was closed.
    pub(super) fn insert(&mut self, key: &RequestKey, digest: u64) {
        self.requests.insert(fingerprint(key), Entry(digest >> 16 << 16 | u64::from(self.commit)));
    }

    /// All requests so far are committed.
    pub(super) fn committed(&mut self) {
        self.commit = self.commit.wrapping_add(1);
    }
}

/// What a request was told, whatever the order: its lengths and its spans.
pub(super) fn digest(joined: &Joined) -> u64 {
    let spans = joined
        .captures
        .iter()
        .map(|capture| fingerprint(&(&capture.source, capture.start, capture.payload_hash, capture.generation)));
    let lengths = fingerprint(&Lengths(joined.prompt_tokens, joined.completion_tokens));
    spans.fold(lengths, u64::wrapping_add)
}

#[derive(Hash)]
struct Lengths(Option<u32>, Option<u32>);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> RequestKey {
        RequestKey { run: "r".into(), request_id: id.into(), choice: 0 }
    }

    #[test]
    fn a_closed_request_is_known_by_its_content_and_its_commit() {
        // given
        let mut closed = Closed::default();
        let (one, other) = (1 << 20, 2 << 20);

        // when
        closed.insert(&key("a"), one);

        // then
        assert_eq!(closed.known(&key("b"), one), Known::No);
        assert_eq!(closed.known(&key("a"), one), Known::Same);
        assert_eq!(closed.known(&key("a"), other), Known::Uncommitted);
        closed.committed();
        assert_eq!(closed.known(&key("a"), other), Known::Committed);
        assert!(closed.is_committed(&key("a")) && !closed.is_uncommitted(&key("a")));
        assert!(!closed.is_committed(&key("b")) && !closed.is_uncommitted(&key("b")));
    }
}
