//! Errors of the library as exceptions of Python.
//!
//! Main function: [`raised`].
//!
//! # Locking
//! None.

use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;

/// An OSError: Python chooses the class by the number (FileNotFoundError and the like). The file name is the path in
/// the image, or the image's name.
pub fn raised(e: extant::Error) -> PyErr {
    let text = e.to_string();
    let image = format!("{}: ", e.image());
    let reason = text.strip_prefix(&image).unwrap_or(&text);
    let path = e.path().map(Path::to_path_buf);
    let shown = path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default();
    let reason = reason.strip_prefix(&shown).unwrap_or(reason);
    match path {
        Some(path) => PyOSError::new_err((e.raw_os_error(), reason.to_owned(), path.into_os_string())),
        None => PyOSError::new_err((e.raw_os_error(), reason.to_owned(), e.image().to_owned())),
    }
}
