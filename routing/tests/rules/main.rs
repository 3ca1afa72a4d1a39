//! The rules of the join and its checks, through the crate's public face.
#![allow(clippy::unwrap_used, reason = "what these tests build is known to be valid")]

mod deployment;
mod elsewhere;
mod many_requests;
mod one_request;
