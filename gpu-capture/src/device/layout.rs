//! What a captured step looks like in memory, on the device and on the host.

use gatescope_routing::shape::MAX_EXPERTS;
use gatescope_routing::{IdWidth, LayerSet, RowShape};

/// Most slots per layer that a captured step may have: a thread of the kernel keeps them in registers.
pub const MAX_CAPTURED_TOP_K: usize = 32;

/// Counters per layer, in this order: ids out of range, rows with an id twice, rows of zeros alone.
pub(crate) const FAULTS: usize = 3;

/// A layout that cannot be captured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// More slots than the kernel has registers for.
    #[error("top_k {0}: capture takes 1 to {MAX_CAPTURED_TOP_K}")]
    TopK(usize),
    /// No id fits.
    #[error("{0} experts: expected 1 to {MAX_EXPERTS}")]
    Experts(u32),
    /// A step of this size would not fit the 32-bit counters.
    #[error("{0} tokens in a step: expected 1 to {1}")]
    Tokens(usize, usize),
}

/// The geometry of an engine's routed-experts buffer, and which of its layers have a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    shape: RowShape,
    num_experts: u32,
    gates: Vec<bool>,
    max_tokens: usize,
}

impl Layout {
    /// A buffer `int32 [max_tokens, layers, top_k]` of ids in `0..num_experts`. Layers outside `moe_layers` are packed
    /// like the others, and neither counted nor looked at: engines leave their columns 0.
    pub fn new(
        shape: RowShape,
        num_experts: u32,
        moe_layers: &LayerSet,
        max_tokens: usize,
    ) -> Result<Self, LayoutError> {
        if shape.top_k() > MAX_CAPTURED_TOP_K {
            return Err(LayoutError::TopK(shape.top_k()));
        }
        if num_experts == 0 || num_experts > MAX_EXPERTS {
            return Err(LayoutError::Experts(num_experts));
        }
        let most = i32::MAX as usize / shape.top_k();
        if max_tokens == 0 || max_tokens > most {
            return Err(LayoutError::Tokens(max_tokens, most));
        }
        let gates = (0..shape.layers()).map(|layer| moe_layers.contains(layer)).collect();
        Ok(Self { shape, num_experts, gates, max_tokens })
    }

    /// Layers and slots of a row.
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Experts per layer.
    pub fn num_experts(&self) -> u32 {
        self.num_experts
    }

    /// Width of the ids in packed rows: what the engine itself answers with.
    pub fn width(&self) -> IdWidth {
        IdWidth::for_experts(self.num_experts)
    }

    /// Most tokens in one step.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Per layer, whether it has a gate.
    pub fn gates(&self) -> &[bool] {
        &self.gates
    }

    /// Bytes of the packed rows of so many tokens.
    pub fn packed_bytes(&self, tokens: usize) -> usize {
        tokens * self.shape.row_bytes(self.width())
    }

    pub(crate) fn count_cells(&self) -> usize {
        self.shape.layers() * self.num_experts as usize
    }

    pub(crate) fn fault_cells(&self) -> usize {
        self.shape.layers() * FAULTS
    }
}

/// What no gate can have chosen, in one step, over all layers that have a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Ids that are negative or not below the number of experts.
    pub out_of_range: u64,
    /// Rows of one layer that name an expert twice (rows of zeros alone are not among them).
    pub repeated: u64,
    /// Rows of one layer that are 0 in every slot.
    pub all_zero: u64,
}

impl Faults {
    /// Adds up the counters of all layers.
    pub(crate) fn of(cells: &[u32]) -> Self {
        cells.chunks_exact(FAULTS).fold(Self::default(), |sum, layer| Self {
            out_of_range: sum.out_of_range + u64::from(layer[0]),
            repeated: sum.repeated + u64::from(layer[1]),
            all_zero: sum.all_zero + u64::from(layer[2]),
        })
    }
}
