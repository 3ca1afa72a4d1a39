//! No input makes a decoder or the line reader hold more memory than the input's own size plus a constant.
//!
//! The heap is watched for the whole process, so this file has one test.
#![allow(clippy::unwrap_used)]

use std::{alloc::System, borrow::Cow, hint::black_box};

use cap::Cap;
use gatescope_routing::{
    engine::{base64, base85, npy, prime_rl, sglang::RawIds, vllm, vllm_021},
    record::{RecordOptions, read_record},
    rows::Rows,
    shape::{IdWidth, RowShape},
};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// What a decoder may hold whatever its input: the header, an error's text.
const SMALL: usize = 16 << 10;
/// What the marks of one payload may hold, and the fields of the most sequences that an answer may have.
const LARGE: usize = 3 << 19;
/// The size of inputs: so far above the constants that twice an input is above the limit.
const SIZE: usize = 2 << 20;

/// By how much more than `limit` is held at once while this runs; what it is given was there before, and does not count.
///
/// The allocator knows the most that was ever held, so a ballast leaves room for the limit below that mark.
fn excess<T>(limit: usize, run: impl FnOnce() -> T) -> usize {
    drop(black_box(Vec::<u8>::with_capacity(limit)));
    let room = HEAP.max_allocated() - HEAP.allocated();
    let ballast = black_box(Vec::<u8>::with_capacity(room - limit));
    let mark = HEAP.max_allocated();
    drop(black_box(run()));
    let excess = HEAP.max_allocated() - mark;
    drop(ballast);
    excess
}

fn shape(layers: u64, top_k: u64) -> RowShape {
    RowShape::new(layers, top_k).unwrap()
}

fn npy_file(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn line(response: &str) -> Vec<u8> {
    format!(r#"{{"role": "colocated", "request_id": "r", "prompt_tokens": 5, "response": {response}}}"#).into_bytes()
}

fn choices(fields: &str) -> Vec<u8> {
    line(&format!(r#"{{"choices": [{{"token_ids": [1], {fields}}}]}}"#))
}

#[test]
fn no_input_costs_more_memory_than_its_size_and_a_constant() {
    // The measure itself: what holds an input twice is found out.
    let twice = || (vec![1_u8; SIZE], vec![1_u8; SIZE]);
    assert_eq!(excess(2 * SIZE + SMALL, twice), 0);
    assert!(excess(SIZE + LARGE, twice) > 0);

    let zeros = "A".repeat(SIZE);
    let escaped = "\\/".repeat(SIZE / 2);
    let rows = Rows::new(vec![7; SIZE / 2].into(), shape(1, 8), IdWidth::U8).unwrap();
    let alternating = [0xff, 0x01].repeat(SIZE / 2);

    // Files whose header promises what they do not have, or that are narrowed, or full of marks.
    for (name, file, constant) in [
        ("promises", npy_file("<i8", "(1152921504606846975, 1, 1)", &[]), SMALL),
        ("overflows", npy_file("<i8", "(18446744073709551615, 1024, 256)", &[]), SMALL),
        ("header of 4 GiB", [b"\x93NUMPY\x02\x00\xff\xff\xff\xff", &alternating[..]].concat(), SMALL),
        ("axes", npy_file("<i8", &format!("({})", "1,".repeat(4000)), &[]), SMALL),
        ("narrowed", npy_file("<i4", &format!("({}, 1, 1)", SIZE / 4), &vec![0; SIZE]), SMALL),
        ("marks", npy_file("|i1", &format!("({SIZE}, 1, 1)"), &alternating), LARGE),
    ] {
        // The file is the decoder's own, so it counts as held from the start.
        let size = file.len();
        let beyond = excess(size + constant, || npy::decode(file.clone()));
        assert_eq!(beyond, 0, "{name}");
    }

    // Text in each engine's form.
    let text = vllm::encode(&rows);
    let text_i32 = base64_of_int32();
    for (name, text, limit) in [("npy", &text, SMALL), ("zeros", &zeros, SMALL), ("slashes", &escaped, SMALL)] {
        let beyond = excess(text.len() + limit, || vllm::decode(text.as_str().into()));
        assert_eq!(beyond, 0, "vllm, {name}");
    }
    for dtype in ["uint8", "int8", "int32", "int64"] {
        let beyond = excess(text_i32.len() + LARGE, || {
            RawIds::decode(text_i32.as_str().into(), Some(dtype)).unwrap().into_rows(shape(1, 1))
        });
        assert_eq!(beyond, 0, "sglang, {dtype}");
    }
    let old = prime_rl::encode_base85(&rows);
    let size = old.data.len();
    let borrowed = prime_rl::Packed { data: Cow::Borrowed(&old.data), shape: old.shape, start: None, dtype: None };
    assert_eq!(excess(size + SMALL, || prime_rl::decode(borrowed)), 0, "prime-rl of old");
    let beyond = excess(SIZE + SMALL, || base85::decode(&zeros));
    assert_eq!(beyond, 0, "base85");

    // Lists of the shortest ids, at the greater width; of marks; and of nothing.
    let lists = |row: &str, last: &str| format!("[{}{last}]", row.repeat(SIZE / row.len()));
    for (name, json) in [
        ("short", format!("[[[{}1]]]", "1,".repeat(SIZE / 2))),
        ("wide", format!("[[[{}300]]]", "1,".repeat(255))),
        ("rows", lists("[[1]],", "[[300]]")),
        ("marks", lists("[[-1]],[[1]],", "[[1]]")),
        ("empty", lists("[],", "[]")),
        ("deep", "[".repeat(SIZE)),
    ] {
        let beyond = excess(json.len() + LARGE, || vllm_021::decode(&json, IdWidth::U16));
        assert_eq!(beyond, 0, "lists, {name}");
    }

    // Lines.
    let list_of_marks = lists("[[-1]],[[1]],", "[[1]]");
    for (name, line) in [
        ("npy", choices(&format!(r#""routed_experts": "{text}""#))),
        ("npy with escapes", choices(&format!(r#""routed_experts": "{}""#, text.replace('A', "\\u0041")))),
        ("slashes", choices(&format!(r#""routed_experts": "{escaped}""#))),
        ("no string", choices(&format!(r#""routed_experts": {}1"#, "1".repeat(SIZE)))),
        ("token ids", choices(&format!(r#""prompt_token_ids": [{}1]"#, "1,".repeat(SIZE / 2)))),
        ("marks", choices(&format!(r#""routed_experts": {list_of_marks}"#))),
        (
            "marks in every choice",
            line(&format!(
                r#"{{"prompt_routed_experts": {list_of_marks}, "choices": [{}{{}}]}}"#,
                r#"{"routed_experts": []},"#.repeat(999)
            )),
        ),
        (
            "a prompt in every choice",
            line(&format!(
                r#"{{"prompt_routed_experts": {}, "choices": [{}{{}}]}}"#,
                lists("[[1]],", "[[1]]"),
                r#"{"routed_experts": [[[300]]]},"#.repeat(999)
            )),
        ),
        ("choices", line(&format!(r#"{{"choices": [{}{{}}]}}"#, "{},".repeat(SIZE / 3)))),
        ("answers", line(&format!("[{}{{}}]", r#"{"meta_info":{}},"#.repeat(SIZE / 17)))),
        ("long name", choices(&format!(r#""\n{}": 1"#, "x".repeat(SIZE)))),
        ("long id", line(&format!(r#"{{"id": "\n{}", "choices": [{{}}]}}"#, "x".repeat(SIZE)))),
        ("long error", line(&format!(r#"{{"error": "\n{}"}}"#, "x".repeat(SIZE)))),
        ("nested lists", vec![b'['; SIZE]),
        ("nested objects", r#"{"a":"#.repeat(SIZE / 5).into_bytes()),
        ("cut short", choices(&format!(r#""routed_experts": "{zeros}"#))[..SIZE].to_vec()),
        ("no text", vec![0xff; SIZE]),
        ("escapes cut short", format!("{{\"{escaped}").into_bytes()),
    ] {
        let options = RecordOptions { shape: Some(shape(1, 1)) };
        let beyond = excess(line.len() + LARGE, || read_record(&line, &options));
        assert_eq!(beyond, 0, "line, {name}");
    }
}

/// Marks and ids by turns.
fn base64_of_int32() -> String {
    base64::encode(&[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0].repeat(SIZE / 16))
}
