//! Recorded engine responses: one JSON object a line.

use std::sync::Arc;

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

/// The role of a line, for messages.
pub(crate) const _ROLES: [Role; 4] = Role::ALL;

/// Reads one line.
///
/// # Errors
/// Where the line as a whole cannot be used. A choice whose rows cannot be read is not an error of the line: see
/// [`RecordedChoice::spans`].
pub fn read_record(_line: &[u8], _options: &RecordOptions) -> Result<Record, RecordError> {
    Err(RecordError("not implemented".into()))
}
