//! What the requests of a model have shown of it: which layers have a gate, and how wide its ids are.

use std::{collections::HashMap, sync::Arc};

use gatescope_routing::{
    join::Joined,
    shape::{IdWidth, LayerSet, ModelShape},
};

use super::aside::LineAt;

/// Requests of a model whose all-zero layers are judged again at the end.
const DOUBTS: usize = 4096;

/// What the requests of all models have shown.
#[derive(Debug)]
pub(super) struct Models {
    told: Option<Arc<ModelShape>>,
    shown: HashMap<ModelKey, Shown>,
}

/// A model of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ModelKey {
    pub(super) run: Arc<str>,
    pub(super) model: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Layers with an id above 0 in any row.
    live: LayerSet,
    wide: bool,
    doubts: Vec<Doubt>,
    /// Doubts for which there was no room.
    unkept: u64,
}

/// A request that was closed when a layer that is all zero in it had not been seen live.
#[derive(Debug)]
struct Doubt {
    zero: LayerSet,
    lines: Vec<LineAt>,
}

impl Models {
    /// `told` is what the user says of the one model there is.
    pub(super) fn new(told: Option<Arc<ModelShape>>) -> Self {
        Self { told, shown: HashMap::new() }
    }

    /// Layers that the model's requests have shown to have a gate.
    pub(super) fn live(&self, key: &ModelKey) -> Option<&LayerSet> {
        self.shown.get(key).map(|shown| &shown.live)
    }

    /// Learns from a request, and says in which layers and in what width it is to be stored.
    pub(super) fn learn(&mut self, key: &ModelKey, joined: &Joined) -> (LayerSet, IdWidth) {
        let shown = self.shown.entry(key.clone()).or_default();
        shown.live.union_with(&joined.live_layers);
        let Some((shape, width)) = joined.shape else { return (LayerSet::empty(), IdWidth::U8) };
        shown.wide |= width == IdWidth::U16;
        let width = if shown.wide { IdWidth::U16 } else { IdWidth::U8 };
        let layers = match &self.told {
            Some(model) if model.row() == shape => model.moe_layers().clone(),
            // Not one id above 0 was seen yet: leaving out every layer would lose that.
            _ if shown.live.is_empty() => LayerSet::all(shape.layers()),
            _ => shown.live.clone(),
        };
        (layers, width)
    }

    /// Layers that are all zero in this request and in all seen before it: if one of them turns out to have a gate, the
    /// request is to be judged again.
    pub(super) fn doubtful(&self, key: &ModelKey, joined: &Joined) -> Option<LayerSet> {
        let (shape, _) = joined.shape?;
        if self.told.as_ref().is_some_and(|model| model.row() == shape) {
            return None;
        }
        let live = self.live(key);
        let zero: LayerSet =
            (0..shape.layers()).filter(|&layer| live.is_none_or(|live| !live.contains(layer))).collect();
        (!zero.is_empty()).then_some(zero)
    }

    /// Whether another doubt about this model has room.
    pub(super) fn keeps_doubts(&mut self, key: &ModelKey) -> bool {
        let shown = self.shown.entry(key.clone()).or_default();
        let room = shown.doubts.len() < DOUBTS;
        shown.unkept += u64::from(!room);
        room
    }

    /// Remembers the lines of a doubtful request.
    pub(super) fn doubt(&mut self, key: &ModelKey, zero: LayerSet, lines: Vec<LineAt>) {
        self.shown.entry(key.clone()).or_default().doubts.push(Doubt { zero, lines });
    }

    /// Lines of the requests whose doubtful layers have turned out to have a gate.
    pub(super) fn take_misjudged(&mut self) -> Vec<Vec<LineAt>> {
        let mut misjudged = Vec::new();
        for (key, shown) in &mut self.shown {
            let doubts = std::mem::take(&mut shown.doubts);
            let wrong: Vec<Doubt> =
                doubts.into_iter().filter(|doubt| doubt.zero.iter().any(|layer| shown.live.contains(layer))).collect();
            if !wrong.is_empty() && shown.unkept > 0 {
                let (run, model) = (&key.run, key.model.as_deref().unwrap_or(""));
                tracing::warn!(
                    run = &**run,
                    model,
                    requests = shown.unkept,
                    "a layer with a gate was all zero for so \
                    long that not all requests were judged again"
                );
            }
            misjudged.extend(wrong.into_iter().map(|doubt| doubt.lines));
        }
        misjudged
    }
}
