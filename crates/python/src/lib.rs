//! The native half of the Python package `extant`.
//!
//! Main types: [`Image`], [`Fs`], [`RawFile`], [`Names`]. Paths and names are bytes here; the other half
//! (`python/extant`) gives them the shapes that `os` and `io` know. Every call that may do I/O releases the
//! interpreter's lock. A failure is an OSError with number, reason and path.
//!
//! What it does not do: keep the position of a file, or say that something was closed; the other half does.
//!
//! # Locking
//! None: the objects cannot be changed, but for the iterator over names, which Python lets one thread use at a time.
#![forbid(unsafe_code)]

mod errors;
mod files;
mod images;
mod paths;

use pyo3::prelude::*;

#[pymodule]
fn _extant(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<images::Image>()?;
    module.add_class::<images::Fs>()?;
    module.add_class::<files::RawFile>()?;
    module.add_class::<files::Names>()
}
