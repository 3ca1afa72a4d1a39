//! Which answers belong together, and which of them are in memory.
//!
//! Answers hang together by names: the outer id, what a prefill calls the request inside, and the prefill that a decode
//! says it took its KV from. All that hangs together is one component; it is in the join as a whole or, when memory is
//! short, put aside as a whole. Names are kept as 64-bit fingerprints: two that collide make two requests one component,
//! which close together, each as itself.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    sync::Arc,
};

use gatescope_routing::span::{RequestKey, WireType};

use super::{answer::Answer, aside::LineAt};

/// Places of lines that are not used any more, before they are cleared away.
const GONE: usize = if cfg!(test) { 4 } else { 1 << 16 };

/// Answers that belong together, as far as they came.
#[derive(Debug, Default)]
pub(super) struct Component {
    names: Vec<u64>,
    /// The requests that were answered.
    pub(super) keys: Vec<RequestKey>,
    /// The lines of the answers, in the order in which they came.
    pub(super) lines: Vec<LineAt>,
    /// Payload hash and line number of each span.
    pub(super) arrivals: Vec<(u64, u64)>,
    pub(super) model: Option<Arc<str>>,
    /// When the first instance began, in UTC microseconds.
    pub(super) started_at: Option<i64>,
    /// Whether it cannot be closed before the next commit.
    pub(super) waits: bool,
    /// The numeric type in which its rows came.
    pub(super) wire_type: Option<WireType>,
    /// Whether it is stored and judged again.
    pub(super) again: bool,
    /// Bytes that it counts for.
    weighed: usize,
}

impl Component {
    /// Bytes that it takes, beside what the join has of it.
    fn weight(&self) -> usize {
        // A map is half empty at worst.
        let name = size_of::<u64>() + 2 * size_of::<(u64, Place)>();
        2 * size_of::<(u64, Self)>()
            + self.names.capacity() * name
            + self.keys.capacity() * size_of::<RequestKey>()
            + self.lines.capacity() * size_of::<LineAt>()
            + self.arrivals.capacity() * size_of::<(u64, u64)>()
            + self.model.as_ref().map_or(0, |model| 2 * size_of::<usize>() + model.len())
    }

    fn take_in(&mut self, other: Self) {
        self.names.extend(other.names);
        for key in other.keys {
            self.add_key(key);
        }
        self.lines.extend(other.lines);
        self.arrivals.extend(other.arrivals);
        self.model = self.model.take().or(other.model);
        self.began(other.started_at);
        self.waits |= other.waits;
        self.wire_type = self.wire_type.or(other.wire_type);
        self.again |= other.again;
    }

    /// A request that was answered.
    pub(super) fn add_key(&mut self, key: RequestKey) {
        if !self.keys.contains(&key) {
            push_tight(&mut self.keys, key);
        }
    }

    /// A line of an answer.
    pub(super) fn add_line(&mut self, line: LineAt) {
        push_tight(&mut self.lines, line);
    }

    /// A span, by the hash of its rows and the number of its line.
    pub(super) fn add_arrival(&mut self, payload_hash: u64, line: u64) {
        push_tight(&mut self.arrivals, (payload_hash, line));
    }

    /// When an instance began it.
    pub(super) fn began(&mut self, at: Option<i64>) {
        self.started_at = match (self.started_at, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

/// Most components have one or two of anything, and a list that doubles would begin with room for four.
fn push_tight<T>(list: &mut Vec<T>, item: T) {
    if list.len() < 4 {
        list.reserve_exact(1);
    }
    list.push(item);
}

/// All components.
#[derive(Debug, Default)]
pub(super) struct Components {
    places: HashMap<u64, Place>,
    /// By age.
    live: BTreeMap<u64, Component>,
    opened: u64,
    aside: Vec<Entry>,
    gone: usize,
    /// Bytes of the live ones.
    weight: usize,
}

/// Where a component is: the age of a live one, or the first entry of one that was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place(u64);

const ASIDE: u64 = 1 << 63;

/// A line of a component that was put aside; its lines follow each other.
#[derive(Debug, Clone, Copy)]
struct Entry {
    line: LineAt,
    /// How many lines of the component follow; [`Entry::GONE`] where the line is not needed any more.
    more: u32,
}

impl Entry {
    const GONE: u32 = u32::MAX;
}

/// The names that an answer gives its request.
pub(super) fn names(run: &str, answer: &Answer) -> Vec<u64> {
    let mut names = vec![fingerprint(&("id", run, &*answer.request_id))];
    for link in answer.identity.iter().chain(&answer.link) {
        names.push(fingerprint(&("kv", run, &*link.engine_id, &*link.request_id)));
    }
    names
}

/// The same for equal values in every process.
pub(crate) fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Components {
    /// Components with one of these names that were put aside: their lines, to be read again. They are live again once
    /// these lines are told.
    pub(super) fn recall(&mut self, names: &[u64]) -> Vec<LineAt> {
        let mut lines = Vec::new();
        for name in names {
            if let Some(Place(place)) = self.places.get(name)
                && place & ASIDE != 0
            {
                lines.extend(self.take_aside((place & !ASIDE) as usize));
            }
        }
        lines
    }

    /// The lines of the first component that was put aside and is still, of those within these entries, and the entry
    /// behind them.
    pub(super) fn recall_next(&mut self, mut within: Range<usize>) -> Option<(Vec<LineAt>, usize)> {
        let first = within.find(|&at| self.aside.get(at).is_some_and(|entry| entry.more != Entry::GONE))?;
        let lines = self.take_aside(first);
        Some((lines.clone(), first + lines.len()))
    }

    fn take_aside(&mut self, first: usize) -> Vec<LineAt> {
        let Some(entry) = self.aside.get(first).filter(|entry| entry.more != Entry::GONE) else { return Vec::new() };
        let end = first + 1 + entry.more as usize;
        let entries = &mut self.aside[first..end];
        let lines = entries.iter().map(|entry| entry.line).collect();
        entries.iter_mut().for_each(|entry| entry.more = Entry::GONE);
        self.gone += end - first;
        lines
    }

    /// The live component of these names, which makes all live components with one of them one. Says its age.
    pub(super) fn unite(&mut self, names: &[u64]) -> u64 {
        let mut ages: Vec<u64> = names
            .iter()
            .filter_map(|name| self.places.get(name))
            .map(|place| place.0)
            .filter(|age| age & ASIDE == 0)
            .collect();
        ages.sort_unstable();
        ages.dedup();
        let age = ages.first().copied().unwrap_or_else(|| {
            self.opened += 1;
            self.opened
        });
        let mut component = self.live.remove(&age).unwrap_or_default();
        for other in ages.iter().skip(1).filter_map(|other| self.live.remove(other)) {
            self.weight -= other.weighed;
            component.take_in(other);
        }
        for name in names {
            if !component.names.contains(name) {
                push_tight(&mut component.names, *name);
            }
        }
        for name in &component.names {
            self.places.insert(*name, Place(age));
        }
        self.live.insert(age, component);
        self.weigh(age);
        age
    }

    /// Weighs a live component again, after something was added to it.
    pub(super) fn weigh(&mut self, age: u64) {
        if let Some(component) = self.live.get_mut(&age) {
            let weight = component.weight();
            self.weight = self.weight + weight - component.weighed;
            component.weighed = weight;
        }
    }

    /// Bytes of the live components, beside what the join has of them.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    pub(super) fn get_mut(&mut self, age: u64) -> Option<&mut Component> {
        self.live.get_mut(&age)
    }

    /// Takes out a live component.
    pub(super) fn remove(&mut self, age: u64) -> Option<Component> {
        let mut component = self.live.remove(&age)?;
        self.weight -= std::mem::take(&mut component.weighed);
        for name in &component.names {
            self.places.remove(name);
        }
        Some(component)
    }

    /// Takes a component back in that cannot be closed yet.
    pub(super) fn keep_waiting(&mut self, age: u64, component: Component) {
        for name in &component.names {
            self.places.insert(*name, Place(age));
        }
        self.live.insert(age, Component { waits: true, ..component });
        self.weigh(age);
    }

    /// Puts a live component aside. The caller takes its requests out of the join.
    pub(super) fn put_aside(&mut self, age: u64) -> Option<Component> {
        let mut component = self.live.remove(&age)?;
        self.weight -= std::mem::take(&mut component.weighed);
        let place = Place(self.aside.len() as u64 | ASIDE);
        if self.aside.capacity() - self.aside.len() < component.lines.len() {
            // Doubling would hold three times what is needed at the worst moment.
            self.aside.reserve_exact(component.lines.len() + self.aside.len() / 8 + 64);
        }
        for (index, line) in component.lines.iter().enumerate() {
            let more = (component.lines.len() - 1 - index) as u32;
            self.aside.push(Entry { line: *line, more });
        }
        for name in &component.names {
            self.places.insert(*name, place);
        }
        Some(component)
    }

    /// Moves the entries that are still needed together, if there are many others. Entries have other numbers then.
    pub(super) fn tidy(&mut self) {
        if self.gone <= GONE.max(self.aside.len() / 2) {
            return;
        }
        let mut moved = HashMap::new();
        let mut kept = Vec::with_capacity(self.aside.len() - self.gone);
        for (index, entry) in self.aside.iter().enumerate().filter(|(_, entry)| entry.more != Entry::GONE) {
            moved.insert(index as u64 | ASIDE, kept.len() as u64 | ASIDE);
            kept.push(*entry);
        }
        self.aside = kept;
        self.gone = 0;
        self.places.retain(|_, place| match (place.0 & ASIDE, moved.get(&place.0)) {
            (0, _) => true,
            (_, Some(new)) => {
                place.0 = *new;
                true
            }
            (_, None) => false,
        });
    }

    /// Age of the oldest live component.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.live.keys().next().copied()
    }

    /// Ages of the live components, the oldest first.
    pub(super) fn ages(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }

    /// Entries of components that were put aside, used ones included: the end of [`Self::recall_next`].
    pub(super) fn aside(&self) -> usize {
        self.aside.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What to do: an answer with these names comes, or the oldest live component is put aside or taken out.
    #[derive(Debug, Clone)]
    enum Step {
        Answer(Vec<u64>),
        PutAside,
        Remove,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => prop::collection::vec(0u64..12, 1..4).prop_map(Step::Answer),
            3 => Just(Step::PutAside),
            1 => Just(Step::Remove),
        ]
    }

    /// Tells of a line as a session does: what was put aside and hangs together with it is told again first.
    fn answer(components: &mut Components, lines: &[Vec<u64>], number: u64) -> u64 {
        let names = &lines[number as usize];
        for earlier in components.recall(names) {
            let age = components.unite(&lines[earlier.number as usize]);
            components.get_mut(age).unwrap().lines.push(earlier);
        }
        let age = components.unite(names);
        components.get_mut(age).unwrap().lines.push(LineAt::numbered(number));
        age
    }

    /// Sets of lines that hang together, without those that were taken out.
    #[derive(Default)]
    struct Model(Vec<(BTreeSet<u64>, BTreeSet<u64>)>);

    impl Model {
        fn answer(&mut self, names: &[u64], number: u64) {
            let mut united = (names.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from([number]));
            self.0.retain(|(others, lines)| {
                let apart = others.is_disjoint(&united.0);
                if !apart {
                    united.0.extend(others);
                    united.1.extend(lines);
                }
                apart
            });
            // Names that were pulled in may hang together with yet others.
            if self.0.iter().any(|(others, _)| !others.is_disjoint(&united.0)) {
                let (names, lines) = united;
                let names: Vec<u64> = names.into_iter().collect();
                self.answer(&names, number);
                if let Some(last) = self.0.last_mut() {
                    last.1.extend(lines);
                }
            } else {
                self.0.push(united);
            }
        }
    }

    proptest! {
        #[test]
        fn lines_hang_together_by_names_wherever_they_are(steps in prop::collection::vec(step(), 0..80)) {
            // given
            let mut components = Components::default();
            let mut model = Model::default();
            let mut lines: Vec<Vec<u64>> = Vec::new();

            // when
            for step in steps {
                match step {
                    Step::Answer(names) => {
                        model.answer(&names, lines.len() as u64);
                        lines.push(names);
                        answer(&mut components, &lines, lines.len() as u64 - 1);
                    }
                    Step::PutAside => {
                        if let Some(age) = components.oldest() {
                            components.put_aside(age);
                            components.tidy();
                        }
                    }
                    Step::Remove => {
                        if let Some(component) = components.oldest().and_then(|age| components.remove(age)) {
                            let gone: BTreeSet<u64> = component.lines.iter().map(|line| line.number).collect();
                            model.0.retain(|(_, lines)| *lines != gone);
                        }
                    }
                }
            }

            // then
            let mut found: Vec<BTreeSet<u64>> = components
                .ages()
                .into_iter()
                .map(|age| components.get_mut(age).unwrap().lines.iter().map(|line| line.number).collect())
                .collect();
            let (mut next, end) = (0, components.aside());
            while let Some((lines, after)) = components.recall_next(next..end) {
                next = after;
                found.push(lines.iter().map(|line| line.number).collect());
            }
            let mut expected: Vec<BTreeSet<u64>> = model.0.into_iter().map(|(_, lines)| lines).collect();
            found.sort();
            expected.sort();
            prop_assert_eq!(found, expected);
        }
    }
}
