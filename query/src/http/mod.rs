//! SQL over HTTP: `POST /api/v1/sql`.

mod media;
mod problem;
mod stream;

use std::{sync::Arc, time::Duration};

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
use tokio::sync::Semaphore;

use self::{media::Media, problem::Problem, stream::Deadline};
use crate::{catalogs::Catalogs, error::QueryError};

/// Bounds of a server's queries.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Queries at once; one more waits for [`Self::patience`].
    pub queries: usize,
    /// How long a query waits for its turn.
    pub patience: Duration,
    /// How long a query may take, reading its answer included.
    pub time: Duration,
    /// Rows of a JSON answer: those are read into memory whole by most who ask for them.
    pub json_rows: u64,
    /// Bytes of a query's text and what is around it.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queries: 8,
            patience: Duration::from_secs(10),
            time: Duration::from_secs(60),
            json_rows: 1_000_000,
            body_bytes: 1 << 20,
        }
    }
}

/// What queries run on.
#[derive(Debug, Clone)]
struct Sql {
    catalogs: Arc<Catalogs>,
    limits: Limits,
    turns: Arc<Semaphore>,
}

/// `POST /api/v1/sql` with `{"query": "SELECT ..."}`. The answer is what `Accept` asks for: `application/json` (an array of
/// objects), `text/csv`, `application/vnd.apache.arrow.stream` or `application/vnd.apache.parquet`.
pub fn router(catalogs: Arc<Catalogs>, limits: Limits) -> Router {
    let turns = Arc::new(Semaphore::new(limits.queries));
    let body = DefaultBodyLimit::max(limits.body_bytes);
    Router::new().route("/api/v1/sql", post(sql).layer(body)).with_state(Sql { catalogs, limits, turns })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    query: String,
}

async fn sql(
    State(sql): State<Sql>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let media = Media::accepted(&headers)?;
    let Query { query } = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, format!("body: {error}: expected {{\"query\": \"SELECT ...\"}}"))
    })?;
    let turn = tokio::time::timeout(sql.limits.patience, Arc::clone(&sql.turns).acquire_owned()).await;
    let Ok(Ok(turn)) = turn else {
        let detail = format!("{} queries run already, and none ended in {:?}", sql.limits.queries, sql.limits.patience);
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
    };
    let limit = sql.limits.time;
    let deadline = Deadline { at: tokio::time::Instant::now() + limit, limit };
    let begin = async {
        let catalog = sql.catalogs.open().await?;
        catalog.query(&query).await
    };
    let answer = match tokio::time::timeout_at(deadline.at, begin).await {
        Ok(answer) => answer?,
        Err(_) => return Err(QueryError::TooSlow(limit).into()),
    };
    media.check(&answer)?;
    let json_rows = (media == Media::Json).then_some(sql.limits.json_rows);
    let mut bytes = stream::Bytes::start(answer, media, json_rows, deadline, turn);
    // What fails before the first byte is an error with its own status; what fails later breaks the answer off.
    let first = bytes.first().await?;
    let body = Body::from_stream(bytes.after(first));
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(media.name()))];
    Ok((kind, body).into_response())
}
