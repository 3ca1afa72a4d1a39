//! What requests have shown of their model: which layers have a gate, and how wide its ids are.
//!
//! A layer that is all zero in a request is dense, or its rows were never written. Other requests tell which: where each
//! instance that answered the request has, for other requests of the same run and model, named experts in that layer,
//! the layer has a gate. (Two deployments may give two models one name; their instances do not speak for each other.)

use std::{collections::HashMap, sync::Arc};

use gatescope_routing::{
    join::Joined,
    shape::{IdWidth, LayerSet, ModelShape, RowShape},
    span::{Role, Source},
};

use super::aside::LineAt;

/// Requests whose all-zero layers are judged again at the end: so many are remembered.
const DOUBTS: usize = 1 << 14;

/// What the requests have shown of all models.
#[derive(Debug)]
pub(crate) struct Models {
    told: Option<Arc<ModelShape>>,
    numbers: HashMap<Instance, usize>,
    shown: Vec<Shown>,
    doubts: Vec<Doubt>,
    /// Doubts for which there was no room.
    unkept: u64,
}

/// An instance that runs a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Instance {
    run: Arc<str>,
    model: Option<Arc<str>>,
    name: Arc<str>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Layers with an id above 0 in any row of a request that the instance answered.
    live: LayerSet,
    /// Geometries of rows in which ids of two bytes came.
    wide: Vec<RowShape>,
}

/// The instances that answered a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answerers(Vec<usize>);

/// A request that was closed when a layer that is all zero in it had not been seen live.
#[derive(Debug)]
pub(super) struct Doubt {
    answerers: Answerers,
    /// The layers.
    pub(super) zero: LayerSet,
    /// Where it can be read again.
    pub(super) lines: Vec<LineAt>,
}

impl Doubt {
    pub(super) fn of(answerers: Answerers) -> Self {
        Self { answerers, zero: LayerSet::empty(), lines: Vec::new() }
    }
}

impl Models {
    /// `told` is what the user says of the one model there is.
    pub(crate) fn new(told: Option<Arc<ModelShape>>) -> Self {
        Self { told, numbers: HashMap::new(), shown: Vec::new(), doubts: Vec::new(), unkept: 0 }
    }

    /// Those of a request's sources whose rows count.
    pub(crate) fn answerers<'s>(
        &mut self,
        run: &Arc<str>,
        model: Option<&Arc<str>>,
        sources: impl IntoIterator<Item = &'s Source>,
    ) -> Answerers {
        let sources = sources.into_iter().filter(|source| source.role != Role::Trainer);
        let mut numbers: Vec<usize> = sources
            .map(|source| {
                let name = Arc::clone(&source.instance);
                let next = self.shown.len();
                let instance = Instance { run: Arc::clone(run), model: model.cloned(), name };
                let number = *self.numbers.entry(instance).or_insert(next);
                if number == next {
                    self.shown.push(Shown::default());
                }
                number
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        Answerers(numbers)
    }

    /// Layers in which each of these instances has named experts.
    pub(crate) fn live(&self, answerers: &Answerers) -> LayerSet {
        let mut shown = answerers.0.iter().map(|&number| &self.shown[number].live);
        let Some(first) = shown.next() else { return LayerSet::empty() };
        shown.fold(first.clone(), |both, live| both.iter().filter(|&layer| live.contains(layer)).collect())
    }

    /// Learns from a request, and says in which layers and in what width it is to be stored.
    pub(crate) fn learn(&mut self, answerers: &Answerers, joined: &Joined) -> (LayerSet, IdWidth) {
        for &number in &answerers.0 {
            self.shown[number].live.union_with(&joined.live_layers);
        }
        let Some((shape, width)) = joined.shape else { return (LayerSet::empty(), IdWidth::U8) };
        let mut wide = width == IdWidth::U16;
        for &number in &answerers.0 {
            let shown = &mut self.shown[number].wide;
            if shown.contains(&shape) {
                wide = true;
            } else if width == IdWidth::U16 {
                shown.push(shape);
            }
        }
        let mut layers = joined.live_layers.clone();
        layers.union_with(&self.live(answerers));
        let layers = match &self.told {
            Some(model) if model.row() == shape => model.moe_layers().clone(),
            // Not one id above 0 was seen yet: leaving out every layer would lose that.
            _ if layers.is_empty() => LayerSet::all(shape.layers()),
            _ => layers,
        };
        (layers, if wide { IdWidth::U16 } else { IdWidth::U8 })
    }

    /// Layers that are all zero in this request and may have a gate for all that is known: if it turns out that they
    /// have, the request is to be judged again.
    pub(super) fn doubtful(&self, answerers: &Answerers, joined: &Joined) -> Option<LayerSet> {
        let (shape, _) = joined.shape?;
        // Where no layer is live, all count as gated already.
        if joined.live_layers.is_empty() || self.told.as_ref().is_some_and(|model| model.row() == shape) {
            return None;
        }
        let live = self.live(answerers);
        let unknown = |layer: &usize| !joined.live_layers.contains(*layer) && !live.contains(*layer);
        let zero: LayerSet = (0..shape.layers()).filter(unknown).collect();
        (!zero.is_empty()).then_some(zero)
    }

    /// Whether another doubt can be remembered.
    pub(super) fn has_room(&mut self) -> bool {
        let room = self.doubts.len() < DOUBTS;
        self.unkept += u64::from(!room);
        room
    }

    /// Remembers a doubtful request.
    pub(super) fn remember(&mut self, doubt: Doubt) {
        self.doubts.push(doubt);
    }

    /// The requests whose doubtful layers have turned out to have a gate.
    pub(super) fn take_misjudged(&mut self) -> Vec<Doubt> {
        let mut misjudged = std::mem::take(&mut self.doubts);
        misjudged.retain(|doubt| {
            let live = self.live(&doubt.answerers);
            doubt.zero.iter().any(|layer| live.contains(layer))
        });
        if !misjudged.is_empty() && self.unkept > 0 {
            tracing::warn!(
                requests = self.unkept,
                "a layer with a gate was all zero for so long that these requests were not judged again; \
                 --model-config says which layers have one"
            );
        }
        misjudged
    }
}
