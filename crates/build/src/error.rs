//! The reasons why a file system could not be created.

/// The reason why a file system could not be created. Each message describes the error, and the next step if there is
/// one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device could not be written.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// The options contradict each other or the size, as the sentence says.
    #[error("{0}")]
    Options(String),
    /// An entry of the tree cannot be stored, or could not be read.
    #[error("{entry}: {why}")]
    Entry {
        /// Its path: for a directory of the host the path there, for an archive the path in it after the archive's
        /// name.
        entry: String,
        /// The reason.
        why: String,
    },
    /// A source of entries cannot be read, or has the wrong form.
    #[error("{name}: {why}")]
    Source {
        /// The file or directory, or a part of it.
        name: String,
        /// The reason.
        why: String,
    },
    /// A file or stream is not a source of any kind.
    #[error("{name}: {why}")]
    Unknown {
        /// The file.
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

/// The maximum length of a part of a message that comes from a source, in bytes. An archive can have names of many
/// megabytes.
const SHOWN_MAX: usize = 512;

/// A path, or another text from a source, for a message. Bytes that would control a terminal become question marks, and
/// only the ends of a very long text are shown.
pub(crate) fn shown(path: &[u8]) -> String {
    let plain = |bytes: &[u8]| -> String {
        String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    };
    if path.len() <= SHOWN_MAX {
        return plain(path);
    }
    let (begin, end) = (&path[..SHOWN_MAX / 4], &path[path.len() - SHOWN_MAX / 4..]);
    format!("{}…{} ({} bytes)", plain(begin), plain(end), path.len())
}
