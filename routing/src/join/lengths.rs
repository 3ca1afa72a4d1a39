//! How long a request is, by what its sources said.

use std::sync::Arc;

use super::{Applied, Finish, Part, Start, request::RequestJoin};
use crate::span::{Anchor, Role, Source};

/// What one source said of a request.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) source: Source,
    pub(super) prompt_tokens: Option<u32>,
    pub(super) completion_tokens: Option<u32>,
    pub(super) first_forward: Option<u32>,
    pub(super) prompt_start: Option<u32>,
    pub(super) uniform_prompt: Option<bool>,
    pub(super) finished: bool,
}

impl Told {
    pub(super) fn by(source: Source) -> Self {
        Self {
            source,
            prompt_tokens: None,
            completion_tokens: None,
            first_forward: None,
            prompt_start: None,
            uniform_prompt: None,
            finished: false,
        }
    }

    /// Takes what is new in `other`. Where both say something, the longer completion and the lower start hold (a
    /// source tells of a completion as it grows; a failed KV load lowers the first forward), else the first word.
    pub(super) fn merge(&mut self, other: Self) -> Applied {
        let before = (self.prompt_tokens, self.completion_tokens, self.first_forward, self.prompt_start, self.finished);
        self.prompt_tokens = self.prompt_tokens.or(other.prompt_tokens);
        self.completion_tokens = self.completion_tokens.max(other.completion_tokens);
        self.first_forward = lower(self.first_forward, other.first_forward);
        self.prompt_start = lower(self.prompt_start, other.prompt_start);
        self.uniform_prompt = self.uniform_prompt.or(other.uniform_prompt);
        self.finished |= other.finished;
        let after = (self.prompt_tokens, self.completion_tokens, self.first_forward, self.prompt_start, self.finished);
        if before == after { Applied::Duplicate } else { Applied::Taken }
    }
}

impl Told {
    pub(super) fn into_parts(self, parent: Option<&Arc<str>>) -> Vec<Part> {
        let start = Start {
            source: self.source.clone(),
            prompt_tokens: self.prompt_tokens,
            first_forward: self.first_forward,
            prompt_start: self.prompt_start,
            parent: parent.cloned(),
        };
        let finish = Finish {
            source: self.source,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            uniform_prompt: self.uniform_prompt,
        };
        if self.finished { vec![Part::Start(start), Part::Finish(finish)] } else { vec![Part::Start(start)] }
    }
}

fn lower(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// How long a request is.
#[derive(Debug, Clone, Default)]
pub(super) struct Lengths {
    pub(super) prompt: Option<u32>,
    pub(super) completion: Option<u32>,
    /// Rows below this position were left out at the caller's wish.
    pub(super) prompt_start: u32,
    /// What each source sampled, where it said so.
    sampled: Vec<(Source, u32)>,
    /// Two prompt lengths that contradict each other, with who said them.
    pub(super) contradiction: Option<[(Source, u32); 2]>,
}

impl Lengths {
    pub(super) fn of(join: &RequestJoin) -> Self {
        let mut told: Vec<&Told> = join.told.iter().collect();
        told.sort_by(|a, b| a.source.cmp(&b.source));
        let mut prompts = told.iter().filter_map(|told| Some((told.source.clone(), told.prompt_tokens?)));
        let first = prompts.next();
        let contradiction = first.clone().and_then(|first| {
            let other = prompts.find(|(_, prompt)| *prompt != first.1)?;
            Some([first, other])
        });
        let sampled: Vec<(Source, u32)> =
            told.iter().filter_map(|told| Some((told.source.clone(), told.completion_tokens?))).collect();
        let longest = |wanted: fn(Role) -> bool| {
            sampled.iter().filter(|(source, _)| wanted(source.role)).map(|(_, tokens)| *tokens).max()
        };
        // A prefill samples one token whatever the request's own length; the instance that goes on knows better, and
        // where it failed nobody does.
        let goes_on = |role: Role| matches!(role, Role::Decode | Role::Colocated);
        let completion = match told.iter().any(|told| goes_on(told.source.role)) {
            true => longest(goes_on),
            false => longest(|_| true),
        };
        let prompt_start = told
            .iter()
            .filter(|told| matches!(told.source.role, Role::Prefill | Role::Colocated))
            .filter_map(|told| told.prompt_start)
            .min()
            .unwrap_or(0);
        let prompt = first.map(|(_, prompt)| prompt).or_else(|| prompt_of_rows(join));
        Self { prompt, completion, prompt_start, sampled, contradiction }
    }

    /// Positions that should have a row: the last sampled token is never fed back.
    pub(super) fn expected(&self) -> Option<u32> {
        Some(self.prompt?.saturating_add(self.completion?).saturating_sub(1))
    }

    /// The position behind the last one that this source can have fed to the model.
    pub(super) fn limit(&self, source: &Source) -> Option<u32> {
        let own = self.sampled.iter().find(|(by, _)| by == source).map(|(_, tokens)| *tokens);
        let sampled = match (own, source.role) {
            (Some(own), _) => own,
            (None, Role::Prefill) => 1,
            (None, _) => self.completion?,
        };
        // Without a sampled token every token of the prompt was fed, the last one too.
        Some(self.prompt?.saturating_add(sampled.max(1)).saturating_sub(1))
    }
}

/// An answer of an instance that computed the prompt, with all its rows, tells the prompt's length.
fn prompt_of_rows(join: &RequestJoin) -> Option<u32> {
    join.spans.iter().filter(|held| matches!(held.span.source.role, Role::Prefill | Role::Colocated)).find_map(|held| {
        match held.span.anchor {
            Anchor::End { completion_tokens } => {
                (held.span.rows.len() as u32).checked_add(1)?.checked_sub(completion_tokens)
            }
            Anchor::Start(_) => None,
        }
    })
}
