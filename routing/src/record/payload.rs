//! The routing of a sequence: which field has it, in which engine's form, and where its rows belong.

use std::borrow::Cow;

use super::{
    PayloadProblem, RecordOptions,
    answer::{Answer, Answers, Found},
    field::{Field, fields},
    json::Kind,
    lengths::Prompt,
    several::Sent,
};
use crate::{
    engine::{
        Payload, PayloadError,
        narrow::{IdError, MAX_UNKNOWN_RUNS},
        prime_rl::{self, Packed},
        sglang::RawIds,
        vllm, vllm_021,
    },
    finding::counted,
    shape::IdWidth,
    span::{Anchor, Role, Source, Span},
};

/// Highest position that the tables hold.
const MAX_POSITION: u64 = i32::MAX as u64;

fields! {
    /// The fields of prime-rl's packed object.
    PackedFields {
        data: "data",
        shape: "shape",
        start: "start",
        dtype: "dtype",
    }
}

fields! {
    /// The fields of SGLang's extension to OpenAI answers.
    Extension {
        routed_experts: "routed_experts",
        dtype: "routed_experts_dtype",
    }
}

/// What holds for every sequence of a record.
pub(super) struct Context<'a> {
    /// Who answered.
    pub(super) source: Source,
    /// First row that the caller asked for.
    pub(super) asked_start: Option<u32>,
    /// The answer that the sequences share.
    pub(super) shared: Answer<'a>,
    /// What nested lists of the answer have in common.
    pub(super) lists: Lists,
}

/// What the nested lists of an answer have in common (vLLM 0.21).
pub(super) struct Lists {
    /// The width that the ids of all of them fit.
    width: IdWidth,
    /// The prompt's rows, which stand apart from those of the sequences.
    prompt_part: Result<Option<Payload>, PayloadProblem>,
}

/// The routing of one sequence.
#[derive(Default)]
pub(super) struct Routing {
    /// Its rows.
    pub(super) spans: Vec<Span>,
    /// The position of the first row, where the engine states one above 0.
    pub(super) stated_start: Option<u32>,
}

impl Lists {
    /// Those of this answer.
    pub(super) fn of(answers: &Answers<'_>) -> Self {
        let prompt = answers.shared.prompt_routed_experts;
        let own = answers.sequences.iter().filter_map(|(_, found)| found.fields.routed_experts);
        let lists = prompt.into_iter().chain(own).filter(|field| field.json.kind() == Kind::List);
        // A list that cannot be read is an error where it is decoded.
        let width = lists.filter_map(|field| vllm_021::width(field.json.text()).ok()).max().unwrap_or(IdWidth::U8);
        let decoded = prompt.map_or(Ok(None), |field| nested_lists(field, width));
        let prompt_part = match (decoded, prompt) {
            // Every sequence gets the marks, so they count for each.
            (Ok(Some(part)), Some(field)) if part.unknown.len() * answers.sequences.len() > MAX_UNKNOWN_RUNS => {
                Err(because(field, IdError::ScatteredMarks.into()))
            }
            (decoded, _) => decoded,
        };
        Self { width, prompt_part }
    }
}

impl<'a> Context<'a> {
    /// The rows of a sequence, before they have a place; none where the engine sent none.
    pub(super) fn read(
        &self,
        found: &Found<'a>,
        is_first: bool,
        prompt: Prompt,
        completion_tokens: Option<u32>,
        options: &RecordOptions,
    ) -> Result<Sent<'a>, PayloadProblem> {
        if let Some(failure) = &found.failure {
            return Err(failure.clone());
        }
        let prompt_part = self.lists.prompt_part.clone()?;
        let own = found.fields.routed_experts;
        let (field, payload) = match own {
            Some(field) => match field.json.kind() {
                Kind::String => (field, Some(vllm::decode(characters(field)?).map_err(|error| because(field, error))?)),
                Kind::Object => (field, Some(packed(field)?)),
                Kind::List if prompt_part.is_some() => {
                    return Ok(in_two_parts(prompt_part, nested_lists(field, self.lists.width)?, prompt, field));
                }
                Kind::List => (field, nested_lists(field, self.lists.width)?),
                kind => {
                    let expected = "expected base64 (vLLM), an object (prime-rl) or nested lists (vLLM 0.21)";
                    return Err(field.problem(format!("{}: {expected}", kind.name())));
                }
            },
            None => match self.raw_ids(found, is_first)? {
                Some((field, ids)) => (field, Some(self.whole_rows(field, ids, prompt, completion_tokens, options)?)),
                None => match (prompt_part, self.shared.prompt_routed_experts) {
                    // A completion of one token has no row of its own.
                    (part @ Some(_), Some(field)) => return Ok(in_two_parts(part, None, prompt, field)),
                    _ => return Ok(Sent::default()),
                },
            },
        };
        let asked = self.asked_start.filter(|_| computes_prompt(self.source.role));
        let part = payload.filter(|payload| !payload.rows.is_empty()).map(|payload| {
            let start = payload.start.or(asked);
            (payload, start)
        });
        Ok(Sent { field: Some(field), parts: part.into_iter().collect() })
    }

    /// Gives rows their place.
    pub(super) fn place(&self, sent: Sent<'a>, completion_tokens: Option<u32>) -> Result<Routing, PayloadProblem> {
        let Sent { field: Some(field), parts } = sent else { return Ok(Routing::default()) };
        let stated_start = parts.first().and_then(|(payload, _)| payload.start).filter(|&start| start > 0);
        let spans: Result<_, _> = parts
            .into_iter()
            .map(|(payload, start)| {
                let anchor = anchor(&payload, start, completion_tokens, field)?;
                self.span(payload, anchor, field)
            })
            .collect();
        Ok(Routing { spans: spans?, stated_start })
    }

    /// SGLang's ids of a sequence. What stands in the answer's own extension is the first sequence's.
    fn raw_ids(&self, found: &Found<'a>, is_first: bool) -> Result<Option<(Field<'a>, RawIds)>, PayloadProblem> {
        let in_meta_info = found.meta_info.map(|meta_info| (meta_info.routed_experts, meta_info.dtype));
        let extension = found.fields.extension.or(self.shared.extension.filter(|_| is_first));
        let in_extension = match extension {
            Some(field) => {
                let (object, place) = field.object()?;
                let extension = Extension::of(object, place);
                Some((extension.routed_experts, extension.dtype))
            }
            None => None,
        };
        let both = in_meta_info.into_iter().chain(in_extension);
        let Some((field, dtype)) = both.filter_map(|(field, dtype)| Some((field?, dtype))).next() else {
            return Ok(None);
        };
        let dtype = dtype.map(|dtype| dtype.name()).transpose()?;
        let ids = RawIds::decode(characters(field)?, dtype.as_deref()).map_err(|error| because(field, error))?;
        Ok(Some((field, ids)))
    }

    fn whole_rows(
        &self,
        field: Field<'_>,
        ids: RawIds,
        prompt: Prompt,
        completion_tokens: Option<u32>,
        options: &RecordOptions,
    ) -> Result<Payload, PayloadProblem> {
        if let Some(shape) = options.shape {
            return ids.into_rows(shape).map_err(|error| because(field, error));
        }
        let rows = prompt.tokens.zip(completion_tokens).and_then(|(prompt, completion)| {
            let rows = (prompt + completion).checked_sub(1 + self.asked_start.unwrap_or(0))? as usize;
            (rows > 0 && ids.len().is_multiple_of(rows)).then(|| (rows, ids.len() / rows))
        });
        let hint = match rows {
            Some((rows, per_row)) => format!("{per_row} ids a row if there are {rows} rows"),
            None => "its rows are not known".to_owned(),
        };
        Err(field.problem(format!(
            "{} ids without a shape ({hint}): expected --shape LAYERSxTOP_K or --model-config",
            ids.len()
        )))
    }

    fn span(&self, payload: Payload, anchor: Anchor, field: Field<'_>) -> Result<Span, PayloadProblem> {
        let Payload { rows, wire_type, start: _, unknown } = payload;
        let start = match anchor {
            Anchor::Start(start) => u64::from(start),
            Anchor::End { .. } => 0,
        };
        if start + rows.len() as u64 > MAX_POSITION {
            let problem = format!("{} rows from position {start}: expected them to end by {MAX_POSITION}", rows.len());
            return Err(field.problem(problem));
        }
        Ok(Span { source: self.source.clone(), anchor, rows, wire_type, unknown, generation: 0, block: None })
    }
}

/// The prompt's and the completion's rows of vLLM 0.21, which follow each other at the prompt's length.
fn in_two_parts<'a>(
    prompt_part: Option<Payload>,
    completion_part: Option<Payload>,
    prompt: Prompt,
    field: Field<'a>,
) -> Sent<'a> {
    let prompt_rows = prompt_part.as_ref().map_or(0, |part| part.rows.len() as u32);
    let behind_prompt = prompt.tokens.unwrap_or(prompt_rows);
    let parts = [(prompt_part, 0), (completion_part, behind_prompt)];
    let parts = parts.into_iter().filter_map(|(part, start)| Some((part?, Some(start))));
    Sent { field: Some(field), parts: parts.filter(|(part, _)| !part.rows.is_empty()).collect() }
}

/// Where the rows belong: where the payload says, or the caller asked the engine that computes the prompt to begin; else
/// before the last sampled token, which is never fed.
fn anchor(
    payload: &Payload,
    start: Option<u32>,
    completion_tokens: Option<u32>,
    field: Field<'_>,
) -> Result<Anchor, PayloadProblem> {
    match (start, completion_tokens) {
        (Some(start), _) => Ok(Anchor::Start(start)),
        (None, Some(completion_tokens)) => Ok(Anchor::End { completion_tokens }),
        (None, None) => Err(field.problem(format!(
            "{} without a start, and no number of sampled tokens to place them by: expected token_ids, \
             usage.completion_tokens or meta_info.completion_tokens in the answer, or completion_tokens in the line",
            counted(payload.rows.len() as u64, "row")
        ))),
    }
}

/// Whether an engine in this role computes prompts from their beginning.
pub(super) const fn computes_prompt(role: Role) -> bool {
    matches!(role, Role::Prefill | Role::Colocated)
}

/// prime-rl's packed object.
fn packed(field: Field<'_>) -> Result<Payload, PayloadProblem> {
    let (object, place) = field.object()?;
    let PackedFields { data: Some(data), shape: Some(shape), start, dtype } = PackedFields::of(object, place) else {
        return Err(field.problem("an object without data or shape: expected prime-rl's {\"data\", \"shape\"}"));
    };
    let mut lengths = shape.json.items().map(|length| length.text().parse::<u64>().ok());
    let lengths = match (lengths.next(), lengths.next(), lengths.next(), lengths.next()) {
        (Some(Some(rows)), Some(Some(layers)), Some(Some(top_k)), None) => [rows, layers, top_k],
        _ => return Err(field.problem("shape: expected three whole numbers, [rows, layers, top_k]")),
    };
    let start = start.map(|start| start.count()).transpose()?;
    let dtype = dtype.map(|dtype| dtype.name()).transpose()?;
    let data = data.json.characters().ok_or_else(|| field.problem("data: expected a string"))?;
    prime_rl::decode(Packed { data, shape: lengths, start, dtype: dtype.as_deref().map(Cow::Borrowed) })
        .map_err(|error| because(field, error))
}

fn nested_lists(field: Field<'_>, width: IdWidth) -> Result<Option<Payload>, PayloadProblem> {
    vllm_021::decode(field.json.text(), width).map_err(|error| because(field, error))
}

fn characters(field: Field<'_>) -> Result<Cow<'_, str>, PayloadProblem> {
    field
        .json
        .characters()
        .ok_or_else(|| field.problem(format!("{}: expected base64 in a string", field.json.kind().name())))
}

fn because(field: Field<'_>, error: PayloadError) -> PayloadProblem {
    field.problem(error.to_string())
}
