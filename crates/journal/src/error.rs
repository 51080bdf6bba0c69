//! Errors of the journal.

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// An earlier error stopped the journal, and nothing can be changed any more.
    #[error("journal aborted: {cause}")]
    Aborted { cause: String },
    /// An operation failed after it had changed something and before it was complete.
    #[error("an operation was left half done by {cause}")]
    HalfDone { cause: String },
    /// One operation needs more blocks than a transaction can contain.
    #[error("an operation needs {credits} journal blocks, a transaction holds at most {max}")]
    TooLarge { credits: u32, max: u32 },
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error of every later call, after this error has stopped the journal.
    pub(crate) fn as_aborted(&self) -> Error {
        match self {
            Error::Aborted { .. } => self.clone(),
            first => Error::Aborted { cause: first.to_string() },
        }
    }
}
