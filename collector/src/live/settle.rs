//! What becomes of closed requests whose new self depends on what is stored: those that are stored already, those that
//! leave out a prefix which an earlier request has, and those that name blocks by hash which came before the collector's
//! memory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use gatescope_routing::{
    Check, Finding, Role,
    finding::Side,
    join::{BlockReference, Capture, Context, RequestJoin, Segment},
    rows::Rows,
    span::RequestKey,
};

use super::{about::About, error::LiveError};
use crate::{
    import::stored::{Completion, adds},
    metrics::Metrics,
    tables::{BlockName, ClosedRequest, Tables, rows_between},
};

/// A closed request whose new self depends on what is stored.
#[derive(Debug)]
pub(super) struct Unsure {
    pub(super) about: About,
    pub(super) request: Arc<RequestJoin>,
}

/// Settles them against the tables and what is about to be stored.
pub(super) struct Settler<'a> {
    pub(super) tables: &'a Tables,
    pub(super) metrics: &'a Metrics,
    /// Requests of the same commit.
    pub(super) closed: &'a [Arc<ClosedRequest>],
}

impl Settler<'_> {
    /// The requests to store; those that add nothing are not among them.
    pub(super) fn settle(&self, unsure: &[Unsure]) -> Result<Vec<ClosedRequest>, LiveError> {
        if unsure.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<RequestKey> = unsure.iter().map(|unsure| unsure.about.key.clone()).collect();
        let mut stored = self.tables.stored(&keys)?;
        let blocks = self.blocks(unsure)?;
        let resolved = resolved(unsure, &blocks);
        let mut settled = Vec::new();
        for (unsure, request) in unsure.iter().zip(&resolved) {
            let closed_at = chrono::Utc::now().timestamp_micros();
            let mut about = unsure.about.clone();
            let awaited: Vec<BlockReference> = unsure.request.awaited().cloned().collect();
            about.arrive_with(&awaited, &blocks);
            let request = RequestJoin::clone(request);
            let joined = request.close(&about.rules(), &about.context());
            match stored.remove(&about.key) {
                Some(stored) if adds(&joined, &stored) => {
                    let segments = self.tables.stored_rows(&stored.request)?;
                    let completion =
                        Completion { stored: &stored, segments, joined: &joined, wire_type: about.wire_type };
                    let mut joined = completion.complete(request, &about.rules(), &about.context());
                    joined.findings.extend(late(&joined.captures, closed_at - stored.request.closed_at));
                    about.model = stored.request.model.clone().or(about.model);
                    about.began_at = stored.request.started_at.into_iter().chain(about.began_at).min();
                    about.finished_at = about.finished_at.max(stored.request.finished_at);
                    settled.push(about.closed(joined, closed_at, true));
                }
                Some(_) => self.metrics.duplicate_requests(1),
                None => {
                    let parent = request.parent().map(|parent| self.parent_rows(&about, parent)).transpose()?;
                    let context = Context { live_layers: Some(&about.live), parent: parent.as_deref() };
                    let joined = request.close(&about.rules(), &context);
                    self.metrics.closed(&about.key, about.model.as_ref(), &joined);
                    settled.push(about.closed(joined, closed_at, false));
                }
            }
        }
        Ok(settled)
    }

    /// The rows of blocks that the requests wait for.
    fn blocks(&self, unsure: &[Unsure]) -> Result<HashMap<BlockName, Rows>, LiveError> {
        let mut wanted: HashSet<BlockName> =
            unsure.iter().flat_map(|unsure| unsure.request.awaited()).map(BlockName::from).collect();
        let mut found = HashMap::new();
        if wanted.is_empty() {
            return Ok(found);
        }
        for request in self.closed {
            for capture in &request.joined.captures {
                let (Some(hash), Some(start)) = (&capture.block, capture.start) else { continue };
                let (instance, generation) = (Arc::clone(&capture.source.instance), capture.generation);
                let name = BlockName { instance, generation, hash: hash.clone() };
                if wanted.contains(&name)
                    && let Some(rows) =
                        rows_between(&request.joined.segments, &name.instance, start, start + capture.rows)
                {
                    wanted.remove(&name);
                    found.insert(name, rows);
                }
            }
        }
        if !wanted.is_empty() {
            found.extend(self.tables.blocks(&wanted)?);
        }
        Ok(found)
    }

    /// The rows of the earlier request that has the prefix that this one leaves out.
    fn parent_rows(&self, about: &About, parent: &Arc<str>) -> Result<Vec<Segment>, LiveError> {
        let key = RequestKey { run: Arc::clone(&about.key.run), request_id: Arc::clone(parent), choice: 0 };
        if let Some(request) = self.closed.iter().find(|request| request.key == key) {
            return Ok(request.joined.segments.clone());
        }
        let stored = self.tables.stored(std::slice::from_ref(&key))?;
        stored.get(&key).map_or(Ok(Vec::new()), |stored| Ok(self.tables.stored_rows(&stored.request)?))
    }
}

/// Rows that come so long after their request was closed, in microseconds, are late: what two agents send at the same time may arrive
/// seconds apart.
const LATE_AFTER: i64 = 60_000_000;

/// GS020: rows that came long after their request was closed. A trainer recomputes when it likes.
fn late(fresh: &[Capture], after: i64) -> Option<Finding> {
    if after < LATE_AFTER {
        return None;
    }
    let rows = fresh.iter().filter(|capture| capture.source.role != Role::Trainer);
    let first = rows.clone().min_by_key(|capture| capture.start.unwrap_or(u32::MAX))?;
    let count = rows.map(|capture| capture.rows).sum();
    let detail = format!("{count} rows came {} s after the request was closed", after / 1_000_000);
    let finding = Finding::new(Check::LateRows, detail).by(Side::of(&first.source));
    Some(match first.start {
        Some(start) => finding.at(start, count),
        None => finding,
    })
}

/// The requests with the blocks that they named, and with the prompt that their first choice has.
fn resolved(unsure: &[Unsure], blocks: &HashMap<BlockName, Rows>) -> Vec<Arc<RequestJoin>> {
    let mut requests: Vec<Arc<RequestJoin>> = unsure.iter().map(|unsure| Arc::clone(&unsure.request)).collect();
    for request in &mut requests {
        if request.awaited().next().is_some() {
            Arc::make_mut(request).resolve(|reference| blocks.get(&BlockName::from(reference)).cloned());
        }
    }
    let firsts: HashMap<RequestKey, Arc<RequestJoin>> = unsure
        .iter()
        .zip(&requests)
        .filter(|(unsure, _)| unsure.about.key.choice == 0)
        .map(|(unsure, request)| (unsure.about.key.clone(), Arc::clone(request)))
        .collect();
    for (unsure, request) in unsure.iter().zip(&mut requests) {
        let first = RequestKey { choice: 0, ..unsure.about.key.clone() };
        if unsure.about.key.choice > 0
            && let Some(first) = firsts.get(&first)
        {
            Arc::make_mut(request).adopt(first);
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use gatescope_routing::Source;

    use super::*;

    #[test]
    fn rows_that_come_long_after_the_close_are_late_and_a_trainers_are_not() {
        let capture = |role| Capture {
            source: Source { role, instance: "d0".into(), attempt: 0 },
            start: Some(48),
            rows: 16,
            payload_hash: 0,
            generation: 0,
            block: None,
        };

        let found = late(&[capture(Role::Decode)], 61_000_000).unwrap();

        assert_eq!((found.check, found.position, found.positions), (Check::LateRows, Some(48), 16));
        assert_eq!(late(&[capture(Role::Decode)], 59_000_000), None);
        assert_eq!(late(&[capture(Role::Trainer)], 61_000_000), None);
        assert_eq!(late(&[], 61_000_000), None);
    }
}
