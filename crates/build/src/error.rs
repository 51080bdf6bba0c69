//! Why a file system could not be made.

/// Why a file system could not be made. Each message names what is wrong, and the next step where there is one.
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
        /// Its path in the image.
        entry: String,
        /// What is wrong with it.
        why: String,
    },
    /// The system gives no more threads.
    #[error("no thread can be started: {0}")]
    Thread(String),
}

/// What this crate answers.
pub type Result<T> = std::result::Result<T, Error>;
