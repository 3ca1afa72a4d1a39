//! Changes the rows of recorded answers: enough of base64 and `.npy` for it, so that a test does not believe the code that
//! it tests.

use serde_json::{Value, json};

/// Bytes of a `.npy` header of a small array.
const HEADER: usize = 128;
/// Layers and slots of the recordings whose ids have one byte.
const SHAPE: (usize, usize) = (4, 4);

/// The rows of an answer of one choice, with ids of one byte: `[layers, top_k]` each.
pub(crate) fn rows(answer: &Value) -> Vec<Vec<u8>> {
    let payload = answer["response"]["choices"][0]["routed_experts"].as_str().unwrap();
    decode(payload)[HEADER..].chunks_exact(SHAPE.0 * SHAPE.1).map(<[u8]>::to_vec).collect()
}

/// Gives an answer other rows.
pub(crate) fn set_rows(answer: &mut Value, rows: &[Vec<u8>]) {
    let (layers, slots) = SHAPE;
    set_npy(answer, "|u1", false, &format!("({}, {layers}, {slots})", rows.len()), &rows.concat());
}

/// Gives an answer a `.npy` payload with this type, order and shape in its header, and these bytes behind it.
pub(crate) fn set_npy(answer: &mut Value, descr: &str, fortran: bool, shape: &str, data: &[u8]) {
    let fortran = if fortran { "True" } else { "False" };
    let about = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(HEADER as u16 - 10).to_le_bytes());
    bytes.extend_from_slice(format!("{about:<width$}\n", width = HEADER - 11).as_bytes());
    bytes.extend_from_slice(data);
    set_bytes(answer, &bytes);
}

/// Gives an answer these bytes as its payload.
pub(crate) fn set_bytes(answer: &mut Value, bytes: &[u8]) {
    answer["response"]["choices"][0]["routed_experts"] = json!(encode(bytes));
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| ALPHABET.iter().position(|&digit| digit == byte).unwrap() as u32;
    let text = text.trim_end_matches('=');
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let bits = four.iter().fold(0, |bits, &byte| bits << 6 | digit(byte)) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let byte = ALPHABET[(bits >> (18 - 6 * digit)) as usize & 63];
            text.push(if digit <= three.len() { byte as char } else { '=' });
        }
    }
    text
}
