//! What decoding can find wrong.

/// An on-disk structure that cannot be used, and why. The caller adds the image's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes break a rule of the format. `number` is the block, inode, group … that `structure` names.
    #[error("{structure} {number}: {detail}")]
    Corrupt { structure: &'static str, number: u64, detail: String },
    /// The bytes are well formed but use something that Extant does not do.
    #[error("unsupported: {detail}")]
    Unsupported { detail: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn corrupt(structure: &'static str, number: impl Into<u64>, detail: impl Into<String>) -> Error {
        Error::Corrupt { structure, number: number.into(), detail: detail.into() }
    }

    pub fn unsupported(detail: impl Into<String>) -> Error {
        Error::Unsupported { detail: detail.into() }
    }
}
