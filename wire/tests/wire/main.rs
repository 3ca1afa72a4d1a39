//! The wire format: what is written is read back, what is broken is refused, what was written by version 1 stays readable.
#![allow(clippy::unwrap_used)]

mod events;
mod golden;
mod hostile;
mod messages;
mod roundtrip;
