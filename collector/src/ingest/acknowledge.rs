//! Acknowledgements: what of a stream is durable, told on the same stream.

use std::{collections::VecDeque, time::Instant};

use arrow_flight::PutResult;
use gatescope_wire::{Ack, MessageId, Nack};
use tokio::sync::mpsc;
use tonic::Status;

use crate::{live::Intake, log::Watermark};

/// What became of a message, in the order of the stream.
#[derive(Debug)]
pub(super) enum Settled {
    /// It is in the log, and durable once the log is up to the position. Some of its events may have been refused.
    Taken { id: MessageId, position: u64, came: Instant, nacks: Vec<Nack> },
    /// None of it was taken, for good.
    Refused { id: MessageId, nacks: Vec<Nack> },
    /// None of it was taken; it may be sent again, and nothing after it is taken on this stream.
    Failed { id: MessageId, nacks: Vec<Nack> },
    /// The stream cannot go on.
    Ended(Status),
}

pub(super) struct Acknowledger {
    intake: Intake,
    settled: mpsc::Receiver<Settled>,
    answers: mpsc::Sender<Result<PutResult, Status>>,
    waiting: VecDeque<Settled>,
}

/// What there is to tell.
#[derive(Default)]
struct News {
    /// The last message that is settled.
    last: Option<MessageId>,
    nacks: Vec<Nack>,
    has_ended: Option<Option<Status>>,
}

impl Acknowledger {
    pub(super) fn new(
        intake: Intake,
        settled: mpsc::Receiver<Settled>,
        answers: mpsc::Sender<Result<PutResult, Status>>,
    ) -> Self {
        Self { intake, settled, answers, waiting: VecDeque::new() }
    }

    /// Tells the agent what is durable until the stream ends. An agent that does not read its acknowledgements gets the
    /// newest once it does; meanwhile nothing piles up but the messages that are not durable.
    pub(super) async fn run(mut self) {
        let mut watermark = self.intake.watermark();
        let mut open = true;
        loop {
            let mut news = News::default();
            let intake = self.intake.clone();
            while !self.collect(&watermark, &mut news, open) {
                let seen = watermark.now();
                tokio::select! {
                    settled = self.settled.recv(), if open => match settled {
                        Some(settled) => self.waiting.push_back(settled),
                        None => open = false,
                    },
                    above = watermark.above(seen), if !self.waiting.is_empty() => {
                        if above.is_err() {
                            // The log has closed: what is not durable now will be sent again.
                            let stopped = Status::unavailable("the collector is stopping");
                            news.has_ended = Some(Some(stopped));
                            self.waiting.clear();
                            break;
                        }
                    }
                    () = intake.closed(), if self.waiting.is_empty() => {
                        news.has_ended = Some(Some(Status::unavailable("the collector is stopping")));
                        break;
                    }
                }
            }
            if self.tell(news).await.is_break() {
                return;
            }
        }
    }

    /// Collects what is settled. Says whether there is anything to tell.
    fn collect(&mut self, watermark: &Watermark, news: &mut News, open: bool) -> bool {
        let durable = watermark.now().position();
        while let Some(next) = self.waiting.front() {
            if matches!(next, Settled::Taken { position, .. } if *position > durable) {
                break;
            }
            match self.waiting.pop_front() {
                Some(Settled::Taken { id, came, nacks, .. }) => {
                    self.intake.metrics().acknowledged(came.elapsed());
                    news.nacks.extend(nacks);
                    news.last = Some(id);
                }
                Some(Settled::Refused { id, nacks }) => {
                    news.nacks.extend(nacks);
                    news.last = Some(id);
                }
                Some(Settled::Failed { id, nacks }) => {
                    news.nacks.extend(nacks);
                    news.last = Some(MessageId { seq: id.seq.saturating_sub(1), ..id });
                    news.has_ended = Some(None);
                }
                Some(Settled::Ended(status)) => news.has_ended = Some(Some(status)),
                None => {}
            }
        }
        if self.waiting.is_empty() && !open && news.has_ended.is_none() {
            news.has_ended = Some(None);
        }
        news.last.is_some() || news.has_ended.is_some()
    }

    async fn tell(&mut self, news: News) -> std::ops::ControlFlow<()> {
        use std::ops::ControlFlow::{Break, Continue};
        if let Some(last) = news.last {
            let ack = Ack { agent: last.agent, boot: last.boot, durable: last.seq, nacks: news.nacks };
            for metadata in ack.metadata() {
                if self.answer(Ok(PutResult { app_metadata: metadata })).await.is_err() {
                    return Break(());
                }
            }
        }
        match news.has_ended {
            None => Continue(()),
            Some(status) => {
                if let Some(status) = status {
                    // Where the agent is gone there is nobody to tell.
                    let _ = self.answer(Err(status)).await;
                }
                Break(())
            }
        }
    }

    async fn answer(&mut self, answer: Result<PutResult, Status>) -> Result<(), ()> {
        let permit = loop {
            tokio::select! {
                permit = self.answers.reserve() => break permit.map_err(|_| ())?,
                // While the agent does not read, what comes is bounded by the channel's own length.
                settled = self.settled.recv(), if self.waiting.len() < WAITING => match settled {
                    Some(settled) => self.waiting.push_back(settled),
                    None => break self.answers.reserve().await.map_err(|_| ())?,
                },
            }
        };
        permit.send(answer);
        Ok(())
    }
}

/// Settled messages that wait beside the channel.
const WAITING: usize = 1024;
