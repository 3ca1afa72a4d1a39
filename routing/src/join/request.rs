//! The join of one request.

use super::{Applied, Joined, Part, Rules};

/// The join of one request: parts in, in any order; accepted rows and findings out.
#[derive(Debug, Default)]
pub struct RequestJoin {}

impl RequestJoin {
    /// Takes one part.
    pub fn apply(&mut self, _part: Part) -> Applied {
        Applied::Taken
    }

    /// Whether an instance that ends requests has finished this one and every expected position has a row.
    pub fn is_whole(&self) -> bool {
        false
    }

    /// Bytes of rows held.
    pub fn held_bytes(&self) -> usize {
        0
    }

    /// Closes the request.
    pub fn close(self, _rules: &Rules) -> Joined {
        unreachable!()
    }
}
