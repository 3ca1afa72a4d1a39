//! What is on its way to the next commit.

use std::sync::Arc;

use super::{encode::Encoders, error::ImportError, session::Session, summary::Tally};
use crate::tables::{Batch, ClosedRequest};

/// Bytes of rows in one commit: what an interruption can cost.
const COMMIT_BYTES: u64 = 8 << 30;

/// What is on its way to the next commit.
pub(super) struct OpenBatch {
    batch: Batch,
    encoders: Encoders,
    /// Requests handed to the writers, and the bytes of their rows.
    requests: u64,
    bytes: u64,
    pub(super) tally: Tally,
}

impl Session<'_> {
    pub(super) fn open_batch(&mut self) -> Result<&mut OpenBatch, ImportError> {
        let open = match self.batch.take() {
            Some(open) => open,
            None => {
                let batch = self.tables.begin();
                let encoders = Encoders::start(&batch).map_err(ImportError::Thread)?;
                OpenBatch { batch, encoders, requests: 0, bytes: 0, tally: Tally::default() }
            }
        };
        Ok(self.batch.insert(open))
    }

    /// Hands a request to the writers.
    pub(super) fn write(&mut self, request: ClosedRequest) -> Result<(), ImportError> {
        let open = self.open_batch()?;
        open.requests += 1;
        open.bytes += request.joined.segments.iter().map(|segment| segment.rows.bytes().len() as u64).sum::<u64>();
        let full = open.bytes > COMMIT_BYTES;
        let writing = open.encoders.send(Arc::new(request));
        // Where the writers are not at work any more, the commit says why.
        if full || !writing { self.commit_batch() } else { Ok(()) }
    }

    /// Stores all that was closed since the last commit.
    pub(super) fn commit(&mut self) -> Result<(), ImportError> {
        self.look_up()?;
        self.commit_batch()
    }

    fn commit_batch(&mut self) -> Result<(), ImportError> {
        let Some(OpenBatch { batch, encoders, requests, tally, .. }) = self.batch.take() else { return Ok(()) };
        encoders.finish()?;
        if requests > 0 {
            self.tables.commit(batch)?;
        }
        self.closed.committed();
        self.summary.add(&tally);
        Ok(())
    }
}
