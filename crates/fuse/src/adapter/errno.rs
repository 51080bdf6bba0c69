//! The one place where errors of the file system become error numbers.
//!
//! Main function: [`errno`].
//!
//! What it does not do: print anything; the file system has already reported damage of the image.
//!
//! # Locking
//! None.

use extant_fs::{Error, Unsupported};
use rustix::io::Errno;

/// The error number for the caller of a system call.
pub fn errno(error: &Error) -> Errno {
    match error {
        Error::Corrupt { .. } => Errno::UCLEAN,
        Error::Unsupported(Unsupported::Content { .. }) => Errno::NOKEY,
        Error::Unsupported(_) | Error::NotSupported(_) => Errno::OPNOTSUPP,
        Error::Device(e) => device(e),
        Error::NoSpace | Error::NoSpaceUntilCommit | Error::NoInodes => Errno::NOSPC,
        Error::NotFound => Errno::NOENT,
        Error::Exists => Errno::EXIST,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::NameTooLong => Errno::NAMETOOLONG,
        // Operations that would change something get these; fsync and its kind get `Lost`.
        Error::ReadOnly | Error::Aborted { .. } => Errno::ROFS,
        Error::Lost { cause, .. } => lost(cause),
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        Error::Invalid(_) => Errno::INVAL,
        Error::TooManyLinks => Errno::MLINK,
        Error::FileTooBig => Errno::FBIG,
        Error::OtherProject => Errno::XDEV,
        Error::NoAttribute => Errno::NODATA,
        // Only attributes return this: a value is too long to be stored.
        Error::TooLarge => Errno::TOOBIG,
        Error::NoSuchOffset => Errno::NXIO,
        Error::Stale(_) => Errno::STALE,
        Error::DotName | Error::Busy(_) => Errno::BUSY,
        Error::Thread { .. } => Errno::AGAIN,
        Error::NoMemory { .. } => Errno::NOMEM,
        Error::Mount { source, .. } => errno(source),
        Error::Journal(_) => Errno::IO,
    }
}

/// The error of fsync(2): the disk is full, or the data is lost.
fn lost(cause: &Error) -> Errno {
    match errno(cause) {
        Errno::NOSPC => Errno::NOSPC,
        _ => Errno::IO,
    }
}

fn device(error: &extant_block::Error) -> Errno {
    use extant_block::Error as E;
    match error {
        E::ReadOnly { .. } => Errno::ROFS,
        // A sparse image on a full disk: the user can free space there.
        E::Io { source, .. } if source.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => Errno::NOSPC,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_fs::Damage;
    use std::sync::Arc;

    #[test]
    fn a_full_disk_below_the_image_becomes_enospc() {
        let io = |raw| {
            let source = Arc::new(std::io::Error::from_raw_os_error(raw));
            let op = extant_block::BioOp::Write;
            Error::Device(extant_block::Error::Io { device: "d".into(), op, offset: 0, len: 512, source })
        };
        assert_eq!(errno(&io(28)), Errno::NOSPC);
        assert_eq!(errno(&io(5)), Errno::IO);
        assert_eq!(errno(&Error::Mount { image: "i".into(), source: Box::new(Error::NotFound) }), Errno::NOENT);
        assert_eq!(errno(&Error::corrupt(Damage::Inode, "c")).raw_os_error(), 117);
    }

    /// A change fails with EROFS; fsync of data that is lost fails with an error of the device, or of its size.
    #[test]
    fn after_a_journal_abort_changes_and_fsync_fail_with_different_errors() {
        let aborted = || Error::from(extant_fs::JournalError::Aborted { cause: "a write failed".into() });
        assert_eq!(errno(&aborted()), Errno::ROFS);
        assert_eq!(errno(&Error::lost(None, aborted())), Errno::IO);
        assert_eq!(errno(&Error::lost(None, Error::ReadOnly)), Errno::IO);
        assert_eq!(errno(&Error::lost(None, Error::NoSpace)), Errno::NOSPC);
    }
}
