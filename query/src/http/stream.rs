//! An answer as bytes, as it comes: a bounded number of them is held.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes as Piece;
use futures::Stream;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::media::Media;
use crate::{answer::Answer, error::QueryError, format::RowWriter};

/// Bytes that are sent together.
const TOGETHER: usize = 64 << 10;

/// The bytes of an answer. Dropped, it stops the query.
pub(super) struct Bytes {
    answer: Answer,
    writer: Option<Box<dyn RowWriter + Send>>,
    written: Written,
    rows: u64,
    most_rows: Option<u64>,
    deadline: Instant,
    limit: std::time::Duration,
    media: Media,
    _turn: OwnedSemaphorePermit,
}

/// What a writer has written and nobody has taken.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Bytes {
    pub(super) fn start(
        answer: Answer,
        media: Media,
        most_rows: Option<u64>,
        deadline: Instant,
        turn: OwnedSemaphorePermit,
    ) -> Self {
        let limit = deadline.saturating_duration_since(Instant::now());
        Self {
            answer,
            writer: None,
            written: Written::default(),
            rows: 0,
            most_rows,
            deadline,
            limit,
            media,
            _turn: turn,
        }
    }

    /// The first bytes; everything, where it is little.
    pub(super) async fn first(&mut self) -> Result<Option<Piece>, QueryError> {
        self.writer = Some(self.media.format().writer(self.answer.schema(), self.written.clone())?);
        self.next().await
    }

    async fn next(&mut self) -> Result<Option<Piece>, QueryError> {
        while let Some(writer) = &mut self.writer {
            let batch = tokio::time::timeout_at(self.deadline, self.answer.next()).await;
            match batch.map_err(|_| QueryError::TooSlow(self.limit))? {
                Some(batch) => {
                    let batch = batch?;
                    self.rows += batch.num_rows() as u64;
                    if self.most_rows.is_some_and(|most| self.rows > most) {
                        return Err(QueryError::TooManyRows(self.most_rows.unwrap_or_default()));
                    }
                    writer.write(&batch)?;
                    if self.written.len() >= TOGETHER {
                        break;
                    }
                }
                None => {
                    if let Some(writer) = self.writer.take() {
                        writer.finish()?;
                    }
                }
            }
        }
        let piece = self.written.take();
        Ok((!piece.is_empty()).then(|| piece.into()))
    }

    /// `first`, and what comes after it.
    pub(super) fn after(self, first: Option<Piece>) -> impl Stream<Item = Result<Piece, QueryError>> + Send {
        futures::stream::unfold((Some(self), first), |(bytes, first)| async move {
            let mut bytes = bytes?;
            if let Some(first) = first {
                return Some((Ok(first), (Some(bytes), None)));
            }
            match bytes.next().await {
                Ok(Some(piece)) => Some((Ok(piece), (Some(bytes), None))),
                Ok(None) => None,
                Err(error) => Some((Err(error), (None, None))),
            }
        })
    }
}
