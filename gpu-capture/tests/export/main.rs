//! The exporter, and the agent through it, against a real Flight server, in this process, that does well, badly or nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod away;
mod collector;
mod delivery;
mod overload;
mod python;
mod refusal;
mod steps;

use std::{sync::Arc, time::Duration};

use gatescope_capture::Options;
use gatescope_routing::{Anchor, Finish, IdWidth, RequestKey, Role, RowShape, Rows, Source, Span, WireType};
use gatescope_wire::{Event, Request, Told};

/// Rows of `rows` positions from `start` on, of the request of this name: 64 bytes a row.
fn span(request: &str, start: u32, rows: usize) -> Event {
    let shape = RowShape::new(8, 8).unwrap();
    let bytes: Vec<u8> = (0..rows * shape.ids()).map(|i| (i as u32 + start) as u8).collect();
    let source = Source { role: Role::Decode, instance: Arc::from("d0"), attempt: 0 };
    let span = Span {
        source,
        anchor: Anchor::Start(start),
        rows: Rows::new(bytes.into(), shape, IdWidth::U8).unwrap(),
        wire_type: WireType::U8,
        unknown: Vec::new(),
        generation: 0,
        block: None,
    };
    of(request, Told::Span(span))
}

fn finish(request: &str) -> Event {
    let source = Source { role: Role::Decode, instance: Arc::from("d0"), attempt: 0 };
    let finish = Finish { source, prompt_tokens: Some(1), completion_tokens: Some(1), uniform_prompt: None };
    of(request, Told::Finish(finish))
}

fn of(request: &str, told: Told) -> Event {
    let key = RequestKey { run: Arc::from("default"), request_id: Arc::from(request), choice: 0 };
    Event::Request(Request { key, at: 1, told })
}

/// Impatient: tests do not wait for seconds.
fn options(collector: &str) -> Options {
    Options {
        backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(50),
        linger: Duration::from_millis(1),
        batch_bytes: 8 << 10,
        ..Options::new(collector, "agent-0")
    }
}

const LONG: Duration = Duration::from_secs(30);

/// Waits until it holds, for a bounded time.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn request_of(event: &Event) -> String {
    match event {
        Event::Request(request) => request.key.request_id.to_string(),
        Event::Model(_) => String::new(),
    }
}
