//! Names and sizes of the numeric types in which engines send ids.

use crate::span::WireType;

/// The binary types.
const BINARY: [WireType; 8] = [
    WireType::U8,
    WireType::I8,
    WireType::U16,
    WireType::I16,
    WireType::U32,
    WireType::I32,
    WireType::U64,
    WireType::I64,
];

/// The type of numpy's name `uint8`, `int32` and so on.
pub(super) fn named(name: &str) -> Option<WireType> {
    BINARY.into_iter().find(|wire| wire.name() == name)
}

/// The type of numpy's code `u1`, `i4` and so on.
pub(super) fn coded(code: &str) -> Option<WireType> {
    BINARY.into_iter().find(|&wire| self::code(wire) == code)
}

/// numpy's code, without byte order.
const fn code(wire: WireType) -> &'static str {
    match wire {
        WireType::U8 => "u1",
        WireType::I8 => "i1",
        WireType::U16 => "u2",
        WireType::I16 => "i2",
        WireType::U32 => "u4",
        WireType::I32 => "i4",
        WireType::U64 => "u8",
        WireType::I64 => "i8",
        WireType::Json => "",
    }
}

/// Bytes of one id; JSON numbers are read into 64 bits.
pub(super) const fn bytes(wire: WireType) -> usize {
    match wire {
        WireType::U8 | WireType::I8 => 1,
        WireType::U16 | WireType::I16 => 2,
        WireType::U32 | WireType::I32 => 4,
        WireType::U64 | WireType::I64 | WireType::Json => 8,
    }
}
