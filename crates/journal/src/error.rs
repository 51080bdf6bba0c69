//! What the journal can answer.

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// An earlier error stopped the journal; nothing can be changed any more.
    #[error("journal aborted: {cause}")]
    Aborted { cause: String },
    /// One operation wants more blocks than a transaction may hold.
    #[error("an operation needs {credits} journal blocks, a transaction holds at most {max}")]
    TooLarge { credits: u32, max: u32 },
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
