/*!
What capture agents and the collector say to each other.

An agent tells [`Event`]s: rows, blocks by hash, starts, finishes, links, what it had to drop. [`encode`] lays some of them
out as one Arrow record batch, one row per event in flat columns; [`decode`] reads them back without copying a row's
bytes. One batch is one **message**, numbered by `(agent, boot, seq)` ([`MessageId`]); the collector answers with [`Ack`]s:
everything up to `seq` is durable, and what it refused and why.

The transport is Arrow Flight's `DoPut` ([`flight`]); the batches themselves ([`ipc`]) travel as well by any other.
`docs/formats.md` describes the format for other senders.

```
use std::sync::Arc;

use gatescope_routing::{Anchor, IdWidth, RequestKey, Role, RowShape, Rows, Source, Span, WireType};
use gatescope_wire::{Event, Request, Told, decode, encode};

// One row of two layers with two experts each, for position 7.
let span = Span {
    source: Source { role: Role::Decode, instance: Arc::from("d0"), attempt: 0 },
    anchor: Anchor::Start(7),
    rows: Rows::new(vec![5, 1, 0, 7].into(), RowShape::new(2, 2)?, IdWidth::U8)?,
    wire_type: WireType::U8,
    unknown: Vec::new(),
    generation: 0,
    block: None,
};
let key = RequestKey { run: Arc::from("default"), request_id: Arc::from("a"), choice: 0 };
let event = Event::Request(Request { key, at: 1_700_000_000_000_000, told: Told::Span(span) });

let batch = encode(&[event])?;
let decoded = decode(&batch)?;
assert!(decoded.refused.is_empty());
let Event::Request(Request { key, told: Told::Span(span), .. }) = &decoded.events[0] else { unreachable!() };
assert_eq!(&*key.request_id, "a");
assert_eq!(span.rows.experts(0, 1), [0, 7]);
# Ok::<(), Box<dyn std::error::Error>>(())
```

# Versions

The schema's metadata carry `gatescope.wire`, the major version. Within a version only columns and kinds are added: a reader
ignores columns that it does not know, skips kinds that it does not know and counts them ([`Decoded::skipped`]), and reads
a column that is absent as null. A batch of a higher version is refused as a whole.
*/
#![forbid(unsafe_code)]

mod ack;
mod batcher;
mod columns;
mod decode;
mod encode;
mod error;
mod event;
pub mod flight;
mod identity;
pub mod ipc;
mod schema;

pub use ack::{Ack, Nack, NackCode};
pub use batcher::{Batcher, wire_bytes};
pub use decode::{Decoded, Skipped, decode};
pub use encode::encode;
pub use error::{RowError, WireError};
pub use event::{Block, Event, Link, ModelSeen, Request, Started, Told};
pub use identity::MessageId;
pub use schema::{VERSION, schema};

/// Most bytes of one message: the default limit of Flight encoders, half of tonic's for a received message.
pub const MAX_MESSAGE_BYTES: usize = 2 << 20;
/// Most events in one message.
pub const MAX_EVENTS: usize = 16_384;
/// Most bytes of a name: run, request id, instance, engine id, model.
pub const MAX_NAME_BYTES: usize = 4096;
/// Most bytes of a block's hash.
pub const MAX_HASH_BYTES: usize = 128;
/// Positions end below this: tables store them as signed 32-bit integers.
pub const MAX_POSITIONS: u32 = i32::MAX as u32;
