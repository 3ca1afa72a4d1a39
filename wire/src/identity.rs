//! What a message is called.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{VERSION, WireError, error::shortened};

/// Names a message: `(agent, boot, seq)`.
///
/// It travels as JSON in the message's `app_metadata`, since Flight encoders stamp a schema's metadata on the first message
/// of a stream alone: `{"wire":1,"agent":"host-3/gpu-0","boot":"c4ee...","seq":17}`. Unknown keys are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// Which agent: stable over restarts.
    pub agent: Arc<str>,
    /// Which of its lives: sequence numbers begin anew in each.
    pub boot: Uuid,
    /// Position among the agent's messages of this boot, from 1 without gaps.
    pub seq: u64,
}

/// Most bytes of an agent's name.
pub(crate) const MAX_AGENT_BYTES: usize = 256;
/// Most bytes of a message's metadata that are read.
const MAX_METADATA_BYTES: usize = 4096;

const EXPECTED: &str = "{\"wire\": 1, \"agent\": name, \"boot\": UUID, \"seq\": number from 1}";

#[derive(Serialize, Deserialize)]
struct Metadata<'a> {
    wire: u32,
    #[serde(borrow)]
    agent: std::borrow::Cow<'a, str>,
    boot: Uuid,
    seq: u64,
}

impl MessageId {
    /// Reads `app_metadata`.
    pub fn read(metadata: &[u8]) -> Result<Self, WireError> {
        let refused = |found: String| WireError::Metadata { found, expected: EXPECTED };
        if metadata.is_empty() {
            return Err(refused("empty".into()));
        }
        if metadata.len() > MAX_METADATA_BYTES {
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
        if read.seq == 0 {
            return Err(refused("\"seq\": 0".into()));
        }
        Ok(Self { agent: Arc::from(&*read.agent), boot: read.boot, seq: read.seq })
    }

    /// The `app_metadata` of this message.
    pub fn metadata(&self) -> Bytes {
        let metadata = Metadata { wire: VERSION, agent: (&*self.agent).into(), boot: self.boot, seq: self.seq };
        // Serialising numbers and text into memory has no way to fail.
        serde_json::to_vec(&metadata).unwrap_or_default().into()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.agent, self.boot, self.seq)
    }
}
