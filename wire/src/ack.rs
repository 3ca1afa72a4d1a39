//! What the collector answers.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{VERSION, WireError, error::shortened, identity::MAX_AGENT_BYTES};

/// Most bytes of an acknowledgement that are read or written.
const MAX_ACK_BYTES: usize = 64 << 10;
/// Most refusals in one acknowledgement.
const MAX_NACKS: usize = 16;
/// Most characters of a reason.
const MAX_REASON_CHARS: usize = 400;

const EXPECTED: &str = "{\"wire\": 1, \"agent\": name, \"boot\": UUID, \"durable\": number, \"nacks\": [...]}";

/// The `app_metadata` of a `PutResult`: what has become of an agent's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Which agent.
    pub agent: Arc<str>,
    /// Which of its lives.
    pub boot: Uuid,
    /// The durable watermark: every message up to this one is on disk or refused for good. 0 where none is.
    pub durable: u64,
    /// What was refused since the last acknowledgement on this stream.
    pub nacks: Vec<Nack>,
}

/// Something that the collector did not take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nack {
    /// Which message.
    pub seq: u64,
    /// The one row of it that was refused; the others were taken. Absent: none of it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u32>,
    /// Why, for programs.
    pub code: NackCode,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
    /// Whether the same message may be taken later: the agent then sends again from this message on, and the watermark
    /// stays below it until then.
    pub retryable: bool,
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NackCode {
    /// The message or row cannot be read.
    Malformed,
    /// The message is of a version that the collector does not read.
    Version,
    /// The message is too large.
    TooLarge,
    /// A message before this one has not come.
    OutOfOrder,
    /// The collector has more to do than it can hold.
    Overloaded,
    /// The collector cannot write: its disk is full or failing.
    Storage,
    /// The agent may not send this.
    Forbidden,
    /// A code of a later version.
    #[serde(untagged)]
    Other(String),
}

#[derive(Serialize, Deserialize)]
struct Metadata<'a> {
    wire: u32,
    #[serde(borrow)]
    agent: std::borrow::Cow<'a, str>,
    boot: Uuid,
    durable: u64,
    #[serde(default)]
    nacks: Vec<Nack>,
}

impl Ack {
    /// Reads the `app_metadata` of a `PutResult`. Unknown keys are ignored.
    pub fn read(metadata: &[u8]) -> Result<Self, WireError> {
        let refused = |found: String| WireError::Metadata { found, expected: EXPECTED };
        if metadata.len() > MAX_ACK_BYTES {
            return Err(refused(format!("{} bytes", metadata.len())));
        }
        let read: Metadata<'_> =
            serde_json::from_slice(metadata).map_err(|error| refused(shortened(&error.to_string())))?;
        if read.wire != VERSION {
            return Err(refused(format!("\"wire\": {}", read.wire)));
        }
        if read.agent.is_empty() || read.agent.len() > MAX_AGENT_BYTES {
            return Err(refused(format!("\"agent\" of {} bytes", read.agent.len())));
        }
        Ok(Self { agent: Arc::from(&*read.agent), boot: read.boot, durable: read.durable, nacks: read.nacks })
    }

    /// The `app_metadata` of `PutResult`s that say this: more than one where there is much to refuse. Reasons are cut.
    pub fn metadata(&self) -> Vec<Bytes> {
        let pieces = if self.nacks.is_empty() { vec![&[][..]] } else { self.nacks.chunks(MAX_NACKS).collect() };
        pieces.into_iter().map(|nacks| self.piece(nacks)).collect()
    }

    fn piece(&self, nacks: &[Nack]) -> Bytes {
        let nacks = nacks
            .iter()
            .map(|nack| Nack { reason: nack.reason.chars().take(MAX_REASON_CHARS).collect(), ..nack.clone() })
            .collect();
        let metadata =
            Metadata { wire: VERSION, agent: (&*self.agent).into(), boot: self.boot, durable: self.durable, nacks };
        // Serialising numbers and text into memory has no way to fail.
        serde_json::to_vec(&metadata).unwrap_or_default().into()
    }
}
