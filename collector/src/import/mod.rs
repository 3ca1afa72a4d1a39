//! Import: recorded engine responses in, whole requests in the tables out.
//!
//! ```text
//! pipeline   one thread reads blocks and cuts lines (blocks, lines), as many as there are cores make answers of them
//! session    the calling thread tells the join of each answer, in the order of the input (components, aside)
//! close      whole requests are closed, and all others at the end of the input (end, closed, models, stored)
//! encode     as many threads as there are cores write the closed requests into a batch of the tables (batch)
//! ```
//!
//! Memory is bounded in bytes at each arrow, however long the input: blocks between reader and join, open requests
//! with all that is kept of them (beyond that, requests are put aside as places in the input), rows on their way to the writers.
//! What grows with the number of requests is 16 bytes for each, and less than 200 for each that is put aside.
//!
//! Nothing of an import is stored until a commit; what a commit has stored is found again by the next import, which is
//! what makes importing the same input twice safe.

mod answer;
mod aside;
mod batch;
mod blocks;
mod close;
mod closed;
mod components;
pub(crate) mod encode;
mod end;
mod error;
mod input;
mod lines;
pub(crate) mod models;
mod observer;
mod options;
mod pipeline;
mod session;
pub(crate) mod stored;
mod summary;

use std::{path::Path, sync::atomic::AtomicBool};

pub(crate) use self::{
    answer::{Answer, AnsweredChoice},
    components::fingerprint,
    pipeline::decode_bytes as decode_line,
};
pub use self::{
    error::ImportError,
    input::Input,
    observer::{Observer, Progress, Refusal},
    options::ImportOptions,
    summary::{Stop, Summary},
};

/// Imports recorded responses into the tables under `data`.
///
/// What cannot be used is told to the observer, as are inputs that cannot be read; everything else is imported. Setting
/// `interrupted` ends the import soon: what is not committed by then is not stored.
///
/// # Errors
/// Where the tables cannot be opened or written. What was committed before stays.
pub fn import(
    inputs: &[Input],
    data: &Path,
    options: &ImportOptions,
    observer: &mut dyn Observer,
    interrupted: &AtomicBool,
) -> Result<Summary, ImportError> {
    session::Session::open(inputs, data, options, observer, interrupted)?.run()
}
