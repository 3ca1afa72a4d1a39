//! What HTTP answers beside ingest and queries: is it alive, is it ready, what does it count.

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use gatescope_collector::live::Intake;
use prometheus::Registry;

use crate::telemetry::Telemetry;

#[derive(Clone)]
struct Inner {
    intake: Intake,
    registry: Registry,
}

/// `/healthz`, `/readyz` and `/metrics`.
pub(super) fn router(intake: Intake, registry: Registry) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Inner { intake, registry })
}

async fn ready(State(inner): State<Inner>) -> (StatusCode, String) {
    match inner.intake.check_writable() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(inner): State<Inner>) -> impl IntoResponse {
    match Telemetry::prometheus(&inner.registry) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
        Err(error) => {
            let text = format!("{error:#}\n").into_bytes();
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], text)
        }
    }
}
