//! What a tap is told.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Uri;
use serde::Serialize;

/// What the engine behind the tap is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes prompts for others.
    Prefill,
    /// Goes on where a prefill ended.
    Decode,
    /// Does both.
    Colocated,
}

/// What a tap is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// The engine, `http://HOST:PORT`.
    pub upstream: Uri,
    /// The collector, `http://HOST:PORT`.
    pub collector: Uri,
    /// Sent to the collector as `Authorization: Bearer`.
    pub token: Option<String>,
    /// What the engine is for.
    pub role: Role,
    /// Name of the engine; the collector finds one where there is none.
    pub instance: Option<String>,
    /// Label of the deployment.
    pub run: Option<String>,
    /// Where `/metrics` is, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Most bytes of one answer that are copied. A collector takes lines of 32 MiB.
    pub answer_bytes: usize,
    /// Most bytes of all copies together.
    pub copies_bytes: usize,
    /// Most answers that wait for delivery.
    pub queue: usize,
    /// Most connections of clients at once; more wait to be accepted.
    pub connections: usize,
    /// How long an answer is tried to be delivered.
    pub deliver_within: Duration,
    /// How long connections and the queue may take to end.
    pub stop_within: Duration,
}

/// An address that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {uri}: expected http://HOST:PORT")]
pub struct OptionsError {
    what: &'static str,
    uri: Uri,
}

impl Options {
    /// With the usual bounds: 32 MiB an answer, 256 MiB of copies, 1,024 answers, 4,096 connections.
    pub fn new(role: Role, upstream: Uri, collector: Uri) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            upstream,
            collector,
            token: None,
            role,
            instance: None,
            run: None,
            metrics: None,
            answer_bytes: 32 << 20,
            copies_bytes: 256 << 20,
            queue: 1024,
            connections: 4096,
            deliver_within: Duration::from_secs(60),
            stop_within: Duration::from_secs(30),
        }
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        for (what, uri) in [("upstream", &self.upstream), ("collector", &self.collector)] {
            if uri.scheme_str() != Some("http") || uri.authority().is_none() || !matches!(uri.path(), "" | "/") {
                return Err(OptionsError { what, uri: uri.clone() });
            }
        }
        Ok(())
    }
}

/// `HOST:PORT` of a checked address.
pub(crate) fn address(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default();
    format!("{host}:{}", uri.port_u16().unwrap_or(80))
}
