//! All open requests: which parts belong together, and which requests are done.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Applied, Context, Joined, Part, RequestJoin, Rules,
    blocks::BlockStore,
    compare::block_differs,
    request::{push_tight, text},
};
use crate::span::{KvLink, RequestKey, Role};

/// Hashed blocks are kept up to this many bytes.
const BLOCK_BYTES: usize = 256 << 20;

/// The join of many requests. It holds rows by reference and copies none.
#[derive(Debug)]
pub struct Join {
    rules: Rules,
    open: HashMap<RequestKey, Open>,
    /// Keys by the order in which they were opened.
    by_age: BTreeMap<u64, RequestKey>,
    opened: u64,
    ready: Vec<RequestKey>,
    /// Choices of request ids that have more than the first.
    choices: HashMap<(Arc<str>, Arc<str>), Vec<u32>>,
    links: Links,
    blocks: BlockStore,
    /// Requests with blocks that were named and have not been seen.
    waiting: BTreeSet<RequestKey>,
    held: usize,
    /// Bytes of the open requests, rows included.
    weight: usize,
}

/// Places in the maps of an open request: a map is half empty at worst.
const OPEN_BYTES: usize = 2 * (size_of::<(RequestKey, Open)>() + size_of::<(u64, RequestKey)>());
/// Places in the maps of a name of a prefill, and what is to be forgotten with it.
const LINK_BYTES: usize = 2
    * (size_of::<(Arc<str>, KvLink)>() + size_of::<RequestKey>() + size_of::<(Arc<str>, Arc<str>, Vec<Trace>)>())
    + 2 * size_of::<Trace>();

#[derive(Debug)]
struct Open {
    /// Shared with those who look at it while it is open: it is copied only if it changes meanwhile.
    request: Arc<RequestJoin>,
    age: u64,
    bytes: usize,
    /// Bytes with all that is kept beside the rows.
    weight: usize,
}

impl Open {
    /// Weighs the request again; says what was known before, bytes of rows and all, and what is now.
    fn weigh(&mut self, id: &Arc<str>) -> [(usize, usize); 2] {
        let before = (self.bytes, self.weight);
        self.bytes = self.request.held_bytes();
        self.weight = OPEN_BYTES + text(id) + 2 * size_of::<usize>() + self.request.weight();
        [before, (self.bytes, self.weight)]
    }
}

/// Which request a prefill's own name stands for.
#[derive(Debug, Default)]
struct Links {
    /// The prefill's key, once it has told its name.
    named: HashMap<(Arc<str>, KvLink), RequestKey>,
    /// The decode's key, once it has named its prefill.
    wanted: HashMap<(Arc<str>, KvLink), RequestKey>,
    /// Prefill requests whose parts go to their decode's request: outer id to outer id.
    moved: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
    /// What to forget when a request closes: keys of the maps above.
    of_request: HashMap<(Arc<str>, Arc<str>), Vec<Trace>>,
}

#[derive(Debug)]
enum Trace {
    Name(KvLink),
    Moved(Arc<str>),
}

impl Links {
    fn trace(&mut self, key: &RequestKey, trace: Trace) {
        let traces = self.of_request.entry((key.run.clone(), key.request_id.clone())).or_default();
        push_tight(traces, trace);
    }

    /// Links live as long as the request that they lead to is open.
    fn forget(&mut self, key: &RequestKey) {
        let run = &key.run;
        let mut ids = vec![key.request_id.clone()];
        while let Some(id) = ids.pop() {
            for trace in self.of_request.remove(&(run.clone(), id)).into_iter().flatten() {
                match trace {
                    Trace::Name(name) => {
                        let at = (run.clone(), name);
                        self.named.remove(&at);
                        self.wanted.remove(&at);
                    }
                    // What the prefill calls itself led here too.
                    Trace::Moved(from) => {
                        self.moved.remove(&(run.clone(), from.clone()));
                        ids.push(from);
                    }
                }
            }
        }
    }

    fn weight(&self) -> usize {
        (self.named.len() + self.wanted.len() + self.moved.len()) * LINK_BYTES
    }
}

impl Join {
    /// An empty join.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            open: HashMap::new(),
            by_age: BTreeMap::new(),
            opened: 0,
            ready: Vec::new(),
            choices: HashMap::new(),
            links: Links::default(),
            blocks: BlockStore::new(BLOCK_BYTES),
            waiting: BTreeSet::new(),
            held: 0,
            weight: 0,
        }
    }

    /// The key under which a request's parts are kept: another one where a link has joined it to its decode.
    pub fn resolve(&self, key: &RequestKey) -> RequestKey {
        match self.links.moved.get(&(key.run.clone(), key.request_id.clone())) {
            Some(request_id) => RequestKey { request_id: request_id.clone(), ..key.clone() },
            None => key.clone(),
        }
    }

    /// Takes one part of a request.
    pub fn apply(&mut self, key: &RequestKey, part: Part) -> Applied {
        let key = self.resolve(key);
        let mut noted = None;
        if let Part::Span(span) | Part::Inspected(span, _) = &part
            && span.block.is_some()
        {
            noted = self.blocks.keep(span).and_then(|known| block_differs(span, &known));
            self.resolve_blocks();
        }
        let waits = matches!(part, Part::Block(_));
        let blocks = &mut self.blocks;
        let open = self.open.entry(key.clone()).or_insert_with(|| {
            self.opened += 1;
            self.by_age.insert(self.opened, key.clone());
            if key.choice > 0 {
                self.choices.entry((key.run.clone(), key.request_id.clone())).or_default().push(key.choice);
            }
            Open { request: Arc::default(), age: self.opened, bytes: 0, weight: 0 }
        });
        let request = Arc::make_mut(&mut open.request);
        let applied = request.apply(part);
        if let Some(finding) = noted {
            request.note(finding);
        }
        if waits {
            request.resolve(|reference| blocks.find(reference));
            if !request.awaited.is_empty() {
                self.waiting.insert(key.clone());
            }
        }
        let weighed = open.weigh(&key.request_id);
        self.count(weighed);
        self.share_prompt(&key);
        if let Some(open) = self.open.get(&key)
            && open.request.is_whole()
        {
            self.ready.push(key);
        }
        applied
    }

    fn count(&mut self, [before, now]: [(usize, usize); 2]) {
        self.held = self.held + now.0 - before.0;
        self.weight = self.weight + now.1 - before.1;
    }

    fn resolve_blocks(&mut self) {
        let blocks = &mut self.blocks;
        self.waiting.retain(|key| {
            let Some(open) = self.open.get_mut(key) else { return false };
            let request = Arc::make_mut(&mut open.request);
            request.resolve(|reference| blocks.find(reference));
            let waits = !request.awaited.is_empty();
            let [before, now] = open.weigh(&key.request_id);
            self.held = self.held + now.0 - before.0;
            self.weight = self.weight + now.1 - before.1;
            if open.request.is_whole() {
                self.ready.push(key.clone());
            }
            waits
        });
    }

    /// One prefill serves all choices of a request: hands its rows to those that have none of their own.
    fn share_prompt(&mut self, key: &RequestKey) {
        let Some(choices) = self.choices.get(&(key.run.clone(), key.request_id.clone())) else { return };
        let choices: Vec<u32> = if key.choice == 0 { choices.clone() } else { vec![key.choice] };
        let first = RequestKey { choice: 0, ..key.clone() };
        let Some(first) = self.share(&first).filter(|first| first.has_rows_of(Role::Prefill)) else { return };
        for choice in choices {
            let key = RequestKey { choice, ..key.clone() };
            let Some(open) = self.open.get_mut(&key) else { continue };
            Arc::make_mut(&mut open.request).adopt(&first);
            let weighed = open.weigh(&key.request_id);
            let whole = open.request.is_whole();
            self.count(weighed);
            if whole {
                self.ready.push(key);
            }
        }
    }

    /// A prefill tells what it calls the request inside. Says which request wanted it: their parts are one now.
    pub fn identify(&mut self, key: &RequestKey, name: KvLink) -> Option<RequestKey> {
        let at = (key.run.clone(), name);
        let decode = self.links.wanted.get(&at).cloned();
        if let Some(decode) = &decode {
            self.unite(key, decode);
        }
        self.links.trace(key, Trace::Name(at.1.clone()));
        self.links.named.insert(at, key.clone());
        decode
    }

    /// A decode names the prefill whose KV it took. Says which request that is, once known: their parts are one now.
    pub fn link(&mut self, key: &RequestKey, prefill: KvLink) -> Option<RequestKey> {
        let at = (key.run.clone(), prefill);
        let prefill = self.links.named.get(&at).cloned();
        if let Some(prefill) = &prefill {
            self.unite(prefill, key);
        }
        self.links.trace(key, Trace::Name(at.1.clone()));
        self.links.wanted.entry(at).or_insert_with(|| key.clone());
        prefill
    }

    /// Moves the prefill's parts to its decode's request.
    fn unite(&mut self, prefill: &RequestKey, decode: &RequestKey) {
        let from = (prefill.run.clone(), prefill.request_id.clone());
        if prefill.request_id == decode.request_id || self.links.moved.contains_key(&from) {
            return;
        }
        self.links.trace(decode, Trace::Moved(from.1.clone()));
        self.links.moved.insert(from, decode.request_id.clone());
        let mut keys: Vec<RequestKey> = self.open.keys().filter(|key| same_request(key, prefill)).cloned().collect();
        keys.sort();
        for key in keys {
            let Some(request) = self.take(&key) else { continue };
            for part in request.into_parts() {
                self.apply(&key, part);
            }
        }
    }

    /// Requests that have become whole since the last call, each once.
    pub fn take_ready(&mut self) -> Vec<RequestKey> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort();
        ready.dedup();
        ready.retain(|key| self.open.get(key).is_some_and(|open| open.request.is_whole()));
        ready
    }

    /// Closes a request; `None` where it is not open.
    pub fn close(&mut self, key: &RequestKey, context: &Context<'_>) -> Option<Joined> {
        let request = self.end(key)?;
        Some(request.close(&self.rules, context))
    }

    /// Takes a request out, with the links that lead to it, for the caller to close.
    pub fn end(&mut self, key: &RequestKey) -> Option<Arc<RequestJoin>> {
        let request = self.take_shared(key)?;
        let others = self.choices.contains_key(&(key.run.clone(), key.request_id.clone()));
        if !others {
            self.links.forget(key);
        }
        Some(request)
    }

    /// Takes a request out without closing it: what links lead to it is kept, so its parts may be told again.
    pub fn take(&mut self, key: &RequestKey) -> Option<RequestJoin> {
        self.take_shared(key).map(Arc::unwrap_or_clone)
    }

    fn take_shared(&mut self, key: &RequestKey) -> Option<Arc<RequestJoin>> {
        let open = self.open.remove(key)?;
        self.by_age.remove(&open.age);
        self.held -= open.bytes;
        self.weight -= open.weight;
        let id = (key.run.clone(), key.request_id.clone());
        if let Some(choices) = self.choices.get_mut(&id) {
            choices.retain(|choice| *choice != key.choice);
            if choices.is_empty() {
                self.choices.remove(&id);
            }
        }
        Some(open.request)
    }

    /// An open request.
    pub fn get(&self, key: &RequestKey) -> Option<&RequestJoin> {
        self.open.get(key).map(|open| &*open.request)
    }

    /// An open request as it is now, whatever comes for it later.
    pub fn share(&self, key: &RequestKey) -> Option<Arc<RequestJoin>> {
        self.open.get(key).map(|open| Arc::clone(&open.request))
    }

    /// The request that has been open longest.
    pub fn oldest(&self) -> Option<&RequestKey> {
        self.by_age.values().next()
    }

    /// Open requests, the oldest first.
    pub fn keys(&self) -> impl Iterator<Item = &RequestKey> {
        self.by_age.values()
    }

    /// Number of open requests.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no request is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Bytes of rows that open requests hold, hashed blocks aside.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Bytes that all open requests take, their rows and what is kept beside them, hashed blocks aside.
    pub fn weight(&self) -> usize {
        self.weight + self.links.weight()
    }

    /// What holds for every request.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }
}

fn same_request(a: &RequestKey, b: &RequestKey) -> bool {
    a.run == b.run && a.request_id == b.request_id
}

impl RequestJoin {
    /// Everything that was told, to be told again elsewhere.
    pub fn into_parts(self) -> Vec<Part> {
        let mut parts: Vec<Part> =
            self.told.into_iter().flat_map(|told| told.into_parts(self.parent.as_ref())).collect();
        parts.extend(self.spans.into_iter().map(|held| Part::Inspected(held.span, held.inspection)));
        parts.extend(self.lost.into_iter().map(Part::Lost));
        parts.extend(self.awaited.iter().cloned().map(Part::Block));
        parts
    }

    /// Whether any rows of this role have come.
    pub fn has_rows_of(&self, role: Role) -> bool {
        self.spans.iter().any(|held| held.span.source.role == role)
    }
}
