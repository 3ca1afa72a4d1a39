//! The kernel and the host path against the rule, on random and adversarial steps.

mod gpu;
mod host_paths;
mod kernel_on_cpu;
mod nvrtc;
mod ring;

use gatescope_routing::{LayerSet, RowShape};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Layout;
use super::host::{self, Tallies};

/// A step and what must come of it.
pub(super) struct Trial {
    pub(super) layout: Layout,
    pub(super) ids: Vec<i32>,
}

/// Rows, faults and counts of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) rows: Vec<u8>,
    pub(super) faults: Vec<u32>,
    pub(super) counts: Vec<u32>,
}

impl Trial {
    pub(super) fn tokens(&self) -> usize {
        self.ids.len() / self.layout.shape().ids()
    }

    pub(super) fn expected(&self) -> Outcome {
        self.packed_by(host::reference)
    }

    pub(super) fn packed_by(&self, pack: impl FnOnce(&Layout, &[i32], &mut [u8], Tallies<'_>)) -> Outcome {
        let mut outcome = Outcome {
            rows: vec![0xee; self.layout.packed_bytes(self.tokens())],
            faults: vec![0; self.layout.fault_cells()],
            counts: vec![0; self.layout.count_cells()],
        };
        let tallies = Tallies { faults: &mut outcome.faults, counts: Some(&mut outcome.counts) };
        pack(&self.layout, &self.ids, &mut outcome.rows, tallies);
        outcome
    }
}

/// A shape that a model could have, by the slots per layer.
pub(super) fn layout(random: &mut Pcg64Mcg, top_k: usize, max_tokens: usize) -> Layout {
    let least = top_k as u32;
    let experts = match random.random_range(0..6) {
        0 => least,
        1 => 256.max(least),
        2 => 257.max(least),
        3 => 65_535,
        4 => random.random_range(least..=1_000),
        _ => random.random_range(least..=256.max(least)),
    };
    // Few layers where the table of counts is large.
    let layers = random.random_range(1..if experts > 2_000 { 4 } else { 40 });
    let moe: LayerSet = (0..layers).filter(|_| random.random_range(0..8) != 0).collect();
    Layout::new(RowShape::new(layers as u64, top_k as u64).unwrap(), experts, &moe, max_tokens).unwrap()
}

/// Steps as a healthy gate gives them, and as nothing should.
pub(super) fn trial(random: &mut Pcg64Mcg, layout: Layout, tokens: usize) -> Trial {
    let (layers, top_k) = (layout.shape().layers(), layout.shape().top_k());
    let experts = layout.num_experts() as i32;
    let wild = random.random_range(0..3) == 0;
    let mut ids = Vec::with_capacity(tokens * layers * top_k);
    for _ in 0..tokens {
        for layer in 0..layers {
            let first = ids.len();
            for slot in 0..top_k {
                ids.push(if !layout.gates()[layer] {
                    0
                } else if wild && random.random_range(0..8) == 0 {
                    hostile(random, experts)
                } else {
                    distinct(random, experts, &ids[first..first + slot])
                });
            }
            if wild && random.random_range(0..8) == 0 {
                let value = if random.random_range(0..2) == 0 { 0 } else { ids[first] };
                ids[first..].fill(value);
            }
        }
    }
    Trial { layout, ids }
}

fn hostile(random: &mut Pcg64Mcg, experts: i32) -> i32 {
    let choices =
        [-1, i32::MIN, i32::MAX, experts, experts - 1, 0, 255, 256, 257, 65_535, 65_536, -256, 1 << 16, 1 << 24];
    match random.random_range(0..choices.len() + 1) {
        choice if choice < choices.len() => choices[choice],
        _ => random.next_u32() as i32,
    }
}

fn distinct(random: &mut Pcg64Mcg, experts: i32, taken: &[i32]) -> i32 {
    let mut id = random.random_range(0..experts);
    while taken.contains(&id) {
        id = (id + 1) % experts;
    }
    id
}

pub(super) fn seeded(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}
