//! numpy's `.npy` files of expert ids `[rows, layers, top_k]`, versions 1 to 3.
//!
//! The format is numpy's own: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

mod header;

use self::header::Header;
pub use self::header::HeaderError;
use super::{Payload, PayloadError, narrow, wire};
use crate::{
    rows::Rows,
    shape::{IdWidth, RowShape},
    span::WireType,
};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// numpy itself reads no longer header without being told to.
const MAX_HEADER: usize = 10_000;
/// numpy ends the header at a multiple of this.
const ALIGNMENT: usize = 64;
/// Digits that numpy leaves room for, so that an array can grow along its first axis without moving its data.
const GROWTH_DIGITS: usize = 21;

/// Not a `.npy` file of expert ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// Other bytes at the start.
    #[error("{} bytes that begin with {:02x?}: expected a .npy file, which begins with \"\\x93NUMPY\"", length, start)]
    Magic {
        /// Bytes in all.
        length: usize,
        /// The first of them.
        start: Vec<u8>,
    },
    /// A version that numpy does not have.
    #[error(".npy version {0}.{1}: expected 1.0, 2.0 or 3.0")]
    Version(u8, u8),
    /// A header that goes on behind the end.
    #[error(".npy header of {header} bytes in a file of {length}: expected it to end inside")]
    HeaderBehindEnd {
        /// Bytes of the header, as it says.
        header: usize,
        /// Bytes of the file.
        length: usize,
    },
    /// A header longer than numpy reads.
    #[error(".npy header of {0} bytes: expected at most {MAX_HEADER}")]
    HeaderTooLong(usize),
    /// A header that does not describe an array.
    #[error(".npy header: {0}")]
    Header(#[from] HeaderError),
    /// A type that is none of ids.
    #[error(".npy dtype {0:?}: expected a little-endian integer type (|u1, <u2, <i2, <i4 or their like)")]
    Type(String),
    /// Column-major data.
    #[error(".npy in Fortran order: expected C order, [rows, layers, top_k]")]
    FortranOrder,
    /// Not three axes.
    #[error(".npy with {0} axes: expected 3, [rows, layers, top_k]")]
    Axes(usize),
    /// More bytes than can be.
    #[error(".npy shape {0:?}: expected [rows, layers, top_k] of an array that fits in memory")]
    TooLarge([u64; 3]),
    /// Data shorter or longer than the header says.
    #[error(".npy data of {found} bytes: expected {expected} for shape {shape:?} of {}", wire_type.name())]
    Length {
        /// Bytes behind the header.
        found: usize,
        /// Bytes that the header promises.
        expected: u64,
        /// The shape that the header says.
        shape: [u64; 3],
        /// The type that the header says.
        wire_type: WireType,
    },
}

/// The rows in the bytes of a `.npy` file.
///
/// # Errors
/// Where header and data do not fit together, or are not those of expert ids.
pub fn decode(file: Vec<u8>) -> Result<Payload, PayloadError> {
    let (header, data) = split(&file)?;
    let header = Header::parse(header).map_err(NpyError::from)?;
    let wire_type = wire_type(&header.descr)?;
    if header.fortran_order {
        return Err(NpyError::FortranOrder.into());
    }
    let [rows, layers, top_k] = header.axes()?;
    let shape = [rows, layers, top_k];
    let expected = rows
        .checked_mul(layers)
        .and_then(|layers| layers.checked_mul(top_k))
        .and_then(|ids| ids.checked_mul(wire::bytes(wire_type) as u64))
        .ok_or(NpyError::TooLarge(shape))?;
    let found = file.len() - data;
    if found as u64 != expected {
        return Err(NpyError::Length { found, expected, shape, wire_type }.into());
    }
    Ok(narrow::narrow(file, data, wire_type, RowShape::new(layers, top_k)?)?)
}

/// A `.npy` file (version 1.0) of these rows, byte for byte what `numpy.save` writes.
pub fn encode(rows: &Rows) -> Vec<u8> {
    let descr = match rows.width() {
        IdWidth::U8 => "|u1",
        IdWidth::U16 => "<u2",
    };
    let (count, layers, top_k) = (rows.len(), rows.shape().layers(), rows.shape().top_k());
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count}, {layers}, {top_k}), }}");
    let growth = GROWTH_DIGITS.saturating_sub(count.to_string().len());
    header.extend(std::iter::repeat_n(' ', growth));
    let prefix = MAGIC.len() + 4;
    header.extend(std::iter::repeat_n(' ', ALIGNMENT - (prefix + header.len() + 1) % ALIGNMENT));
    header.push('\n');

    let mut file = Vec::with_capacity(prefix + header.len() + rows.bytes().len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&[1, 0]);
    // Three numbers and two words stay far below what two bytes can say.
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(rows.bytes());
    file
}

/// Whether these bytes begin as a `.npy` file does.
pub fn is_npy(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The header's text, and where the data begins.
fn split(file: &[u8]) -> Result<(&[u8], usize), NpyError> {
    let not_npy = || NpyError::Magic { length: file.len(), start: file[..file.len().min(MAGIC.len())].to_vec() };
    let rest = file.strip_prefix(MAGIC).ok_or_else(not_npy)?;
    let (&[major, minor], rest) = rest.split_first_chunk::<2>().ok_or_else(not_npy)?;
    let (header, prefix) = match (major, minor) {
        (1, 0) => rest.first_chunk().map(|&length| (usize::from(u16::from_le_bytes(length)), 10)),
        (2 | 3, 0) => rest.first_chunk().map(|&length| (u32::from_le_bytes(length) as usize, 12)),
        _ => return Err(NpyError::Version(major, minor)),
    }
    .ok_or_else(not_npy)?;
    if header > MAX_HEADER {
        return Err(NpyError::HeaderTooLong(header));
    }
    let data = prefix + header;
    let text = file.get(prefix..data).ok_or(NpyError::HeaderBehindEnd { header, length: file.len() })?;
    Ok((text, data))
}

/// The type of a `descr`. Byte order `|` and `=`, or none, stand for the machine's own, which is little-endian wherever
/// engines run; for single bytes even `>` says nothing.
fn wire_type(descr: &str) -> Result<WireType, NpyError> {
    let unknown = || NpyError::Type(descr.to_owned());
    let (big_endian, code) = match descr.strip_prefix(['<', '=', '|']) {
        Some(code) => (false, code),
        None => descr.strip_prefix('>').map_or((false, descr), |code| (true, code)),
    };
    let wire_type = wire::coded(code).ok_or_else(unknown)?;
    if big_endian && wire::bytes(wire_type) > 1 { Err(unknown()) } else { Ok(wire_type) }
}

#[cfg(test)]
mod tests;
