//! Closing requests: joined, judged, handed to the tables.

use gatescope_routing::{
    join::{Context, Joined, Segment},
    shape::LayerSet,
    span::RequestKey,
};

use super::{
    aside::CurrentLine,
    closed::{Known, digest},
    components::Component,
    encode::Encoders,
    error::ImportError,
    models::ModelKey,
    session::Session,
    summary::Summary,
};
use crate::tables::{Arrival, Batch, ClosedRequest};

/// Bytes of rows in one commit: what an interruption can cost.
const COMMIT_BYTES: u64 = 8 << 30;

/// What closing a component came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// Its requests are closed.
    Done,
    /// It needs what is stored only with the next commit.
    Waits,
}

/// What is on its way to the next commit.
pub(super) struct OpenBatch {
    batch: Batch,
    encoders: Encoders,
    bytes: u64,
    tally: Summary,
}

impl Session<'_> {
    /// Closes a component's requests: joins, judges and stores them. `current` is the line that is not among the
    /// component's yet; `alone` closes it without waiting for anything.
    pub(super) fn close(
        &mut self,
        age: u64,
        current: Option<&CurrentLine>,
        alone: bool,
    ) -> Result<Closing, ImportError> {
        let Some(component) = self.components.remove(age) else { return Ok(Closing::Done) };
        let keys = self.keys_of(&component);
        if !alone && keys.iter().any(|key| self.must_wait(key)) {
            self.components.keep_waiting(age, component);
            return Ok(Closing::Waits);
        }
        let mut doubtful = LayerSet::empty();
        let mut model = None;
        for key in keys {
            let parent = self.parent_rows(&key)?;
            let about = ModelKey { run: key.run.clone(), model: component.model.clone() };
            let context = Context { live_layers: self.models.live(&about), parent: parent.as_deref() };
            let Some(joined) = self.join.close(&key, &context) else { continue };
            if let Some(zero) = self.store(&key, &about, &component, joined)? {
                doubtful.union_with(&zero);
                model = Some(about);
            }
        }
        if let Some(about) = model.filter(|about| !component.again && self.models.keeps_doubts(about)) {
            let mut lines = component.lines.clone();
            if let Some(line) = current {
                lines.push(self.aside.place(line)?);
            }
            self.models.doubt(&about, doubtful, lines);
        }
        if self.batch.as_ref().is_some_and(|open| open.bytes > COMMIT_BYTES) {
            self.commit()?;
        }
        Ok(Closing::Done)
    }

    /// Whether the request can be closed only when what was closed before is stored.
    fn must_wait(&self, key: &RequestKey) -> bool {
        let Some(request) = self.join.get(key) else { return false };
        if let Some(parent) = request.parent() {
            let parent = RequestKey { request_id: parent.clone(), choice: 0, ..key.clone() };
            if self.closed.is_uncommitted(&parent) || self.join.get(&parent).is_some() {
                return true;
            }
        }
        self.closed.is_uncommitted(key) && {
            let joined = request.close(self.join.rules(), &Context::default());
            self.closed.known(key, digest(&joined)) == Known::Uncommitted
        }
    }

    /// Stores a request, unless it is stored already. Says which of its layers may have been misjudged.
    fn store(
        &mut self,
        key: &RequestKey,
        about: &ModelKey,
        component: &Component,
        joined: Joined,
    ) -> Result<Option<LayerSet>, ImportError> {
        let digest = digest(&joined);
        if self.closed.known(key, digest) == Known::Same && !component.again {
            self.open_batch()?.tally.duplicates += 1;
            return Ok(None);
        }
        self.closed.insert(key, digest);
        let (layers, width) = self.models.learn(about, &joined);
        let doubtful = self.models.doubtful(about, &joined);
        let closed_at = chrono::Utc::now().timestamp_micros();
        let arrivals = joined.captures.iter().map(|capture| {
            let arrival = component.arrivals.iter().find(|(hash, _)| *hash == capture.payload_hash);
            Arrival { at: closed_at, seq: arrival.map_or(0, |(_, line)| *line as i64) }
        });
        let request = ClosedRequest {
            key: key.clone(),
            model: component.model.clone(),
            started_at: component.started_at,
            finished_at: None,
            closed_at,
            layers,
            width,
            arrivals: arrivals.collect(),
            replaces: false,
            joined,
        };
        self.progress.requests += 1;
        let open = self.open_batch()?;
        let joined = &request.joined;
        open.tally.count(joined.status, joined.rows(), joined.findings.iter().map(|finding| finding.check));
        open.bytes += joined.segments.iter().map(|segment| segment.rows.bytes().len() as u64).sum::<u64>();
        if !open.encoders.send(request) {
            // Why the writers are not at work any more is what they end with.
            self.commit()?;
        }
        Ok(doubtful)
    }

    fn parent_rows(&self, key: &RequestKey) -> Result<Option<Vec<Segment>>, ImportError> {
        let _ = key;
        Ok(None)
    }

    fn open_batch(&mut self) -> Result<&mut OpenBatch, ImportError> {
        let open = match self.batch.take() {
            Some(open) => open,
            None => {
                let batch = self.tables.begin();
                let encoders = Encoders::start(&batch)?;
                OpenBatch { batch, encoders, bytes: 0, tally: Summary::default() }
            }
        };
        Ok(self.batch.insert(open))
    }

    /// Stores what was closed since the last commit.
    pub(super) fn commit(&mut self) -> Result<(), ImportError> {
        let Some(OpenBatch { batch, encoders, tally, .. }) = self.batch.take() else { return Ok(()) };
        encoders.finish()?;
        if tally.requests > 0 {
            self.tables.commit(batch)?;
        }
        self.closed.committed();
        self.summary.add(&tally);
        Ok(())
    }
}
