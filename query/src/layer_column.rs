//! Layer columns: one `FixedSizeBinary(top_k * width)` per MoE layer, described by the metadata of its field.

use arrow::datatypes::{DataType, Field};
use gatescope_routing::shape::{IdWidth, MAX_LAYERS, MAX_TOP_K};

/// Field metadata: `u8` or `u16`.
pub(crate) const WIDTH: &str = "gatescope.width";
/// Field metadata: slots per layer.
pub(crate) const TOP_K: &str = "gatescope.top_k";
/// Field metadata: index of the layer.
pub(crate) const LAYER: &str = "gatescope.layer";

/// What a layer column holds: `[top_k]` ids a row, little-endian, in the engine's slot order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LayerColumn {
    /// Index in the model's hidden layers.
    pub(crate) layer: u16,
    /// Slots.
    pub(crate) top_k: u16,
    /// Bytes per id.
    pub(crate) width: IdWidth,
}

impl LayerColumn {
    /// What the field's metadata says, if it says all of it and the numbers can be.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        let metadata = field.metadata();
        let layer: u16 = metadata.get(LAYER)?.parse().ok().filter(|&layer| u32::from(layer) < MAX_LAYERS)?;
        let top_k: u16 = metadata.get(TOP_K)?.parse().ok().filter(|&k| k > 0 && u32::from(k) <= MAX_TOP_K)?;
        Some(Self { layer, top_k, width: width_of(field)? })
    }

    /// Bytes of a row.
    pub(crate) fn bytes(self) -> usize {
        usize::from(self.top_k) * self.width.bytes()
    }

    /// The Arrow type of the column.
    pub(crate) fn data_type(self) -> DataType {
        DataType::FixedSizeBinary(self.bytes() as i32)
    }
}

/// The width that the field's metadata names.
pub(crate) fn width_of(field: &Field) -> Option<IdWidth> {
    parse_width(field.metadata().get(WIDTH)?)
}

/// `u8` or `u16`.
pub(crate) fn parse_width(name: &str) -> Option<IdWidth> {
    [IdWidth::U8, IdWidth::U16].into_iter().find(|width| width.name() == name)
}
