//! What Python passes.

use gatescope_capture::StepRows;
use gatescope_routing::{IdWidth, RowShape, span::BlockHash};
use numpy::{PyArray3, PyArrayMethods, PyReadonlyArray3, PyUntypedArrayMethods};
use pyo3::{prelude::*, types::PyBytes};

/// Rows as numpy has them.
pub(crate) enum Rows<'py> {
    U8(PyReadonlyArray3<'py, u8>),
    U16(PyReadonlyArray3<'py, u16>),
}

impl<'py> Rows<'py> {
    /// Borrows an array `[rows, layers, top_k]` of uint8 or uint16, C order.
    pub(crate) fn of(array: &Bound<'py, PyAny>) -> Result<Self, &'static str> {
        if let Ok(array) = array.cast::<PyArray3<u8>>() {
            return Ok(Self::U8(array.try_readonly().map_err(|_| "rows that are being written to")?));
        }
        if let Ok(array) = array.cast::<PyArray3<u16>>() {
            return Ok(Self::U16(array.try_readonly().map_err(|_| "rows that are being written to")?));
        }
        Err("rows that are no numpy array [rows, layers, top_k] of uint8 or uint16")
    }

    pub(crate) fn view(&self) -> Result<StepRows<'_>, &'static str> {
        const ORDER: &str = "rows that are not contiguous in C order";
        let (shape, bytes, width) = match self {
            Self::U8(array) => (array.shape(), array.as_slice().map_err(|_| ORDER)?, IdWidth::U8),
            Self::U16(array) => (array.shape(), bytes_of(array.as_slice().map_err(|_| ORDER)?), IdWidth::U16),
        };
        let shape = RowShape::new(shape[1] as u64, shape[2] as u64).map_err(|_| "rows of a shape that no model has")?;
        Ok(StepRows { bytes, shape, width })
    }
}

#[cfg(target_endian = "little")]
#[allow(unsafe_code)]
fn bytes_of(ids: &[u16]) -> &[u8] {
    // SAFETY: the same memory, whose every byte is initialised; a byte has no alignment and no invalid value.
    unsafe { std::slice::from_raw_parts(ids.as_ptr().cast(), size_of_val(ids)) }
}

/// Integers: a numpy array of int64 or int32, or any sequence.
pub(crate) fn integers(object: &Bound<'_, PyAny>) -> Result<Vec<i64>, &'static str> {
    if let Ok(array) = object.cast::<numpy::PyArray1<i64>>()
        && let Ok(array) = array.try_readonly()
        && let Ok(values) = array.as_slice()
    {
        return Ok(values.to_vec());
    }
    if let Ok(array) = object.cast::<numpy::PyArray1<i32>>()
        && let Ok(array) = array.try_readonly()
        && let Ok(values) = array.as_slice()
    {
        return Ok(values.iter().map(|&value| i64::from(value)).collect());
    }
    object.extract().map_err(|_| "positions, offsets or counts that are no integers")
}

pub(crate) fn hashes(objects: Vec<Bound<'_, PyBytes>>) -> Vec<BlockHash> {
    objects.iter().map(|hash| BlockHash(hash.as_bytes().into())).collect()
}
