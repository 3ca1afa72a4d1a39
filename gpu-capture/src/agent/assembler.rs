//! The agent's thread: it turns steps and what is told of requests into events.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use gatescope_routing::{
    Anchor, Finish, IdWidth, ModelShape, RequestKey, Role, RowShape, Rows, Source, Span, Start, WireType,
    join::{BlockReference, Lost},
    span::BlockHash,
};
use gatescope_wire::{Block, Event, Link, ModelSeen, Request, Started, Told};

use super::{
    AgentOptions, Shared,
    outlet::{Outlet, Taken},
    request::{Begun, Piece, RequestState},
    sent_blocks::SentBlocks,
    step::Step,
};

/// A request without a start is told under the engine's own id after so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is known of a finished request is kept so long: rows of its last step may still be on their way.
const AFTERWARDS: Duration = Duration::from_secs(30);
/// Most requests that are known at once.
const MOST_REQUESTS: usize = 1 << 17;

/// What the agent's thread is given, in the order in which the engine did it.
#[derive(Debug)]
pub(super) enum Item {
    Step(Step),
    Begun(String, Box<Begun>),
    Hashes { request: String, first_block: u32, hashes: Vec<BlockHash> },
    Cached { request: String, first_block: u32, hashes: Vec<BlockHash>, rows: Option<CachedRows> },
    Preempt(String),
    Finish { request: String, completion_tokens: Option<u32> },
    Generation(u32),
    Shape(Box<ModelShape>),
    Flush(crossbeam_channel::Sender<()>),
    Stop,
}

/// Rows of blocks that the engine had in its own store.
#[derive(Debug)]
pub(super) struct CachedRows {
    pub(super) bytes: Bytes,
    pub(super) shape: RowShape,
    pub(super) width: IdWidth,
}

pub(super) struct Assembler {
    run: Arc<str>,
    instance: Arc<str>,
    role: Role,
    model: Option<Arc<str>>,
    block: u32,
    linger: Duration,
    most_parked: usize,
    shared: Arc<Shared>,
    outlet: Outlet,
    requests: HashMap<Arc<str>, RequestState>,
    parked: usize,
    sent: SentBlocks,
    generation: u32,
    swept: Instant,
}

impl Assembler {
    pub(super) fn new(options: &AgentOptions, shared: Arc<Shared>, outlet: Outlet) -> Self {
        Self {
            run: options.run.clone(),
            instance: options.instance.clone(),
            role: options.role,
            model: options.model.clone(),
            block: options.block_size.max(1),
            linger: options.linger,
            most_parked: options.parked_bytes,
            shared,
            outlet,
            requests: HashMap::new(),
            parked: 0,
            sent: SentBlocks::new(options.sent_blocks),
            generation: 0,
            swept: Instant::now(),
        }
    }

    /// Runs until it is told to stop, or nobody can tell it anything. Gives back the way out, with the spool.
    pub(super) fn run(mut self, items: &Receiver<Item>) -> Outlet {
        loop {
            match items.recv_timeout(self.linger / 4) {
                Ok(Item::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tell_dropped();
            self.sweep();
            self.outlet.drain();
        }
        self.flush_all();
        self.tell_dropped();
        let nameless: Vec<Arc<str>> = self
            .requests
            .iter()
            .filter(|(_, state)| state.begun.is_none())
            .map(|(request, _)| request.clone())
            .collect();
        nameless.iter().for_each(|request| self.name_as_is(request));
        self.outlet.drain();
        self.outlet
    }

    fn take(&mut self, item: Item) {
        let now = Instant::now();
        match item {
            Item::Step(step) => self.step(step, now),
            Item::Begun(request, begun) => self.begun(&request, *begun, now),
            Item::Hashes { request, first_block, hashes } => {
                let state = self.state(&request, now);
                state.hashes.extend((first_block..).zip(hashes));
            }
            Item::Cached { request, first_block, hashes, rows } => {
                let held = rows.as_ref().map_or(0, |rows| rows.bytes.len());
                self.cached(&request, first_block, hashes, rows, now);
                self.shared.ring.release(held);
            }
            Item::Preempt(request) => {
                self.flush(&request, now);
                self.tell(&request, Piece::Preempt, now);
                let state = self.state(&request, now);
                state.attempt = state.attempt.saturating_add(1);
                state.hashes.clear();
            }
            Item::Finish { request, completion_tokens } => {
                self.flush(&request, now);
                self.tell(&request, Piece::Finish { completion_tokens }, now);
                let state = self.state(&request, now);
                state.finished = true;
                state.hashes.clear();
            }
            Item::Generation(generation) => {
                if generation != self.generation {
                    self.flush_all();
                    self.generation = generation;
                    self.sent.clear();
                }
            }
            Item::Shape(shape) => {
                let (run, instance) = (self.run.clone(), self.instance.clone());
                let model = self.model.clone().unwrap_or_else(|| "".into());
                self.outlet.send(Event::Model(ModelSeen { run, instance, at: micros(), model, shape: *shape }));
            }
            Item::Flush(done) => {
                self.flush_all();
                self.tell_dropped();
                self.outlet.drain();
                // Whoever asked may have stopped waiting.
                let _ = done.send(());
            }
            Item::Stop => {}
        }
    }

    fn step(&mut self, step: Step, now: Instant) {
        let of = (step.shape, step.width);
        let (block, generation) = (self.block, self.generation);
        for piece in step.pieces() {
            let state = self.state(piece.request, now);
            let out = state.append(piece.first, piece.bytes, of, block, generation, now);
            for told in out {
                self.tell(piece.request, told, now);
            }
        }
        self.shared.ring.end(step);
    }

    fn begun(&mut self, request: &str, mut begun: Begun, now: Instant) {
        self.flush(request, now);
        let state = self.state(request, now);
        // What came before belongs to the attempts before this one, as far as preemptions were told.
        let ahead = begun.attempt.saturating_sub(state.attempt);
        begun.attempt = begun.attempt.max(state.attempt);
        if state.begun.as_ref() == Some(&begun) {
            return;
        }
        if ahead > 0 {
            // The engine gives this attempt blocks of its own.
            state.hashes.clear();
        }
        state.attempt = begun.attempt;
        let parked = std::mem::take(&mut state.parked);
        let bytes = std::mem::take(&mut state.parked_bytes);
        state.begun = Some(begun.clone());
        state.finished = false;
        self.parked -= bytes;
        let attempt = begun.attempt;
        let finishes = parked.iter().any(|(_, piece)| matches!(piece, Piece::Finish { .. }));
        self.send(request, attempt, Piece::Start(Box::new(begun)));
        for (attempt, piece) in parked {
            self.send(request, attempt + ahead, piece);
        }
        self.state(request, now).finished = finishes;
    }

    fn cached(
        &mut self,
        request: &str,
        first_block: u32,
        hashes: Vec<BlockHash>,
        rows: Option<CachedRows>,
        now: Instant,
    ) {
        self.flush(request, now);
        let (block, generation) = (self.block, self.generation);
        for (index, hash) in hashes.into_iter().enumerate() {
            let index_of = first_block.checked_add(index as u32);
            let Some(start) = index_of.and_then(|block_index| block_index.checked_mul(block)) else { return };
            let given = rows.as_ref().filter(|_| !self.sent.contains(&hash)).and_then(|rows| {
                let bytes = rows.shape.row_bytes(rows.width) * block as usize;
                let range = index * bytes..(index + 1) * bytes;
                (range.end <= rows.bytes.len()).then(|| (rows.bytes.slice(range), rows.shape, rows.width))
            });
            let piece = match given {
                Some((bytes, shape, width)) => Piece::Rows { start, bytes, shape, width, hash: Some(hash), generation },
                None => Piece::Block { start, rows: block, hash, generation },
            };
            self.tell(request, piece, now);
        }
    }

    fn state(&mut self, request: &str, now: Instant) -> &mut RequestState {
        // Most are known: their name is shared, not copied.
        let name = self.requests.get_key_value(request).map_or_else(|| request.into(), |(name, _)| Arc::clone(name));
        let state = self.requests.entry(name).or_insert_with(|| RequestState::new(now));
        state.heard = now;
        state
    }

    fn flush(&mut self, request: &str, now: Instant) {
        let generation = self.generation;
        if let Some(piece) = self.requests.get_mut(request).and_then(|state| state.flush(generation)) {
            self.tell(request, piece, now);
        }
    }

    fn flush_all(&mut self) {
        let now = Instant::now();
        let pending: Vec<Arc<str>> = self
            .requests
            .iter()
            .filter(|(_, state)| state.pending.is_some())
            .map(|(request, _)| request.clone())
            .collect();
        pending.iter().for_each(|request| self.flush(request, now));
    }

    /// Sends a piece, or parks it while nobody has said which request it is of.
    fn tell(&mut self, request: &str, piece: Piece, now: Instant) {
        let bytes = piece.bytes();
        let room = self.parked + bytes <= self.most_parked;
        let state = self.state(request, now);
        let attempt = state.attempt;
        if state.begun.is_some() {
            self.send(request, attempt, piece);
            return;
        }
        if room {
            state.parked.push_back((attempt, piece));
            state.parked_bytes += bytes;
            self.parked += bytes;
            return;
        }
        // There is no room to wait: under the engine's own id it is at least known.
        self.name_as_is(request);
        self.send(request, attempt, piece);
    }

    /// Gives up waiting for a start.
    fn name_as_is(&mut self, request: &str) {
        let Some(state) = self.requests.get_mut(request) else { return };
        if state.begun.is_some() {
            return;
        }
        state.begun = Some(Begun {
            outer_id: request.into(),
            choice: 0,
            role: self.role,
            prompt_tokens: None,
            first_forward: None,
            prompt_start: None,
            attempt: state.attempt,
            name: None,
            prefill: None,
        });
        let parked = std::mem::take(&mut state.parked);
        let bytes = std::mem::take(&mut state.parked_bytes);
        self.parked -= bytes;
        for (attempt, piece) in parked {
            self.send(request, attempt, piece);
        }
    }

    fn send(&mut self, request: &str, attempt: u32, piece: Piece) {
        let Some(state) = self.requests.get(request) else { return };
        let Some(begun) = &state.begun else { return };
        let key = RequestKey { run: self.run.clone(), request_id: begun.outer_id.clone(), choice: begun.choice };
        let source = Source { role: begun.role, instance: self.instance.clone(), attempt };
        let event = |told| Event::Request(Request { key: key.clone(), at: micros(), told });
        let hash = match &piece {
            Piece::Rows { hash, .. } => hash.clone(),
            _ => None,
        };
        let told = match piece {
            Piece::Rows { start, bytes, shape, width, hash, generation, .. } => {
                let Ok(rows) = Rows::new(bytes, shape, width) else {
                    self.shared.refuse("rows that are no whole number of rows");
                    return;
                };
                Told::Span(Span {
                    source,
                    anchor: Anchor::Start(start),
                    rows,
                    wire_type: WireType::of(width),
                    unknown: Vec::new(),
                    generation,
                    block: hash,
                })
            }
            Piece::Block { start, rows, hash, generation } => {
                Told::Block(Block { reference: BlockReference { source, start, hash, generation }, rows })
            }
            Piece::Start(begun) => {
                let start = Start {
                    source: source.clone(),
                    prompt_tokens: begun.prompt_tokens,
                    first_forward: begun.first_forward,
                    prompt_start: begun.prompt_start,
                    parent: None,
                };
                if let Some(prefill) = begun.prefill.clone() {
                    let link = event(Told::Link(Link { source, prefill }));
                    self.outlet.send(link);
                }
                Told::Start(Started { start, name: begun.name, model: self.model.clone() })
            }
            Piece::Preempt => Told::Preempt(source),
            Piece::Finish { completion_tokens } => Told::Finish(Finish {
                source,
                prompt_tokens: begun.prompt_tokens,
                completion_tokens,
                uniform_prompt: None,
            }),
            Piece::Lost { start, rows } => Told::Lost(Lost { source, start, positions: rows }),
        };
        // Only rows that are on their way can be referred to.
        match (self.outlet.send(event(told)), hash) {
            (Taken::Yes, Some(hash)) => self.sent.insert(hash),
            // What was spooled just before is gone as well.
            (Taken::SpoolFailed, _) => self.sent.clear(),
            _ => {}
        }
    }

    /// Tells what the ring had no room for.
    fn tell_dropped(&mut self) {
        let dropped = self.shared.dropped.take();
        if dropped.is_empty() {
            return;
        }
        let now = Instant::now();
        // What was captured before comes first.
        let mut by_request: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
        for (request, start, rows) in dropped {
            by_request.entry(request).or_default().push((start, rows));
        }
        for (request, ranges) in by_request {
            self.flush(&request, now);
            for (start, rows) in ranges {
                self.tell(&request, Piece::Lost { start, rows }, now);
            }
        }
    }

    /// Forgets the requests of which nothing was heard for longest, where there are too many; what they have is sent.
    fn forget(&mut self, most: usize, now: Instant) {
        if self.requests.len() <= most {
            return;
        }
        let mut by_age: Vec<(Instant, Arc<str>)> =
            self.requests.iter().map(|(request, state)| (state.heard, request.clone())).collect();
        by_age.sort_unstable();
        by_age.truncate(self.requests.len() - most / 2);
        for (_, request) in by_age {
            self.flush(&request, now);
            self.name_as_is(&request);
            self.requests.remove(&request);
        }
        self.shared.refuse_once("more requests are open than the agent remembers: the oldest were forgotten");
    }

    /// Sends rows that have waited long enough, and forgets requests that have ended.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.swept) < self.linger / 4 {
            return;
        }
        self.swept = now;
        let linger = self.linger;
        let due = |state: &RequestState| {
            state.pending.as_ref().is_some_and(|pending| now.duration_since(pending.since) >= linger)
        };
        let late: Vec<Arc<str>> =
            self.requests.iter().filter(|(_, state)| due(state)).map(|(request, _)| request.clone()).collect();
        for request in late {
            self.flush(&request, now);
        }
        let strange = |state: &RequestState| {
            state.begun.is_none()
                && (now.duration_since(state.known) >= PATIENCE
                    || state.finished && now.duration_since(state.heard) >= linger)
        };
        let strangers: Vec<Arc<str>> =
            self.requests.iter().filter(|(_, state)| strange(state)).map(|(request, _)| request.clone()).collect();
        for request in strangers {
            self.name_as_is(&request);
        }
        let gone = |state: &RequestState| {
            let quiet = now.duration_since(state.heard);
            state.pending.is_none()
                && state.parked.is_empty()
                && (state.finished && quiet >= AFTERWARDS || quiet >= 10 * PATIENCE)
        };
        self.requests.retain(|_, state| !gone(state));
        self.forget(MOST_REQUESTS, now);
        self.shared.parked(self.parked, self.requests.len());
    }
}

/// Microseconds since 1970.
fn micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as i64)
}
