//! How fast one core makes what a fleet of a 48 x 8 model tells.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gatescope_routing::{LayerSet, ModelShape, RowShape};
use gatescope_simulation::{Fleet, Options, Output};

/// Outputs per measurement.
const OUTPUTS: usize = 50_000;

fn fleet() -> Fleet {
    let shape = ModelShape::new(RowShape::new(48, 8).unwrap(), 128, LayerSet::all(48)).unwrap();
    Fleet::new(Options { prefill: 2, decode: 2, ..Options::new(shape) }).unwrap()
}

fn positions(fleet: &mut Fleet) -> u64 {
    let positions = fleet.take(OUTPUTS).map(|output| match black_box(output.unwrap()) {
        Output::Event { positions, .. } => u64::from(positions),
        _ => 0,
    });
    positions.sum()
}

fn generate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generate 48x8");
    let mut running = fleet();
    group.throughput(Throughput::Elements(positions(&mut running)));
    group.sample_size(20);
    group.bench_function("positions", |bencher| bencher.iter(|| positions(&mut running)));
    group.finish();
    criterion.bench_function("draw the gates of 48x8 of 128", |bencher| bencher.iter(fleet));
}

criterion_group!(benches, generate);
criterion_main!(benches);
