//! The collector: recorded responses in, Delta tables of joined routing out.
#![forbid(unsafe_code)]

pub mod fail_point;
pub mod import;
pub mod log;
pub mod tables;
