//! Other names of requests that are closed: what a prefill tells after its decode's request has closed is late for that
//! request, and no request of its own.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use gatescope_routing::span::KvLink;

use super::families::Name;

/// Names that are remembered.
const MOST: usize = 1 << 16;

/// Prefills' own names of requests, and what the requests are called.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    requests: HashMap<Name, Arc<str>>,
    by_age: VecDeque<Name>,
}

impl Aliases {
    pub(super) fn new(aliases: impl IntoIterator<Item = (Name, Arc<str>)>) -> Self {
        let mut all = Self::default();
        aliases.into_iter().for_each(|(name, request_id)| all.insert(name, request_id));
        all
    }

    /// The request that this name stands for.
    pub(super) fn get(&self, name: &Name) -> Option<&Arc<str>> {
        self.requests.get(name)
    }

    pub(super) fn insert(&mut self, name: Name, request_id: Arc<str>) {
        if self.requests.insert(name.clone(), request_id).is_none() {
            self.by_age.push_back(name);
        }
        while self.by_age.len() > MOST {
            if let Some(oldest) = self.by_age.pop_front() {
                self.requests.remove(&oldest);
            }
        }
    }

    /// A closed request has named a prefill that never came.
    pub(super) fn want(&mut self, run: &Arc<str>, prefill: &KvLink, request_id: &Arc<str>) {
        self.insert(wanted_name(run, prefill), Arc::clone(request_id));
    }

    /// The closed request that has named this prefill.
    pub(super) fn wanted(&self, run: &Arc<str>, prefill: &KvLink) -> Option<Arc<str>> {
        self.get(&wanted_name(run, prefill)).cloned()
    }

    /// The names that were remembered last, the oldest first.
    pub(super) fn newest(&self, most: usize) -> Vec<(Name, Arc<str>)> {
        let skip = self.by_age.len().saturating_sub(most);
        let names = self.by_age.iter().skip(skip);
        names.filter_map(|name| Some((name.clone(), Arc::clone(self.requests.get(name)?)))).collect()
    }
}

/// A prefill's name inside of its engine, as no request is called.
fn wanted_name(run: &Arc<str>, prefill: &KvLink) -> Name {
    (Arc::clone(run), format!("{}\0{}", prefill.engine_id, prefill.request_id).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_names_are_forgotten_first() {
        // given
        let name = |number: usize| -> Name { ("r".into(), number.to_string().into()) };
        let mut aliases = Aliases::default();

        // when
        (0..=MOST).for_each(|number| aliases.insert(name(number), "d".into()));

        // then
        assert_eq!(aliases.get(&name(0)), None);
        assert_eq!(aliases.get(&name(MOST)).map(|id| &**id), Some("d"));
        assert_eq!(aliases.newest(1), [(name(MOST), "d".into())]);
    }
}
