//! SQL over HTTP: `POST /api/v1/sql`.

mod media;
mod problem;
mod stream;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use serde::Deserialize;

use self::{media::Media, problem::Problem};
use crate::{gate::Gate, metrics::Protocol};

/// `POST /api/v1/sql` with `{"query": "SELECT ..."}`. The answer is what `Accept` asks for: `application/json` (an array of
/// objects), `text/csv`, `application/vnd.apache.arrow.stream` or `application/vnd.apache.parquet`.
pub fn router(gate: Arc<Gate>) -> Router {
    let body = DefaultBodyLimit::max(gate.limits().body_bytes);
    Router::new().route("/api/v1/sql", post(sql).layer(body)).with_state(gate)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    query: String,
}

async fn sql(
    State(gate): State<Arc<Gate>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let media = Media::accepted(&headers)?;
    let Query { query } = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, format!("body: {error}: expected {{\"query\": \"SELECT ...\"}}"))
    })?;
    let turn = gate.turn(Protocol::Http, None).await?;
    let answer = turn.within(async { gate.catalog().await?.query(&query).await }).await?;
    turn.noted(media.check(&answer))?;
    let json_rows = (media == Media::Json).then_some(gate.limits().json_rows);
    let mut bytes = stream::Bytes::start(answer, media, json_rows, turn);
    // What fails before the first byte is an error with its own status; what fails later breaks the answer off.
    let first = bytes.first().await?;
    let body = Body::from_stream(bytes.after(first));
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(media.name()))];
    Ok((kind, body).into_response())
}
