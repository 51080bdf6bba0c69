//! The only place that maps errors of the file system to error numbers, for FUSE, the library, C and Python.
//!
//! Main functions: [`Error::errno`]; [`device`] and [`host`] for errors of the device and of the host system, [`kind`]
//! to convert a number to the error kind of `std`. The numbers are those of the system calls of Linux's ext4.
//!
//! What it does not do: print anything; the file system has already reported damage of the image.
//!
//! # Locking
//! None.

use std::io;

use crate::error::{Error, Unsupported};

/// The error numbers of the system.
#[cfg(target_os = "linux")]
pub mod number {
    pub use libc::{
        E2BIG, EACCES, EAGAIN, EBADF, EBUSY, EDQUOT, EEXIST, EFBIG, EINVAL, EIO, EISDIR, ELOOP, EMLINK, ENAMETOOLONG,
        ENODATA, ENOENT, ENOKEY, ENOMEM, ENOSPC, ENOTDIR, ENOTEMPTY, ENXIO, EOPNOTSUPP, EPERM, EROFS, ESTALE, EUCLEAN,
        EXDEV,
    };
}

/// Linux's numbers on most machines (asm-generic/errno-base.h, asm-generic/errno.h), for systems that lack some of
/// them.
#[cfg(not(target_os = "linux"))]
#[allow(missing_docs, reason = "the names are those of errno(3)")]
pub mod number {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
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
    /// The error number that Linux's ext4 returns from a system call for such an error.
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
            // Operations that change something get these; fsync and similar calls get `Lost`.
            Error::ReadOnly | Error::Aborted { .. } => number::EROFS,
            Error::Lost { cause, .. } => lost(cause),
            Error::NotPermitted => number::EPERM,
            Error::AccessDenied => number::EACCES,
            Error::Invalid(_) | Error::CannotGrow(_) => number::EINVAL,
            Error::TooManySymlinks => number::ELOOP,
            Error::TooManyLinks => number::EMLINK,
            Error::FileTooBig => number::EFBIG,
            Error::OtherProject | Error::OtherPolicy => number::EXDEV,
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

/// The number of an error of a device. A failed request is EIO, regardless of the host's error, as for the kernel's
/// ext4.
pub fn device(error: &extant_block::Error) -> i32 {
    use extant_block::Error as E;
    match error {
        E::Open { source, .. } | E::NoLocks { source, .. } => host(source),
        E::ReadOnly { .. } => number::EROFS,
        E::Busy { .. } => number::EBUSY,
        // The image is a sparse file on a full disk. The user can free space on that disk.
        E::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => number::ENOSPC,
        E::FixedSize { .. } => number::EINVAL,
        E::Io { .. } | E::OutOfRange { .. } | E::BadRequest { .. } | E::Lost => number::EIO,
    }
}

/// Linux's numbers and the error kinds of `std`. The errors of a program's own objects have no number, and on other
/// systems the system's numbers have other meanings.
const KINDS: &[(i32, io::ErrorKind)] = {
    use io::ErrorKind as Kind;
    &[
        (number::EPERM, Kind::PermissionDenied),
        (number::ENOENT, Kind::NotFound),
        (number::E2BIG, Kind::ArgumentListTooLong),
        (number::EAGAIN, Kind::WouldBlock),
        (number::ENOMEM, Kind::OutOfMemory),
        (number::EACCES, Kind::PermissionDenied),
        (number::EBUSY, Kind::ResourceBusy),
        (number::EEXIST, Kind::AlreadyExists),
        (number::EXDEV, Kind::CrossesDevices),
        (number::ENOTDIR, Kind::NotADirectory),
        (number::EISDIR, Kind::IsADirectory),
        (number::EINVAL, Kind::InvalidInput),
        (number::EFBIG, Kind::FileTooLarge),
        (number::ENOSPC, Kind::StorageFull),
        (number::EROFS, Kind::ReadOnlyFilesystem),
        (number::EMLINK, Kind::TooManyLinks),
        (number::ENOTEMPTY, Kind::DirectoryNotEmpty),
        (number::EOPNOTSUPP, Kind::Unsupported),
        (number::EDQUOT, Kind::QuotaExceeded),
    ]
};

/// The number of an error of the host, or of an object that the program supplies; EIO if it has none.
pub fn host(e: &io::Error) -> i32 {
    let own = if cfg!(target_os = "linux") { e.raw_os_error() } else { None };
    let of_kind = || KINDS.iter().rfind(|(_, kind)| *kind == e.kind()).map_or(number::EIO, |(of, _)| *of);
    own.unwrap_or_else(of_kind)
}

/// The error kind that `std` assigns to this number.
pub fn kind(number: i32) -> io::ErrorKind {
    if cfg!(target_os = "linux") {
        return io::Error::from_raw_os_error(number).kind();
    }
    KINDS.iter().find(|(of, _)| *of == number).map_or(io::ErrorKind::Other, |(_, kind)| *kind)
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

    #[test]
    fn kinds_of_std_and_numbers_translate_both_ways() {
        for (number, of) in KINDS {
            assert_eq!(kind(*number), *of, "{number}");
            assert_eq!(host(&io::Error::from_raw_os_error(*number)), *number);
            assert_eq!(kind(host(&(*of).into())), *of, "{number}");
        }
        assert_eq!(host(&io::Error::other("a program's own")), number::EIO);
    }

    /// After an abort, changes fail with EROFS. Fsync of lost data fails with EIO, or with ENOSPC.
    #[test]
    fn after_a_journal_abort_changes_and_fsync_fail_with_different_errors() {
        let aborted = || Error::from(extant_journal::Error::Aborted { cause: "a write failed".into() });
        assert_eq!(aborted().errno(), number::EROFS);
        assert_eq!(Error::lost(None, aborted()).errno(), number::EIO);
        assert_eq!(Error::lost(None, Error::ReadOnly).errno(), number::EIO);
        assert_eq!(Error::lost(None, Error::NoSpace).errno(), number::ENOSPC);
    }
}
