//! Which open requests belong together, since when they are open and since when nothing came for them.
//!
//! Choices of one request, and a prefill and a decode that a link has joined, are one family: they open and close
//! together.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use gatescope_routing::span::{KvLink, RequestKey, WireType};

use super::parked::Parked;

/// What a family is called in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FamilyId(u64);

/// A run and an outer request id.
pub(super) type Name = (Arc<str>, Arc<str>);

/// The name of a request.
pub(super) fn name_of(key: &RequestKey) -> Name {
    (Arc::clone(&key.run), Arc::clone(&key.request_id))
}

/// A span that came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) payload_hash: u64,
    /// When, in UTC microseconds.
    pub(super) at: i64,
    /// In which record of the log.
    pub(super) position: u64,
}

/// Requests that open and close together.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) names: Vec<Name>,
    pub(super) keys: Vec<RequestKey>,
    /// The first record of the log that tells of it.
    pub(super) first: u64,
    /// When something came for it last.
    told_at: Instant,
    /// How long to wait for more.
    patience: Duration,
    pub(super) model: Option<Arc<str>>,
    pub(super) began_at: Option<i64>,
    pub(super) finished_at: Option<i64>,
    pub(super) arrived: Vec<Arrived>,
    pub(super) wire_type: Option<WireType>,
    /// Whether one of its requests was closed before: what comes now is late.
    pub(super) is_late: bool,
    /// Whether an instance that ends requests has finished it: it may be whole with every part that comes.
    pub(super) has_ended: bool,
    /// Prefills that its decodes have named and that have not come.
    pub(super) wanted: BTreeSet<KvLink>,
    /// Parts that memory had no room for.
    pub(super) parked: Vec<(RequestKey, Parked)>,
}

impl Family {
    fn take_in(&mut self, other: Self) {
        self.names.extend(other.names);
        for key in other.keys {
            self.add_key(&key);
        }
        self.first = self.first.min(other.first);
        self.told_at = self.told_at.max(other.told_at);
        self.patience = self.patience.max(other.patience);
        self.model = self.model.take().or(other.model);
        self.began(other.began_at);
        self.finished(other.finished_at);
        self.arrived.extend(other.arrived);
        self.wire_type = self.wire_type.or(other.wire_type);
        self.is_late |= other.is_late;
        self.has_ended |= other.has_ended;
        self.wanted.extend(other.wanted);
        self.parked.extend(other.parked);
    }

    pub(super) fn add_key(&mut self, key: &RequestKey) {
        if !self.keys.contains(key) {
            self.keys.push(key.clone());
        }
    }

    /// An instance began it.
    pub(super) fn began(&mut self, at: Option<i64>) {
        self.began_at = self.began_at.into_iter().chain(at).min();
    }

    /// An instance finished it.
    pub(super) fn finished(&mut self, at: Option<i64>) {
        self.finished_at = self.finished_at.max(at);
    }
}

/// All open families.
#[derive(Debug, Default)]
pub(super) struct Families {
    by_name: HashMap<Name, FamilyId>,
    open: HashMap<FamilyId, Family>,
    by_first: BTreeSet<(u64, FamilyId)>,
    /// When to look whether a family has waited long enough.
    checks: BTreeSet<(Instant, FamilyId)>,
    opened: u64,
}

impl Families {
    /// The family of this name, which is opened where there is none. `position` is the record that tells of it.
    pub(super) fn of(
        &mut self,
        name: &Name,
        position: u64,
        now: Instant,
        patience: Duration,
    ) -> (FamilyId, &mut Family) {
        let id = match self.by_name.get(name) {
            Some(&id) => id,
            None => {
                self.opened += 1;
                let id = FamilyId(self.opened);
                self.by_name.insert(name.clone(), id);
                self.by_first.insert((position, id));
                self.checks.insert((now + patience, id));
                id
            }
        };
        let family = self.open.entry(id).or_insert_with(|| Family {
            names: vec![name.clone()],
            keys: Vec::new(),
            first: position,
            told_at: now,
            patience,
            model: None,
            began_at: None,
            finished_at: None,
            arrived: Vec::new(),
            wire_type: None,
            is_late: false,
            has_ended: false,
            wanted: BTreeSet::new(),
            parked: Vec::new(),
        });
        family.told_at = now;
        (id, family)
    }

    /// Makes the families of two names one, where both are open.
    pub(super) fn unite(&mut self, one: &Name, other: &Name) {
        let (Some(&one), Some(&other)) = (self.by_name.get(one), self.by_name.get(other)) else { return };
        if one == other {
            return;
        }
        let (kept, gone) = (one.min(other), one.max(other));
        let Some(gone) = self.remove(gone) else { return };
        for name in &gone.names {
            self.by_name.insert(name.clone(), kept);
        }
        if let Some(family) = self.open.get_mut(&kept) {
            self.by_first.remove(&(family.first, kept));
            family.take_in(gone);
            self.by_first.insert((family.first, kept));
        }
    }

    /// The open family of a name.
    pub(super) fn find(&self, name: &Name) -> Option<FamilyId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, id: FamilyId) -> Option<&Family> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: FamilyId) -> Option<&mut Family> {
        self.open.get_mut(&id)
    }

    /// Takes a family out.
    pub(super) fn remove(&mut self, id: FamilyId) -> Option<Family> {
        let family = self.open.remove(&id)?;
        self.by_first.remove(&(family.first, id));
        for name in &family.names {
            self.by_name.remove(name);
        }
        Some(family)
    }

    /// A family for which nothing has come for as long as it may wait; ask until there is none. It stays open: where it
    /// cannot be closed yet it comes again after the same time.
    pub(super) fn next_quiet(&mut self, now: Instant) -> Option<FamilyId> {
        while let Some(&check) = self.checks.first().filter(|(due, _)| *due <= now) {
            self.checks.remove(&check);
            let (_, id) = check;
            let Some(family) = self.open.get(&id) else { continue };
            let quiet = family.told_at + family.patience;
            self.checks.insert((if quiet > now { quiet } else { now + family.patience }, id));
            if quiet <= now {
                return Some(id);
            }
        }
        None
    }

    /// The first record of the log that tells of an open family.
    pub(super) fn first_position(&self) -> Option<u64> {
        self.by_first.first().map(|(position, _)| *position)
    }

    /// All open families, the one that has been open longest first.
    pub(super) fn by_age(&self) -> impl Iterator<Item = FamilyId> {
        self.by_first.iter().map(|(_, id)| *id)
    }

    /// How long a family waits for more from now on, where that is shorter than before.
    pub(super) fn wait(&mut self, id: FamilyId, patience: Duration) {
        if let Some(family) = self.open.get_mut(&id).filter(|family| family.patience > patience) {
            family.patience = patience;
            self.checks.insert((family.told_at + patience, id));
        }
    }

    /// The names of all open families.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.open.values().flat_map(|family| &family.names)
    }

    /// All open families.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Family> {
        self.open.values()
    }

    /// Number of open families.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: &str) -> Name {
        ("r".into(), id.into())
    }

    #[test]
    fn families_that_a_link_joins_are_one_from_the_first_record_of_either() {
        // given
        let mut families = Families::default();
        let now = Instant::now();
        let patience = Duration::from_secs(1);
        families.of(&name("decode"), 7, now, patience);
        families.of(&name("prefill"), 3, now, patience);
        families.of(&name("other"), 9, now, patience);

        // when
        families.unite(&name("prefill"), &name("decode"));

        // then
        assert_eq!(families.len(), 2);
        let id = families.find(&name("prefill"));
        assert_eq!(id, families.find(&name("decode")));
        assert_eq!(families.first_position(), Some(3));
        families.remove(id.unwrap());
        assert_eq!((families.first_position(), families.find(&name("prefill"))), (Some(9), None));
    }

    #[test]
    fn a_family_is_quiet_once_nothing_came_for_its_time() {
        // given
        let mut families = Families::default();
        let begun = Instant::now();
        let patience = Duration::from_secs(10);
        let at = |seconds| begun + Duration::from_secs(seconds);
        families.of(&name("a"), 1, begun, patience);
        families.of(&name("b"), 2, begun, patience);

        // when
        families.of(&name("a"), 3, at(6), patience);

        // then
        assert_eq!(families.next_quiet(at(9)), None);
        assert_eq!(families.next_quiet(at(11)), families.find(&name("b")));
        assert_eq!(families.next_quiet(at(11)), None);
        assert_eq!(families.next_quiet(at(17)), families.find(&name("a")));
    }
}
