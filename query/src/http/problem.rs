//! Errors of HTTP answers: `application/problem+json` (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::error::QueryError;

/// Why a query has no answer.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let status = match &error {
            QueryError::Query(_) | QueryError::ReadOnly(_) | QueryError::Unwritable { .. } => StatusCode::BAD_REQUEST,
            QueryError::TooManyRows(_) | QueryError::Memory(_) => StatusCode::UNPROCESSABLE_ENTITY,
            QueryError::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            QueryError::Live(_) => StatusCode::SERVICE_UNAVAILABLE,
            QueryError::TooSlow(_) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
        (self.status, kind, body.to_string()).into_response()
    }
}
