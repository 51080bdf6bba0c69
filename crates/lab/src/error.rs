//! Errors of the lab.
//!
//! # Locking
//! None.

use std::io;
use std::path::{Path, PathBuf};

use crate::vfs::VfsError;

/// An error of the lab, ready to be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid request.
    #[error("{0}")]
    Usage(String),
    /// An unknown name, with the known ones.
    #[error("no {what} is called '{name}'; known are: {known}")]
    Unknown {
        /// The kind of object.
        what: &'static str,
        /// The name, as it was written.
        name: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A target that cannot be used; nothing was written to it.
    #[error("{label}: {why}")]
    Target {
        /// The contestant.
        label: String,
        /// The reason.
        why: String,
    },
    /// A file of the lab itself.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// An operation of a workload failed.
    #[error("{op}{}{path}: {source}", if .path.is_empty() { "" } else { " " })]
    Operation {
        /// Name of the operation.
        op: &'static str,
        /// The path that it was called with.
        path: String,
        /// The target's error.
        source: VfsError,
    },
    /// A program that the lab calls failed.
    #[error("{command}: {output}")]
    Tool {
        /// The command line.
        command: String,
        /// Its output.
        output: String,
    },
    /// The user interrupted the run with Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Anything else that ends a trial.
    #[error("{0}")]
    Failed(String),
}

/// The result of the lab's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An unknown name.
    pub fn unknown<'a>(what: &'static str, name: &str, known: impl IntoIterator<Item = &'a str>) -> Error {
        let known: Vec<&str> = known.into_iter().collect();
        Error::Unknown { what, name: name.to_owned(), known: known.join(", ") }
    }

    /// For `map_err` on calls about `path`.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path: PathBuf = path.to_owned();
        move |source| Error::File { path: path.display().to_string(), source }
    }

    /// Whether the request was wrong, as opposed to work that failed.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Usage(_) | Error::Unknown { .. } | Error::Target { .. })
    }
}
