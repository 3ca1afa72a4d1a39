//! A tap between a client, an engine and a collector, all over real sockets.
#![allow(clippy::unwrap_used)]

mod bytes_unchanged;
mod delivery;
mod ends;
mod parties;
mod streams;
