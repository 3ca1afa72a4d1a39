//! The kernel's own source, compiled by a C++ compiler, against the rule.
//!
//! `CXX` chooses the compiler, `CXXFLAGS` adds to its flags (`-fsanitize=address,undefined` or `-fsanitize=thread`).

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::RngExt;

use super::{Outcome, Trial, layout, seeded, trial};
use crate::device::compile::SOURCE;
use crate::device::geometry::{Geometry, vector};

const MOST_SLOTS: usize = 16;

fn compiler() -> Option<String> {
    let named = std::env::var("CXX").ok();
    let known = ["c++", "g++", "clang++"].map(str::to_owned);
    let found = named.iter().chain(&known).find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    });
    found.cloned()
}

/// kernel.cu once per `top_k` and width, and the switch between them.
fn instances() -> String {
    let mut text = String::new();
    let mut cases = String::new();
    for top_k in 1..=MOST_SLOTS {
        for bytes in [1, 2] {
            let name = format!("kernel_{top_k}_{bytes}");
            writeln!(text, "#define TOP_K {top_k}\n#define ID_BYTES {bytes}\n#define KERNEL {name}").unwrap();
            writeln!(text, "namespace n_{name} {{\n#include \"kernel.cu\"\n}}\n#undef TOP_K\n#undef ID_BYTES").unwrap();
            writeln!(
                cases,
                "case {}: n_{name}::{name}(ids, (n_{name}::Id *)rows, faults, counts, gates, tokens, layers, experts, group, \
                 vector, in_shared); break;",
                top_k * 2 + bytes - 1
            )
            .unwrap();
        }
    }
    writeln!(
        text,
        "static void launch(int top_k, int id_bytes, const int *ids, void *rows, unsigned *faults, unsigned *counts, \
         const unsigned char *gates, long long tokens, int layers, int experts, int group, int vector, int in_shared) {{\n\
         switch (top_k * 2 + id_bytes - 1) {{\n{cases}default: abort();\n}}\n}}"
    )
    .unwrap();
    text
}

fn build(compiler: &str, folder: &Path) -> std::path::PathBuf {
    for (name, text) in [
        ("kernel.cu", SOURCE),
        ("shim.h", include_str!("shim.h")),
        ("harness.cpp", include_str!("harness.cpp")),
        ("instances.h", &instances()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let program = folder.join("harness");
    let flags = std::env::var("CXXFLAGS").unwrap_or_default();
    let output = Command::new(compiler)
        .args(["-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"])
        .args(flags.split_whitespace())
        .arg(folder.join("harness.cpp"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// One launch as the harness reads it. `threads` is the block, `offset` how many ids beyond 16 bytes the input begins.
fn case(trial: &Trial, geometry: &Geometry, threads: u32, counted: bool, offset: usize) -> Vec<u8> {
    let layout = &trial.layout;
    let numbers = [
        layout.shape().top_k() as i64,
        layout.width().bytes() as i64,
        trial.tokens() as i64,
        layout.shape().layers() as i64,
        i64::from(layout.num_experts()),
        i64::from(geometry.group),
        i64::from(vector(offset as u64 * 4)),
        i64::from(geometry.in_shared),
        i64::from(counted),
        i64::from(geometry.blocks_x),
        i64::from(geometry.blocks_y),
        i64::from(threads),
        offset as i64,
    ];
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    bytes.extend(layout.gates().iter().map(|gate| u8::from(*gate)));
    bytes.extend(trial.ids.iter().flat_map(|id| id.to_ne_bytes()));
    bytes
}

fn outcome(trial: &Trial, counted: bool, from: &mut impl Read) -> Outcome {
    let mut rows = vec![0; trial.layout.packed_bytes(trial.tokens())];
    from.read_exact(&mut rows).unwrap();
    let faults = words(from, trial.layout.fault_cells());
    let counts = if counted { words(from, trial.layout.count_cells()) } else { Vec::new() };
    Outcome { rows, faults, counts }
}

fn words(from: &mut impl Read, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    from.read_exact(&mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

#[test]
fn the_kernel_and_the_rule_agree_on_random_and_hostile_steps() {
    let Some(compiler) = compiler() else {
        eprintln!("NOT RUN: no C++ compiler (CXX, c++, g++ or clang++)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let program = build(&compiler, folder.path());
    let mut harness = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut to = harness.stdin.take().unwrap();
    let mut from = harness.stdout.take().unwrap();

    let mut random = seeded(2);
    for round in 0..160 {
        let top_k = 1 + round % MOST_SLOTS;
        let tokens = [0, 1, 2, 3, 33, 150][random.random_range(0..6)];
        let layout = layout(&mut random, top_k, 150);
        let trial = trial(&mut random, layout, tokens);
        let counted = random.random_range(0..4) != 0;
        let offset = random.random_range(0..4);
        let threads = [32, 64][random.random_range(0..2)];
        let mut geometry = Geometry::of(&trial.layout, tokens.max(1), counted, 132);
        geometry.blocks_x = random.random_range(1..=3);

        to.write_all(&case(&trial, &geometry, threads, counted, offset)).unwrap();
        to.flush().unwrap();
        let got = outcome(&trial, counted, &mut from);
        let mut expected = trial.expected();
        if !counted {
            expected.counts.clear();
        }
        let what = format!("round {round}: {:?}, {tokens} tokens, {geometry:?}, offset {offset}", trial.layout);
        assert!(got == expected, "{what}: the kernel differs from the rule");
    }
    drop(to);
    assert!(harness.wait().unwrap().success(), "the harness, or a sanitizer in it, found a fault");
}

#[test]
fn a_launch_covers_every_position_and_layer_once() {
    let mut random = seeded(3);
    for round in 0..200 {
        let layout = layout(&mut random, 1 + round % 32, 10_000);
        let tokens = random.random_range(1..10_000);
        let geometry = Geometry::of(&layout, tokens, true, 132);
        assert!(geometry.group.is_power_of_two() && geometry.group <= 32);
        assert!(geometry.blocks_y as usize * geometry.group as usize >= layout.shape().layers());
        assert!(((geometry.blocks_y - 1) * geometry.group) < layout.shape().layers() as u32);
        assert!(geometry.shared_bytes <= 48 * 1024);
        assert!(geometry.blocks_x >= 1 && geometry.blocks_x * geometry.blocks_y <= 2 * 132 + geometry.blocks_y);
    }
}
