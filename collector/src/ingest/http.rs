//! The HTTP side of ingest.

use axum::{Router, extract::DefaultBodyLimit, routing::post};

use super::{answers, spans};
use crate::live::Intake;

/// Largest body of events: many messages' worth.
const SPANS_BYTES: usize = 64 << 20;

/// `POST /api/v1/spans` (an Arrow IPC stream of events) and `POST /api/v1/responses` (recorded answers as JSON Lines). Both
/// answer once what they took is durable.
pub fn router(intake: Intake) -> Router {
    Router::new()
        .route("/api/v1/spans", post(spans::take).layer(DefaultBodyLimit::max(SPANS_BYTES)))
        // Read line by line, never held as a whole.
        .route("/api/v1/responses", post(answers::take).layer(DefaultBodyLimit::disable()))
        .with_state(intake)
}
