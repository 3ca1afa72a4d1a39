use proptest::prelude::*;

use super::*;
use crate::engine::base64;

/// `numpy.save` (numpy 2.4) of `arange(12)` as uint8 `[3, 2, 2]`.
const NUMPY_U8: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDMsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAQIDBAUGBwgJCgs=";
/// `numpy.save` of 299 to 304 as uint16 `[2, 1, 3]`.
const NUMPY_U16: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnPHUyJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDEsIDMpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAorASwBLQEuAS8BMAE=";
/// `numpy.save` of 0 to 7 as int32 `[2, 2, 2]`.
const NUMPY_I32: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnPGk0JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAAAQAAAAIAAAADAAAABAAAAAUAAAAGAAAABwAAAA==";

fn rows(ids: Vec<u8>, layers: u64, top_k: u64, width: IdWidth) -> Rows {
    Rows::new(ids.into(), RowShape::new(layers, top_k).unwrap(), width).unwrap()
}

fn ids(payload: &Payload) -> Vec<u16> {
    crate::rows::ids(payload.rows.bytes(), payload.rows.width())
}

/// A file with this header text and eight bytes of data.
fn file(version: [u8; 2], header: &str) -> Vec<u8> {
    let length = header.len() as u32;
    let length = if version[0] == 1 { (length as u16).to_le_bytes().to_vec() } else { length.to_le_bytes().to_vec() };
    [&MAGIC[..], &version, &length, header.as_bytes(), &[1, 0, 2, 0, 3, 0, 4, 0]].concat()
}

fn with_header(header: &str) -> Result<Payload, PayloadError> {
    decode(file([1, 0], header))
}

/// The message for a file with this dtype and shape.
fn refusal(descr: &str, shape: &str) -> String {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
    with_header(&header).unwrap_err().to_string()
}

#[test]
fn files_of_numpy_are_read() {
    let u8 = decode(base64::decode(NUMPY_U8.into()).unwrap()).unwrap();
    let u16 = decode(base64::decode(NUMPY_U16.into()).unwrap()).unwrap();
    let i32 = decode(base64::decode(NUMPY_I32.into()).unwrap()).unwrap();

    assert_eq!((ids(&u8), u8.wire_type), ((0..12).collect(), WireType::U8));
    assert_eq!((ids(&u16), u16.wire_type), ((299..305).collect(), WireType::U16));
    assert_eq!((ids(&i32), i32.wire_type), ((0..8).collect(), WireType::I32));
    assert_eq!(u8.rows.shape(), RowShape::new(2, 2).unwrap());
    assert_eq!(u16.rows.shape(), RowShape::new(1, 3).unwrap());
    assert_eq!(i32.rows.width(), IdWidth::U8);
    assert_eq!(u8.start, None);
}

#[test]
fn files_are_written_as_numpy_writes_them() {
    let u8 = rows((0..12).collect(), 2, 2, IdWidth::U8);
    let u16 = rows((299..305_u16).flat_map(u16::to_le_bytes).collect(), 1, 3, IdWidth::U16);

    assert_eq!(base64::encode(&encode(&u8)), NUMPY_U8);
    assert_eq!(base64::encode(&encode(&u16)), NUMPY_U16);
}

#[test]
fn headers_end_where_numpy_ends_them() {
    // Made with numpy 2.4: `numpy.save` of zeros of these shapes as uint8, length of the file without its data.
    for (count, layers, top_k, length) in [(1, 1, 1, 128), (1_000_000, 1, 1, 128), (2, 1024, 256, 128)] {
        let file = encode(&rows(vec![0; count * layers * top_k], layers as u64, top_k as u64, IdWidth::U8));
        assert_eq!(file.len() - count * layers * top_k, length);
    }
}

#[test]
fn every_version_and_way_to_write_a_header_is_read() {
    let plain = "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 2), }\n";
    for version in [[1, 0], [2, 0], [3, 0]] {
        assert_eq!(ids(&decode(file(version, plain)).unwrap()), [1, 2, 3, 4]);
    }
    for header in [
        "{\"shape\":(1,2,2),\"descr\":\"=u2\",\"fortran_order\":False}",
        " { 'fortran_order' : False , 'shape' : ( 1L , 2L , 2L , ) , 'descr' : '|u2' , } ",
        "{'descr': 'u2', 'fortran_order': False, 'shape': (1, 2, 2)}",
    ] {
        assert_eq!(ids(&with_header(header).unwrap()), [1, 2, 3, 4], "{header}");
    }
}

#[test]
fn every_integer_type_is_read() {
    let cases =
        [("|u1", 1), ("|i1", 1), (">u1", 1), ("<u2", 2), ("<i2", 2), ("<u4", 4), ("<i4", 4), ("<u8", 8), ("<i8", 8)];
    for (descr, size) in cases {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1, 1, {}), }}", 8 / size);
        let data: Vec<u8> = (0..8).map(|at| if at % size == 0 { 7 } else { 0 }).collect();
        let mut file = file([1, 0], &header);
        file.splice(file.len() - 8.., data);
        assert_eq!(ids(&decode(file).unwrap()), vec![7; 8 / size], "{descr}");
    }
}

#[test]
fn types_that_are_none_of_ids_are_refused() {
    for descr in [">u2", ">i4", "<f4", "|b1", "|O", "<c8", "<M8[us]", "|S4", "", "<", "uint8", "<u3", "<<u2"] {
        assert_eq!(
            refusal(&format!("'{descr}'"), "(1, 2, 2)"),
            format!(".npy dtype {descr:?}: expected a little-endian integer type (|u1, <u2, <i2, <i4 or their like)")
        );
    }
    assert_eq!(refusal("[('a', '<u2')]", "(1, 2, 2)"), ".npy header: a structured dtype: expected one integer type");
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    for (shape, message) in [
        ("(2, 2)", ".npy with 2 axes: expected 3, [rows, layers, top_k]"),
        ("()", ".npy with 0 axes: expected 3, [rows, layers, top_k]"),
        ("(1, 1, 2, 2)", ".npy with 4 axes: expected 3, [rows, layers, top_k]"),
        ("(-1, 2, 2)", ".npy header: a negative length in 'shape': expected [rows, layers, top_k]"),
        (
            "(18446744073709551616, 2, 2)",
            ".npy header: a length in 'shape' of more than 64 bits: expected [rows, layers, top_k]",
        ),
        (
            "(18446744073709551615, 2, 2)",
            ".npy shape [18446744073709551615, 2, 2]: expected [rows, layers, top_k] of an array that fits in memory",
        ),
        ("(2, 2, 2)", ".npy data of 8 bytes: expected 16 for shape [2, 2, 2] of uint16"),
        ("(1, 1, 2)", ".npy data of 8 bytes: expected 4 for shape [1, 1, 2] of uint16"),
        ("(4, 1, 1.5)", ".npy header: at byte 58: expected ',' or ')'"),
        ("(1, 2, 2", ".npy header: at byte 60: expected a length"),
        ("[1, 2, 2]", ".npy header: at byte 50: expected the shape as a tuple"),
        ("(1, 4, 1), 'shape': (1, 4, 1)", ".npy header: key \"shape\""),
    ] {
        let error = refusal("'<u2'", shape);
        assert!(error.starts_with(message), "{shape}: {error}");
    }
}

#[test]
fn rows_that_no_model_has_are_refused() {
    let empty = |shape: &str| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
        let mut file = file([1, 0], &header);
        file.truncate(file.len() - 8);
        decode(file).map(|payload| payload.rows.len()).map_err(|error| error.to_string())
    };
    assert_eq!(empty("(0, 4, 4)"), Ok(0));
    assert_eq!(empty("(8, 0, 4)"), Err("0 layers: expected 1 to 1024".to_owned()));
    assert_eq!(empty("(8, 4, 0)"), Err("top_k 0: expected 1 to 256".to_owned()));
    assert_eq!(empty("(0, 1025, 4)"), Err("1025 layers: expected 1 to 1024".to_owned()));
}

#[test]
fn column_major_files_are_refused() {
    let error = with_header("{'descr': '<u2', 'fortran_order': True, 'shape': (1, 2, 2), }").unwrap_err();
    assert_eq!(error, NpyError::FortranOrder.into());
}

#[test]
fn what_is_no_npy_file_is_refused() {
    let refused = |file: &[u8]| decode(file.to_vec()).unwrap_err().to_string();

    assert_eq!(
        refused(b"PK\x03\x04 and more"),
        r#"13 bytes that begin with [50, 4b, 03, 04, 20, 61]: expected a .npy file, which begins with "\x93NUMPY""#
    );
    assert!(refused(b"").starts_with("0 bytes that begin with []"));
    assert!(refused(b"\x93NUMPY\x01\x00\x10").starts_with("9 bytes that begin with"));
    assert_eq!(refused(b"\x93NUMPY\x04\x00\x00\x00\x00\x00"), ".npy version 4.0: expected 1.0, 2.0 or 3.0");
    assert_eq!(
        refused(b"\x93NUMPY\x01\x00\x10\x00{"),
        ".npy header of 16 bytes in a file of 11: expected it to end inside"
    );
    assert_eq!(
        refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"),
        ".npy header of 4294967295 bytes: expected at most 10000"
    );
    for (header, message) in [
        ("", ".npy header: at byte 0: expected a dictionary"),
        ("{}", ".npy header: no \"descr\": expected 'descr', 'fortran_order' and 'shape'"),
        ("{'descr': '<u2', }", ".npy header: no \"fortran_order\": expected 'descr', 'fortran_order' and 'shape'"),
        ("{'descr': '<u2", ".npy header: at byte 10: expected a closing quote"),
        ("{'descr': <u2", ".npy header: at byte 10: expected the dtype as a string"),
        ("{'fortran_order': 0", ".npy header: at byte 18: expected True or False"),
        ("{'a': 1}", ".npy header: key \"a\": expected 'descr', 'fortran_order' and 'shape', each once"),
    ] {
        assert_eq!(refused(&file([1, 0], header)), message, "{header}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = base64::decode(NUMPY_U16.into()).unwrap();
    for length in 0..whole.len() {
        assert!(decode(whole[..length].to_vec()).is_err(), "{length} bytes");
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        (wide, layers, top_k, ids) in (any::<bool>(), 1..5_usize, 1..5_usize, 0..20_usize)
            .prop_flat_map(|(wide, layers, top_k, count)| {
                let bytes = count * layers * top_k * if wide { 2 } else { 1 };
                (Just(wide), Just(layers), Just(top_k), prop::collection::vec(any::<u8>(), bytes))
            })
    ) {
        let width = if wide { IdWidth::U16 } else { IdWidth::U8 };
        let rows = rows(ids, layers as u64, top_k as u64, width);
        prop_assert_eq!(decode(encode(&rows)).unwrap().rows, rows);
    }

    #[test]
    fn no_header_is_too_odd_to_answer(header in "[{}()\\[\\]'\",: a-z0-9<|TFL-]{0,80}") {
        let _ = with_header(&header);
    }
}
