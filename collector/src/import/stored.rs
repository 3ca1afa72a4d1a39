//! Requests that an earlier commit has stored: told apart from new ones, and completed by what is new.
//!
//! Only accepted rows are stored. What comes later is joined with these, as if the instances that they came from had
//! sent them and nothing else.

use std::{collections::BTreeSet, sync::Arc};

use gatescope_routing::{
    join::{Capture, Context, Finish, Joined, Part, RequestJoin, Rules, Segment, Start, Status},
    rows::Rows,
    span::{Anchor, RequestKey, Role, Source, Span, WireType},
};

use super::{
    close::{About, Shut},
    error::ImportError,
    session::Session,
};
use crate::tables::{CaptureRow, RequestRow, Stored};

/// Closed requests are looked up together once they hold so many bytes.
const TOGETHER: usize = 64 << 20;
/// What a closed request weighs besides its rows.
const REQUEST_BYTES: usize = 2 << 10;

/// Closed requests that may be stored already.
#[derive(Default)]
pub(super) struct Unsure {
    requests: Vec<Shut>,
    bytes: usize,
}

impl Session<'_> {
    /// Whether anything is stored.
    pub(super) fn may_be_stored(&self) -> bool {
        self.tables.position() > 0
    }

    /// Stores a closed request, at once or when it is known whether it is stored already.
    pub(super) fn store_or_look_up(&mut self, shut: Shut) -> Result<(), ImportError> {
        if !self.may_be_stored() {
            return self.store(shut, false);
        }
        let rows = shut.joined.segments.iter().map(|segment| segment.rows.bytes().len()).sum::<usize>();
        self.unsure.bytes += rows + REQUEST_BYTES;
        self.unsure.requests.push(shut);
        if self.unsure.bytes > TOGETHER { self.look_up() } else { Ok(()) }
    }

    /// Stores the closed requests that are not stored as they are.
    pub(super) fn look_up(&mut self) -> Result<(), ImportError> {
        let Unsure { requests, .. } = std::mem::take(&mut self.unsure);
        if requests.is_empty() {
            return Ok(());
        }
        let keys: Vec<RequestKey> = requests.iter().map(|shut| shut.key.clone()).collect();
        let mut stored = self.tables.stored(&keys)?;
        for shut in requests {
            match stored.remove(&shut.key) {
                None => self.store(shut, false)?,
                Some(stored) if shut.about.again || adds(&shut.joined, &stored) => {
                    let tally = &mut self.open_batch()?.tally;
                    if shut.earlier {
                        tally.take_back(stored.request.status, stored.request.rows, &stored.findings);
                    } else {
                        tally.completed += 1;
                    }
                    let merged = self.merge(shut, &stored)?;
                    self.store(merged, true)?;
                }
                Some(_) => self.open_batch()?.tally.duplicates += 1,
            }
        }
        Ok(())
    }

    /// The accepted rows of a stored request; none where it is not stored.
    pub(super) fn rows_of(&self, key: &RequestKey) -> Result<Vec<Segment>, ImportError> {
        let stored = self.tables.stored(std::slice::from_ref(key))?;
        match stored.get(key) {
            Some(stored) => Ok(self.tables.stored_rows(&stored.request)?),
            None => Ok(Vec::new()),
        }
    }

    /// Joins what is new with what is stored.
    fn merge(&self, shut: Shut, stored: &Stored) -> Result<Shut, ImportError> {
        let segments = self.tables.stored_rows(&stored.request)?;
        let request = shut.request.unwrap_or_default();
        let live = self.models.live(&shut.answerers);
        let context = Context { live_layers: Some(&live), parent: None };
        let told = Completion { stored, segments, joined: &shut.joined, wire_type: shut.about.wire_type };
        let joined = told.complete(request, self.join.rules(), &context);
        let about = About {
            model: stored.request.model.clone().or_else(|| shut.about.model.clone()),
            started_at: stored.request.started_at.into_iter().chain(shut.about.started_at).min(),
            ..About::clone(&shut.about)
        };
        Ok(Shut { about: Arc::new(about), request: None, joined, ..shut })
    }
}

/// What is stored of a request, and what is new of it.
pub(crate) struct Completion<'a> {
    pub(crate) stored: &'a Stored,
    /// The stored rows.
    pub(crate) segments: Vec<Segment>,
    /// The new parts, joined by themselves.
    pub(crate) joined: &'a Joined,
    /// The numeric type in which new rows came.
    pub(crate) wire_type: Option<WireType>,
}

impl Completion<'_> {
    /// Joins what is new with what is stored. Of its captures those remain that are not stored.
    pub(crate) fn complete(self, new: RequestJoin, rules: &Rules, context: &Context<'_>) -> Joined {
        let mut request = RequestJoin::default();
        // What is stored came first: of one instance the first rows stay.
        let stored = parts(self.stored, self.segments, self.joined, self.wire_type);
        for part in stored.into_iter().chain(new.into_parts()) {
            request.apply(part);
        }
        let mut joined = request.close(rules, context);
        let fresh: BTreeSet<_> = fresh(self.joined, self.stored).map(identity).collect();
        joined.captures.retain(|capture| fresh.contains(&identity(capture)));
        keep_comparisons(&mut joined, self.stored);
        joined
    }
}

/// Keeps what was found by comparing rows that were not accepted, which are not there to be compared again.
fn keep_comparisons(joined: &mut Joined, stored: &Stored) {
    joined.overlap_rows = joined.overlap_rows.max(stored.request.overlap_rows);
    joined.mismatched_rows = joined.mismatched_rows.max(stored.request.mismatched_rows);
    if stored.request.status == Status::Conflict {
        joined.status = Status::Conflict;
    }
    for finding in &stored.findings {
        let compared = finding.a.is_some() && finding.b.is_some();
        if compared && !joined.findings.contains(finding) {
            joined.findings.push(finding.clone());
        }
    }
    joined.findings.sort_by_key(|finding| (finding.check, finding.position, finding.layer));
}

/// Whether the input says anything that is not stored.
pub(crate) fn adds(joined: &Joined, stored: &Stored) -> bool {
    let known = &stored.request;
    fresh(joined, stored).next().is_some()
        || joined.prompt_tokens > known.prompt_tokens
        || joined.completion_tokens > known.completion_tokens
        || (joined.decode_instance.is_some() && known.decode_instance.is_none())
        || (joined.prefill_instance.is_some() && known.prefill_instance.is_none())
}

/// Spans that are not stored.
fn fresh<'a>(joined: &'a Joined, stored: &'a Stored) -> impl Iterator<Item = &'a Capture> {
    let is_stored = |capture: &Capture, row: &CaptureRow| {
        capture.payload_hash == row.payload_hash
            && capture.source == row.source
            && capture.generation == row.generation
            && capture.block == row.block
    };
    joined.captures.iter().filter(move |capture| !stored.captures.iter().any(|row| is_stored(capture, row)))
}

fn identity(capture: &Capture) -> (&Source, u64, u32) {
    (&capture.source, capture.payload_hash, capture.generation)
}

/// A stored request, told again by the instances that it came from.
fn parts(stored: &Stored, segments: Vec<Segment>, new: &Joined, wire_type: Option<WireType>) -> Vec<Part> {
    let row = &stored.request;
    let mut sources: BTreeSet<Source> = segments.iter().map(|segment| segment.source.clone()).collect();
    sources.extend(stored.captures.iter().map(|capture| capture.source.clone()));
    for (role, instance) in [(Role::Prefill, &row.prefill_instance), (Role::Decode, &row.decode_instance)] {
        let told = sources.iter().any(|source| source.role == role || source.role == Role::Colocated);
        if let Some(instance) = instance.as_ref().filter(|_| !told) {
            sources.insert(Source { role, instance: instance.clone(), attempt: 0 });
        }
    }
    let goes_on = |role| matches!(role, Role::Decode | Role::Colocated);
    let ended = sources.iter().any(|source| goes_on(source.role));
    let mut parts = Vec::new();
    for source in sources {
        parts.push(Part::Start(start(source.clone(), row)));
        // Only who sampled the completion can say how long it is; a prefill has sampled one token.
        if goes_on(source.role) || !ended {
            parts.push(Part::Finish(Finish {
                source,
                prompt_tokens: row.prompt_tokens,
                completion_tokens: row.completion_tokens,
                uniform_prompt: None,
            }));
        }
    }
    parts.extend(segments.into_iter().map(|segment| {
        // The width is the table's; an engine's own type is not stored, and a later answer of it tells.
        let narrow = new.shape.and_then(|(_, width)| segment.rows.with_width(width));
        let rows: Rows = narrow.unwrap_or(segment.rows);
        Part::Span(Span {
            source: segment.source,
            anchor: Anchor::Start(segment.start),
            wire_type: wire_type.unwrap_or(WireType::of(rows.width())),
            rows,
            unknown: Vec::new(),
            generation: row.generation,
            block: None,
        })
    }));
    parts
}

fn start(source: Source, row: &RequestRow) -> Start {
    Start {
        first_forward: row.first_forward.filter(|_| source.role == Role::Decode),
        prompt_start: (row.prefix_omitted > 0).then_some(row.prefix_omitted),
        prompt_tokens: row.prompt_tokens,
        parent: None,
        source,
    }
}
