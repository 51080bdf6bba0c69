//! The error number of an error, as the transport takes it; `fs` owns the table ([`Error::errno`]).
//!
//! # Locking
//! None.

use extant_fs::Error;
use rustix::io::Errno;

/// The error number for the caller of a system call.
pub fn errno(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
