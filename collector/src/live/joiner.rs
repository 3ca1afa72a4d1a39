//! The thread that joins: everything told goes in, in the order of the log; closed requests come out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Select, Sender};
use gatescope_routing::{
    join::{Join, Part},
    span::{RequestKey, Role},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Options,
    about::{About, ModelsSeen, says_nothing},
    aliases::Aliases,
    committer::{Barrier, ToCommit},
    families::{Arrived, Families, FamilyId, Name, name_of},
    known::Known,
    parked::Parking,
    pending::Pending,
    settle::Unsure,
    state::{AgentSeen, ModelSaid, State},
    told::{RequestTold, Told},
    view::{Glimpse, OpenRequest},
};
use crate::{import::models::Models, metrics::Metrics};

/// What an open request weighs besides its rows.
const OPEN_BYTES: usize = 2 << 10;
/// How long late parts of a closed request are collected before they are joined with what is stored.
const LATE_PATIENCE: Duration = Duration::from_secs(1);
/// How long what a finished request has named, blocks or its prefill, may still come.
const NAMED_PATIENCE: Duration = Duration::from_secs(2);
/// Other names of closed requests that outlive a restart.
const ALIASES: usize = 1 << 12;
/// How often to look at what has waited long enough.
const TICK: Duration = Duration::from_millis(100);

/// A record of the log, read.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) position: u64,
    /// When it came, in UTC microseconds.
    pub(crate) at: i64,
    pub(crate) told: Vec<Told>,
    /// Whether it was read from the log after a start.
    pub(crate) replayed: bool,
    /// The agent's message that it was.
    pub(crate) agent: Option<AgentSeen>,
    /// Its share of the queue's bytes.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

/// What else the thread is told.
#[derive(Debug)]
pub(super) enum Call {
    /// A look at everything that is not in the tables, once all records up to the position are joined.
    View { position: u64, reply: oneshot::Sender<Glimpse> },
    /// A commit is done.
    Committed { number: u64, position: u64 },
    /// Commit what is closed and end, once all records up to the position are joined.
    Stop { position: u64 },
}

/// The thread's state.
pub(super) struct Joiner {
    options: Options,
    metrics: Arc<Metrics>,
    received: Receiver<Received>,
    calls: Receiver<Call>,
    to_commit: Sender<ToCommit>,

    join: Join,
    families: Families,
    parking: Parking,
    known: Known,
    aliases: Aliases,
    models: Models,
    models_seen: ModelsSeen,
    agents: BTreeMap<(Arc<str>, uuid::Uuid), u64>,

    /// The last record that was joined.
    position: u64,
    /// Records that came before one with a lower position.
    early: BTreeMap<u64, Received>,
    /// What the last commit before the start covers, and which requests were open then.
    covered: u64,
    open_then: BTreeSet<Name>,

    pending: Pending,
    /// Families that cannot be closed before the next commit.
    held_back: Vec<FamilyId>,
    number: u64,
    committed_at: Instant,
    told_open_at: Instant,
    stopping: Option<u64>,
    /// Looks that wait for records to be joined.
    looks: Vec<(u64, oneshot::Sender<Glimpse>)>,
}

/// What a joiner starts with.
pub(super) struct Beginning {
    pub(super) number: u64,
    pub(super) state: State,
    /// Whether requests may be stored that are not known.
    pub(super) known: Known,
    pub(super) folder: std::path::PathBuf,
}

impl Joiner {
    pub(super) fn new(
        options: Options,
        metrics: Arc<Metrics>,
        received: Receiver<Received>,
        calls: Receiver<Call>,
        to_commit: Sender<ToCommit>,
        beginning: Beginning,
    ) -> Self {
        let Beginning { number, state, known, folder } = beginning;
        let mut models_seen = ModelsSeen::default();
        for seen in state.models.iter().filter_map(ModelSaid::seen) {
            metrics.model(&seen);
            models_seen.take(seen);
        }
        Self {
            join: Join::new(options.rules()),
            families: Families::default(),
            parking: Parking::new(&folder),
            known,
            aliases: Aliases::new(state.aliases),
            models: Models::new(options.model.clone()),
            models_seen,
            agents: state.agents.into_iter().map(|seen| ((seen.agent, seen.boot), seen.seq)).collect(),
            position: state.replay_from.saturating_sub(1),
            early: BTreeMap::new(),
            covered: state.position,
            open_then: state.open.into_iter().collect(),
            pending: Pending::default(),
            held_back: Vec::new(),
            number,
            committed_at: Instant::now(),
            told_open_at: Instant::now(),
            stopping: None,
            looks: Vec::new(),
            options,
            metrics,
            received,
            calls,
            to_commit,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let full = self.pending.bytes() > self.options.pending_bytes;
            let mut select = Select::new();
            let calls = select.recv(&self.calls);
            let received = (!full).then(|| select.recv(&self.received));
            let ready = select.ready_timeout(TICK);
            match ready {
                Ok(index) if index == calls => match self.calls.try_recv() {
                    Ok(call) => self.call(call),
                    Err(error) if error.is_disconnected() => return,
                    Err(_) => {}
                },
                Ok(index) if Some(index) == received => {
                    // Many at a time, so that looking at the clock costs nothing.
                    for _ in 0..64 {
                        let Ok(received) = self.received.try_recv() else { break };
                        self.receive(received);
                        if self.pending.bytes() > self.options.pending_bytes {
                            break;
                        }
                    }
                }
                _ => {}
            }
            let now = Instant::now();
            self.answer_looks();
            self.close_quiet(now);
            self.tell_open(now);
            self.commit_when_due(now);
            if self.is_done() {
                return;
            }
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::View { position, reply } => self.looks.push((position, reply)),
            Call::Committed { number, position } => {
                self.number = number;
                self.pending.committed(position);
                for id in std::mem::take(&mut self.held_back) {
                    self.close(id);
                }
            }
            Call::Stop { position } => self.stopping = Some(position),
        }
    }

    /// Whether all was joined and committed before the end.
    fn is_done(&self) -> bool {
        self.stopping.is_some_and(|last| self.position >= last)
            && self.pending.is_empty()
            && self.pending.covered() >= self.position.min(self.stopping.unwrap_or(0))
    }

    fn receive(&mut self, received: Received) {
        // What is missing in a replay was lost, and said so.
        if received.replayed && received.position > self.position {
            self.position = received.position - 1;
        }
        if received.position != self.position + 1 {
            if received.position > self.position {
                self.early.insert(received.position, received);
            }
            return;
        }
        self.take(received);
        while let Some(next) = self.early.remove(&(self.position + 1)) {
            self.take(next);
        }
        self.make_room();
    }

    fn take(&mut self, received: Received) {
        let Received { position, at, told, replayed, agent, _room: room } = received;
        self.position = position;
        if let Some(AgentSeen { agent, boot, seq }) = agent {
            let last = self.agents.entry((agent, boot)).or_default();
            *last = seq.max(*last);
        }
        let covered = replayed && position <= self.covered;
        let now = Instant::now();
        for told in told {
            match told {
                Told::Model(seen) => {
                    self.metrics.model(&seen);
                    self.models_seen.take(seen);
                }
                Told::Request(told) if covered && !self.open_then.contains(&name_of(&told.key)) => {}
                Told::Request(told) => self.tell(told, position, at, now),
            }
        }
        drop(room);
        let ready: BTreeSet<FamilyId> =
            self.join.take_ready().iter().filter_map(|key| self.families.find(&name_of(key))).collect();
        for id in ready {
            if !self.is_whole(id) {
                continue;
            }
            if self.families.get(id).is_some_and(|family| !family.wanted.is_empty()) {
                // The decode has all rows by itself; the prefill that it named may still come and be compared.
                self.families.wait(id, NAMED_PATIENCE);
            } else {
                self.close(id);
            }
        }
        self.metrics.joined(1);
    }

    fn tell(&mut self, told: RequestTold, position: u64, at: i64, now: Instant) {
        let RequestTold { mut key, parts, model, began_at, finished_at, name, prefill } = told;
        if let Some(request_id) = name.as_ref().and_then(|name| self.aliases.wanted(&key.run, name)) {
            self.aliases.insert(name_of(&key), request_id);
        }
        if let Some(request_id) = self.aliases.get(&name_of(&key)) {
            key.request_id = Arc::clone(request_id);
        }
        let own_name = name_of(&key);
        let is_late = self.known.remembers(&key);
        let patience = if is_late { LATE_PATIENCE } else { self.options.join_timeout };
        let (id, family) = self.families.of(&own_name, position, now, patience);
        family.is_late |= is_late;
        family.add_key(&key);
        family.model = family.model.take().or(model);
        family.began(began_at);
        family.finished(finished_at);
        for part in &parts {
            match part {
                Part::Inspected(span, inspection) => {
                    let payload_hash = inspection.payload_hash;
                    family.arrived.push(Arrived { payload_hash, at, position });
                    family.wire_type.get_or_insert(span.wire_type);
                }
                Part::Finish(finish) => {
                    family.has_ended |= matches!(finish.source.role, Role::Decode | Role::Colocated);
                }
                _ => {}
            }
        }
        if is_late {
            self.metrics.late(parts.len() as u64);
        }
        let has_ended = family.has_ended;
        if has_ended {
            self.unpark(id);
        }
        for part in parts {
            self.join.apply(&key, part);
        }
        let resolved = self.join.resolve(&key);
        if has_ended && self.join.get(&resolved).is_some_and(|request| request.awaited().next().is_some()) {
            // Blocks that are not in memory are looked for in the tables.
            self.families.wait(id, NAMED_PATIENCE);
        }
        if let Some(other) = name.and_then(|name| self.join.identify(&key, name)) {
            self.unite(&own_name, &other);
        }
        if let Some(prefill) = prefill {
            match self.join.link(&key, prefill.clone()) {
                Some(other) => self.unite(&own_name, &other),
                None => {
                    if let Some(family) = self.families.get_mut(id) {
                        family.wanted.insert(prefill);
                    }
                }
            }
        }
        // What a link has brought together may be whole.
        if let Some(id) = self.families.find(&own_name)
            && self.families.get(id).is_some_and(|family| family.has_ended)
        {
            self.unpark(id);
        }
    }

    fn unite(&mut self, name: &Name, other: &RequestKey) {
        self.families.unite(name, &name_of(other));
        if let Some(family) = self.families.find(name).and_then(|id| self.families.get_mut(id)) {
            family.wanted.clear();
        }
    }

    /// Whether every request of the family is whole, all of its choices that were told of.
    fn is_whole(&self, id: FamilyId) -> bool {
        let Some(family) = self.families.get(id).filter(|family| family.parked.is_empty()) else { return false };
        let mut keys = family.keys.iter().map(|key| self.join.resolve(key));
        keys.all(|key| self.join.get(&key).is_some_and(gatescope_routing::RequestJoin::is_whole))
    }

    fn close_quiet(&mut self, now: Instant) {
        while let Some(id) = self.families.next_quiet(now) {
            self.close(id);
        }
    }

    /// Closes a family, or holds it back until what was closed of it before is committed.
    fn close(&mut self, id: FamilyId) {
        self.unpark(id);
        let Some(family) = self.families.get(id) else { return };
        let keys: BTreeSet<RequestKey> = family.keys.iter().map(|key| self.join.resolve(key)).collect();
        if keys.iter().any(|key| self.pending.has(key)) {
            self.held_back.push(id);
            return;
        }
        let Some(family) = self.families.remove(id) else { return };
        if let Some(key) = keys.first() {
            let others = family.names.iter().filter(|(_, id)| *id != key.request_id);
            others.for_each(|name| self.aliases.insert(name.clone(), Arc::clone(&key.request_id)));
            for prefill in &family.wanted {
                self.aliases.want(&key.run, prefill, &key.request_id);
            }
        }
        // One choice's prompt is that of all: where it is not in memory, none of them is complete.
        let depends = keys.iter().filter_map(|key| self.join.get(key));
        let depends =
            depends.into_iter().any(|request| request.parent().is_some() || request.awaited().next().is_some());
        for key in keys {
            let Some(request) = self.join.end(&key) else { continue };
            let answerers = self.models.answerers(&key.run, family.model.as_ref(), request.sources());
            let live = self.models.live(&answerers);
            let about = About::of(&key, &request, &family, self.join.rules(), &self.models_seen, live);
            let joined = request.close(&about.rules(), &about.context());
            if says_nothing(&joined) {
                continue;
            }
            self.models.learn(&answerers, &joined);
            let closed = if depends || self.known.may_have(&key) {
                self.pending.hide(&key);
                ToCommit::Unsure(Box::new(Unsure { about, request }))
            } else {
                let closed_at = chrono::Utc::now().timestamp_micros();
                self.metrics.closed(&key, about.model.as_ref(), &joined);
                let closed = Arc::new(about.closed(joined, closed_at, false));
                self.pending.push(Arc::clone(&closed));
                ToCommit::Request(closed)
            };
            self.known.insert(&key);
            // The committer ends after this thread.
            let _ = self.to_commit.send(closed);
        }
    }

    fn commit_when_due(&mut self, now: Instant) {
        if self.pending.is_committing() {
            return;
        }
        let due = now.duration_since(self.committed_at) >= self.options.commit_interval;
        let stopping = self.stopping.is_some_and(|last| self.position >= last);
        let something = !self.pending.is_empty() || self.position > self.pending.covered();
        if !something || !(due || stopping || self.pending.bytes() >= self.options.commit_bytes) {
            return;
        }
        self.committed_at = now;
        let mut open: BTreeSet<Name> = self.families.names().cloned().collect();
        if self.position < self.covered {
            // In the middle of a replay: what was open and has not come again yet is still needed.
            open.extend(self.open_then.iter().cloned());
        }
        let state = State {
            position: self.position.max(self.covered),
            replay_from: self.families.first_position().map_or(self.position + 1, |first| first.min(self.position + 1)),
            open: open.into_iter().collect(),
            aliases: self.aliases.newest(ALIASES),
            agents: self
                .agents
                .iter()
                .map(|((agent, boot), seq)| AgentSeen { agent: Arc::clone(agent), boot: *boot, seq: *seq })
                .collect(),
            models: self.models_seen.iter().map(ModelSaid::from).collect(),
        };
        self.pending.begin_commit();
        // The committer ends after this thread.
        let _ = self.to_commit.send(ToCommit::Barrier(Box::new(Barrier { state })));
    }

    fn tell_open(&mut self, now: Instant) {
        if now.duration_since(self.told_open_at) >= TICK {
            self.told_open_at = now;
            self.metrics.open(self.families.len() as u64, self.join.held_bytes() as u64);
        }
    }

    /// Parks the oldest open requests while those in memory weigh too much.
    fn make_room(&mut self) {
        if self.join.held_bytes() + OPEN_BYTES * self.join.len() <= self.options.open_bytes {
            return;
        }
        let by_age: Vec<FamilyId> = self.families.by_age().collect();
        for id in by_age {
            if self.join.held_bytes() + OPEN_BYTES * self.join.len() <= self.options.open_bytes / 4 * 3 {
                return;
            }
            if let Err(error) = self.park(id) {
                tracing::warn!(%error, "open requests take more memory than they may, and cannot be put on disk");
                return;
            }
        }
    }

    fn park(&mut self, id: FamilyId) -> std::io::Result<()> {
        let Some(family) = self.families.get(id) else { return Ok(()) };
        let keys: BTreeSet<RequestKey> = family.keys.iter().map(|key| self.join.resolve(key)).collect();
        for key in keys {
            let Some(request) = self.join.share(&key) else { continue };
            let parked = self.parking.park((*request).clone().into_parts())?;
            self.metrics.parked(parked.bytes() as u64);
            self.join.take(&key);
            if let Some(family) = self.families.get_mut(id) {
                family.parked.push((key, parked));
            }
        }
        Ok(())
    }

    fn unpark(&mut self, id: FamilyId) {
        let Some(family) = self.families.get_mut(id) else { return };
        for (key, parked) in std::mem::take(&mut family.parked) {
            match parked.read() {
                Ok(parts) => {
                    for part in parts {
                        self.join.apply(&key, part);
                    }
                }
                Err(error) => {
                    tracing::error!(request = %key, %error, "rows that were put on disk cannot be read back");
                    self.metrics.lost_parked();
                }
            }
            self.parking.release(&parked);
        }
    }

    /// Answers the looks whose records are joined.
    fn answer_looks(&mut self) {
        let (due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.looks).into_iter().partition(|(position, _)| *position <= self.position);
        self.looks = waiting;
        for (_, reply) in due {
            // Who asked may have gone.
            let _ = reply.send(self.view());
        }
    }

    fn view(&mut self) -> Glimpse {
        let rules = self.join.rules().clone();
        let mut open = Vec::new();
        for family in self.families.iter().filter(|family| !family.is_late) {
            let keys: BTreeSet<RequestKey> = family.keys.iter().map(|key| self.join.resolve(key)).collect();
            for key in keys {
                let request = self.join.share(&key).unwrap_or_default();
                let parked: Vec<_> = family
                    .parked
                    .iter()
                    .filter(|(of, _)| self.join.resolve(of) == key)
                    .map(|(_, parked)| parked.clone())
                    .collect();
                let answerers = self.models.answerers(&key.run, family.model.as_ref(), request.sources());
                let live = self.models.live(&answerers);
                let about = About::of(&key, &request, family, &rules, &self.models_seen, live);
                open.push(OpenRequest { about, request, parked });
            }
        }
        Glimpse { number: self.number, closed: self.pending.requests(), open }
    }
}
