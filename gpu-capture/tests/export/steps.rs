//! Known routing, cut into engine steps in any way, comes out of the join as it was.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gatescope_capture::{Agent, AgentOptions, Begun, StepPart, StepRows};
use gatescope_routing::{
    IdWidth, Join, KvLink, RequestKey, Role, RowShape,
    join::{Context, Rules, Status},
    span::BlockHash,
};
use gatescope_wire::{Event, Request, Told};
use proptest::prelude::*;

use crate::{LONG, collector::Collector, options};

const BLOCK: u32 = 4;
const ROW: usize = 4;
/// Requests of a case; the last one shares blocks of the first.
const REQUESTS: usize = 4;

fn shape() -> RowShape {
    RowShape::new(2, 2).unwrap()
}

/// What an engine may do next.
#[derive(Debug, Clone)]
enum Act {
    /// A step: per request, rows that are accepted and rows that are rejected.
    Step([(u32, u32); REQUESTS - 1]),
    Start(usize),
    Hashes(usize),
    /// Preempted, and begun again at this block or where it had come to.
    Preempt(usize, u32),
    /// Long enough for rows of a part of a block to be sent.
    Wait,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let request = 0..REQUESTS - 1;
    let act = prop_oneof![
        6 => prop::array::uniform3((0..7u32, 0..4u32)).prop_map(Act::Step),
        2 => request.clone().prop_map(Act::Start),
        2 => request.clone().prop_map(Act::Hashes),
        1 => (request, 0..4u32).prop_map(|(request, block)| Act::Preempt(request, block)),
        1 => Just(Act::Wait),
    ];
    prop::collection::vec(act, 1..30)
}

#[derive(Debug, Clone)]
struct Engine<'a> {
    agent: &'a Agent,
    case: u64,
    lengths: [u32; REQUESTS],
    cursors: [u32; REQUESTS],
    attempts: [u32; REQUESTS],
    started: [bool; REQUESTS],
}

impl Engine<'_> {
    fn inner(&self, request: usize) -> String {
        format!("inner-{}-{request}", self.case)
    }

    fn outer(&self, request: usize) -> String {
        format!("outer-{}-{request}", self.case)
    }

    /// The last request begins as the first one does.
    fn author(&self, request: usize, position: u32) -> usize {
        if request == REQUESTS - 1 && position < self.shared() { 0 } else { request }
    }

    /// Positions in whole blocks that the last request shares with the first.
    fn shared(&self) -> u32 {
        self.lengths[0].min(self.lengths[REQUESTS - 1] - 1) / BLOCK * BLOCK
    }

    fn row(&self, request: usize, position: u32) -> [u8; ROW] {
        let seed = (self.author(request, position) as u32 * 31 + position * 7 + self.case as u32) as u8 % 100;
        [seed, seed + 1, seed + 100, seed + 101]
    }

    fn rows(&self, request: usize, positions: std::ops::Range<u32>) -> Vec<u8> {
        positions.flat_map(|position| self.row(request, position)).collect()
    }

    fn hashes(&self, request: usize) -> Vec<BlockHash> {
        let hash = |block: u32| format!("{}-{}-{block}", self.case, self.author(request, block * BLOCK));
        (0..self.lengths[request] / BLOCK).map(|block| BlockHash(hash(block).as_bytes().into())).collect()
    }

    fn step(&mut self, counts: &[(usize, u32, u32)]) {
        let (mut rows, mut parts) = (Vec::new(), Vec::new());
        for &(request, accepted, rejected) in counts {
            let first = self.cursors[request];
            let end = (first + accepted).min(self.lengths[request]);
            let from = rows.len() / ROW;
            rows.extend(self.rows(request, first..end));
            rows.extend(std::iter::repeat_n(255, rejected as usize * ROW));
            parts.push((self.inner(request), first, from, rows.len() / ROW, rejected));
            self.cursors[request] = end;
        }
        let parts = parts.iter().map(|(request, first, from, to, rejected)| StepPart {
            request,
            first_position: i64::from(*first),
            from: *from as i64,
            to: *to as i64,
            rejected: i64::from(*rejected),
        });
        self.agent.capture_step(StepRows { bytes: &rows, shape: shape(), width: IdWidth::U8 }, parts);
    }

    fn start(&mut self, request: usize) {
        self.started[request] = true;
        let begun = Begun {
            outer_id: self.outer(request).into(),
            choice: 0,
            role: Role::Colocated,
            prompt_tokens: Some(1),
            first_forward: Some(0),
            prompt_start: None,
            attempt: self.attempts[request],
            name: Some(KvLink { engine_id: "engine".into(), request_id: self.inner(request).into() }),
            prefill: None,
        };
        self.agent.begun(&self.inner(request), begun);
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Step(counts) => {
                let counts: Vec<_> =
                    counts.iter().enumerate().map(|(request, &(taken, rejected))| (request, taken, rejected)).collect();
                self.step(&counts);
            }
            Act::Start(request) => self.start(*request),
            Act::Hashes(request) => self.agent.block_hashes(&self.inner(*request), 0, self.hashes(*request)),
            Act::Preempt(request, block) => {
                self.agent.preempted(&self.inner(*request));
                self.attempts[*request] += 1;
                // It finds some of its blocks in the prefix cache, whose rows have been sent, and computes the others again.
                self.cursors[*request] = self.cursors[*request].min(block * BLOCK);
                if self.started[*request] {
                    self.start(*request);
                }
            }
            Act::Wait => std::thread::sleep(Duration::from_millis(3)),
        }
    }

    fn end(&mut self) {
        let last = REQUESTS - 1;
        let shared = self.shared();
        let hashes = self.hashes(last)[..(shared / BLOCK) as usize].to_vec();
        let rows = self.rows(last, 0..shared);
        let given = StepRows { bytes: &rows, shape: shape(), width: IdWidth::U8 };
        self.agent.cached_blocks(&self.inner(last), 0, hashes, Some(given));
        self.cursors[last] = shared;
        for request in 0..REQUESTS {
            self.step(&[(request, u32::MAX / 2, 0)]);
            if !self.started[request] {
                self.start(request);
            }
            self.agent.finished(&self.inner(request), Some(self.lengths[request]));
        }
    }
}

static CASES: AtomicU64 = AtomicU64::new(0);

#[test]
fn any_cut_of_a_routing_into_steps_is_joined_to_that_routing() {
    let collector = Collector::start();
    let export = options(&collector.url());
    let capture =
        AgentOptions { block_size: BLOCK, linger: Duration::from_millis(2), ..AgentOptions::new(export, "e0") };
    let agent = Agent::start(&capture).unwrap();
    let config = ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(lengths in prop::array::uniform4(2..60u32), acts in acts())| {
        let case = CASES.fetch_add(1, Ordering::Relaxed);
        let nothing = ([0; REQUESTS], [0; REQUESTS], [false; REQUESTS]);
        let mut engine =
            Engine { agent: &agent, case, lengths, cursors: nothing.0, attempts: nothing.1, started: nothing.2 };
        acts.iter().for_each(|act| engine.act(act));
        engine.end();
        prop_assert!(agent.flush(LONG));

        let taken = std::mem::take(&mut collector.disk.lock().unwrap().taken);
        let mut join = Join::new(Rules::default());
        for event in taken {
            let Event::Request(Request { key, told, .. }) = event else { continue };
            if let Told::Start(started) = &told
                && let Some(name) = started.name.clone()
            {
                join.identify(&key, name);
            }
            if let Some(part) = told.into_part() {
                join.apply(&key, part);
            }
        }
        for (request, &length) in lengths.iter().enumerate() {
            let key = RequestKey { run: "default".into(), request_id: engine.outer(request).into(), choice: 0 };
            let joined = join.close(&key, &Context::default()).expect("the request is known");
            prop_assert_eq!(joined.status, Status::Whole, "request {}: {:?}", request, joined.gaps);
            let routing = joined.routing().expect("it is whole");
            prop_assert_eq!(routing.bytes(), &engine.rows(request, 0..length)[..], "request {}", request);
            prop_assert_eq!(joined.mismatched_rows, 0);
        }
        let (metrics, export) = agent.metrics();
        prop_assert_eq!((metrics.dropped_positions, metrics.refused_calls, export.dropped_events), (0, 0, 0));
    });
}
