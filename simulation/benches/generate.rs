//! How fast one core makes what a fleet of a 48 x 8 model tells.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_simulation::{Fleet, Options, Output};
use gatescope_wire::{Event, Request, Told};

/// Outputs per measurement.
const OUTPUTS: usize = 50_000;

fn fleet() -> Fleet {
    let shape = ModelShape::new(RowShape::new(48, 8).unwrap(), 128, LayerSet::all(48)).unwrap();
    Fleet::new(Options { prefill: 2, decode: 2, ..Options::new(shape) }).unwrap()
}

/// Rows in spans: blocks that are told by their hash alone do not count.
fn rows(fleet: &mut Fleet) -> u64 {
    let rows = fleet.take(OUTPUTS).map(|output| match black_box(output.unwrap()) {
        Output::Event { event: Event::Request(Request { told: Told::Span(span), .. }), .. } => span.rows.len() as u64,
        _ => 0,
    });
    rows.sum()
}

fn generate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generate 48x8");
    let mut running = fleet();
    // A fleet begins with prompts alone: it is measured as it runs.
    (0..10).for_each(|_| {
        rows(&mut running);
    });
    group.throughput(Throughput::Elements(rows(&mut running)));
    group.sample_size(10);
    group.bench_function("rows", |bencher| bencher.iter(|| rows(&mut running)));
    group.throughput(Throughput::Elements(1));
    group.bench_function("gates of 128 experts", |bencher| bencher.iter(fleet));
    group.finish();
}

criterion_group!(benches, generate);
criterion_main!(benches);
