//! `POST /api/v1/responses`: recorded answers of engines as JSON Lines, as `gatescope import` reads them.

use axum::{
    Json,
    body::Body,
    extract::{Query, State},
    http::StatusCode,
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::Problem;
use crate::{
    import::decode_line,
    live::{
        Intake,
        record::{Header, Kind},
        told::{Told, told_by_answer},
    },
};

/// Longest line.
const LINE_BYTES: usize = 32 << 20;
/// Lines are taken together up to so many bytes.
const TOGETHER: usize = 1 << 20;
/// Most refusals that an answer names.
const MOST_NAMED: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parameters {
    /// The run of lines that name none.
    #[serde(default)]
    run: Option<String>,
}

/// Takes the lines of a body. Those that can be read are taken, whatever the others are.
pub(super) async fn take(
    State(intake): State<Intake>,
    Query(parameters): Query<Parameters>,
    body: Body,
) -> Result<Json<Value>, Problem> {
    intake.check_ready()?;
    let run = parameters.run.unwrap_or_else(|| "default".to_owned());
    let mut lines = Lines { intake: &intake, run: run.into(), ..Lines::new(&intake) };
    let mut stream = body.into_data_stream();
    let mut rest = BytesMut::new();
    // What of `rest` has no end of line in it.
    let mut searched = 0;
    let mut skipping = false;
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("the body ended: {error}")))?;
        lines.bytes += piece.len();
        rest.extend_from_slice(&piece);
        while let Some(end) = memchr::memchr(b'\n', &rest[searched..]) {
            let line = rest.split_to(searched + end + 1).freeze();
            searched = 0;
            if std::mem::take(&mut skipping) {
                continue;
            }
            lines.line(line.slice(..line.len() - 1)).await?;
        }
        searched = rest.len();
        if rest.len() > LINE_BYTES {
            if !skipping {
                lines.number += 1;
                lines.refuse(format!("a line of more than {LINE_BYTES} bytes: expected at most so many"));
            }
            skipping = true;
            (rest, searched) = (BytesMut::new(), 0);
        }
    }
    if !skipping && !rest.is_empty() {
        lines.line(rest.freeze()).await?;
    }
    lines.finish().await
}

struct Lines<'a> {
    intake: &'a Intake,
    run: std::sync::Arc<str>,
    number: u64,
    bytes: usize,
    taken: u64,
    refusals: u64,
    refused: Vec<Value>,
    together: BytesMut,
    told: Vec<Told>,
    last: u64,
}

impl<'a> Lines<'a> {
    fn new(intake: &'a Intake) -> Self {
        Self {
            intake,
            run: "default".into(),
            number: 0,
            bytes: 0,
            taken: 0,
            refusals: 0,
            refused: Vec::new(),
            together: BytesMut::new(),
            told: Vec::new(),
            last: 0,
        }
    }

    async fn line(&mut self, line: Bytes) -> Result<(), Problem> {
        self.number += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let options = self.intake.record_options().clone();
        let run = self.run.clone();
        let told_by = move |line: &[u8]| {
            let mut answer = decode_line(line, &options).map_err(|error| error.to_string())?;
            let refusal = answer.refusal.take().map(|error| error.to_string());
            let request = answer.request_id.clone();
            let (told, problems) = told_by_answer(answer, &run);
            let problems: Vec<String> = problems
                .into_iter()
                .map(|(choice, problem)| match choice {
                    0 => format!("request {request}: {problem}"),
                    choice => format!("request {request} choice {choice}: {problem}"),
                })
                .chain(refusal)
                .collect();
            Ok::<_, String>((told, problems))
        };
        // Reading a large answer takes milliseconds, which the other connections should not wait for.
        let text = line.clone();
        let read = tokio::task::spawn_blocking(move || told_by(&text)).await;
        match read {
            Ok(Ok((told, problems))) => {
                problems.into_iter().for_each(|problem| self.refuse(problem));
                self.taken += 1;
                self.told.extend(told);
                self.together.extend_from_slice(&line);
                self.together.extend_from_slice(b"\n");
                if self.together.len() >= TOGETHER { self.send().await } else { Ok(()) }
            }
            Ok(Err(problem)) => {
                self.refuse(problem);
                Ok(())
            }
            Err(_) => {
                self.refuse("reading this line failed inside gatescope; please report it".to_owned());
                Ok(())
            }
        }
    }

    fn refuse(&mut self, problem: String) {
        self.refusals += 1;
        if self.refused.len() < MOST_NAMED {
            self.refused.push(json!({"line": self.number, "problem": problem}));
        }
    }

    async fn send(&mut self) -> Result<(), Problem> {
        if self.together.is_empty() {
            return Ok(());
        }
        let at = chrono::Utc::now().timestamp_micros();
        let header = Header { kind: Kind::Answers, at, message: None, run: Some(self.run.clone()) };
        let (body, told) = (std::mem::take(&mut self.together), std::mem::take(&mut self.told));
        self.last = self.intake.take(&header, &body, told, None).await?;
        Ok(())
    }

    async fn finish(mut self) -> Result<Json<Value>, Problem> {
        self.send().await?;
        self.intake.metrics().refused("line", self.refusals as usize);
        self.intake.metrics().received("answers", self.bytes, self.taken as usize);
        if self.taken == 0 && self.refusals > 0 {
            let detail = format!("none of {} lines could be used", self.number);
            let refused = json!({"refused": self.refused});
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with(refused));
        }
        self.intake.watermark().reached(self.last).await?;
        Ok(Json(json!({"lines": self.taken, "refusals": self.refusals, "refused": self.refused})))
    }
}
