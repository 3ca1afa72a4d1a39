//! Recorded engine responses: one JSON object a line.
//!
//! ```json
//! {"role": "prefill", "instance": "p0", "request_id": "...", "response": {...}}
//! ```
//!
//! `response` is what an engine's HTTP server answered, unchanged: vLLM's completions, chat completions and generate,
//! prime-rl's generate, SGLang's `/generate` (an object, or a list where several sequences were sampled) and its OpenAI
//! API. Everything but `role` and `response` is optional where the answer says it:
//!
//! | field | what |
//! |---|---|
//! | `role` | `prefill`, `decode`, `colocated` or `trainer` |
//! | `instance` | engine id and data-parallel rank; else a prefill's `remote_engine_id`, else the role's name |
//! | `request_id` | the outer id; else that of the answer, without the engine's prefix |
//! | `run` | label of the deployment or experiment |
//! | `attempt` | how often this instance has started the request again, from 0 |
//! | `prompt_tokens`, `completion_tokens` | lengths, where the answer does not say them |
//! | `routed_experts_prompt_start`, `routed_experts_start_len` | the first row that the caller asked for |
//! | `parent` | the earlier request that has the rows left out |
//! | `kv_transfer_params` | those of a decode's request: they name the prefill |
//!
//! The sequences of an answer may belong to several prompts (a completions call with a list of prompts); then each must list
//! its `prompt_token_ids`. Sequences that do not list their tokens are told apart by their rows, where these are as many
//! as `usage` counts.
//!
//! Fields that nobody reads are ignored, and `null` is as good as absent.

mod answer;
mod field;
mod json;
mod lengths;
mod line;
mod payload;
mod several;

use std::sync::Arc;

use self::{
    answer::Answers,
    field::Field,
    line::{Line, kv_link},
    payload::{Context, Lists, Routing, computes_prompt},
};
use crate::{
    shape::RowShape,
    span::{KvLink, Role, Source, Span},
};

/// What a recorded response may leave to its reader.
#[derive(Debug, Clone, Default)]
pub struct RecordOptions {
    /// Geometry of a row, for payloads that do not say it (SGLang).
    pub shape: Option<RowShape>,
}

/// One recorded response.
#[derive(Debug)]
pub struct Record {
    /// Label of the deployment, where the line says it.
    pub run: Option<Arc<str>>,
    /// Outer id, without the engine's prefix.
    pub request_id: Arc<str>,
    /// Who answered; attempt as the line says, else 0.
    pub source: Source,
    /// The model, as the engine names it.
    pub model: Option<Arc<str>>,
    /// When the engine began the answer, in UTC microseconds.
    pub created_at: Option<i64>,
    /// What a prefill calls the request inside.
    pub identity: Option<KvLink>,
    /// The prefill whose KV a decode took.
    pub link: Option<KvLink>,
    /// The earlier request that has the rows left out.
    pub parent: Option<Arc<str>>,
    /// The sequences answered.
    pub choices: Vec<RecordedChoice>,
}

/// One sequence of a recorded response.
#[derive(Debug)]
pub struct RecordedChoice {
    /// Index among the sequences sampled for the request.
    pub choice: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens that this answer sampled.
    pub completion_tokens: Option<u32>,
    /// Rows below this position were left out at the caller's wish.
    pub prompt_start: Option<u32>,
    /// Whether all tokens of the prompt are one and the same, where the answer lists them.
    pub uniform_prompt: Option<bool>,
    /// The rows; empty where the answer has none (`null`); an error where they cannot be read.
    pub spans: Result<Vec<Span>, PayloadProblem>,
}

/// Routing that cannot be read: names the field and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct PayloadProblem {
    /// Path of the field in the line, as `response.choices[0].routed_experts`.
    pub field: String,
    /// What is wrong and what was expected.
    pub problem: String,
}

/// A line that is not a recorded response; the text names request, field and what was expected, without file and line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

impl RecordError {
    /// An error of the request with this id, if it is known.
    fn of(request_id: Option<&str>, problem: &str) -> Self {
        match request_id {
            Some(id) => Self(format!("request {id}: {problem}")),
            None => Self(problem.to_owned()),
        }
    }
}

/// Reads one line.
///
/// # Errors
/// Where the line as a whole cannot be used. A choice whose rows cannot be read is not an error of the line: see
/// [`RecordedChoice::spans`].
pub fn read_record(line: &[u8], options: &RecordOptions) -> Result<Record, RecordError> {
    let line = Line::parse(line)?;
    let mut request_id = None;
    read(&line, options, &mut request_id)
        .map_err(|problem| RecordError::of(request_id.as_deref(), &problem.to_string()))
}

/// Whose answer a line is that [`read_record`] refuses, where the line says so: a record of one sequence without lengths
/// and rows. That an instance answered, if only with an error, is part of what is known of a request.
pub fn refused_record(line: &[u8]) -> Option<Record> {
    let line = Line::parse(line).ok()?;
    let role = line.role().ok()?;
    let request_id = line.request_id?.name().ok()?;
    let instance = match line.instance {
        Some(field) => field.name().ok()?,
        None => role.name().into(),
    };
    let attempt = line.attempt.map_or(Ok(0), |field| field.count()).ok()?;
    let choice = RecordedChoice {
        choice: 0,
        prompt_tokens: None,
        completion_tokens: None,
        prompt_start: None,
        uniform_prompt: None,
        spans: Ok(Vec::new()),
    };
    Some(Record {
        run: name(line.run).ok()?,
        request_id,
        source: Source { role, instance, attempt },
        model: None,
        created_at: None,
        identity: None,
        link: None,
        parent: None,
        choices: vec![choice],
    })
}

/// Reads a line; leaves the request's id for the message of an error that comes after it.
fn read(line: &Line<'_>, options: &RecordOptions, id: &mut Option<Arc<str>>) -> Result<Record, PayloadProblem> {
    *id = line.request_id.map(|field| field.name()).transpose()?;
    let role = line.role()?;
    let response = line.response.ok_or_else(|| PayloadProblem {
        field: "response".to_owned(),
        problem: "missing: expected the engine's answer".to_owned(),
    })?;
    if id.is_none() {
        *id = answer::stated_id(response);
    }
    let answers = Answers::of(response)?;
    let request_id = match line.request_id {
        Some(field) => field.name()?,
        None => answers.request_id()?.ok_or_else(|| PayloadProblem {
            field: "request_id".to_owned(),
            problem: "missing: expected it in the line, or an id in the answer".to_owned(),
        })?,
    };
    *id = Some(request_id.clone());

    let answered = kv_link(answers.shared.kv_transfer_params)?;
    let identity = answered.clone().filter(|_| role == Role::Prefill);
    let link = match role {
        Role::Decode => kv_link(line.kv_transfer_params)?.or(answered),
        _ => None,
    };
    let instance = match (line.instance, &identity) {
        (Some(field), _) => field.name()?,
        (None, Some(identity)) => identity.engine_id.clone(),
        (None, None) => role.name().into(),
    };
    let attempt = line.attempt.map_or(Ok(0), |field| field.count())?;
    let asked_start = line.prompt_start.map(|field| field.count()).transpose()?;
    let prompts = lengths::prompts(line, &answers)?;
    let source = Source { role, instance, attempt };
    let context = Context { source, asked_start, shared: answers.shared, lists: Lists::of(&answers) };

    let (mut sampled, mut sent) = (Vec::with_capacity(prompts.len()), Vec::with_capacity(prompts.len()));
    for ((_, found), &prompt) in answers.sequences.iter().zip(&prompts) {
        let completion_tokens = lengths::completion(line, &answers, found, prompt)?;
        sent.push(context.read(found, sent.is_empty(), prompt, completion_tokens, options));
        sampled.push(completion_tokens);
    }
    several::tell_apart(&answers, role, &prompts, &mut sampled, &mut sent)?;

    let mut choices = Vec::with_capacity(prompts.len());
    let known = prompts.into_iter().zip(sampled);
    for (((choice, _), (prompt, completion_tokens)), sent) in answers.sequences.iter().zip(known).zip(sent) {
        let routing = sent.and_then(|sent| context.place(sent, completion_tokens));
        let stated_start = routing.as_ref().ok().and_then(|routing| routing.stated_start);
        choices.push(RecordedChoice {
            choice: *choice,
            prompt_tokens: prompt.tokens,
            completion_tokens,
            prompt_start: asked_start.or(stated_start.filter(|_| computes_prompt(role))),
            uniform_prompt: prompt.uniform,
            spans: routing.map(|Routing { spans, .. }| spans),
        });
    }
    Ok(Record {
        run: name(line.run)?,
        request_id,
        source: context.source,
        model: name(answers.shared.model)?,
        created_at: answers.shared.created.map(created_at).transpose()?,
        identity,
        link,
        parent: name(line.parent)?,
        choices,
    })
}

fn name(field: Option<Field<'_>>) -> Result<Option<Arc<str>>, PayloadProblem> {
    field.map(|field| field.name()).transpose()
}

/// UTC microseconds of an answer's `created`, which is in seconds.
fn created_at(field: Field<'_>) -> Result<i64, PayloadProblem> {
    /// The end of the year 9999, in seconds.
    const LATEST: f64 = 253_402_300_799.0;
    let seconds = field.number()?;
    if (0.0..=LATEST).contains(&seconds) {
        Ok((seconds * 1e6) as i64)
    } else {
        Err(field.problem("out of range: expected seconds since 1970"))
    }
}

#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
