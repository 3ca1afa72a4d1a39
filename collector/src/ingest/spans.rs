//! `POST /api/v1/spans`: events as an Arrow IPC stream, for senders without gRPC.

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::StatusCode,
};
use gatescope_wire::{Decoded, decode, ipc};
use serde_json::{Value, json};

use super::problem::Problem;
use crate::live::{
    Intake,
    record::{Header, Kind},
    told::Told,
};

/// Most refusals that an answer names.
const MOST_NAMED: usize = 100;

/// Takes the events of a body. Those that can be read are taken, whatever the others are.
pub(super) async fn take(
    State(intake): State<Intake>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, Problem> {
    intake.check_ready()?;
    let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let size = body.len();
    let malformed = |error: String| Problem::new(StatusCode::BAD_REQUEST, error);
    let batches = ipc::read_stream(body).map_err(|error| malformed(error.to_string()))?;
    let (mut taken, mut last) = (0, 0);
    let mut refused: Vec<Value> = Vec::new();
    let mut refusals = 0;
    let mut refuse = |batch: usize, row: Option<usize>, problem: String| {
        refusals += 1;
        if refused.len() < MOST_NAMED {
            refused.push(json!({"batch": batch, "row": row, "problem": problem}));
        }
    };
    for (index, batch) in batches.enumerate() {
        let decoded = batch.and_then(|batch| Ok((decode(&batch)?, ipc::stream_of(&batch)?)));
        let (Decoded { events, refused, skipped }, record) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                refuse(index, None, error.to_string());
                continue;
            }
        };
        for error in &refused {
            refuse(index, Some(error.row), error.to_string());
        }
        for skipped in &skipped {
            refuse(index, Some(skipped.row), format!("kind {:?}: not known to this release", skipped.kind));
        }
        if events.is_empty() {
            continue;
        }
        taken += events.len();
        let header = Header { kind: Kind::Events, at: chrono::Utc::now().timestamp_micros(), message: None, run: None };
        last = intake.take(&header, &record, events.into_iter().map(Told::from).collect(), None).await?;
    }
    intake.metrics().refused("event", refusals);
    intake.metrics().received("posted-events", size, taken);
    if taken == 0 && refusals > 0 {
        let detail = format!("none of {refusals} events or batches could be read");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with(json!({"refused": refused})));
    }
    intake.watermark().reached(last).await?;
    Ok(Json(json!({"events": taken, "refusals": refusals, "refused": refused})))
}
