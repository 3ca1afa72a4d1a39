//! Errors of HTTP answers: `application/problem+json` (RFC 9457).

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{live::NotTaken, log::NotDurable};

/// Why a request was not served.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    /// Further members.
    more: serde_json::Value,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), more: json!({}) }
    }

    /// With further members.
    pub(super) fn with(mut self, more: serde_json::Value) -> Self {
        self.more = more;
        self
    }
}

impl From<NotTaken> for Problem {
    fn from(error: NotTaken) -> Self {
        let status = match &error {
            NotTaken::NotReady(_) => StatusCode::SERVICE_UNAVAILABLE,
            NotTaken::Log(log) if log.is_retryable() => StatusCode::INSUFFICIENT_STORAGE,
            NotTaken::Log(_) => StatusCode::PAYLOAD_TOO_LARGE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<NotDurable> for Problem {
    fn from(error: NotDurable) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let (Some(body), serde_json::Value::Object(more)) = (body.as_object_mut(), self.more) {
            body.extend(more);
        }
        let mut response = (self.status, body.to_string()).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if self.status == StatusCode::SERVICE_UNAVAILABLE || self.status == StatusCode::INSUFFICIENT_STORAGE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
