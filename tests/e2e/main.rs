//! The program as its users run it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod arrival;
mod bad_input;
mod checking;
mod choices;
mod gatescope;
mod import;
mod layers;
mod lines;
mod links;
mod live;
mod maintenance;
mod payload;
mod refusals;
mod settings;
