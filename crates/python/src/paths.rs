//! Bytes of Python as paths of the library, and back.
//!
//! # Locking
//! None.

use std::path::Path;

use pyo3::PyResult;
#[cfg(not(unix))]
use pyo3::exceptions::PyValueError;

/// A path of which Python has the bytes (`os.fsencode`).
///
/// # Errors
/// ValueError for bytes that the host cannot have in a path.
#[cfg(unix)]
pub fn path(bytes: &[u8]) -> PyResult<&Path> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

#[cfg(not(unix))]
pub fn path(bytes: &[u8]) -> PyResult<&Path> {
    std::str::from_utf8(bytes).map(Path::new).map_err(|_| PyValueError::new_err("a path that is not UTF-8"))
}
