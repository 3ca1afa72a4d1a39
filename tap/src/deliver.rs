//! From the queue to the collector, on a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use crate::answer::{About, Seen};
use crate::metrics::Metrics;
use crate::options::{Options, address};

/// Lines are posted together up to so many bytes; one line may have more.
const TOGETHER: usize = 4 << 20;
/// First and longest wait after a failure.
const WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(30);
/// What is read of the collector's answer: it names what it refused.
const ANSWER_BYTES: usize = 1 << 20;

/// The thread that delivers.
pub(crate) struct Delivery {
    thread: std::thread::JoinHandle<()>,
}

impl Delivery {
    /// Starts it. It ends when every sender of `queue` is gone and all is delivered or given up.
    pub(crate) fn start(
        options: &Options,
        queue: mpsc::Receiver<Seen>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let about = About { role: options.role, instance: options.instance.clone(), run: options.run.clone() };
        let post = Post {
            address: address(&options.collector),
            authority: options.collector.authority().map(ToString::to_string).unwrap_or_default(),
            token: options.token.clone(),
            within: options.deliver_within,
            metrics: Arc::clone(&metrics),
        };
        let thread = std::thread::Builder::new()
            .name("gatescope-tap".into())
            .spawn(move || runtime.block_on(deliver(queue, about, post, &metrics)))?;
        Ok(Self { thread })
    }

    /// Waits until all is delivered, not beyond the deadline.
    pub(crate) async fn ended(self, deadline: Instant) -> bool {
        while !self.thread.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

async fn deliver(mut queue: mpsc::Receiver<Seen>, about: About, post: Post, metrics: &Metrics) {
    while let Some(seen) = queue.recv().await {
        let mut body = Vec::new();
        let mut responses = 0;
        let mut next = Some(seen);
        while let Some(seen) = next.take() {
            let lines = seen.lines(&about);
            if lines.is_empty() {
                metrics.without_routing.add(1);
            }
            responses += lines.len() as u64;
            lines.iter().for_each(|line| body.extend_from_slice(line));
            if body.len() < TOGETHER {
                next = queue.try_recv().ok();
            }
        }
        if responses > 0 {
            post.send(Bytes::from(body), responses).await;
        }
    }
}

/// Where and how lines are posted.
struct Post {
    address: String,
    authority: String,
    token: Option<String>,
    within: Duration,
    metrics: Arc<Metrics>,
}

/// Why an attempt came to nothing.
enum Failure {
    /// Worth another.
    Away(String),
    /// Not.
    Refused(String),
}

impl Post {
    /// Tries until the collector has taken the lines, refused them, or stayed away for too long.
    async fn send(&self, body: Bytes, responses: u64) {
        let deadline = Instant::now() + self.within;
        let mut wait = WAITS.0;
        loop {
            let attempt = timeout_at(Instant::now() + ATTEMPT, self.attempt(body.clone())).await;
            let why = match attempt.unwrap_or_else(|_| Err(Failure::Away(format!("no answer in {ATTEMPT:?}")))) {
                Ok(refusals) => {
                    self.metrics.delivered.add(responses.saturating_sub(refusals));
                    self.metrics.refused.add(refusals);
                    return;
                }
                Err(Failure::Refused(why)) => {
                    self.metrics.refused.add(responses);
                    tracing::warn!(responses, %why, "the collector refused recorded responses");
                    return;
                }
                Err(Failure::Away(why)) => why,
            };
            let pause = wait.mul_f64(rand::random_range(0.5..=1.0));
            if Instant::now() + pause >= deadline {
                self.metrics.undelivered.add(responses);
                tracing::warn!(responses, %why, "recorded responses are given up: the collector stayed away");
                return;
            }
            self.metrics.retries.add(1);
            sleep(pause).await;
            wait = (wait * 2).min(WAITS.1);
        }
    }

    async fn attempt(&self, body: Bytes) -> Result<u64, Failure> {
        let away = |error: &dyn std::fmt::Display| Failure::Away(format!("{}: {error}", self.address));
        let connection = TcpStream::connect(&self.address).await.map_err(|error| away(&error))?;
        let (mut sender, connection) =
            http1::handshake::<_, Full<Bytes>>(TokioIo::new(connection)).await.map_err(|error| away(&error))?;
        let connection = tokio::spawn(connection);
        let mut request = Request::post("/api/v1/responses")
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/jsonl");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| Failure::Refused(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|error| away(&error))?;
        let status = answer.status();
        let text = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let text = text.map(|text| text.to_bytes()).unwrap_or_default();
        connection.abort();
        let said: Option<Value> = serde_json::from_slice(&text).ok();
        if status.is_success() {
            let refusals = said.as_ref().and_then(|said| said.get("refusals")?.as_u64()).unwrap_or(0);
            if refusals > 0 {
                let first = said.as_ref().and_then(|said| said.pointer("/refused/0/problem")?.as_str());
                tracing::warn!(refusals, first, "the collector refused recorded responses");
            }
            return Ok(refusals);
        }
        let why = said.as_ref().and_then(|said| said.pointer("/refused/0/problem").or(said.get("detail"))?.as_str());
        let why = why.map_or_else(|| status.to_string(), |why| format!("{status}: {why}"));
        let passing =
            status.is_server_error() || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(if passing { Failure::Away(why) } else { Failure::Refused(why) })
    }
}
