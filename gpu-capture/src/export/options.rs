//! What an exporter may be told.

use std::{sync::Arc, time::Duration};

use gatescope_wire::MAX_MESSAGE_BYTES;
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// How an exporter sends.
#[derive(Clone)]
pub struct Options {
    /// Where the collector listens: `grpc://HOST:PORT`.
    pub collector: String,
    /// What this agent is called: stable over restarts, no other agent's.
    pub agent: Arc<str>,
    /// The bearer token that the collector wants, if it wants one.
    pub token: Option<String>,
    /// Bytes of events that wait to be sent. Above it, rows are dropped; events without rows have an eighth more.
    pub queue_bytes: usize,
    /// Bytes of messages that are sent and not yet acknowledged. At least the bytes of two messages.
    pub in_flight_bytes: usize,
    /// Bytes at which a message is sent without waiting for more events.
    pub batch_bytes: usize,
    /// How long an event may wait for others to share its message.
    pub linger: Duration,
    /// The first wait after a broken connection; each further one is twice as long.
    pub backoff: Duration,
    /// The longest such wait.
    pub max_backoff: Duration,
    /// A connection on which nothing is acknowledged for so long, though something is sent, is given up.
    pub ack_timeout: Duration,
}

impl Options {
    /// The defaults, for this collector, under this name.
    pub fn new(collector: impl Into<String>, agent: impl Into<Arc<str>>) -> Self {
        Self {
            collector: collector.into(),
            agent: agent.into(),
            token: None,
            queue_bytes: 64 << 20,
            in_flight_bytes: 16 << 20,
            batch_bytes: 256 << 10,
            linger: Duration::from_millis(5),
            backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10),
            ack_timeout: Duration::from_secs(30),
        }
    }

    /// Messages in flight above which no more are made.
    pub(super) fn window(&self) -> usize {
        self.in_flight_bytes.max(2 * MAX_MESSAGE_BYTES)
    }

    pub(super) fn endpoint(&self) -> Result<Endpoint, StartError> {
        let refused = |reason: &str| StartError::Collector { given: self.collector.clone(), reason: reason.to_owned() };
        let address = match self.collector.split_once("://") {
            Some(("grpc" | "http", address)) => address,
            Some((scheme, _)) => return Err(refused(&format!("scheme {scheme}: expected grpc"))),
            None => return Err(refused("no scheme: expected grpc://HOST:PORT")),
        };
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|error| refused(&error.to_string()))?;
        if endpoint.uri().port().is_none() {
            return Err(refused("no port: expected grpc://HOST:PORT"));
        }
        Ok(endpoint
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            // A peer that is gone without a word is noticed though nothing is sent.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(10))
            .keep_alive_while_idle(true))
    }

    pub(super) fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, StartError> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| StartError::Token)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Says everything but the token.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("collector", &self.collector)
            .field("agent", &self.agent)
            .field("queue_bytes", &self.queue_bytes)
            .field("in_flight_bytes", &self.in_flight_bytes)
            .field("batch_bytes", &self.batch_bytes)
            .field("linger", &self.linger)
            .finish_non_exhaustive()
    }
}

/// Why an exporter did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The collector's address cannot be one.
    #[error("collector {given:?}: {reason}")]
    Collector {
        /// What was given.
        given: String,
        /// What is wrong.
        reason: String,
    },
    /// The agent's name cannot be one.
    #[error("agent name of {0} bytes: expected 1 to 256")]
    Agent(usize),
    /// The token cannot travel in a header.
    #[error("token: expected visible ASCII characters")]
    Token,
    /// The wire schema cannot be written down: a fault of this build's.
    #[error(transparent)]
    Wire(#[from] gatescope_wire::WireError),
    /// The spool cannot be used.
    #[error("spool {}: {source}", folder.display())]
    Spool {
        /// Its folder.
        folder: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The metrics port cannot be opened.
    #[error("metrics at {address:?}: {source}")]
    Metrics {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The system gives no thread.
    #[error("the exporter's thread: {0}")]
    Thread(#[from] std::io::Error),
}
