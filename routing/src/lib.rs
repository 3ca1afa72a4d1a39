//! The domain of gatescope: rows, spans, codecs of engine payloads, the join and the checks.
#![forbid(unsafe_code)]

pub mod check;
pub mod engine;
pub mod finding;
pub mod join;
pub mod model_config;
pub mod record;
pub mod rows;
pub mod shape;
pub mod span;
