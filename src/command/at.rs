//! Asking a running server.

use std::{io::Write, time::Duration};

use anyhow::{Context, bail};
use gatescope_query::{Format, QueryError, Relay};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Uri, body::Bytes, header};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};

/// What is asked for: whatever is written out, types and all arrive.
const ARROW: &str = "application/vnd.apache.arrow.stream";
/// How long to wait for a connection and the first byte: longer than a server lets a query run.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a query on a server and writes its answer as it comes.
pub(super) async fn sql<W>(at: &Uri, query: &str, format: Format, output: W) -> anyhow::Result<Result<(), QueryError>>
where
    W: Write + Send + 'static,
{
    if at.scheme_str() != Some("http") || at.authority().is_none() {
        bail!("--at {at}: expected http://HOST:PORT");
    }
    let uri = format!("{}/api/v1/sql", at.to_string().trim_end_matches('/'));
    let request = Request::post(&uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, ARROW)
        .body(Full::new(Bytes::from(json!({"query": query}).to_string())))
        .with_context(|| format!("--at {at}"))?;
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let answer = tokio::time::timeout(PATIENCE, client.request(request))
        .await
        .with_context(|| format!("{uri}: no answer in {PATIENCE:?}"))?
        .with_context(|| uri.clone())?;
    let status = answer.status();
    let mut body = answer.into_body();
    if status != StatusCode::OK {
        let text = body.collect().await.with_context(|| uri.clone())?.to_bytes();
        let problem: Option<Value> = serde_json::from_slice(&text).ok();
        let detail = problem.as_ref().and_then(|problem| problem.get("detail")?.as_str());
        bail!("{}", detail.map_or_else(|| format!("{uri}: {status}"), str::to_owned));
    }
    let mut relay = Relay::new(format, output);
    while let Some(frame) = body.frame().await {
        let frame = frame.with_context(|| format!("{uri}: the answer was broken off"))?;
        if let Ok(bytes) = frame.into_data()
            && let Err(error) = relay.take(bytes.into())
        {
            return Ok(Err(error));
        }
    }
    Ok(relay.finish())
}
