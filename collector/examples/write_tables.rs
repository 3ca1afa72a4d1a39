//! Writes tables of made-up requests into a folder, and says how fast.
//!
//! ```text
//! cargo run --release -p gatescope-collector --example write_tables -- DIR [POSITIONS [LAYERS TOP_K EXPERTS [ANEW]]]
//! ```
//!
//! The first ANEW requests are stored a second time, in a commit of their own, in place of their first selves.
//!
//! The experts of a layer are chosen as unevenly as those of a trained model are: some get ten times the tokens of
//! others, and neighbouring tokens often choose alike.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use bytes::Bytes;
use gatescope_collector::tables::{Arrival, ClosedRequest, Tables};
use gatescope_routing::{
    join::{Capture, Joined, Policy, Segment, Status},
    rows::Rows,
    shape::{IdWidth, LayerSet, RowShape},
    span::{RequestKey, Role, Source},
};

/// Positions of a request.
const POSITIONS: usize = 8192;
/// Requests that share one set of ids: making ids takes longer than writing them.
const DISTINCT: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("expected a folder")?);
    let numbers = arguments.map(|argument| argument.parse()).collect::<Result<Vec<u64>, _>>()?;
    let number = |index: usize, default| numbers.get(index).copied().unwrap_or(default);
    let requests = number(0, 100_000).div_ceil(POSITIONS as u64) as usize;
    let shape = RowShape::new(number(1, 48), number(2, 8))?;
    let experts = number(3, 128) as usize;
    let width = IdWidth::for_experts(experts as u32);
    let rows = (0..DISTINCT).map(|seed| made_up(shape, width, experts, seed)).collect::<Result<Vec<Rows>, _>>()?;

    let mut tables = Tables::open(&folder)?;
    let began = Instant::now();
    let batch = tables.begin();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|_| {
                let (mut writer, next, rows) = (batch.writer(), &next, &rows);
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= requests {
                            return writer.finish();
                        }
                        writer.add(&request(index, &rows[index % DISTINCT]))?;
                    }
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer panicked")?.map_err(Into::into))
            as Result<(), Box<dyn std::error::Error>>
    })?;
    let written = began.elapsed();
    let committed = tables.commit(batch)?;
    let took = began.elapsed();

    let ids = requests * POSITIONS * shape.ids();
    let stored: u64 =
        std::fs::read_dir(folder.join(format!("routing_{}x{}_{}", shape.layers(), shape.top_k(), width.name())))?
            .filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()))
            .sum();
    let anew = number(4, 0).min(requests as u64) as usize;
    if anew > 0 {
        let began = Instant::now();
        let batch = tables.begin();
        let mut writer = batch.writer();
        for index in 0..anew {
            let again = request(index, &rows[(index + 1) % DISTINCT]);
            writer.add(&ClosedRequest { replaces: true, ..again })?;
        }
        writer.finish()?;
        let committed = tables.commit(batch)?;
        println!("{anew} requests anew: {:.2} s; {committed:?}", began.elapsed().as_secs_f64());
    }

    println!(
        "{} positions, {:.0} MB of ids on {threads} threads: rows {:.2} s ({:.0} MB/s), commit {:.2} s, {:.2} bits an id; {committed:?}",
        requests * POSITIONS,
        (ids * width.bytes()) as f64 / 1e6,
        written.as_secs_f64(),
        (ids * width.bytes()) as f64 / 1e6 / written.as_secs_f64(),
        (took - written).as_secs_f64(),
        stored as f64 * 8.0 / ids as f64,
    );
    Ok(())
}

/// A small generator, so that every run writes the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn made_up(shape: RowShape, width: IdWidth, experts: usize, seed: usize) -> Result<Rows, Box<dyn std::error::Error>> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (seed as u64 + 1));
    let mut shares = Random(42);
    let cumulative: Vec<Vec<f64>> = (0..shape.layers())
        .map(|_| {
            let weights: Vec<f64> = (0..experts).map(|_| (shares.unit() * 2.0 - shares.unit()).exp()).collect();
            let total: f64 = weights.iter().sum();
            weights
                .iter()
                .scan(0.0, |sum, weight| {
                    *sum += weight / total;
                    Some(*sum)
                })
                .collect()
        })
        .collect();
    let mut bytes = Vec::with_capacity(POSITIONS * shape.row_bytes(width));
    let mut before: Vec<Vec<u16>> = vec![Vec::new(); shape.layers()];
    for _ in 0..POSITIONS {
        for (layer, before) in before.iter_mut().enumerate() {
            let mut chosen: Vec<u16> = Vec::with_capacity(shape.top_k());
            while chosen.len() < shape.top_k() {
                let again = before.get(chosen.len()).copied().filter(|_| random.unit() < 0.15);
                let unit = random.unit();
                let drawn = cumulative[layer].partition_point(|&sum| sum < unit).min(experts - 1) as u16;
                let expert = again.unwrap_or(drawn);
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            for &expert in &chosen {
                bytes.extend_from_slice(&expert.to_le_bytes()[..width.bytes()]);
            }
            *before = chosen;
        }
    }
    Ok(Rows::new(Bytes::from(bytes), shape, width)?)
}

fn request(index: usize, rows: &Rows) -> ClosedRequest {
    let prompt = POSITIONS as u32 / 2;
    let source = |role, instance: &str| Source { role, instance: instance.into(), attempt: 0 };
    let segments = vec![
        Segment { start: 0, rows: rows.slice(0..prompt as usize), source: source(Role::Prefill, "prefill-0") },
        Segment {
            start: prompt,
            rows: rows.slice(prompt as usize..rows.len()),
            source: source(Role::Decode, "decode-0"),
        },
    ];
    let captures: Vec<Capture> = segments
        .iter()
        .map(|segment| Capture {
            source: segment.source.clone(),
            start: Some(segment.start),
            rows: segment.rows.len() as u32,
            payload_hash: index as u64,
            generation: 0,
            block: None,
        })
        .collect();
    let started_at = 1_790_000_000_000_000 + index as i64 * 250_000;
    ClosedRequest {
        key: RequestKey { run: "default".into(), request_id: format!("cmpl-{index:032x}").into(), choice: 0 },
        model: Some("made-up".into()),
        started_at: Some(started_at),
        finished_at: Some(started_at + 1_000_000),
        closed_at: started_at + 1_000_000,
        layers: LayerSet::all(rows.shape().layers()),
        width: rows.width(),
        arrivals: captures.iter().map(|_| Arrival { at: started_at + 1_000_000, seq: index as i64 }).collect(),
        joined: Joined {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(POSITIONS as u32 - prompt + 1),
            shape: Some((rows.shape(), rows.width())),
            segments,
            gaps: Vec::new(),
            prefix_omitted: 0,
            status: Status::Whole,
            policy: Policy::Prefill,
            prefill_instance: Some("prefill-0".into()),
            decode_instance: Some("decode-0".into()),
            first_forward: Some(prompt - 1),
            overlap_rows: 1,
            mismatched_rows: 0,
            attempts: 1,
            generation: 0,
            live_layers: LayerSet::all(rows.shape().layers()),
            findings: Vec::new(),
            captures,
        },
        replaces: false,
    }
}
