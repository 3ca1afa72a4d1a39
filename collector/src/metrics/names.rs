//! Labels with a bound: a name that comes after so many others is `other`.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// What names above the bound are called.
pub(super) const OTHER: &str = "other";

/// The names that one label has had.
#[derive(Debug)]
pub(super) struct Names {
    most: usize,
    seen: Mutex<HashSet<Arc<str>>>,
}

impl Names {
    /// At most so many, beside `other`.
    pub(super) fn new(most: usize) -> Self {
        Self { most, seen: Mutex::default() }
    }

    /// The name as a label has it.
    pub(super) fn label(&self, name: &Arc<str>) -> Arc<str> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(name) {
            return Arc::clone(name);
        }
        if seen.len() >= self.most {
            return OTHER.into();
        }
        seen.insert(Arc::clone(name));
        Arc::clone(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_above_the_bound_are_other_and_earlier_ones_stay() {
        let names = Names::new(2);
        let label = |name: &str| names.label(&name.into()).to_string();

        assert_eq!(["a", "b", "c", "a", "d"].map(label), ["a", "b", "other", "a", "other"]);
    }
}
