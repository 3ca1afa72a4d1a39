//! The collector: recorded responses in, Delta tables of joined routing out.
#![forbid(unsafe_code)]

pub mod tables;
