//! What a line says around the answer.

use super::{
    PayloadProblem, RecordError,
    answer::stated_id,
    field::{Field, Place, bounded, fields},
    json::{Json, JsonError, Kind},
};
use crate::span::{KvLink, Role};

fields! {
    /// The fields of a line.
    Line {
        role: "role",
        instance: "instance",
        request_id: "request_id",
        run: "run",
        attempt: "attempt",
        parent: "parent",
        prompt_tokens: "prompt_tokens",
        completion_tokens: "completion_tokens",
        prompt_start: "routed_experts_prompt_start" | "routed_experts_start_len",
        kv_transfer_params: "kv_transfer_params",
        response: "response",
    }
}

fields! {
    /// The part of `kv_transfer_params` that names the prefill's request.
    KvTransferParams {
        engine_id: "remote_engine_id",
        request_id: "remote_request_id",
    }
}

impl<'a> Line<'a> {
    /// The fields of the line.
    ///
    /// # Errors
    /// Where the line is not a JSON object.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, RecordError> {
        let text = std::str::from_utf8(line).map_err(|error| {
            let (valid, _) = line.split_at(error.valid_up_to());
            let problem = format!("invalid UTF-8 at byte {}", error.valid_up_to());
            broken(std::str::from_utf8(valid).unwrap_or_default(), &problem)
        })?;
        if text.trim_ascii().is_empty() {
            return Err(RecordError("an empty line: expected a JSON object".to_owned()));
        }
        let json = Json::parse(text).map_err(|error| match error {
            JsonError::End(_) if text.len() == line.len() => broken(text, &format!("{error}, but the line ends")),
            error => broken(text, &error.to_string()),
        })?;
        match json.kind() {
            Kind::Object => Ok(Self::of(json, Place::LINE)),
            kind => Err(RecordError(format!("the line is {}: expected an object", kind.name()))),
        }
    }

    /// The role.
    pub(super) fn role(&self) -> Result<Role, PayloadProblem> {
        let expected = "expected prefill, decode, colocated or trainer";
        let missing = PayloadProblem { field: "role".to_owned(), problem: format!("missing: {expected}") };
        let role = self.role.ok_or(missing)?;
        let name = role.json.characters().ok_or_else(|| role.problem(expected))?;
        name.parse().map_err(|_| role.problem(format!("{:?}: {expected}", bounded(&name))))
    }
}

/// What `kv_transfer_params` call the prefill's request; `None` where they name none.
pub(super) fn kv_link(params: Option<Field<'_>>) -> Result<Option<KvLink>, PayloadProblem> {
    let Some(params) = params else { return Ok(None) };
    let (object, place) = params.object()?;
    let KvTransferParams { engine_id: Some(engine_id), request_id: Some(request_id) } =
        KvTransferParams::of(object, place)
    else {
        return Ok(None);
    };
    Ok(Some(KvLink { engine_id: engine_id.name()?, request_id: request_id.name()? }))
}

/// The error of a line that cannot be read; names the request where its id stands before the break.
fn broken(text: &str, problem: &str) -> RecordError {
    let line = Line::of(Json::broken(text), Place::LINE);
    let stated = line.request_id.and_then(|field| field.name().ok());
    let id = stated.or_else(|| line.response.and_then(stated_id));
    RecordError::of(id.as_deref(), problem)
}
