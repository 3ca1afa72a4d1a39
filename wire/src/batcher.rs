//! From a sequence of events to messages of a good size.

use std::collections::VecDeque;

use gatescope_routing::{Anchor, Span, span::Unknown};

use crate::{Event, MAX_EVENTS, MAX_MESSAGE_BYTES, Request, Told, WireError};

/// Bytes of a row of a message, names and ids aside: offsets, fixed-width values and validity of every column.
const ROW_BYTES: usize = 192;
/// Bytes of a message without rows: Arrow's header, the padding of each buffer, `app_metadata`.
pub(crate) const MESSAGE_BYTES: usize = 16 << 10;
/// Pieces of a span end at a multiple of this many positions where a piece has room for as many.
const PIECE_POSITIONS: usize = 64;

/// Most bytes that an event takes in a message, never less than it does.
pub fn wire_bytes(event: &Event) -> usize {
    let body = match event {
        Event::Model(model) => {
            model.run.len() + model.instance.len() + model.model.len() + 2 * model.shape.row().layers().div_ceil(8)
        }
        Event::Request(request) => request_bytes(request),
    };
    ROW_BYTES + body
}

fn request_bytes(request: &Request) -> usize {
    let Request { key, told, .. } = request;
    let told_bytes = match told {
        Told::Span(span) => {
            span.rows.bytes().len()
                + span.unknown.len() * crate::encode::UNKNOWN_BYTES
                + span.block.as_ref().map_or(0, |hash| hash.0.len())
        }
        Told::Block(block) => block.reference.hash.0.len(),
        Told::Start(started) => {
            started.start.parent.as_ref().map_or(0, |parent| parent.len())
                + started.name.as_ref().map_or(0, |name| name.engine_id.len() + name.request_id.len())
                + started.model.as_ref().map_or(0, |model| model.len())
        }
        Told::Link(link) => link.prefill.engine_id.len() + link.prefill.request_id.len(),
        Told::Finish(_) | Told::Preempt(_) | Told::Lost(_) => 0,
    };
    key.run.len() + key.request_id.len() + told.source().instance.len() + told_bytes
}

/// Collects events into batches of about a given size, none above [`MAX_MESSAGE_BYTES`].
#[derive(Debug)]
pub struct Batcher {
    target: usize,
    waiting: VecDeque<(Event, usize)>,
    bytes: usize,
}

impl Batcher {
    /// Batches of about `target` bytes: a batch is full when one more event would take it above.
    pub fn new(target: usize) -> Self {
        Self { target: target.clamp(1, MAX_MESSAGE_BYTES - MESSAGE_BYTES), waiting: VecDeque::new(), bytes: 0 }
    }

    /// Adds an event. A span above the size of a message is cut between rows; its pieces have no block hash, since none of
    /// them is the block.
    ///
    /// # Errors
    /// Where an event fits no message and cannot be cut; the batcher is as before.
    pub fn push(&mut self, event: Event) -> Result<(), WireError> {
        let bytes = wire_bytes(&event);
        if bytes <= MAX_MESSAGE_BYTES - MESSAGE_BYTES {
            self.bytes += bytes;
            self.waiting.push_back((event, bytes));
            return Ok(());
        }
        for piece in pieces(event, bytes)? {
            let bytes = wire_bytes(&piece);
            self.bytes += bytes;
            self.waiting.push_back((piece, bytes));
        }
        Ok(())
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes of the events that wait, as they will be in messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a full batch, the oldest events first; `None` where there is none.
    pub fn full(&mut self) -> Option<Vec<Event>> {
        (self.bytes >= self.target || self.waiting.len() >= MAX_EVENTS).then(|| self.take())
    }

    /// Takes a batch, full or not; `None` where nothing waits.
    pub fn rest(&mut self) -> Option<Vec<Event>> {
        (!self.waiting.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> Vec<Event> {
        let mut bytes = 0;
        let mut count = 0;
        for (_, size) in self.waiting.iter().take(MAX_EVENTS) {
            // The first event goes in any case: each fits a message.
            if count > 0 && bytes + size > self.target {
                break;
            }
            bytes += size;
            count += 1;
        }
        self.bytes -= bytes;
        self.waiting.drain(..count).map(|(event, _)| event).collect()
    }
}

/// A span above the size of a message, cut between rows.
fn pieces(event: Event, bytes: usize) -> Result<Vec<Event>, WireError> {
    let too_large = WireError::TooLarge(bytes);
    let Event::Request(Request { key, at, told: Told::Span(span) }) = event else { return Err(too_large) };
    // Rows that are placed by the last of them cannot be told apart by where they begin.
    let Anchor::Start(start) = span.anchor else { return Err(too_large) };
    let ids = span.rows.bytes().len();
    let room = (MAX_MESSAGE_BYTES - MESSAGE_BYTES).saturating_sub(bytes - ids);
    let most = room / span.rows.row_bytes();
    if most == 0 {
        return Err(too_large);
    }
    let mut pieces = Vec::with_capacity(span.rows.len() / most + 2);
    let mut first = 0;
    while first < span.rows.len() {
        let end = piece_end(start as usize, first, most).min(span.rows.len());
        let told = Told::Span(piece(&span, start, first, end));
        pieces.push(Event::Request(Request { key: key.clone(), at, told }));
        first = end;
    }
    Ok(pieces)
}

/// Where the piece ends that begins with row `first` and has at most `most` rows.
fn piece_end(start: usize, first: usize, most: usize) -> usize {
    let end = first + most;
    if most < PIECE_POSITIONS { end } else { end - (start + end) % PIECE_POSITIONS }
}

fn piece(span: &Span, start: u32, first: usize, end: usize) -> Span {
    let unknown = span
        .unknown
        .iter()
        .filter_map(|unknown| {
            let rows = unknown.rows.start.max(first as u32)..unknown.rows.end.min(end as u32);
            (!rows.is_empty())
                .then(|| Unknown { rows: rows.start - first as u32..rows.end - first as u32, layer: unknown.layer })
        })
        .collect();
    Span {
        source: span.source.clone(),
        anchor: Anchor::Start(start.saturating_add(first as u32)),
        rows: span.rows.slice(first..end),
        wire_type: span.wire_type,
        unknown,
        generation: span.generation,
        block: None,
    }
}
