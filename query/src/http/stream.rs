//! An answer as bytes, as it comes: a bounded number of them is held.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes as Piece;
use futures::{Stream, StreamExt};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;

use super::media::Media;
use crate::{answer::Answer, error::QueryError, format::RowWriter, gate::Turn, metrics::Outcome};

/// Bytes that are sent together.
const TOGETHER: usize = 64 << 10;
/// Pieces that wait for the client.
const AHEAD: usize = 2;

/// The pieces of an answer.
pub(super) struct Bytes(ReceiverStream<Result<Piece, QueryError>>);

impl Bytes {
    /// Begins to write. The query stops, and gives back its turn, when the client goes away, and at its deadline: also where
    /// the client stays and reads nothing.
    pub(super) fn start(answer: Answer, media: Media, most_rows: Option<u64>, turn: Arc<Turn>) -> Self {
        let (pieces, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let written = write(answer, media, most_rows, &turn, &pieces).await;
            if let Err(error) = turn.noted(written) {
                // Where nobody listens any more there is nobody to tell.
                let _ = tokio::time::timeout_at(turn.deadline(), pieces.send(Err(error))).await;
            }
        });
        Self(ReceiverStream::new(receiver))
    }

    /// The first bytes; everything, where it is little.
    pub(super) async fn first(&mut self) -> Result<Option<Piece>, QueryError> {
        self.0.next().await.transpose()
    }

    /// `first`, and what comes after it.
    pub(super) fn after(self, first: Option<Piece>) -> impl Stream<Item = Result<Piece, QueryError>> + Send {
        futures::stream::iter(first.map(Ok)).chain(self.0)
    }
}

async fn write(
    mut answer: Answer,
    media: Media,
    most_rows: Option<u64>,
    turn: &Turn,
    pieces: &mpsc::Sender<Result<Piece, QueryError>>,
) -> Result<(), QueryError> {
    let written = Written::default();
    let mut writer: Box<dyn RowWriter + Send> = media.format().writer(answer.schema(), written.clone())?;
    let mut rows = 0;
    loop {
        // A query that always has rows ready is not interrupted by the timer below.
        if Instant::now() >= turn.deadline() {
            return Err(turn.too_slow());
        }
        let batch = tokio::select! {
            () = pieces.closed() => return Ok(()),
            batch = tokio::time::timeout_at(turn.deadline(), answer.next()) => batch.map_err(|_| turn.too_slow())?,
        };
        let Some(batch) = batch else { break };
        let batch = batch?;
        rows += batch.num_rows() as u64;
        if let Some(most) = most_rows.filter(|most| rows > *most) {
            return Err(QueryError::TooManyRows(most));
        }
        writer.write(&batch)?;
        if written.len() >= TOGETHER && !send(pieces, &written, turn).await? {
            return Ok(());
        }
    }
    writer.finish()?;
    if send(pieces, &written, turn).await? {
        turn.note(Outcome::Answered);
    }
    Ok(())
}

/// Sends what is written. Says whether the client is still there.
async fn send(
    pieces: &mpsc::Sender<Result<Piece, QueryError>>,
    written: &Written,
    turn: &Turn,
) -> Result<bool, QueryError> {
    let piece = written.take();
    if piece.is_empty() {
        return Ok(true);
    }
    let sent = tokio::time::timeout_at(turn.deadline(), pieces.send(Ok(piece.into()))).await;
    Ok(sent.map_err(|_| turn.too_slow())?.is_ok())
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
