//! What an import is told.

use std::{num::NonZeroUsize, sync::Arc};

use gatescope_routing::{
    join::{Policy, Rules},
    record::RecordOptions,
    shape::{ModelShape, RowShape},
};

/// What an import is told.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Run of the requests whose lines name none.
    pub run: Arc<str>,
    /// Whose row is accepted where several sources have one.
    pub policy: Policy,
    /// The model, where the user has described it. Without it the layers that have a gate are those in which any row of
    /// the same run and model names an expert other than 0.
    pub model: Option<Arc<ModelShape>>,
    /// Geometry of a row, for payloads that do not say it (SGLang). The model's own, where that is given.
    pub row_shape: Option<RowShape>,
    /// Stop at the first line that is refused. What was read before it is stored.
    pub strict: bool,
    /// Longest line that is read, in bytes; a longer one is refused without being held in memory. One of this length takes up
    /// to three times as much: it grows from block to block, and its rows are decoded beside it.
    pub max_line: NonZeroUsize,
    /// Bytes of unfinished requests to keep in memory, rows and all. Above it the oldest are forgotten and read again from
    /// the input when they are needed.
    pub held_bytes: usize,
}

impl ImportOptions {
    /// Longest line unless told otherwise: 128 MiB.
    pub const MAX_LINE: NonZeroUsize = NonZeroUsize::new(128 << 20).unwrap();
    /// Unfinished requests kept in memory unless told otherwise: 128 MiB.
    pub const HELD_BYTES: usize = 128 << 20;

    pub(super) fn record_options(&self) -> RecordOptions {
        let shape = self.row_shape.or_else(|| self.model.as_ref().map(|model| model.row()));
        RecordOptions { shape }
    }

    pub(super) fn rules(&self) -> Rules {
        Rules { policy: self.policy, model: self.model.clone() }
    }
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            run: "default".into(),
            policy: Policy::default(),
            model: None,
            row_shape: None,
            strict: false,
            max_line: Self::MAX_LINE,
            held_bytes: Self::HELD_BYTES,
        }
    }
}
