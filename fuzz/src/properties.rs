//! What holds for every input of a decoder, however hostile: an answer without a panic, rows no larger than the input,
//! and rows that come back unchanged when they are sent again.
//!
//! The fuzz targets run these functions, and so does a plain test of the `routing` crate, over the corpus.

use std::borrow::Cow;

use gatescope_routing::{
    engine::{
        Payload, base85, npy,
        prime_rl::{self, Packed},
        sglang::{self, RawIds},
        vllm, vllm_021,
    },
    record::{RecordOptions, read_record},
    shape::{IdWidth, RowShape},
    span::{Unknown, WireType},
};

/// Longest message that anyone should have to read.
const MAX_MESSAGE: usize = 4096;

/// The bytes of a `.npy` file.
pub fn npy(input: &[u8]) {
    if let Ok(payload) = npy::decode(input.to_vec()) {
        holds(&payload, input.len());
        assert_eq!(npy::decode(npy::encode(&payload.rows)).expect("a file of our own").rows, payload.rows);
    }
}

/// Base64 of a `.npy` file.
pub fn vllm(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let borrowed = vllm::decode(Cow::Borrowed(text));
    assert_eq!(borrowed, vllm::decode(Cow::Owned(text.to_owned())));
    if let Ok(payload) = borrowed {
        holds(&payload, input.len());
        assert_eq!(vllm::decode(vllm::encode(&payload.rows).into()).expect("text of our own").rows, payload.rows);
    }
}

/// Nested lists in JSON.
pub fn vllm_021(input: &[u8]) {
    let Ok(json) = std::str::from_utf8(input) else { return };
    let read = vllm_021::decode(json, IdWidth::U8);
    if read.is_ok() {
        assert!(serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok());
    }
    if let Ok(Some(payload)) = read {
        holds(&payload, input.len());
        let again = vllm_021::decode(&vllm_021::encode(&payload.rows), IdWidth::U8).expect("lists of our own");
        assert_eq!(again.map(|again| again.rows), (!payload.rows.is_empty()).then_some(payload.rows));
    }
}

/// A packed object in JSON.
pub fn prime_rl(input: &[u8]) {
    #[derive(serde::Deserialize)]
    struct Object<'a> {
        #[serde(borrow)]
        data: Cow<'a, str>,
        shape: [u64; 3],
        start: Option<u32>,
        dtype: Option<Cow<'a, str>>,
    }
    let Ok(Object { data, shape, start, dtype }) = serde_json::from_slice(input) else { return };
    if let Ok(payload) = prime_rl::decode(Packed { data, shape, start, dtype }) {
        holds(&payload, input.len());
        assert_eq!(payload.start, start);
        let again = prime_rl::decode(prime_rl::encode(&payload.rows, 7)).expect("an object of our own");
        assert_eq!((&again.rows, again.start), (&payload.rows, Some(7)));
        if !payload.rows.bytes().chunks(2).any(|id| id == [255, 255]) {
            let again = prime_rl::decode(prime_rl::encode_base85(&payload.rows)).expect("an object of our own");
            assert_eq!(again.rows.with_width(IdWidth::U16), payload.rows.with_width(IdWidth::U16));
        }
    }
}

/// Base85.
pub fn base85(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(bytes) = base85::decode(text) {
        assert!(bytes.len() <= input.len());
        assert_eq!(base85::decode(&base85::encode(&bytes)).as_deref(), Ok(&bytes[..]));
    }
}

/// A line `LAYERS TOP_K [DTYPE]`, and base64 of bare ids behind it.
pub fn sglang(input: &[u8]) {
    let Some((head, text)) = std::str::from_utf8(input).ok().and_then(|input| input.split_once('\n')) else { return };
    let mut head = head.split(' ');
    let mut length = || head.next()?.parse().ok();
    let Some(Ok(shape)) = length().zip(length()).map(|(layers, top_k)| RowShape::new(layers, top_k)) else { return };
    let Ok(ids) = RawIds::decode(text.into(), head.next()) else { return };
    if let Ok(payload) = ids.into_rows(shape) {
        holds(&payload, input.len());
        if !payload.rows.bytes().chunks(2).any(|id| id == [255, 255]) {
            let again = RawIds::decode(sglang::encode(&payload.rows).into(), None).and_then(|ids| ids.into_rows(shape));
            let again = again.expect("text of our own").rows;
            assert_eq!(again.with_width(IdWidth::U16), payload.rows.with_width(IdWidth::U16));
        }
    }
}

/// A recorded response.
pub fn record(input: &[u8]) {
    let text = std::str::from_utf8(input).ok();
    let is_json = text.is_some_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok());
    let options = RecordOptions { shape: RowShape::new(4, 4).ok() };
    match read_record(input, &options) {
        Err(error) => {
            let message = error.to_string();
            readable(&message);
            let not_json = ["not JSON at byte", "cut short: expected", "invalid UTF-8"];
            if not_json.iter().any(|start| message.starts_with(start)) {
                assert!(!is_json, "{message}");
            }
        }
        Ok(record) => {
            assert!(is_json);
            assert!((1..=1024).contains(&record.choices.len()));
            let mut numbers: Vec<u32> = record.choices.iter().map(|choice| choice.choice).collect();
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
            for choice in &record.choices {
                match &choice.spans {
                    Err(problem) => {
                        readable(&problem.to_string());
                        assert!(problem.field.starts_with("response"), "{problem}");
                    }
                    Ok(spans) => {
                        for span in spans {
                            assert!(!span.rows.is_empty() && span.rows.bytes().len() <= input.len());
                            assert_eq!(span.source, record.source);
                            marks_hold(&span.unknown, span.rows.len(), span.rows.shape());
                        }
                    }
                }
            }
        }
    }
}

/// What holds for every payload read from `size` bytes.
fn holds(payload: &Payload, size: usize) {
    let Payload { rows, wire_type, unknown, .. } = payload;
    assert!(rows.bytes().len() <= size, "{rows:?} from {size} bytes");
    marks_hold(unknown, rows.len(), rows.shape());
    match wire_type {
        WireType::U8 => assert_eq!((rows.width(), unknown.len()), (IdWidth::U8, 0)),
        WireType::U16 => assert_eq!((rows.width(), unknown.len()), (IdWidth::U16, 0)),
        _ => {
            let needs_words = rows.width() == IdWidth::U8 || rows.with_width(IdWidth::U8).is_none();
            assert!(needs_words, "{rows:?} of small ids");
        }
    }
}

fn marks_hold(unknown: &[Unknown], rows: usize, shape: RowShape) {
    let mut end = None;
    for mark in unknown {
        assert!(end < Some(mark.rows.start) && mark.rows.start < mark.rows.end);
        assert!(usize::from(mark.layer) < shape.layers());
        end = Some(mark.rows.end);
    }
    assert!(end.unwrap_or(0) as usize <= rows);
}

fn readable(message: &str) {
    assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}
