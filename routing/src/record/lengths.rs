//! How long prompt and completion are, from whatever says it.

use super::{
    PayloadProblem,
    answer::{Answers, Found},
    field::{Field, fields},
    json::Kind,
    line::Line,
};

fields! {
    /// The fields of `usage`.
    Usage {
        prompt_tokens: "prompt_tokens",
        completion_tokens: "completion_tokens",
        total_tokens: "total_tokens",
    }
}

fields! {
    /// The part of `logprobs` that has an item per sampled token.
    Logprobs {
        content: "content",
    }
}

/// What is known of the prompt.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prompt {
    /// Its tokens.
    pub(super) tokens: Option<u32>,
    /// Whether they are all one and the same, where they are listed.
    pub(super) uniform: Option<bool>,
}

/// A number on which everyone who states it must agree.
#[derive(Default)]
struct Agreed<'a>(Option<(u32, Field<'a>)>);

impl<'a> Agreed<'a> {
    fn state(&mut self, tokens: u32, field: Field<'a>) -> Result<(), PayloadProblem> {
        match self.0 {
            Some((agreed, first)) if agreed != tokens => {
                Err(field.problem(format!("{tokens} tokens, but {first} says {agreed}: expected both to agree")))
            }
            Some(_) => Ok(()),
            None => {
                self.0 = Some((tokens, field));
                Ok(())
            }
        }
    }
}

/// The prompt's length.
///
/// # Errors
/// Where two fields disagree, as they do in an answer to several prompts.
pub(super) fn prompt(line: &Line<'_>, answers: &Answers<'_>) -> Result<Prompt, PayloadProblem> {
    let mut agreed = Agreed::default();
    let mut uniform = None;
    if let Some(field) = line.prompt_tokens {
        agreed.state(field.count()?, field)?;
    }
    if let Some(field) = usage(answers)?.and_then(|usage| usage.prompt_tokens) {
        agreed.state(field.count()?, field)?;
    }
    let in_sequences = answers.sequences.iter().filter_map(|(_, found)| found.fields.prompt_token_ids);
    for field in answers.shared.prompt_token_ids.into_iter().chain(in_sequences) {
        let (tokens, same) = field.tokens()?;
        agreed.state(tokens, field)?;
        uniform = uniform.or(same);
    }
    for field in answers.sequences.iter().filter_map(|(_, found)| found.meta_info?.prompt_tokens) {
        agreed.state(field.count()?, field)?;
    }
    Ok(Prompt { tokens: agreed.0.map(|(tokens, _)| tokens), uniform })
}

/// The tokens that one sequence sampled. `usage` counts those of all sequences, so it tells only of one alone.
///
/// # Errors
/// Where the line disagrees with the answer.
pub(super) fn completion(
    line: &Line<'_>,
    answers: &Answers<'_>,
    found: &Found<'_>,
    prompt: Prompt,
) -> Result<Option<u32>, PayloadProblem> {
    let alone = answers.sequences.len() == 1;
    let mut agreed = Agreed::default();
    if let Some(field) = line.completion_tokens {
        if !alone {
            return Err(field.problem("one number for an answer of several sequences: expected none"));
        }
        agreed.state(field.count()?, field)?;
    }
    if let Some((tokens, field)) = in_sequence(found)? {
        agreed.state(tokens, field)?;
    } else if alone && let Some(usage) = usage(answers)? {
        match (usage.completion_tokens, usage.total_tokens, prompt.tokens) {
            (Some(field), _, _) => agreed.state(field.count()?, field)?,
            (None, Some(field), Some(prompt)) => {
                let total = field.count()?;
                let tokens = total.checked_sub(prompt).ok_or_else(|| {
                    field.problem(format!("{total} tokens: expected no less than the prompt's {prompt}"))
                })?;
                agreed.state(tokens, field)?;
            }
            _ => {}
        }
    }
    if agreed.0.is_none() {
        return log_probabilities(found);
    }
    Ok(agreed.0.map(|(tokens, _)| tokens))
}

/// The tokens that the sequence itself lists or counts.
fn in_sequence<'a>(found: &Found<'a>) -> Result<Option<(u32, Field<'a>)>, PayloadProblem> {
    if let Some(field) = found.fields.token_ids {
        return Ok(Some((field.tokens()?.0, field)));
    }
    if let Some(field) = found.meta_info.and_then(|meta_info| meta_info.completion_tokens) {
        return Ok(Some((field.count()?, field)));
    }
    match found.fields.output_ids {
        Some(field) => Ok(Some((field.tokens()?.0, field))),
        None => Ok(None),
    }
}

/// How many tokens have log probabilities; engines list them for each sampled token or for none.
fn log_probabilities(found: &Found<'_>) -> Result<Option<u32>, PayloadProblem> {
    let Some(logprobs) = found.fields.logprobs.filter(|field| field.json.kind() == Kind::Object) else {
        return Ok(None);
    };
    let (object, place) = logprobs.object()?;
    let content = Logprobs::of(object, place).content.filter(|field| field.json.kind() == Kind::List);
    content.map(|field| field.bound(field.json.items().count())).transpose()
}

fn usage<'a>(answers: &Answers<'a>) -> Result<Option<Usage<'a>>, PayloadProblem> {
    answers.shared.usage.map(|field| field.object().map(|(object, place)| Usage::of(object, place))).transpose()
}
