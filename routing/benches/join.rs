//! The join of one long request against the machine's memcpy of the same bytes, in the same run.
//!
//! A prefill and a decode of 8,192 positions each, 48 layers x top-8, meet in one overlap position; what comes out is
//! one block of bytes `[16383, 48, 8]`. The join includes the comparison of the overlap and the findings; the look at
//! every id (`inspect`), which an importer does on other threads, is measured by itself.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gatescope_routing::{
    check::{Inspection, inspect},
    join::{Context, Finish, Part, RequestJoin, Rules, Status},
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::{Anchor, Role, Source, Span, WireType},
};

const PREFILL: u32 = 8192;
const DECODE: u32 = 8192;
const POSITIONS: usize = (PREFILL + DECODE - 1) as usize;
const EXPERTS: u64 = 128;

/// What both sides send for one request.
struct Request {
    spans: [(Span, Inspection); 2],
    finishes: [Finish; 2],
    rules: Rules,
}

impl Request {
    fn new() -> Self {
        let shape = RowShape::new(48, 8).unwrap();
        let all =
            Rows::new(distinct_ids(POSITIONS * shape.layers(), shape.top_k()).into(), shape, IdWidth::U8).unwrap();
        // Each answer arrives in memory of its own.
        let part = |from: u32, to: u32| {
            let bytes = all.slice(from as usize..to as usize).bytes().to_vec();
            Rows::new(bytes.into(), shape, IdWidth::U8).unwrap()
        };
        let source = |role, instance: &str| Source { role, instance: Arc::from(instance), attempt: 0 };
        let (prefill, decode) = (source(Role::Prefill, "p0"), source(Role::Decode, "d0"));
        let span = |source: &Source, completion_tokens, rows: Rows| {
            let inspection = inspect(&rows);
            let span = Span {
                source: source.clone(),
                anchor: Anchor::End { completion_tokens },
                rows,
                wire_type: WireType::U8,
                unknown: Vec::new(),
                generation: 0,
                block: None,
            };
            (span, inspection)
        };
        let finish = |source, completion_tokens| Finish {
            source,
            prompt_tokens: Some(PREFILL),
            completion_tokens: Some(completion_tokens),
            uniform_prompt: Some(false),
        };
        Self {
            spans: [
                span(&prefill, 1, part(0, PREFILL)),
                span(&decode, DECODE, part(PREFILL - 1, PREFILL + DECODE - 1)),
            ],
            finishes: [finish(prefill, 1), finish(decode, DECODE)],
            rules: Rules::default(),
        }
    }

    /// Bytes that the join puts out.
    fn bytes(&self) -> usize {
        POSITIONS * self.spans[0].0.rows.row_bytes()
    }

    /// The whole request's bytes, by the join.
    fn join_into(&self, out: &mut Vec<u8>) {
        let mut join = RequestJoin::default();
        for ((span, inspection), finish) in self.spans.iter().zip(&self.finishes) {
            join.apply(Part::Inspected(span.clone(), inspection.clone()));
            join.apply(Part::Finish(finish.clone()));
        }
        let joined = join.close(&self.rules, &Context::default());
        assert_eq!((joined.status, joined.overlap_rows, joined.findings.len()), (Status::Whole, 1, 0));
        out.clear();
        joined.segments.iter().for_each(|segment| out.extend_from_slice(segment.rows.bytes()));
    }

    /// The same bytes, by one who knows where they lie.
    fn copy_into(&self, out: &mut Vec<u8>) {
        let [(prefill, _), (decode, _)] = &self.spans;
        out.clear();
        out.extend_from_slice(prefill.rows.bytes());
        out.extend_from_slice(&decode.rows.bytes()[decode.rows.row_bytes()..]);
    }
}

/// `lists` top-k lists of distinct ids.
fn distinct_ids(lists: usize, top_k: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut ids = Vec::with_capacity(lists * top_k);
    for _ in 0..lists {
        let begin = ids.len();
        while ids.len() < begin + top_k {
            // Knuth's 64-bit linear congruential generator; its high bits are the good ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (state >> 40) % EXPERTS;
            if !ids[begin..].contains(&(id as u8)) {
                ids.push(id as u8);
            }
        }
    }
    ids
}

fn join(criterion: &mut Criterion) {
    let request = Request::new();
    let (mut joined, mut copied) = (Vec::with_capacity(request.bytes()), Vec::with_capacity(request.bytes()));
    request.join_into(&mut joined);
    request.copy_into(&mut copied);
    assert!(joined == copied && joined.len() == request.bytes(), "the join gives the routing that was cut");

    let mut group = criterion.benchmark_group("request of 2 x 8192 positions, 48 x 8");
    group.throughput(Throughput::Bytes(request.bytes() as u64));
    group.bench_function("join", |bencher| bencher.iter(|| request.join_into(black_box(&mut joined))));
    group.bench_function("memcpy", |bencher| bencher.iter(|| request.copy_into(black_box(&mut copied))));
    group.bench_function("inspect every id", |bencher| {
        bencher.iter(|| request.spans.iter().for_each(|(span, _)| drop(black_box(inspect(&span.rows)))));
    });
    group.finish();

    // Taken in turns, so that what else the machine does falls on both alike.
    let rounds = 500;
    let mut times = [Vec::with_capacity(rounds), Vec::with_capacity(rounds)];
    for _ in 0..rounds {
        times[0].push(timed(|| request.join_into(black_box(&mut joined))));
        times[1].push(timed(|| request.copy_into(black_box(&mut copied))));
    }
    let [join, copy] = times.map(|mut times| {
        times.sort_unstable();
        times[rounds / 2].as_secs_f64()
    });
    let rate = |seconds: f64| request.bytes() as f64 / seconds / 1e9;
    println!(
        "in turns, medians of {rounds}: join {:.2} GB/s, memcpy {:.2} GB/s: the join runs at {:.0} % of memcpy",
        rate(join),
        rate(copy),
        100.0 * copy / join
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

criterion_group!(benches, join);
criterion_main!(benches);
