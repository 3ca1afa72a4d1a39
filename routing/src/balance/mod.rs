//! How evenly experts are loaded.

pub mod load;
