//! A record of the log: what came, as it came.
//!
//! ```text
//! u32    length of the header, little-endian
//! bytes  header: JSON
//! bytes  body: an Arrow IPC stream of events, or recorded answers as JSON Lines
//! ```

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use gatescope_routing::record::RecordOptions;
use gatescope_wire::{MessageId, decode, ipc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::told::{Told, told_by_answer};
use crate::import::decode_line;

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Events, as an Arrow IPC stream.
    Events,
    /// Recorded answers, as JSON Lines.
    Answers,
}

/// What is known of a record beside what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// When it came, in UTC microseconds.
    pub(crate) at: i64,
    /// The agent's message that it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Message>,
    /// The run of answers that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<Arc<str>>,
}

/// An agent's message, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) agent: Arc<str>,
    pub(crate) boot: Uuid,
    pub(crate) seq: u64,
}

impl From<&MessageId> for Message {
    fn from(id: &MessageId) -> Self {
        Self { agent: Arc::clone(&id.agent), boot: id.boot, seq: id.seq }
    }
}

/// A record that cannot be read: a later release wrote it, or it was damaged before it was written.
#[derive(Debug, thiserror::Error)]
#[error("log record: {0}")]
pub struct RecordError(String);

impl Header {
    /// The record's bytes.
    pub(crate) fn record(&self, body: &[u8]) -> Bytes {
        // Serialising text and numbers into memory has no way to fail.
        let header = serde_json::to_vec(self).unwrap_or_default();
        let mut record = BytesMut::with_capacity(4 + header.len() + body.len());
        record.put_u32_le(header.len() as u32);
        record.put_slice(&header);
        record.put_slice(body);
        record.freeze()
    }

    /// A record's header and body.
    pub(crate) fn read(mut record: Bytes) -> Result<(Self, Bytes), RecordError> {
        let short = || RecordError("ends inside its header".to_owned());
        let length = record.try_get_u32_le().map_err(|_| short())? as usize;
        if length > record.len() {
            return Err(short());
        }
        let header = record.split_to(length);
        let header = serde_json::from_slice(&header).map_err(|error| RecordError(format!("header: {error}")))?;
        Ok((header, record))
    }

    /// What the body tells. It was looked at before it was written: what cannot be read of it now was refused then.
    pub(crate) fn told(&self, body: Bytes, options: &RecordOptions) -> Result<Vec<Told>, RecordError> {
        match self.kind {
            Kind::Events => {
                let batches = ipc::read_stream(body).map_err(|error| RecordError(error.to_string()))?;
                let mut told = Vec::new();
                for batch in batches {
                    let decoded = batch.and_then(|batch| decode(&batch));
                    let decoded = decoded.map_err(|error| RecordError(error.to_string()))?;
                    told.extend(decoded.events.into_iter().map(Told::from));
                }
                Ok(told)
            }
            Kind::Answers => {
                let run = self.run.clone().unwrap_or_else(|| "default".into());
                let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
                let answers = lines.filter_map(|line| decode_line(line, options).ok());
                Ok(answers.flat_map(|answer| told_by_answer(answer, &run).0).collect())
            }
        }
    }

    /// As [`Self::told`]; a panic in a decoder is that record's error, because the others deserve to be read.
    pub(crate) fn told_safely(&self, body: Bytes, options: &RecordOptions) -> Result<Vec<Told>, RecordError> {
        std::panic::catch_unwind(AssertUnwindSafe(|| self.told(body, options)))
            .unwrap_or_else(|_| Err(RecordError("reading it failed inside gatescope; please report it".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        // given
        let message = Message { agent: "a".into(), boot: Uuid::from_u128(7), seq: 3 };
        let header = Header { kind: Kind::Events, at: 5, message: Some(message), run: None };

        // when
        let (read, body) = Header::read(header.record(b"body")).unwrap();

        // then
        assert_eq!((read, &*body), (header, &b"body"[..]));
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        assert!(Header::read(Bytes::from_static(b"\x01")).is_err());
        assert!(Header::read(Bytes::from_static(b"\xff\xff\xff\xff{}")).is_err());
        assert!(Header::read(Bytes::from_static(b"\x02\0\0\0{}")).is_err());
    }
}
