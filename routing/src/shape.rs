//! The geometry of a row and what is known of the model behind it.

use serde::{Deserialize, Serialize};

/// Most layers a row may have; no published model has a quarter of it.
pub const MAX_LAYERS: u32 = 1024;
/// Most slots per layer.
pub const MAX_TOP_K: u32 = 256;
/// Most experts per layer: ids are at most `u16`, and its highest value is never an id.
pub const MAX_EXPERTS: u32 = 65_535;

/// How wide one expert id is in memory and on the wire (little-endian).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdWidth {
    /// One byte: up to 256 experts.
    U8,
    /// Two bytes, little-endian.
    U16,
}

impl IdWidth {
    /// Bytes per id.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
        }
    }

    /// The width that engines use for a model with this many experts (vLLM >= 0.22).
    pub const fn for_experts(num_experts: u32) -> Self {
        if num_experts <= 256 { Self::U8 } else { Self::U16 }
    }

    /// `u8` or `u16`, as in table names and column metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
        }
    }
}

/// A shape that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Layer count out of range.
    #[error("{0} layers: expected 1 to {MAX_LAYERS}")]
    Layers(u64),
    /// Slot count out of range.
    #[error("top_k {0}: expected 1 to {MAX_TOP_K}")]
    TopK(u64),
    /// Expert count out of range.
    #[error("{0} experts: expected 1 to {MAX_EXPERTS}")]
    Experts(u64),
    /// More slots than experts to fill them.
    #[error("top_k {top_k} of {num_experts} experts: expected no more slots than experts")]
    MoreSlotsThanExperts {
        /// Slots per layer.
        top_k: u32,
        /// Experts per layer.
        num_experts: u32,
    },
    /// A layer set names a layer that the model does not have.
    #[error("layer {layer} named as a MoE layer: the model has layers 0 to {}", layers - 1)]
    NoSuchLayer {
        /// The layer that was named.
        layer: u32,
        /// Layers of the model.
        layers: u32,
    },
}

/// The geometry of a row: `[layers, top_k]`, C order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowShape {
    layers: u16,
    top_k: u16,
}

impl RowShape {
    /// A row of `layers` hidden layers (dense ones included) with `top_k` slots each.
    pub fn new(layers: u64, top_k: u64) -> Result<Self, ShapeError> {
        if layers == 0 || layers > u64::from(MAX_LAYERS) {
            return Err(ShapeError::Layers(layers));
        }
        if top_k == 0 || top_k > u64::from(MAX_TOP_K) {
            return Err(ShapeError::TopK(top_k));
        }
        Ok(Self { layers: layers as u16, top_k: top_k as u16 })
    }

    /// Hidden layers in a row.
    pub const fn layers(self) -> usize {
        self.layers as usize
    }

    /// Slots per layer.
    pub const fn top_k(self) -> usize {
        self.top_k as usize
    }

    /// Ids in a row.
    pub const fn ids(self) -> usize {
        self.layers as usize * self.top_k as usize
    }

    /// Bytes of a row whose ids have this width.
    pub const fn row_bytes(self, width: IdWidth) -> usize {
        self.ids() * width.bytes()
    }
}

impl std::fmt::Display for RowShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} layers x {} slots", self.layers, self.top_k)
    }
}

/// A set of layer indices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct LayerSet {
    words: Vec<u64>,
}

impl LayerSet {
    /// No layer.
    pub const fn empty() -> Self {
        Self { words: Vec::new() }
    }

    /// Layers `0..layers`.
    pub fn all(layers: usize) -> Self {
        (0..layers).collect()
    }

    /// Adds a layer.
    pub fn insert(&mut self, layer: usize) {
        if layer / 64 >= self.words.len() {
            self.words.resize(layer / 64 + 1, 0);
        }
        self.words[layer / 64] |= 1 << (layer % 64);
    }

    /// Whether the layer is in the set.
    pub fn contains(&self, layer: usize) -> bool {
        self.words.get(layer / 64).is_some_and(|word| word & (1 << (layer % 64)) != 0)
    }

    /// The layers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(i, &word)| (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| i * 64 + bit))
    }

    /// How many layers.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no layer is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Adds every layer of `other`; says whether that added any.
    pub fn union_with(&mut self, other: &Self) -> bool {
        let before = self.len();
        for layer in other.iter() {
            self.insert(layer);
        }
        self.len() != before
    }
}

impl FromIterator<usize> for LayerSet {
    fn from_iter<T: IntoIterator<Item = usize>>(layers: T) -> Self {
        let mut set = Self::empty();
        layers.into_iter().for_each(|layer| set.insert(layer));
        set
    }
}

/// As ranges: `0-2,5`.
impl std::fmt::Display for LayerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers: Vec<usize> = self.iter().collect();
        for (i, run) in layers.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// What a user says of the model: everything a check may hold rows against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    row: RowShape,
    num_experts: u32,
    moe_layers: LayerSet,
    repeating_layers: LayerSet,
}

impl ModelShape {
    /// A model with `num_experts` experts in each layer of `moe_layers`; its other layers are dense.
    pub fn new(row: RowShape, num_experts: u64, moe_layers: LayerSet) -> Result<Self, ShapeError> {
        if num_experts == 0 || num_experts > u64::from(MAX_EXPERTS) {
            return Err(ShapeError::Experts(num_experts));
        }
        let num_experts = num_experts as u32;
        if row.top_k() as u32 > num_experts {
            return Err(ShapeError::MoreSlotsThanExperts { top_k: row.top_k() as u32, num_experts });
        }
        if let Some(layer) = moe_layers.iter().find(|&layer| layer >= row.layers()) {
            return Err(ShapeError::NoSuchLayer { layer: layer as u32, layers: row.layers() as u32 });
        }
        Ok(Self { row, num_experts, moe_layers, repeating_layers: LayerSet::empty() })
    }

    /// Layers whose routing may name one expert twice by design (hash-routed layers).
    pub fn with_repeating_layers(mut self, layers: LayerSet) -> Self {
        self.repeating_layers = layers;
        self
    }

    /// The geometry of a row.
    pub const fn row(&self) -> RowShape {
        self.row
    }

    /// Logical experts per MoE layer.
    pub const fn num_experts(&self) -> u32 {
        self.num_experts
    }

    /// The layers that have a gate.
    pub const fn moe_layers(&self) -> &LayerSet {
        &self.moe_layers
    }

    /// The layers that may repeat an expert inside a row.
    pub const fn repeating_layers(&self) -> &LayerSet {
        &self.repeating_layers
    }
}
