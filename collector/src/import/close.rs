//! Closing requests: joined, judged, and stored unless they are stored already.

use std::sync::Arc;

use gatescope_routing::{
    join::{Context, Joined, RequestJoin},
    span::{RequestKey, WireType},
};

use super::{
    aside::CurrentLine,
    closed::{Known, digest},
    components::Component,
    error::ImportError,
    models::{Answerers, Doubt},
    session::Session,
};
use crate::tables::{Arrival, ClosedRequest};

/// What closing a component came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// Its requests are closed.
    Done,
    /// It needs what is stored only with the next commit.
    Waits,
}

/// A request that was closed.
pub(super) struct Shut {
    pub(super) key: RequestKey,
    pub(super) about: Arc<About>,
    pub(super) answerers: Answerers,
    /// Whether this import has closed it before, with other content.
    pub(super) earlier: bool,
    /// What was told of it, kept where it may be stored already.
    pub(super) request: Option<RequestJoin>,
    pub(super) joined: Joined,
}

/// What the requests of a component have in common.
#[derive(Clone)]
pub(super) struct About {
    pub(super) model: Option<Arc<str>>,
    /// When the first instance began, in UTC microseconds.
    pub(super) started_at: Option<i64>,
    /// Payload hash and line number of each span.
    pub(super) arrivals: Vec<(u64, u64)>,
    /// The numeric type in which the rows came.
    pub(super) wire_type: Option<WireType>,
    /// Whether it is stored and judged again.
    pub(super) again: bool,
}

impl Session<'_> {
    /// Closes a component's requests. `current` is the line that is not among the component's yet; `alone` closes it
    /// without waiting for anything.
    pub(super) fn close(
        &mut self,
        age: u64,
        current: Option<&CurrentLine>,
        alone: bool,
    ) -> Result<Closing, ImportError> {
        let Some(component) = self.components.remove(age) else { return Ok(Closing::Done) };
        let keys = self.keys_of(&component);
        if !alone && keys.iter().any(|key| self.must_wait(key, current.is_none())) {
            self.components.keep_waiting(age, component);
            return Ok(Closing::Waits);
        }
        let Component { lines, arrivals, model, started_at, wire_type, again, .. } = component;
        let about = Arc::new(About { model, started_at, arrivals, wire_type, again });
        let mut doubt: Option<Doubt> = None;
        for key in keys {
            let Some(shut) = self.shut(key, &about)? else { continue };
            if let Some(zero) = self.models.doubtful(&shut.answerers, &shut.joined) {
                let answerers = &shut.answerers;
                let doubt = doubt.get_or_insert_with(|| Doubt::of(answerers.clone()));
                doubt.zero.union_with(&zero);
            }
            self.store_or_look_up(shut)?;
        }
        if let Some(mut doubt) = doubt.filter(|_| !again && self.models.has_room()) {
            let current = current.map(|line| self.aside.place(line)).transpose()?;
            doubt.lines = lines.into_iter().chain(current).collect();
            self.models.remember(doubt);
        }
        Ok(Closing::Done)
    }

    /// Takes a request out of the join. `None` where this import has closed it before with the very same content.
    fn shut(&mut self, key: RequestKey, about: &Arc<About>) -> Result<Option<Shut>, ImportError> {
        let Some(request) = self.join.get(&key) else { return Ok(None) };
        let answerers = self.models.answerers(&key.run, about.model.as_ref(), request.sources());
        let parent = request.parent().map(|parent| parent_key(&key, parent));
        let request = self.may_be_stored().then(|| request.clone());
        let parent = parent.map(|parent| self.rows_of(&parent)).transpose()?;
        let live = self.models.live(&answerers);
        let context = Context { live_layers: Some(&live), parent: parent.as_deref() };
        let Some(joined) = self.join.close(&key, &context) else { return Ok(None) };
        // Nothing but refused lines: they were reported, and say nothing of any routing.
        if joined.captures.is_empty() && joined.prompt_tokens.is_none() && joined.completion_tokens.is_none() {
            return Ok(None);
        }
        let digest = digest(&joined);
        let known = self.closed.known(&key, digest);
        if !about.again && known == Known::Same {
            self.open_batch()?.tally.duplicates += 1;
            return Ok(None);
        }
        self.closed.insert(&key, digest);
        self.models.learn(&answerers, &joined);
        Ok(Some(Shut { key, about: Arc::clone(about), answerers, earlier: known != Known::No, request, joined }))
    }

    /// Whether the request can be closed only when what was closed before is stored. At the end of the input, an earlier
    /// request that did not come will not come any more.
    fn must_wait(&self, key: &RequestKey, at_end: bool) -> bool {
        let Some(request) = self.join.get(key) else { return false };
        if let Some(parent) = request.parent() {
            let parent = parent_key(key, parent);
            let comes = !at_end || self.join.get(&parent).is_some();
            if self.closed.is_uncommitted(&parent) || (comes && !self.closed.is_committed(&parent)) {
                return true;
            }
        }
        self.closed.is_uncommitted(key) && {
            let joined = request.close(self.join.rules(), &Context::default());
            self.closed.known(key, digest(&joined)) == Known::Uncommitted
        }
    }

    /// Stores a request; `replaces` its stored self.
    pub(super) fn store(&mut self, shut: Shut, replaces: bool) -> Result<(), ImportError> {
        let Shut { key, about, answerers, joined, .. } = shut;
        let (layers, width) = self.models.learn(&answerers, &joined);
        let closed_at = chrono::Utc::now().timestamp_micros();
        let arrivals = joined.captures.iter().map(|capture| {
            let arrival = about.arrivals.iter().find(|(hash, _)| *hash == capture.payload_hash);
            Arrival { at: closed_at, seq: arrival.map_or(0, |(_, line)| *line as i64) }
        });
        let request = ClosedRequest {
            model: about.model.clone(),
            started_at: about.started_at,
            finished_at: None,
            closed_at,
            layers,
            width,
            arrivals: arrivals.collect(),
            replaces,
            key,
            joined,
        };
        let joined = &request.joined;
        self.open_batch()?.tally.count(joined.status, joined.rows(), &joined.findings);
        self.progress.requests += 1;
        self.write(request)
    }
}

/// The earlier request that has the rows that this one leaves out.
fn parent_key(key: &RequestKey, parent: &Arc<str>) -> RequestKey {
    RequestKey { request_id: Arc::clone(parent), choice: 0, run: Arc::clone(&key.run) }
}
