//! Requests as engines answer them: recorded responses, one JSON object a line.

use std::{io, sync::Arc};

use gatescope_routing::{Role, Rows, engine::vllm, rows::RowsError};
use serde::Serialize;

use crate::{
    fleet::Deployment,
    request::{Plan, Site},
};

/// A request that was answered.
#[derive(Debug)]
pub struct Answered {
    plan: Plan,
    deployment: Arc<Deployment>,
}

/// An answer that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file takes no more.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Rows that are none: a fault of the simulation's.
    #[error(transparent)]
    Rows(#[from] RowsError),
}

#[derive(Serialize)]
struct Line<'a> {
    role: &'static str,
    instance: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<KvTransferParams<'a>>,
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    object: &'static str,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_transfer_params: Option<KvTransferParams<'a>>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    text: &'static str,
    finish_reason: &'static str,
    token_ids: &'a [u32],
    prompt_token_ids: &'a [u32],
    routed_experts: String,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
}

#[derive(Serialize)]
struct KvTransferParams<'a> {
    remote_engine_id: &'a str,
    remote_request_id: &'a str,
}

impl Answered {
    pub(crate) fn new(plan: Plan, deployment: Arc<Deployment>) -> Self {
        Self { plan, deployment }
    }

    /// The outer id, where its tokens were sampled.
    pub fn request_id(&self) -> &Arc<str> {
        &self.plan.id
    }

    /// Sequences sampled.
    pub fn choices(&self) -> usize {
        self.plan.choices.len()
    }

    /// Positions that should have a row, over all sequences.
    pub fn expected_rows(&self) -> u64 {
        (0..self.choices()).map(|choice| u64::from(self.plan.end(choice))).sum()
    }

    /// Positions that should have a row, of one sequence: all of them, in one piece.
    ///
    /// # Errors
    /// Never, but for a fault of the simulation's.
    pub fn rows(&self, choice: usize) -> Result<Rows, RowsError> {
        self.plan.rows(&self.deployment.popularity, choice, 0..self.plan.end(choice))
    }

    /// Writes what a colocated engine (`truth`) would answer to the same request: the rows as they should be.
    ///
    /// # Errors
    /// Where the writer fails.
    pub fn write_truth(&self, to: &mut impl io::Write) -> Result<(), WriteError> {
        let line = Line {
            role: Role::Colocated.name(),
            instance: "truth",
            request_id: &self.plan.id,
            kv_transfer_params: None,
            response: self.response(&self.plan.id, self.choices_from(0)?, None),
        };
        write(&line, to)
    }

    /// Writes what the instances that served the request answered, a line each.
    ///
    /// # Errors
    /// Where the writer fails.
    pub fn write_answers(&self, to: &mut impl io::Write) -> Result<(), WriteError> {
        let plan = &self.plan;
        let (prefill, decode) = match plan.site {
            Site::Pair { prefill, decode } => (prefill, decode),
            Site::Colocated(instance) => {
                let line = Line {
                    role: Role::Colocated.name(),
                    instance: &self.deployment.instances[instance],
                    request_id: &plan.id,
                    kv_transfer_params: None,
                    response: self.response(&plan.id, self.choices_from(0)?, None),
                };
                return write(&line, to);
            }
        };
        let params = || KvTransferParams {
            remote_engine_id: &self.deployment.instances[prefill],
            remote_request_id: &plan.inner_id,
        };
        let of_prompt = plan.rows(&self.deployment.popularity, 0, 0..plan.prompt_tokens())?;
        let sampled = &plan.choices[0].text.tokens[..1];
        let first = vec![self.choice(0, "length", sampled, &of_prompt)];
        let line = Line {
            role: Role::Prefill.name(),
            instance: &self.deployment.instances[prefill],
            request_id: &plan.prefill_id,
            kv_transfer_params: None,
            response: self.response(&plan.prefill_id, first, Some(params())),
        };
        write(&line, to)?;
        let line = Line {
            role: Role::Decode.name(),
            instance: &self.deployment.instances[decode],
            request_id: &plan.id,
            kv_transfer_params: Some(params()),
            response: self.response(&plan.id, self.choices_from(plan.first_forward)?, None),
        };
        write(&line, to)
    }

    /// All sequences with their rows from a position on.
    fn choices_from(&self, start: u32) -> Result<Vec<Choice<'_>>, RowsError> {
        let choices = self.plan.choices.iter().enumerate().map(|(index, choice)| {
            let rows = self.plan.rows(&self.deployment.popularity, index, start..self.plan.end(index))?;
            Ok(self.choice(index, choice.ending.name(), &choice.text.tokens, &rows))
        });
        choices.collect()
    }

    fn choice<'a>(
        &'a self,
        index: usize,
        finish_reason: &'static str,
        token_ids: &'a [u32],
        rows: &Rows,
    ) -> Choice<'a> {
        let prompt_token_ids = &self.plan.prompt.tokens;
        Choice { index, text: "", finish_reason, token_ids, prompt_token_ids, routed_experts: vllm::encode(rows) }
    }

    fn response<'a>(
        &'a self,
        id: &str,
        choices: Vec<Choice<'a>>,
        kv_transfer_params: Option<KvTransferParams<'a>>,
    ) -> Response<'a> {
        let prompt_tokens = self.plan.prompt_tokens();
        let completion_tokens = choices.iter().map(|choice| choice.token_ids.len() as u32).sum();
        Response {
            id: format!("cmpl-{id}"),
            object: "text_completion",
            model: &self.deployment.options.model,
            choices,
            usage: Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens },
            kv_transfer_params,
        }
    }
}

fn write(line: &Line<'_>, to: &mut impl io::Write) -> Result<(), WriteError> {
    serde_json::to_writer(&mut *to, line).map_err(io::Error::from)?;
    Ok(to.write_all(b"\n")?)
}
