//! A request on its way out of the join.

use std::{collections::HashMap, sync::Arc};

use gatescope_routing::{
    IdWidth, LayerSet, ModelShape, Rows,
    check::inspect,
    join::{BlockReference, Context, Joined, Policy, RequestJoin, Rules},
    span::{RequestKey, WireType},
};
use gatescope_wire::ModelSeen;

use super::families::{Arrived, Family};
use crate::tables::{Arrival, BlockName, ClosedRequest};

/// Instances whose models are remembered.
const MOST_MODELS: usize = 1 << 16;

/// What instances said of their models.
#[derive(Debug, Default)]
pub(super) struct ModelsSeen {
    by_instance: HashMap<(Arc<str>, Arc<str>), Arc<ModelSeen>>,
}

impl ModelsSeen {
    pub(super) fn take(&mut self, seen: ModelSeen) {
        let of = (Arc::clone(&seen.run), Arc::clone(&seen.instance));
        if self.by_instance.len() < MOST_MODELS || self.by_instance.contains_key(&of) {
            self.by_instance.insert(of, Arc::new(seen));
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ModelSeen> {
        self.by_instance.values().map(|seen| &**seen)
    }

    /// What the instances that told of a request said of their model.
    fn of(&self, run: &Arc<str>, request: &RequestJoin) -> Option<&Arc<ModelSeen>> {
        let mut sources = request.sources().into_iter();
        sources.find_map(|source| self.by_instance.get(&(Arc::clone(run), Arc::clone(&source.instance))))
    }
}

/// What is known of a request beside its parts.
#[derive(Debug, Clone)]
pub(super) struct About {
    pub(super) key: RequestKey,
    pub(super) model: Option<Arc<str>>,
    /// The model's shape, where an instance or the user told.
    pub(super) shape: Option<Arc<ModelShape>>,
    pub(super) policy: Policy,
    /// Layers that other requests of the same instances have shown to have a gate.
    pub(super) live: LayerSet,
    pub(super) began_at: Option<i64>,
    pub(super) finished_at: Option<i64>,
    pub(super) arrived: Arc<[Arrived]>,
    pub(super) wire_type: Option<WireType>,
}

impl About {
    pub(super) fn of(
        key: &RequestKey,
        request: &RequestJoin,
        family: &Family,
        rules: &Rules,
        models: &ModelsSeen,
        live: LayerSet,
    ) -> Self {
        let seen = models.of(&key.run, request);
        Self {
            key: key.clone(),
            model: family.model.clone().or_else(|| seen.map(|seen| Arc::clone(&seen.model))),
            shape: rules.model.clone().or_else(|| seen.map(|seen| Arc::new(seen.shape.clone()))),
            policy: rules.policy,
            live,
            began_at: family.began_at,
            finished_at: family.finished_at,
            arrived: family.arrived.as_slice().into(),
            wire_type: family.wire_type,
        }
    }

    pub(super) fn rules(&self) -> Rules {
        Rules { policy: self.policy, model: self.shape.clone() }
    }

    pub(super) fn context(&self) -> Context<'_> {
        Context { live_layers: Some(&self.live), parent: None }
    }

    /// Blocks that were found arrived when they were named.
    pub(super) fn arrive_with(&mut self, awaited: &[BlockReference], blocks: &HashMap<BlockName, Rows>) {
        let found = awaited.iter().filter_map(|reference| blocks.get(&BlockName::from(reference)));
        let (at, position) = self.arrived.last().map_or((0, 0), |last| (last.at, last.position));
        let new = found.map(|rows| Arrived { payload_hash: inspect(rows).payload_hash, at, position });
        self.arrived = self.arrived.iter().copied().chain(new).collect();
    }

    /// The request as the tables take it.
    pub(super) fn closed(&self, joined: Joined, closed_at: i64, replaces: bool) -> ClosedRequest {
        let (layers, width) = self.layers(&joined);
        let arrivals = joined.captures.iter().map(|capture| {
            let arrived = self.arrived.iter().find(|arrived| arrived.payload_hash == capture.payload_hash);
            arrived.map_or(Arrival { at: closed_at, seq: 0 }, |arrived| Arrival {
                at: arrived.at,
                seq: arrived.position as i64,
            })
        });
        ClosedRequest {
            key: self.key.clone(),
            model: self.model.clone(),
            started_at: self.began_at,
            finished_at: self.finished_at,
            closed_at,
            layers,
            width,
            arrivals: arrivals.collect(),
            replaces,
            joined,
        }
    }

    /// In which layers and in what width the request is to be stored.
    fn layers(&self, joined: &Joined) -> (LayerSet, IdWidth) {
        let Some((shape, width)) = joined.shape else { return (LayerSet::empty(), IdWidth::U8) };
        if let Some(model) = self.shape.as_ref().filter(|model| model.row() == shape) {
            let wide = width == IdWidth::U16 || IdWidth::for_experts(model.num_experts()) == IdWidth::U16;
            return (model.moe_layers().clone(), if wide { IdWidth::U16 } else { IdWidth::U8 });
        }
        let mut layers = joined.live_layers.clone();
        layers.union_with(&self.live);
        // Not one id above 0 was seen yet: leaving out every layer would lose that.
        (if layers.is_empty() { LayerSet::all(shape.layers()) } else { layers }, width)
    }
}

/// Whether anything was told that is worth a row.
pub(super) fn says_nothing(joined: &Joined) -> bool {
    joined.captures.is_empty() && joined.prompt_tokens.is_none() && joined.completion_tokens.is_none()
}
