//! What was told, ready for the join: the same for an agent's events and for a recorded answer.

use std::sync::Arc;

use bytes::Bytes;
use gatescope_routing::{
    check::inspect,
    join::Part,
    record::PayloadProblem,
    rows::Rows,
    span::{KvLink, RequestKey, Span},
};
use gatescope_wire::{self as wire, Event, ModelSeen};

use crate::import::{Answer, AnsweredChoice};

/// One thing told.
#[derive(Debug)]
pub(crate) enum Told {
    /// Of a request.
    Request(RequestTold),
    /// Of the model that an instance serves.
    Model(ModelSeen),
}

/// Something told of a request.
#[derive(Debug)]
pub(crate) struct RequestTold {
    pub(crate) key: RequestKey,
    pub(crate) parts: Vec<Part>,
    pub(crate) model: Option<Arc<str>>,
    /// When an instance began it, in UTC microseconds.
    pub(crate) began_at: Option<i64>,
    /// When an instance finished it.
    pub(crate) finished_at: Option<i64>,
    /// What a prefill calls the request inside.
    pub(crate) name: Option<KvLink>,
    /// The prefill whose KV a decode took.
    pub(crate) prefill: Option<KvLink>,
}

impl RequestTold {
    fn of(key: RequestKey) -> Self {
        Self { key, parts: Vec::new(), model: None, began_at: None, finished_at: None, name: None, prefill: None }
    }

    /// Bytes of rows in it.
    pub(crate) fn row_bytes(&self) -> usize {
        let bytes = |part: &Part| match part {
            Part::Inspected(span, _) | Part::Span(span) => span.rows.bytes().len(),
            _ => 0,
        };
        self.parts.iter().map(bytes).sum()
    }
}

impl From<Event> for Told {
    /// Looks at every id and copies the rows, so that a request that stays open does not hold the whole message in which
    /// a few of its rows came.
    fn from(event: Event) -> Self {
        let event = match event {
            Event::Model(model) => return Self::Model(model),
            Event::Request(event) => event,
        };
        let wire::Request { key, at, told } = event;
        let mut request = RequestTold::of(key);
        match &told {
            wire::Told::Start(started) => {
                request.began_at = Some(at);
                request.name.clone_from(&started.name);
                request.model.clone_from(&started.model);
            }
            wire::Told::Finish(_) => request.finished_at = Some(at),
            wire::Told::Link(link) => request.prefill = Some(link.prefill.clone()),
            _ => {}
        }
        request.parts = told.into_part().into_iter().map(inspected).collect();
        Self::Request(request)
    }
}

fn inspected(part: Part) -> Part {
    match part {
        Part::Span(span) => {
            let span = Span { rows: own(&span.rows), ..span };
            let inspection = inspect(&span.rows);
            Part::Inspected(span, inspection)
        }
        other => other,
    }
}

fn own(rows: &Rows) -> Rows {
    // The same number of bytes: they are whole rows as they were.
    Rows::new(Bytes::copy_from_slice(rows.bytes()), rows.shape(), rows.width()).unwrap_or_else(|_| rows.clone())
}

/// What an answer tells, and which of its choices' rows cannot be used.
pub(crate) fn told_by_answer(answer: Answer, run: &Arc<str>) -> (Vec<Told>, Vec<(u32, PayloadProblem)>) {
    let Answer { run: own_run, request_id, model, created_at, identity, link, choices, refusal: _ } = answer;
    let run = own_run.unwrap_or_else(|| Arc::clone(run));
    let (mut told, mut problems) = (Vec::new(), Vec::new());
    let (mut identity, mut link) = (identity, link);
    for AnsweredChoice { choice, parts, problem } in choices {
        problems.extend(problem.map(|problem| (choice, problem)));
        let key = RequestKey { run: Arc::clone(&run), request_id: Arc::clone(&request_id), choice };
        told.push(Told::Request(RequestTold {
            parts,
            model: model.clone(),
            began_at: created_at,
            name: identity.take(),
            prefill: link.take(),
            ..RequestTold::of(key)
        }));
    }
    (told, problems)
}
