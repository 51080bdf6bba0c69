//! What file system operations can answer. The errno of each is decided in `fuse` alone.

use extant_mballoc::Error as AllocError;
use extant_ondisk::InodeNr;

use crate::map::MapError;
use crate::xattr::XattrError;

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The image breaks a rule of the format.
    #[error("{0}")]
    Corrupt(String),
    /// The image uses something that Extant does not do; the message names it.
    #[error("{0}")]
    Unsupported(String),
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    #[error(transparent)]
    Journal(extant_journal::Error),
    #[error("no space left in the file system")]
    NoSpace,
    /// Freed blocks become usable with the next commit: the operation is tried again after one.
    #[error("no space until the next commit")]
    NoSpaceUntilCommit,
    #[error("no free inodes")]
    NoInodes,
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("name longer than 255 bytes")]
    NameTooLong,
    #[error("the mount is read-only")]
    ReadOnly,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("permission denied")]
    AccessDenied,
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    #[error("too many links")]
    TooManyLinks,
    #[error("the file would grow past the format's limit")]
    FileTooBig,
    #[error("no such attribute")]
    NoAttribute,
    #[error("value or list too large")]
    TooLarge,
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    #[error("no data or hole there")]
    NoSuchOffset,
    #[error("stale inode {0}")]
    Stale(InodeNr),
    #[error("in use: {0}")]
    Busy(String),
    /// An image that cannot be mounted, with its name in front.
    #[error("{image}: {source}")]
    Mount { image: String, source: Box<Error> },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn corrupt(what: impl Into<String>) -> Error {
        Error::Corrupt(what.into())
    }

    /// Both kinds of "no space".
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace | Error::NoSpaceUntilCommit)
    }

    /// True when the image itself is at fault: `errors=` decides what the mount does about it.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Error::Corrupt(_))
    }
}

impl From<extant_ondisk::Error> for Error {
    fn from(e: extant_ondisk::Error) -> Error {
        match e {
            extant_ondisk::Error::Corrupt { .. } => Error::Corrupt(e.to_string()),
            extant_ondisk::Error::Unsupported { .. } => Error::Unsupported(e.to_string()),
        }
    }
}

impl From<extant_journal::Error> for Error {
    fn from(e: extant_journal::Error) -> Error {
        match e {
            extant_journal::Error::Device(d) => Error::Device(d),
            extant_journal::Error::Aborted { .. } => Error::ReadOnly,
            other => Error::Journal(other),
        }
    }
}

impl From<AllocError> for Error {
    fn from(e: AllocError) -> Error {
        match e {
            AllocError::NoSpace { .. } => Error::NoSpace,
            AllocError::NoSpaceUntilCommit { .. } => Error::NoSpaceUntilCommit,
            AllocError::Corrupt { .. } => Error::Corrupt(e.to_string()),
            AllocError::Invalid { .. } => Error::Invalid("allocation request"),
        }
    }
}

impl From<MapError> for Error {
    fn from(e: MapError) -> Error {
        match e {
            MapError::Corrupt { .. } | MapError::Mapped { .. } => Error::Corrupt(e.to_string()),
            MapError::NoSpace { .. } => Error::NoSpace,
            MapError::TooBig { .. } => Error::FileTooBig,
            MapError::Invalid { detail, .. } => Error::Invalid(detail),
        }
    }
}

impl From<XattrError<Error>> for Error {
    fn from(e: XattrError<Error>) -> Error {
        match e {
            XattrError::NotFound { .. } => Error::NoAttribute,
            XattrError::Exists { .. } => Error::Exists,
            XattrError::NameNotSupported { .. } => Error::NotSupported("attributes of this name"),
            XattrError::NameTooLong { .. } => Error::TooLarge,
            XattrError::ValueTooLong { .. } => Error::TooLarge,
            XattrError::NoSpace { .. } => Error::NoSpace,
            XattrError::InvalidAcl { .. } => Error::Invalid("ACL"),
            XattrError::NoDirectory { .. } => Error::AccessDenied,
            XattrError::OnDisk(e) => e.into(),
            XattrError::Store(e) => e,
        }
    }
}
