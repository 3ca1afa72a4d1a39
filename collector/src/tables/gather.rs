//! Rows to columns: the ids of one layer, out of rows that hold all layers.

use gatescope_routing::rows::Rows;

/// Where the ids of layers come from.
pub(super) trait LayerSource {
    /// Copies the ids of one hidden layer of the rows from `first` on; `out` says how many.
    fn copy_layer(&self, layer: usize, first: usize, out: &mut [u8]);
}

/// Rows as engines ship them: `[positions, layers, top_k]`.
impl LayerSource for Rows {
    fn copy_layer(&self, layer: usize, first: usize, out: &mut [u8]) {
        let slots = self.shape().top_k() * self.width().bytes();
        let row = self.row_bytes();
        let from = &self.bytes()[first * row..];
        // A constant size makes each copy one load and one store.
        match slots {
            2 => gather::<2>(from, row, layer, out),
            4 => gather::<4>(from, row, layer, out),
            6 => gather::<6>(from, row, layer, out),
            8 => gather::<8>(from, row, layer, out),
            12 => gather::<12>(from, row, layer, out),
            16 => gather::<16>(from, row, layer, out),
            _ => {
                for (to, row) in out.chunks_exact_mut(slots).zip(from.chunks_exact(row)) {
                    to.copy_from_slice(&row[layer * slots..][..slots]);
                }
            }
        }
    }
}

fn gather<const SLOTS: usize>(from: &[u8], row: usize, layer: usize, out: &mut [u8]) {
    for (to, row) in out.chunks_exact_mut(SLOTS).zip(from.chunks_exact(row)) {
        to.copy_from_slice(&row[layer * SLOTS..][..SLOTS]);
    }
}
