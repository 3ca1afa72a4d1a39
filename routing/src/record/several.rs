//! Answers of several sequences: `usage` counts the tokens of all together, so it takes the rows to tell whose are whose.

use super::{
    PayloadProblem,
    answer::Answers,
    field::Field,
    lengths::{OF_EACH_PROMPT, Prompt, prompts_in_usage, sampled_by_all},
    payload::computes_prompt,
};
use crate::{engine::Payload, finding::counted, span::Role};

/// Rows of a sequence, before they have a place.
#[derive(Default)]
pub(super) struct Sent<'a> {
    /// The field that has them.
    pub(super) field: Option<Field<'a>>,
    /// Runs of rows, with the position of the first where that is stated.
    pub(super) parts: Vec<(Payload, Option<u32>)>,
}

/// The rows of a sequence, or why they cannot be read.
type Read<'a> = Result<Sent<'a>, PayloadProblem>;

impl Sent<'_> {
    fn rows(&self) -> u64 {
        self.parts.iter().map(|(payload, _)| payload.rows.len() as u64).sum()
    }

    /// The position behind the last row, where the engine states where its rows are.
    fn stated_end(&self) -> Option<u64> {
        let (payload, start) = self.parts.last()?;
        start.map(|start| u64::from(start) + payload.rows.len() as u64)
    }

    fn is_without_place(&self) -> bool {
        self.parts.iter().any(|(_, start)| start.is_none())
    }
}

/// Finds out how many tokens each of several sequences sampled, where they do not say it: what `usage` leaves for a single
/// one; or what the rows say of all, where that is what `usage` counts. Rows that cannot be placed become an error that says
/// why.
pub(super) fn tell_apart(
    answers: &Answers<'_>,
    role: Role,
    prompts: &[Prompt],
    sampled: &mut [Option<u32>],
    sent: &mut [Read<'_>],
) -> Result<(), PayloadProblem> {
    if sent.len() < 2 {
        return Ok(());
    }
    let prompt = prompts.first().copied().unwrap_or_default();
    let total = sampled_by_all(answers, prompt)?.map(|(tokens, _)| u64::from(tokens));
    if let Some(problem) = list_of_prompts(answers, role, sampled, sent, total)? {
        refuse(sent, |sent| !sent.parts.is_empty(), &problem);
        return Ok(());
    }
    let known: u64 = sampled.iter().flatten().copied().map(u64::from).sum();
    let unknown = sampled.iter().filter(|sampled| sampled.is_none()).count();
    let deduced = match (unknown, total.map(|total| total.checked_sub(known))) {
        (0, _) => return Ok(()),
        (_, None) => Err("usage does not say how many tokens were sampled in all".to_owned()),
        (_, Some(None)) => Err(format!("usage counts fewer tokens than the {known} that the other choices list")),
        (1, Some(Some(rest))) => Ok(sampled.iter().map(|own| own.map_or(rest, u64::from)).collect()),
        (_, Some(Some(rest))) => by_rows(answers, role, prompts, sampled, sent, rest),
    };
    match deduced {
        Ok(lengths) => {
            for (sampled, length) in sampled.iter_mut().zip(lengths) {
                *sampled = u32::try_from(length).ok();
            }
        }
        Err(why) => {
            let problem = format!(
                "without a start, and how many tokens this choice sampled cannot be known: {why}; expected token_ids in \
                 each choice (return_token_ids in vLLM)"
            );
            let lengthless: Vec<bool> = sampled.iter().map(Option::is_none).collect();
            for (sent, _) in sent.iter_mut().zip(lengthless).filter(|(_, lengthless)| *lengthless) {
                refuse(std::slice::from_mut(sent), |sent| sent.is_without_place(), &problem);
            }
        }
    }
    Ok(())
}

/// The tokens that each sequence sampled if its rows are whole; `rest` are those that the sequences do not list themselves.
fn by_rows(
    answers: &Answers<'_>,
    role: Role,
    prompts: &[Prompt],
    sampled: &[Option<u32>],
    sent: &[Read<'_>],
    rest: u64,
) -> Result<Vec<u64>, String> {
    let (mut lengths, mut sum) = (Vec::with_capacity(sent.len()), 0);
    for (index, (own, sent)) in sampled.iter().zip(sent).enumerate() {
        if let Some(own) = own {
            lengths.push(u64::from(*own));
            continue;
        }
        let place = answers.sequences[index].1.place;
        let prompt = prompts[index].tokens.ok_or("the prompt's length is not stated")?;
        let sent = sent.as_ref().ok().filter(|sent| !sent.parts.is_empty());
        let sent = sent.ok_or_else(|| format!("{place} has no rows to tell its part of usage by"))?;
        // The last row is that of the token before the last. Who computes the prompt begins with it; a decode begins with
        // the prompt's last token.
        let end = sent.stated_end().unwrap_or_else(|| match computes_prompt(role) {
            true => sent.rows(),
            false => u64::from(prompt.saturating_sub(1)) + sent.rows(),
        });
        let length = (end + 1).checked_sub(u64::from(prompt));
        let length =
            length.ok_or_else(|| format!("{place} has {}, fewer than its prompt", counted(sent.rows(), "row")))?;
        sum += length;
        lengths.push(length);
    }
    if sum == rest {
        Ok(lengths)
    } else {
        Err(format!(
            "the choices' rows are those of {sum} sampled tokens, usage counts {rest}, and nothing says which choice is not whole"
        ))
    }
}

/// What is wrong where all rows together fit several prompts, and not the one that nobody denies.
fn list_of_prompts(
    answers: &Answers<'_>,
    role: Role,
    sampled: &[Option<u32>],
    sent: &[Read<'_>],
    total: Option<u64>,
) -> Result<Option<String>, PayloadProblem> {
    let own = |(_, found): &(u32, super::answer::Found<'_>)| {
        found.fields.prompt_token_ids.is_some() || found.meta_info.is_some_and(|about| about.prompt_tokens.is_some())
    };
    if !computes_prompt(role) || answers.shared.prompt_token_ids.is_some() || answers.sequences.iter().any(own) {
        return Ok(None);
    }
    let listed: Option<u64> = sampled.iter().map(|sampled| sampled.map(u64::from)).sum();
    let (Some(usage), Some(sampled)) = (prompts_in_usage(answers)?, listed.or(total)) else { return Ok(None) };
    let mut rows = 0;
    for sent in sent {
        match sent {
            Ok(Sent { parts, .. }) if matches!(parts[..], [(_, None)]) => rows += parts[0].0.rows.len() as u64,
            _ => return Ok(None),
        }
    }
    // Each sequence has a row for every token but its last.
    let choices = sent.len() as u64;
    let in_prompts = (rows + choices).saturating_sub(sampled);
    let a_prompt = in_prompts.checked_div(u64::from(usage)).unwrap_or_default();
    let fits = a_prompt > 0 && a_prompt < choices && in_prompts == a_prompt * u64::from(usage);
    let fits = fits && choices.is_multiple_of(a_prompt);
    Ok(fits.then(|| format!("without a start, {OF_EACH_PROMPT}")))
}

/// Replaces rows by an error.
fn refuse(sent: &mut [Read<'_>], which: impl Fn(&Sent<'_>) -> bool, problem: &str) {
    for read in sent {
        if let Ok(rows) = read
            && which(rows)
            && let Some(field) = rows.field
        {
            *read = Err(field.problem(format!("{} {problem}", counted(rows.rows(), "row"))));
        }
    }
}
