//! The host path of the device capture against a plain copy of the same ids.
//!
//! `cargo bench -p gatescope-capture --bench device`. A step of 8,192 positions and one of 256, 48 layers, 8 of 128.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gatescope_capture::device::{Layout, Place, Taken, ring};
use gatescope_routing::{LayerSet, RowShape};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

const LAYERS: usize = 48;
const TOP_K: usize = 8;
const EXPERTS: i32 = 128;

fn ids(tokens: usize) -> Vec<i32> {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    (0..tokens * LAYERS)
        .flat_map(|_| {
            let first = random.random_range(0..EXPERTS);
            let apart = 2 * random.random_range(0..EXPERTS / 2) + 1;
            (0..TOP_K as i32).map(move |slot| (first + slot * apart) % EXPERTS)
        })
        .collect()
}

fn host(criterion: &mut Criterion) {
    for tokens in [256, 8_192] {
        let ids = ids(tokens);
        let mut group = criterion.benchmark_group("host");
        group.throughput(Throughput::Bytes(ids.len() as u64 * 4));
        let mut copy = vec![0; ids.len()];
        group.bench_function(BenchmarkId::new("memcpy", tokens), |bencher| {
            bencher.iter(|| std::hint::black_box(&mut copy).copy_from_slice(std::hint::black_box(&ids)));
        });
        for counts in [false, true] {
            let shape = RowShape::new(LAYERS as u64, TOP_K as u64).unwrap();
            let layout = Layout::new(shape, EXPERTS as u32, &LayerSet::all(LAYERS), tokens).unwrap();
            let (mut capture, mut steps) = ring(Place::Host, layout, 2).unwrap();
            let name = if counts { "packed, checked, counted" } else { "packed, checked" };
            group.bench_function(BenchmarkId::new(name, tokens), |bencher| {
                bencher.iter(|| {
                    // SAFETY: the ids live as long as the benchmark.
                    let taken = unsafe { capture.capture(ids.as_ptr() as u64, tokens, 0, 0, counts) };
                    assert_eq!(taken, Ok(Taken::Kept));
                    assert_eq!(steps.oldest().unwrap().unwrap().faults(), Default::default());
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, host);
criterion_main!(benches);
