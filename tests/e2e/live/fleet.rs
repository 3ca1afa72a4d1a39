//! A prefill and a decode instance whose agents are the real ones, and requests whose rows are known.

use std::{sync::Arc, time::Duration};

use gatescope_capture::{Exporter, Options};
use gatescope_routing::{
    Anchor, Finish, IdWidth, KvLink, RequestKey, Role, RowShape, Rows, Source, Span, Start, WireType,
};
use gatescope_wire::{Event, Link, Request, Started, Told};

const LAYERS: u64 = 4;
const TOP_K: u64 = 2;

/// A request that `p0` prefills and `d0` decodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Simple {
    pub(super) number: u32,
    pub(super) prompt: u32,
    pub(super) completion: u32,
}

impl Simple {
    /// So many requests, of different lengths.
    pub(super) fn many(numbers: std::ops::Range<u32>) -> Vec<Self> {
        let of = |number| Self { number, prompt: 1 + number * 7 % 60, completion: 1 + number * 5 % 40 };
        numbers.map(of).collect()
    }

    /// What it is called: as its decode calls it.
    pub(super) fn key(&self) -> RequestKey {
        RequestKey { run: "default".into(), request_id: format!("decode-{}", self.number).into(), choice: 0 }
    }

    /// Its rows: `[positions, layers, top_k]`.
    pub(super) fn rows(&self) -> Vec<u8> {
        (0..self.prompt + self.completion - 1).flat_map(|position| self.row(position)).collect()
    }

    fn row(&self, position: u32) -> Vec<u8> {
        let ids = 0..(LAYERS * TOP_K) as u32;
        ids.map(|slot| (slot % 2 * 100 + (self.number * 31 + position * 7 + slot * 3) % 99 + 1) as u8).collect()
    }

    fn name(&self) -> KvLink {
        KvLink { engine_id: "engine-p0".into(), request_id: format!("prefill-{}-4f2a", self.number).into() }
    }

    /// What the prefill instance tells.
    pub(super) fn prefill(&self) -> Vec<Event> {
        let key = RequestKey { request_id: format!("prefill-{}", self.number).into(), ..self.key() };
        self.events(Role::Prefill, &key, 0..self.prompt, 1)
    }

    /// What the decode instance tells.
    pub(super) fn decode(&self) -> Vec<Event> {
        let positions = self.prompt - 1..self.prompt + self.completion - 1;
        self.events(Role::Decode, &self.key(), positions, self.completion)
    }

    fn events(&self, role: Role, key: &RequestKey, positions: std::ops::Range<u32>, completion: u32) -> Vec<Event> {
        let instance: Arc<str> = if role == Role::Prefill { "p0".into() } else { "d0".into() };
        let source = Source { role, instance, attempt: 0 };
        let mut events = Vec::new();
        let mut tell = |told| events.push(Event::Request(Request { key: key.clone(), at: now(), told }));
        let start = Start {
            source: source.clone(),
            prompt_tokens: Some(self.prompt),
            first_forward: Some(positions.start),
            prompt_start: None,
            parent: None,
        };
        let name = (role == Role::Prefill).then(|| self.name());
        tell(Told::Start(Started { start, name, model: Some("tiny".into()) }));
        if role == Role::Decode {
            tell(Told::Link(Link { source: source.clone(), prefill: self.name() }));
        }
        let mut start = positions.start;
        while start < positions.end {
            // As far as the block goes.
            let end = (start / 16 * 16 + 16).min(positions.end);
            let bytes: Vec<u8> = (start..end).flat_map(|position| self.row(position)).collect();
            let shape = RowShape::new(LAYERS, TOP_K).unwrap();
            tell(Told::Span(Span {
                source: source.clone(),
                anchor: Anchor::Start(start),
                rows: Rows::new(bytes.into(), shape, IdWidth::U8).unwrap(),
                wire_type: WireType::U8,
                unknown: Vec::new(),
                generation: 0,
                block: None,
            }));
            start = end;
        }
        tell(Told::Finish(Finish {
            source,
            prompt_tokens: Some(self.prompt),
            completion_tokens: Some(completion),
            uniform_prompt: None,
        }));
        events
    }
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_micros() as i64
}

/// One agent for each of two instances.
pub(super) struct Fleet {
    prefill: Exporter,
    decode: Exporter,
}

impl Fleet {
    pub(super) fn to(collector: &str) -> Self {
        let exporter = |agent: &str| {
            let mut options = Options::new(collector, agent);
            options.max_backoff = Duration::from_millis(300);
            options.batch_bytes = 4 << 10;
            Exporter::start(options).unwrap()
        };
        Self { prefill: exporter("p0"), decode: exporter("d0") }
    }

    /// Serves a request.
    pub(super) fn serve(&self, request: &Simple) {
        for event in request.prefill() {
            assert_eq!(self.prefill.send(event), gatescope_capture::Sent::Queued);
        }
        for event in request.decode() {
            assert_eq!(self.decode.send(event), gatescope_capture::Sent::Queued);
        }
    }

    /// Waits until everything is acknowledged.
    pub(super) fn flush(&self) {
        self.prefill.flush(super::serve::PATIENCE).unwrap();
        self.decode.flush(super::serve::PATIENCE).unwrap();
    }
}
