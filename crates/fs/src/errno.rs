//! The one place where errors of the file system become error numbers, for all doors: FUSE, the library, C, Python.
//!
//! Main function: [`Error::errno`]. The numbers are those of the system calls of Linux's ext4.
//!
//! What it does not do: print anything; the file system has already reported damage of the image.
//!
//! # Locking
//! None.

use crate::error::{Error, Unsupported};

#[cfg(target_os = "linux")]
mod number {
    pub use libc::{
        E2BIG, EACCES, EAGAIN, EBUSY, EDQUOT, EEXIST, EFBIG, EINVAL, EIO, EISDIR, ELOOP, EMLINK, ENAMETOOLONG, ENODATA,
        ENOENT, ENOKEY, ENOMEM, ENOSPC, ENOTDIR, ENOTEMPTY, ENXIO, EOPNOTSUPP, EPERM, EROFS, ESTALE, EUCLEAN, EXDEV,
    };
}

/// Linux's numbers on most machines (asm-generic/errno-base.h, asm-generic/errno.h), for systems that lack some.
#[cfg(not(target_os = "linux"))]
mod number {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const EUCLEAN: i32 = 117;
    pub const EDQUOT: i32 = 122;
    pub const ENOKEY: i32 = 126;
}

impl Error {
    /// The error number with which Linux's ext4 answers a system call that fails like this.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Corrupt { .. } => number::EUCLEAN,
            Error::Unsupported(Unsupported::Content { .. }) => number::ENOKEY,
            Error::Unsupported(_) | Error::NotSupported(_) => number::EOPNOTSUPP,
            Error::Device(e) => device(e),
            Error::NoSpace | Error::NoSpaceUntilCommit | Error::NoInodes => number::ENOSPC,
            Error::QuotaExceeded => number::EDQUOT,
            Error::Unverified { .. } => number::EIO,
            Error::NotFound => number::ENOENT,
            Error::Exists => number::EEXIST,
            Error::NotDirectory => number::ENOTDIR,
            Error::IsDirectory => number::EISDIR,
            Error::NotEmpty => number::ENOTEMPTY,
            Error::NameTooLong => number::ENAMETOOLONG,
            // Operations that would change something get these; fsync and its kind get `Lost`.
            Error::ReadOnly | Error::Aborted { .. } => number::EROFS,
            Error::Lost { cause, .. } => lost(cause),
            Error::NotPermitted => number::EPERM,
            Error::AccessDenied => number::EACCES,
            Error::Invalid(_) => number::EINVAL,
            Error::TooManySymlinks => number::ELOOP,
            Error::TooManyLinks => number::EMLINK,
            Error::FileTooBig => number::EFBIG,
            Error::OtherProject => number::EXDEV,
            Error::NoAttribute => number::ENODATA,
            // Only attributes return this: a value is too long to be stored.
            Error::TooLarge => number::E2BIG,
            Error::NoSuchOffset => number::ENXIO,
            Error::Stale(_) => number::ESTALE,
            Error::DotName | Error::Busy(_) | Error::Elsewhere { .. } => number::EBUSY,
            Error::Thread { .. } => number::EAGAIN,
            Error::NoMemory { .. } => number::ENOMEM,
            Error::Mount { source, .. } => source.errno(),
            Error::Journal(_) => number::EIO,
        }
    }
}

/// The error of fsync(2): the disk is full, or the data is lost.
fn lost(cause: &Error) -> i32 {
    if cause.errno() == number::ENOSPC { number::ENOSPC } else { number::EIO }
}

fn device(error: &extant_block::Error) -> i32 {
    use extant_block::Error as E;
    match error {
        E::ReadOnly { .. } => number::EROFS,
        // A sparse image on a full disk: the user can free space there.
        E::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => number::ENOSPC,
        _ => number::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Damage;
    use std::sync::Arc;

    #[test]
    fn a_full_disk_below_the_image_becomes_enospc() {
        let io = |raw| {
            let source = Arc::new(std::io::Error::from_raw_os_error(raw));
            let op = extant_block::BioOp::Write;
            Error::Device(extant_block::Error::Io { device: "d".into(), op, offset: 0, len: 512, source })
        };
        assert_eq!(io(number::ENOSPC).errno(), number::ENOSPC);
        assert_eq!(io(number::EIO).errno(), number::EIO);
        let mount = Error::Mount { image: "i".into(), source: Box::new(Error::NotFound) };
        assert_eq!(mount.errno(), number::ENOENT);
        assert_eq!(Error::corrupt(Damage::Inode, "c").errno(), 117);
    }

    /// A change fails with EROFS; fsync of data that is lost fails with an error of the device, or of its size.
    #[test]
    fn after_a_journal_abort_changes_and_fsync_fail_with_different_errors() {
        let aborted = || Error::from(extant_journal::Error::Aborted { cause: "a write failed".into() });
        assert_eq!(aborted().errno(), number::EROFS);
        assert_eq!(Error::lost(None, aborted()).errno(), number::EIO);
        assert_eq!(Error::lost(None, Error::ReadOnly).errno(), number::EIO);
        assert_eq!(Error::lost(None, Error::NoSpace).errno(), number::ENOSPC);
    }
}
