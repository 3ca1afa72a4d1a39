//! The answer of an engine: which engine's it is, its sequences, or the error that it is.

use std::sync::Arc;

use super::{
    PayloadProblem,
    field::{Field, Place, fields, quoted},
    json::{Json, Kind},
};

/// Most sequences of one answer.
const MAX_CHOICES: usize = 1024;
/// What vLLM puts before the outer request id in its answers.
const ID_PREFIXES: [&str; 3] = ["chatcmpl-", "cmpl-", "generate-tokens-"];
/// What an answer must have to be one.
const EXPECTED: &str = "expected an answer with choices (vLLM, OpenAI API) or meta_info (SGLang)";

fields! {
    /// The fields of an answer.
    Answer {
        id: "id",
        request_id: "request_id",
        object: "object",
        error: "error",
        message: "message",
        detail: "detail",
        model: "model",
        created: "created",
        usage: "usage",
        choices: "choices",
        prompt_token_ids: "prompt_token_ids",
        prompt_routed_experts: "prompt_routed_experts",
        kv_transfer_params: "kv_transfer_params",
        extension: "sglext" | "sgl_ext",
        meta_info: "meta_info",
    }
}

fields! {
    /// The fields of a sequence: of a choice, or of a whole answer of SGLang's `/generate`.
    Sequence {
        index: "index",
        token_ids: "token_ids",
        output_ids: "output_ids",
        prompt_token_ids: "prompt_token_ids",
        logprobs: "logprobs",
        routed_experts: "routed_experts",
        extension: "sglext" | "sgl_ext",
        meta_info: "meta_info",
    }
}

fields! {
    /// The fields of `meta_info`, in SGLang's answers.
    MetaInfo {
        id: "id",
        finish_reason: "finish_reason",
        prompt_tokens: "prompt_tokens",
        completion_tokens: "completion_tokens",
        routed_experts: "routed_experts",
        dtype: "routed_experts_dtype",
    }
}

fields! {
    /// The fields of `error` and of `finish_reason`.
    Failure {
        kind: "type",
        message: "message",
    }
}

/// The outer request id that a response states, if it can be read, for the message of what cannot.
pub(super) fn stated_id(response: Field<'_>) -> Option<Arc<str>> {
    let answer = Answer::of(response.json, Place::RESPONSE);
    answer.request_id.or(answer.id)?.name().ok().map(without_prefix)
}

/// The outer id in what an engine calls a request in its answer.
fn without_prefix(id: Arc<str>) -> Arc<str> {
    let bare = ID_PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).filter(|bare| !bare.is_empty());
    bare.map_or_else(|| id.clone(), Arc::from)
}

/// An answer and its sequences.
pub(super) struct Answers<'a> {
    /// The fields that all sequences share; of the first answer where there are several.
    pub(super) shared: Answer<'a>,
    /// The sequences, with the index of each.
    pub(super) sequences: Vec<(u32, Found<'a>)>,
}

/// A sequence of an answer.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// Where it stands.
    pub(super) place: Place,
    /// Its fields.
    pub(super) fields: Sequence<'a>,
    /// Its `meta_info`, where it has one.
    pub(super) meta_info: Option<MetaInfo<'a>>,
    /// What the engine says went wrong with this one sequence of several.
    pub(super) failure: Option<PayloadProblem>,
}

impl<'a> Answers<'a> {
    /// The sequences of a `response`.
    ///
    /// # Errors
    /// Where the engine answered with an error, or the response is no engine's answer.
    pub(super) fn of(response: Field<'a>) -> Result<Self, PayloadProblem> {
        match response.json.kind() {
            Kind::Object => Self::of_object(response),
            Kind::List => Self::of_list(response),
            kind => Err(response.problem(format!("{}: {EXPECTED}", kind.name()))),
        }
    }

    fn of_object(response: Field<'a>) -> Result<Self, PayloadProblem> {
        let place = Place::RESPONSE;
        let shared = Answer::of(response.json, place);
        if let Some(error) = shared.error_message() {
            return Err(response.problem(format!("the engine answered with an error: {error}")));
        }
        let Some(choices) = shared.choices else {
            if shared.meta_info.is_none() {
                return Err(response.problem(EXPECTED));
            }
            let found = Found::of(response.json, place)?;
            return match found.failure {
                Some(failure) => Err(failure),
                None => Ok(Self { shared, sequences: vec![(0, found)] }),
            };
        };
        let mut sequences: Vec<(u32, Found<'a>)> = Vec::new();
        for (position, json) in items(choices)?.enumerate() {
            let found = Found::of_item(json, Place::choice(position), position)?;
            let index = found.fields.index.map_or(Ok(position as u32), |index| index.count())?;
            if let Some((_, first)) = sequences.iter().find(|(other, _)| *other == index) {
                return Err(found.place.problem(format!("index {index}, as {} has: expected another", first.place)));
            }
            sequences.push((index, found));
        }
        if sequences.is_empty() {
            return Err(choices.problem("empty: expected at least one choice"));
        }
        Ok(Self { shared, sequences })
    }

    /// SGLang answers with a list where several sequences were sampled.
    fn of_list(response: Field<'a>) -> Result<Self, PayloadProblem> {
        let mut shared = None;
        let mut sequences = Vec::new();
        for (position, json) in items(response)?.enumerate() {
            let place = Place::item(position);
            let mut found = Found::of_item(json, place, position)?;
            let answer = Answer::of(json, place);
            if let Some(error) = answer.error_message() {
                found.failure = Some(place.problem(format!("the engine answered with an error: {error}")));
            } else if found.meta_info.is_none() {
                return Err(place.problem("no meta_info: expected answers of SGLang's /generate"));
            }
            shared.get_or_insert(answer);
            sequences.push((position as u32, found));
        }
        match (shared, &mut sequences[..]) {
            (None, _) | (_, []) => Err(response.problem("empty: expected at least one answer")),
            (_, [(_, Found { failure: failure @ Some(_), .. })]) => {
                Err(failure.take().unwrap_or_else(|| response.problem(EXPECTED)))
            }
            (Some(shared), _) => Ok(Self { shared, sequences }),
        }
    }

    /// The outer request id, as the answer says it.
    pub(super) fn request_id(&self) -> Result<Option<Arc<str>>, PayloadProblem> {
        if let Some(field) = self.shared.request_id.or(self.shared.id) {
            return field.name().map(without_prefix).map(Some);
        }
        let mut agreed: Option<(Field<'_>, Arc<str>)> = None;
        for field in self.sequences.iter().filter_map(|(_, found)| found.meta_info?.id) {
            let id = field.name()?;
            match &agreed {
                Some((first, other)) if *other != id => {
                    return Err(field.problem(format!(
                        "{id:?}, but {first} is {other:?}: expected a request_id in the line, as the answers have their own"
                    )));
                }
                Some(_) => {}
                None => agreed = Some((field, id)),
            }
        }
        Ok(agreed.map(|(_, id)| id))
    }
}

impl<'a> Found<'a> {
    fn of_item(json: Json<'a>, place: Place, position: usize) -> Result<Self, PayloadProblem> {
        if position == MAX_CHOICES {
            return Err(place.problem(format!("expected at most {MAX_CHOICES} sequences in an answer")));
        }
        match json.kind() {
            Kind::Object => Self::of(json, place),
            kind => Err(place.problem(format!("{}: expected an object", kind.name()))),
        }
    }

    fn of(json: Json<'a>, place: Place) -> Result<Self, PayloadProblem> {
        let fields = Sequence::of(json, place);
        let meta_info = match fields.meta_info {
            Some(field) => {
                let (object, place) = field.object()?;
                Some(MetaInfo::of(object, place))
            }
            None => None,
        };
        let failure = meta_info.and_then(|meta_info| meta_info.finish_reason).and_then(aborted);
        Ok(Self { place, fields, meta_info, failure })
    }
}

impl Answer<'_> {
    /// What the engine says went wrong, if the answer is an error.
    fn error_message(&self) -> Option<String> {
        if let Some(error) = self.error {
            return Some(match Failure::of(error.json, error.place).message {
                Some(message) => quoted(message.json),
                None => quoted(error.json),
            });
        }
        let is_error = self.object.is_some_and(|object| object.json.text() == "\"error\"");
        let is_answer = self.choices.is_some() || self.meta_info.is_some();
        match (self.message, self.detail) {
            (message, _) if is_error => Some(message.map_or_else(String::new, |message| quoted(message.json))),
            (_, Some(detail)) if !is_answer => Some(quoted(detail.json)),
            _ => None,
        }
    }
}

/// The problem of a sequence that SGLang gave up.
fn aborted(finish_reason: Field<'_>) -> Option<PayloadProblem> {
    let reason = Failure::of(finish_reason.json, finish_reason.place);
    reason.kind.filter(|kind| kind.json.text() == "\"abort\"")?;
    let message = reason.message.map_or_else(|| "no reason given".to_owned(), |message| quoted(message.json));
    Some(finish_reason.problem(format!("the engine answered with an error (abort): {message}")))
}

/// The items of a field that is a list.
fn items<'a>(field: Field<'a>) -> Result<impl Iterator<Item = Json<'a>>, PayloadProblem> {
    match field.json.kind() {
        Kind::List => Ok(field.json.items()),
        kind => Err(field.problem(format!("{}: expected a list", kind.name()))),
    }
}
