//! The collector: what agents and recorded responses tell goes in, Delta tables of joined routing come out.
#![forbid(unsafe_code)]

pub mod fail_point;
pub mod import;
pub mod ingest;
pub mod live;
pub mod log;
pub mod metrics;
pub mod tables;
