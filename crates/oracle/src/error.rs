//! The errors of test steps, with texts for people.

use std::fmt;

/// Why a step of a test failed.
#[derive(thiserror::Error)]
pub enum Error {
    /// A program could not be run.
    #[error("{program}: {source}")]
    Spawn { program: String, source: std::io::Error },
    /// A program ran and failed.
    #[error("{command}: exit code {code:?}\n{output}")]
    Command { command: String, code: Option<i32>, output: String },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    /// A mount did not come up or did not end in time.
    #[error("{what} took longer than {seconds} s\n{output}")]
    Timeout { what: String, seconds: u64, output: String },
    /// Two things that should be equal are not.
    #[error("{what}:\n{difference}")]
    Mismatch { what: String, difference: String },
}

/// As [`fmt::Display`], so that a test that unwraps a result shows the output with its lines.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err` on system calls.
    pub fn io<E: Into<std::io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
        let what = what.into();
        move |e| Error::Io { what, source: e.into() }
    }
}
