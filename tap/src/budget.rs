//! Copies of what passes, within a budget of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that copies may take together.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    #[cfg(test)]
    fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A growing copy. It gives itself up where there is no room for more.
#[derive(Debug)]
pub(crate) struct Copied {
    bytes: Vec<u8>,
    most: usize,
    held: usize,
    given_up: bool,
    budget: Arc<Budget>,
}

impl Copied {
    /// A copy of at most so many bytes.
    pub(crate) fn new(budget: &Arc<Budget>, most: usize) -> Self {
        Self { bytes: Vec::new(), most, held: 0, given_up: false, budget: Arc::clone(budget) }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.given_up {
            return;
        }
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            // Doubled, as a vector would by itself; told to the budget before it is taken.
            let wanted = needed.max(2 * self.bytes.capacity()).min(self.most.max(needed));
            if needed > self.most || !self.budget.take(wanted - self.held) {
                self.give_up();
                return;
            }
            self.held = wanted;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.bytes = Vec::new();
        self.budget.0.fetch_add(std::mem::take(&mut self.held), Ordering::Relaxed);
    }

    /// All that was pushed, unless there was no room for it.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        (!self.given_up).then_some(&self.bytes)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_a_budget_and_give_it_back() {
        let budget = Budget::new(100);
        let mut first = Copied::new(&budget, 1000);
        first.push(&[1; 40]);
        first.push(&[2; 20]);
        assert_eq!((first.whole().map(<[u8]>::len), budget.left()), (Some(60), 20));
        let mut second = Copied::new(&budget, 1000);
        second.push(&[3; 21]);
        assert_eq!((second.whole(), budget.left()), (None, 20));
        second.push(&[3; 1]);
        assert_eq!(second.whole(), None, "a copy with a hole is none");
        drop(first);
        assert_eq!(budget.left(), 100);
    }

    #[test]
    fn one_copy_is_bounded_by_itself() {
        let budget = Budget::new(1000);
        let mut copy = Copied::new(&budget, 10);
        copy.push(&[1; 10]);
        assert_eq!(copy.whole().map(<[u8]>::len), Some(10));
        copy.push(&[1]);
        assert_eq!((copy.whole(), budget.left()), (None, 1000));
    }
}
