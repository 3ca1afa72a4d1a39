//! The extension module `gatescope._agent`: the capture agent for Python. No method waits, but `flush` and `close`; none of the
//! capturing ones raises: an engine does not fail because nobody could be told of its rows.
#![allow(missing_docs)]

mod agent;
mod arguments;
mod log;

use pyo3::prelude::*;

#[pymodule]
fn _agent(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<agent::Agent>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
