//! What holds for every input of a decoder; the targets beside this crate feed it inputs.

pub mod properties;
