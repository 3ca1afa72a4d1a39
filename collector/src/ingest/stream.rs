//! One agent's stream: each message is looked at, refused or taken, in order.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use arrow_flight::FlightData;
use futures::{Stream, StreamExt};
use gatescope_wire::{
    Decoded, Nack, NackCode, WireError, decode,
    flight::{self, Received},
};
use tokio::sync::mpsc;
use tonic::Status;

use super::acknowledge::Settled;
use crate::live::{
    AgentSeen, Intake, NotTaken, Turn,
    record::{Header, Kind},
    told::Told,
};

pub(super) struct Reader {
    intake: Intake,
    settled: mpsc::Sender<Settled>,
    stream: flight::Stream,
    number: u64,
}

impl Reader {
    pub(super) fn new(intake: Intake, settled: mpsc::Sender<Settled>) -> Self {
        let number = intake.stream();
        Self { intake, settled, stream: flight::Stream::new(), number }
    }

    /// Reads until the agent ends the stream, goes, or says something that nobody can go on from.
    pub(super) async fn run(
        mut self,
        first: FlightData,
        mut messages: impl Stream<Item = Result<FlightData, Status>> + Unpin,
    ) {
        self.intake.metrics().stream(1);
        let mut next = Ok(Some(first));
        let ended = loop {
            match next {
                Ok(Some(data)) => {
                    if let Err(ended) = self.message(&data).await {
                        break ended;
                    }
                }
                Ok(None) => break None,
                // The agent is gone; it will come again.
                Err(_) => break None,
            }
            next = messages.next().await.transpose();
        };
        self.intake.metrics().stream(-1);
        if let Some(status) = ended {
            // Where nobody listens any more there is nobody to tell.
            let _ = self.settled.send(Settled::Ended(status)).await;
        }
    }

    /// Takes one message. An error ends the stream.
    async fn message(&mut self, data: &FlightData) -> Result<(), Option<Status>> {
        let received = self.stream.read(data).map_err(|error| {
            self.intake.metrics().refused("stream", 1);
            Some(Status::invalid_argument(error.to_string()))
        })?;
        let Some(Received { id, batch }) = received else { return Ok(()) };
        let came = Instant::now();
        let bytes = data.data_header.len() + data.data_body.len();
        match self.intake.turn(&id, self.number) {
            Turn::Fenced => {
                return Err(Some(Status::aborted("a newer stream of the same agent and boot is open")));
            }
            Turn::Taken { position } => {
                self.intake.metrics().duplicate_message();
                return self.settle(Settled::Taken { id, position, came, nacks: Vec::new() }).await;
            }
            Turn::New => {}
        }
        let decoded = match batch.and_then(|batch| safely(|| decode(&batch))) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.intake.metrics().refused("message", 1);
                let nack =
                    Nack { seq: id.seq, row: None, code: code(&error), reason: error.to_string(), retryable: false };
                return self.settle(Settled::Refused { id, nacks: vec![nack] }).await;
            }
        };
        let Decoded { events, refused, skipped } = decoded;
        self.intake.metrics().refused("event", refused.len());
        self.intake.metrics().refused("kind", skipped.len());
        let nacks: Vec<Nack> = refused
            .iter()
            .map(|error| Nack {
                seq: id.seq,
                row: Some(error.row as u32),
                code: NackCode::Malformed,
                reason: error.to_string(),
                retryable: false,
            })
            .collect();
        if events.is_empty() {
            return self.settle(Settled::Refused { id, nacks }).await;
        }
        let count = events.len();
        let told = safely(|| Ok(events.into_iter().map(Told::from).collect()));
        let told: Vec<Told> = told.map_err(|error| Some(Status::internal(error.to_string())))?;
        let header = Header {
            kind: Kind::Events,
            at: chrono::Utc::now().timestamp_micros(),
            message: Some((&id).into()),
            run: None,
        };
        let seen = AgentSeen { agent: Arc::clone(&id.agent), boot: id.boot, seq: id.seq };
        match self.intake.take(&header, &self.stream.record(data), told, Some(seen.clone())).await {
            Ok(position) => {
                self.intake.saw(&seen, position);
                self.intake.metrics().heard(&seen.agent, header.at);
                self.intake.metrics().received("events", bytes, count);
                self.settle(Settled::Taken { id, position, came, nacks }).await
            }
            Err(error) => {
                let retryable = error.is_retryable();
                let code = match &error {
                    NotTaken::NotReady(_) => NackCode::Overloaded,
                    NotTaken::Log(_) if retryable => NackCode::Storage,
                    NotTaken::Log(_) => NackCode::TooLarge,
                };
                self.intake.metrics().refused(if retryable { "storage" } else { "size" }, 1);
                let nack = Nack { seq: id.seq, row: None, code, reason: error.to_string(), retryable };
                let nacks = vec![nack];
                if retryable {
                    self.settle(Settled::Failed { id, nacks }).await?;
                    return Err(None);
                }
                self.settle(Settled::Refused { id, nacks }).await
            }
        }
    }

    async fn settle(&self, settled: Settled) -> Result<(), Option<Status>> {
        self.settled.send(settled).await.map_err(|_| None)
    }
}

/// A panic in a decoder is that message's error: the other agents deserve to be heard.
fn safely<T>(read: impl FnOnce() -> Result<T, WireError>) -> Result<T, WireError> {
    std::panic::catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(WireError::Arrow("reading it failed inside gatescope; please report it".to_owned())))
}

fn code(error: &WireError) -> NackCode {
    match error {
        WireError::NoVersion | WireError::Version(_) => NackCode::Version,
        WireError::TooLarge(_) | WireError::TooManyEvents(_) => NackCode::TooLarge,
        _ => NackCode::Malformed,
    }
}
