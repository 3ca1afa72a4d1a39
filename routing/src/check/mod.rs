//! The checks on values: what is wrong with rows whatever they are compared with. Checks that need two sources or the
//! request's length are in [`crate::join`], where these are known.

mod collapse;
mod inspect;
mod values;

pub(crate) use collapse::collapse;
pub(crate) use inspect::repeats;
pub use inspect::{Inspection, LayerValues, inspect};
pub(crate) use values::ValueChecks;
