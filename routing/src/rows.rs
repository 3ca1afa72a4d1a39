//! Rows over shared bytes.

use std::ops::Range;

use bytes::Bytes;

use crate::shape::{IdWidth, RowShape};

/// Bytes that are not whole rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes: expected a multiple of {row_bytes}, the bytes of one row ({shape}, {})", width.name())]
pub struct RowsError {
    /// Bytes that were given.
    pub bytes: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Geometry of a row.
    pub shape: RowShape,
    /// Width of an id.
    pub width: IdWidth,
}

/// Expert ids `[positions, layers, top_k]`, C order, little-endian, over shared bytes: cloning and slicing copy no id.
#[derive(Clone, PartialEq, Eq)]
pub struct Rows {
    bytes: Bytes,
    shape: RowShape,
    width: IdWidth,
}

impl Rows {
    /// Rows over these bytes, which must be a whole number of rows.
    pub fn new(bytes: Bytes, shape: RowShape, width: IdWidth) -> Result<Self, RowsError> {
        let row_bytes = shape.row_bytes(width);
        if !bytes.len().is_multiple_of(row_bytes) {
            return Err(RowsError { bytes: bytes.len(), row_bytes, shape, width });
        }
        Ok(Self { bytes, shape, width })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Geometry of a row.
    pub const fn shape(&self) -> RowShape {
        self.shape
    }

    /// Width of an id.
    pub const fn width(&self) -> IdWidth {
        self.width
    }

    /// Bytes of a row.
    pub const fn row_bytes(&self) -> usize {
        self.shape.row_bytes(self.width)
    }

    /// All ids: `[positions, layers, top_k]`.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes of one row: `[layers, top_k]`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, index: usize) -> &[u8] {
        let size = self.row_bytes();
        &self.bytes[index * size..(index + 1) * size]
    }

    /// The bytes of one layer of one row: `[top_k]`.
    ///
    /// # Panics
    /// If there is no such row or layer.
    pub fn layer(&self, index: usize, layer: usize) -> &[u8] {
        let size = self.shape.top_k() * self.width.bytes();
        &self.row(index)[layer * size..(layer + 1) * size]
    }

    /// The ids of one layer of one row, in the engine's slot order.
    pub fn experts(&self, index: usize, layer: usize) -> Vec<u16> {
        ids(self.layer(index, layer), self.width)
    }

    /// Some of the rows, sharing the bytes.
    ///
    /// # Panics
    /// If the range is not inside `0..len()`.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let size = self.row_bytes();
        Self { bytes: self.bytes.slice(range.start * size..range.end * size), shape: self.shape, width: self.width }
    }

    /// The same ids at another width; `None` where an id does not fit.
    pub fn with_width(&self, width: IdWidth) -> Option<Self> {
        let bytes = match (self.width, width) {
            (from, to) if from == to => return Some(self.clone()),
            (IdWidth::U8, _) => self.bytes.iter().flat_map(|&id| [id, 0]).collect::<Vec<u8>>(),
            (IdWidth::U16, _) => {
                self.bytes.chunks_exact(2).map(|id| (id[1] == 0).then_some(id[0])).collect::<Option<Vec<u8>>>()?
            }
        };
        Some(Self { bytes: bytes.into(), shape: self.shape, width })
    }
}

/// The ids in a piece of a row.
pub fn ids(bytes: &[u8], width: IdWidth) -> Vec<u16> {
    match width {
        IdWidth::U8 => bytes.iter().map(|&id| u16::from(id)).collect(),
        IdWidth::U16 => bytes.chunks_exact(2).map(|id| u16::from_le_bytes([id[0], id[1]])).collect(),
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({} positions, {}, {})", self.len(), self.shape, self.width.name())
    }
}
