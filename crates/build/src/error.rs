//! Why a file system could not be made.

/// Why a file system could not be made. Each message names the error, and the next step where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device could not be written.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// The options contradict each other or the size; the sentence says which.
    #[error("{0}")]
    Options(String),
    /// An entry of the tree cannot be stored, or could not be read.
    #[error("{entry}: {why}")]
    Entry {
        /// Its path: of a directory of the host as it is there, of an archive behind the archive's name.
        entry: String,
        /// The reason.
        why: String,
    },
    /// A source of entries cannot be read, or is not what it should be.
    #[error("{name}: {why}")]
    Source {
        /// The file or directory, or a part of it.
        name: String,
        /// The reason.
        why: String,
    },
    /// The system starts no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A path for a message: bytes that would drive a terminal become question marks.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
