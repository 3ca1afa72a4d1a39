//! The fuzz targets' properties over the fuzz corpus, and over systematic mutations of it: cut at many lengths, with bytes
//! changed, doubled and left out. A bounded stand-in for fuzzing that every test run repeats.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(unreachable_pub, reason = "a module of the fuzz crate's library")]
#[path = "../../fuzz/src/properties.rs"]
mod properties;

use std::path::PathBuf;

/// Mutations of one input, at most, of each kind; spread evenly over the input.
const MUTATIONS: usize = 150;
/// What a changed byte becomes: digits, signs, brackets and quotes that mean something to a parser, and bits that do not.
const REPLACEMENTS: [u8; 16] =
    [b'0', b'9', b'-', b'[', b']', b'{', b'}', b'"', b'\\', b',', b'=', b'~', b' ', 0x00, 0x80, 0xff];

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.display().to_string(), std::fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "no corpus for {target}");
    inputs
}

/// The input itself, and changed in one place each.
fn mutations(input: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    // The first bytes are where headers are: every one of them is changed, of the rest a sample.
    let step = (input.len() / MUTATIONS).max(1);
    let places = move || (0..input.len()).filter(move |&at| at < MUTATIONS || at % step == 0);
    let cut = places().map(|at| input[..at].to_vec());
    let changed = places().flat_map(move |at| {
        let replacement = REPLACEMENTS[at % REPLACEMENTS.len()];
        [replacement, input[at] ^ 1, input[at].wrapping_add(1)].map(|byte| {
            let mut copy = input.to_vec();
            copy[at] = byte;
            copy
        })
    });
    let left_out = places().map(|at| [&input[..at], &input[at + 1..]].concat());
    let doubled = places().map(|at| [&input[..at], &input[at..at + 1], &input[at..]].concat());
    std::iter::once(input.to_vec()).chain(cut).chain(changed).chain(left_out).chain(doubled)
}

fn holds_over_corpus(target: &str, property: fn(&[u8])) {
    for (name, input) in corpus(target) {
        for mutated in mutations(&input) {
            let outcome = std::panic::catch_unwind(|| property(&mutated));
            assert!(outcome.is_ok(), "{name}, changed to {:?}", String::from_utf8_lossy(&mutated));
        }
    }
}

macro_rules! targets {
    ($($target:ident)*) => {$(
        #[test]
        fn $target() {
            holds_over_corpus(stringify!($target), properties::$target);
        }
    )*};
}

targets! { npy vllm vllm_021 prime_rl base85 sglang record }
