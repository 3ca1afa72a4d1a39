//! An answer, ready for the join: what a worker made of a line.

use std::sync::Arc;

use gatescope_routing::{
    check::inspect,
    join::{Finish, Part, Start},
    record::{PayloadProblem, Record, RecordError},
    span::KvLink,
};

/// An answer of an engine, ready for the join.
pub(crate) struct Answer {
    pub(crate) run: Option<Arc<str>>,
    pub(crate) request_id: Arc<str>,
    pub(crate) model: Option<Arc<str>>,
    /// When the engine began it, in UTC microseconds.
    pub(crate) created_at: Option<i64>,
    /// What a prefill calls the request inside.
    pub(crate) identity: Option<KvLink>,
    /// The prefill whose KV a decode took.
    pub(crate) link: Option<KvLink>,
    pub(crate) choices: Vec<AnsweredChoice>,
    /// Why nothing but whose answer it is could be used of the line.
    pub(crate) refusal: Option<RecordError>,
}

/// One sequence of an answer.
pub(crate) struct AnsweredChoice {
    pub(crate) choice: u32,
    pub(crate) parts: Vec<Part>,
    /// Why its rows are not among the parts.
    pub(crate) problem: Option<PayloadProblem>,
}

impl Answer {
    /// Looks at every id of the record's rows, which is work that need not wait for the join.
    pub(crate) fn of(record: Record) -> Self {
        let Record { run, request_id, source, model, created_at, identity, link, parent, choices } = record;
        let choices = choices.into_iter().map(|answered| {
            let mut parts = vec![Part::Start(Start {
                source: source.clone(),
                prompt_tokens: answered.prompt_tokens,
                first_forward: None,
                prompt_start: answered.prompt_start,
                parent: parent.clone(),
            })];
            let mut problem = None;
            match answered.spans {
                Ok(spans) => parts.extend(spans.into_iter().map(|span| {
                    let inspection = inspect(&span.rows);
                    Part::Inspected(span, inspection)
                })),
                Err(error) => problem = Some(error),
            }
            parts.push(Part::Finish(Finish {
                source: source.clone(),
                prompt_tokens: answered.prompt_tokens,
                completion_tokens: answered.completion_tokens,
                uniform_prompt: answered.uniform_prompt,
            }));
            AnsweredChoice { choice: answered.choice, parts, problem }
        });
        Self { choices: choices.collect(), refusal: None, run, request_id, model, created_at, identity, link }
    }
}
