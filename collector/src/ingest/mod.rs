//! What comes over the network: agents' streams by Arrow Flight, and the same events or recorded answers by HTTP.

mod acknowledge;
mod answers;
mod flight;
mod http;
mod problem;
mod spans;
mod stream;

pub use self::{
    flight::{Answers, Ingest},
    http::router,
};
