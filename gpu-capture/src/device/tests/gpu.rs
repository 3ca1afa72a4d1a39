//! The ring on a GPU, where there is one: the same trials, and how fast. `tests/gpu/run` shows the numbers.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use cudarc::driver::result::{self, ctx, primary_ctx, stream};
use cudarc::driver::sys;
use gatescope_routing::{LayerSet, RowShape};
use rand::RngExt;

use super::{Outcome, Trial, layout, seeded, trial};
use crate::device::{Capture, Layout, Place, Steps, Taken, driver_is_here, ring};

/// A device with a stream that plays the engine's, until the end of the process.
fn engine() -> Option<sys::CUstream> {
    if !driver_is_here() || result::init().is_err() || result::device::get_count().unwrap_or(0) == 0 {
        eprintln!("NOT RUN: no GPU");
        return None;
    }
    let device = result::device::get(0).unwrap();
    // SAFETY: the device is there; its primary context is what PyTorch uses, too.
    unsafe { ctx::set_current(primary_ctx::retain(device).unwrap()).unwrap() };
    Some(stream::create(stream::StreamKind::NonBlocking).unwrap())
}

fn wait(steps: &mut Steps) -> Outcome {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(step) = steps.oldest().unwrap() {
            return Outcome {
                rows: step.rows().to_vec(),
                faults: step.faults_by_layer().to_vec(),
                counts: step.counts().map(<[u32]>::to_vec).unwrap_or_default(),
            };
        }
        assert!(Instant::now() < end, "the copy never arrived");
    }
}

#[test]
fn the_gpu_and_the_rule_agree_on_random_and_hostile_steps() {
    let Some(engine) = engine() else { return };
    let mut random = seeded(8);
    for round in 0..96 {
        let layout = layout(&mut random, 1 + round % 32, 2_000);
        let (mut capture, mut steps) = ring(Place::Device, layout.clone(), 2).unwrap();
        // Twice through each slot, so that what a step leaves behind would show in the next.
        for _ in 0..4 {
            let tokens = [1, 2, 3, 65, 2_000][random.random_range(0..5)];
            let trial = trial(&mut random, layout.clone(), tokens);
            let (counted, offset) = (random.random_range(0..4) != 0, random.random_range(0..4));
            let mut expected = trial.expected();
            if !counted {
                expected.counts.clear();
            }
            let got = on_device(&mut capture, &mut steps, &trial, engine, counted, offset);
            assert!(got == expected, "round {round}: {:?}, {tokens} tokens, offset {offset}", trial.layout);
        }
    }
}

/// Puts the ids on the device, `offset` ids beyond an aligned address, and takes them through the ring.
fn on_device(
    capture: &mut Capture,
    steps: &mut Steps,
    trial: &Trial,
    engine: sys::CUstream,
    counted: bool,
    offset: u64,
) -> Outcome {
    // SAFETY: the allocation has room for the ids behind the offset, and is freed after the step has arrived.
    unsafe {
        let memory = result::malloc_sync(trial.ids.len() * 4 + 16).unwrap();
        result::memcpy_htod_sync(memory + offset * 4, &trial.ids).unwrap();
        let taken = capture.capture(memory + offset * 4, trial.tokens(), engine as u64, 0, counted);
        assert_eq!(taken, Ok(Taken::Kept));
        let outcome = wait(steps);
        result::free_sync(memory).unwrap();
        outcome
    }
}

/// Time of the kernel against the device's own copy of as many bytes as it reads and writes. Prints; asserts nothing.
#[test]
fn how_fast_the_kernel_is_against_a_device_copy() {
    let Some(engine) = engine() else { return };
    for (layers, top_k, experts) in [(48, 8, 128), (61, 8, 256), (61, 8, 384), (36, 4, 128)] {
        for tokens in [256, 8_192, 65_536] {
            let shape = RowShape::new(layers, top_k).unwrap();
            let layout = Layout::new(shape, experts, &LayerSet::all(layers as usize), tokens).unwrap();
            let mut random = seeded(9);
            let trial = trial(&mut random, layout.clone(), tokens.min(512));
            let bytes = tokens * shape.ids() * 4;
            let moved = bytes + layout.packed_bytes(tokens);
            // SAFETY: all allocations have the size that is used of them, and are freed when the stream is done.
            unsafe {
                let memory = result::malloc_sync(bytes).unwrap();
                for part in 0..tokens / trial.tokens() {
                    result::memcpy_htod_sync(memory + (part * trial.ids.len() * 4) as u64, &trial.ids).unwrap();
                }
                let half = moved / 2;
                let (from, to) = (result::malloc_sync(half).unwrap(), result::malloc_sync(half).unwrap());
                let copy = timed(engine, || result::memcpy_dtod_async(to, from, half, engine).unwrap());
                for counted in [false, true] {
                    let kernel = kernel_time(&layout, memory, tokens, engine, counted);
                    println!(
                        "{layers}x{top_k} of {experts}, {tokens} tokens, counts {counted}: kernel {:.1} us, copy of as many bytes {:.1} us, \
                         {:.0}% of its rate",
                        kernel * 1e6,
                        copy * 1e6,
                        100.0 * copy / kernel
                    );
                }
                for memory in [memory, from, to] {
                    result::free_sync(memory).unwrap();
                }
            }
        }
    }
}

/// Seconds of one, by many in a row.
fn timed(engine: sys::CUstream, mut queue: impl FnMut()) -> f64 {
    const TIMES: u32 = 200;
    for _ in 0..20 {
        queue();
    }
    // SAFETY: the stream is the test's.
    unsafe { stream::synchronize(engine).unwrap() };
    let start = Instant::now();
    for _ in 0..TIMES {
        queue();
    }
    // SAFETY: as above.
    unsafe { stream::synchronize(engine).unwrap() };
    start.elapsed().as_secs_f64() / f64::from(TIMES)
}

/// Seconds of one kernel alone: launches in a row, without copies between them.
fn kernel_time(layout: &Layout, ids: u64, tokens: usize, engine: sys::CUstream, counted: bool) -> f64 {
    use crate::device::cuda::{Device, Slot};
    let layout = std::sync::Arc::new(layout.clone());
    let device = Device::current(&layout).unwrap();
    let mut slot = Slot::new(device, layout).unwrap();
    timed(engine, || {
        // SAFETY: the ids are the caller's; launches on one stream run one after the other.
        unsafe { slot.queue_kernel(ids, tokens, engine, counted).unwrap() }
    })
}
