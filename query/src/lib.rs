//! SQL over the tables that gatescope keeps: requests, their routing, the load of experts and what the checks found.
//!
//! A [`Catalog`] is a data folder opened at one position of its log, the same for every table; [`Catalog::query`] runs a
//! `SELECT` on it and gives an [`Answer`], which streams its rows or writes them in a [`Format`]. [`verdict`] reads the
//! same tables and says which requests are clean, and whether two runs routed the same requests alike.
//!
//! Routing is stored a column per layer, each a fixed-size binary with the ids of one position. Nobody needs to see
//! that: the view `experts` has a row per slot, `experts(l07)` is a list, `expert_counts(l07)` counts, and
//! `routing('id')` is one request in order.
//!
//! ```no_run
//! # async fn example() -> Result<(), gatescope_query::QueryError> {
//! use gatescope_query::{Catalog, Format, Options};
//!
//! let catalog = Catalog::open("gatescope-data".as_ref(), &Options::default()).await?;
//! let answer = catalog.query("SELECT status, count(*) FROM requests GROUP BY status").await?;
//! answer.write(Format::Table, std::io::stdout()).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod answer;
mod catalog;
mod catalogs;
mod error;
mod experts;
pub mod flight;
mod format;
mod functions;
mod gate;
pub mod http;
mod layer_column;
mod live;
mod metrics;
mod parameters;
pub mod postgres;
mod provider;
mod reading;
mod session;
mod snapshot;
mod statistics;
mod tables;
pub mod verdict;
mod views;
mod yielding;

pub use self::{
    answer::Answer,
    catalog::Catalog,
    catalogs::Catalogs,
    error::QueryError,
    format::{Format, Relay},
    gate::{Gate, Limits},
    live::{Live, LiveError, Look},
    session::Options,
};
