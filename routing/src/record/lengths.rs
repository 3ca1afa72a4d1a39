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

/// What an answer to several prompts needs.
pub(super) const OF_EACH_PROMPT: &str = "and the choices answer several prompts, which usage counts together: expected the \
                                         prompt_token_ids of each choice (return_token_ids in vLLM)";

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

/// The prompt of each sequence: the same one, unless the answer is one to a list of prompts and lists or counts the tokens
/// of each.
///
/// # Errors
/// Where two fields disagree.
pub(super) fn prompts(line: &Line<'_>, answers: &Answers<'_>) -> Result<Vec<Prompt>, PayloadProblem> {
    let own = answers.sequences.iter().map(|(_, found)| own_prompt(found)).collect::<Result<Vec<_>, _>>()?;
    if are_several(line, answers, &own)? {
        return Ok(own.into_iter().map(|(prompt, _)| prompt).collect());
    }
    let mut agreed = Agreed::default();
    let mut uniform = None;
    if let Some(field) = line.prompt_tokens {
        agreed.state(field.count()?, field)?;
    }
    if let Some(field) = usage(answers)?.and_then(|usage| usage.prompt_tokens) {
        agreed.state(field.count()?, field)?;
    }
    if let Some(field) = answers.shared.prompt_token_ids {
        let (tokens, same) = field.tokens()?;
        agreed.state(tokens, field)?;
        uniform = same;
    }
    for (prompt, field) in own {
        if let (Some(tokens), Some(field)) = (prompt.tokens, field) {
            agreed.state(tokens, field)?;
        }
        uniform = uniform.or(prompt.uniform);
    }
    Ok(vec![Prompt { tokens: agreed.0.map(|(tokens, _)| tokens), uniform }; answers.sequences.len()])
}

/// What a sequence itself says of its prompt, and the field that has the length.
fn own_prompt<'a>(found: &Found<'a>) -> Result<(Prompt, Option<Field<'a>>), PayloadProblem> {
    let mut agreed = Agreed::default();
    let mut uniform = None;
    if let Some(field) = found.fields.prompt_token_ids {
        let (tokens, same) = field.tokens()?;
        agreed.state(tokens, field)?;
        uniform = same;
    }
    if let Some(field) = found.meta_info.and_then(|meta_info| meta_info.prompt_tokens) {
        agreed.state(field.count()?, field)?;
    }
    let (tokens, field) = agreed.0.unzip();
    Ok((Prompt { tokens, uniform }, field))
}

/// Whether the sequences answer several prompts: `usage` then counts each prompt once, however many sequences it has.
fn are_several(
    line: &Line<'_>,
    answers: &Answers<'_>,
    own: &[(Prompt, Option<Field<'_>>)],
) -> Result<bool, PayloadProblem> {
    let mut lengths = own.iter().filter_map(|(prompt, _)| prompt.tokens);
    let Some(first) = lengths.next().filter(|_| own.len() > 1) else { return Ok(false) };
    let differ = lengths.any(|length| length != first);
    if line.prompt_tokens.is_some() || answers.shared.prompt_token_ids.is_some() {
        return Ok(false);
    }
    let usage = usage(answers)?.and_then(|usage| usage.prompt_tokens);
    let usage = usage.map(|field| Ok::<_, PayloadProblem>((field.count()?, field))).transpose()?;
    if let Some((_, (_, found))) = own.iter().zip(&answers.sequences).find(|((prompt, _), _)| prompt.tokens.is_none()) {
        return match differ || usage.is_some_and(|(usage, _)| usage != first) {
            true => Err(found.place.problem(format!("no prompt_token_ids, {OF_EACH_PROMPT}"))),
            false => Ok(false),
        };
    }
    let Some((usage, field)) = usage else { return Ok(differ) };
    if !differ && usage == first {
        return Ok(false);
    }
    let sum: u64 = own.iter().filter_map(|(prompt, _)| prompt.tokens.map(u64::from)).sum();
    let a_prompt = sum.checked_div(u64::from(usage)).unwrap_or_default();
    let each_once = a_prompt > 0 && sum == a_prompt * u64::from(usage) && (own.len() as u64).is_multiple_of(a_prompt);
    match (each_once, differ) {
        (true, _) => Ok(true),
        (false, true) => Err(field.problem(format!(
            "{usage} tokens, but the prompts of {} choices have {sum}: expected it to count each prompt once",
            own.len()
        ))),
        (false, false) => Ok(false),
    }
}

/// The tokens that each sequence sampled, where it says so itself. `usage` counts those of all sequences, so it tells
/// only of one alone.
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
    } else if alone && let Some((tokens, field)) = sampled_by_all(answers, prompt)? {
        agreed.state(tokens, field)?;
    }
    if agreed.0.is_none() {
        return log_probabilities(found);
    }
    Ok(agreed.0.map(|(tokens, _)| tokens))
}

/// The tokens that all sequences together sampled, as `usage` counts them; `prompt` is theirs.
pub(super) fn sampled_by_all<'a>(
    answers: &Answers<'a>,
    prompt: Prompt,
) -> Result<Option<(u32, Field<'a>)>, PayloadProblem> {
    let Some(usage) = usage(answers)? else { return Ok(None) };
    match (usage.completion_tokens, usage.total_tokens, prompt.tokens) {
        (Some(field), _, _) => Ok(Some((field.count()?, field))),
        (None, Some(field), Some(prompt)) => {
            let total = field.count()?;
            let tokens = total
                .checked_sub(prompt)
                .ok_or_else(|| field.problem(format!("{total} tokens: expected no less than the prompt's {prompt}")))?;
            Ok(Some((tokens, field)))
        }
        _ => Ok(None),
    }
}

/// The tokens of the prompt, as `usage` counts them.
pub(super) fn prompts_in_usage(answers: &Answers<'_>) -> Result<Option<u32>, PayloadProblem> {
    usage(answers)?.and_then(|usage| usage.prompt_tokens).map(|field| field.count()).transpose()
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
