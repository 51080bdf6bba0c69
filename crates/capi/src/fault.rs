//! Why a call of C failed: an error number of Linux and a text.
//!
//! Main type: [`Fault`].
//!
//! # Locking
//! None.

use std::io;

pub const ENOENT: i32 = 2;
pub const EBADF: i32 = 9;
pub const EFAULT: i32 = 14;
pub const EINVAL: i32 = 22;
pub const ERANGE: i32 = 34;
pub const EIO: i32 = 5;

/// A failed call. `number` is positive.
#[derive(Debug)]
pub struct Fault {
    pub number: i32,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub fn new(number: i32, text: impl Into<String>) -> Fault {
        Fault { number, text: text.into() }
    }
}

impl From<extant::Error> for Fault {
    fn from(e: extant::Error) -> Fault {
        Fault::new(e.raw_os_error(), e.to_string())
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Fault {
        match extant::Error::of(&e) {
            Some(own) => Fault::new(own.raw_os_error(), own.to_string()),
            None => Fault::new(e.raw_os_error().unwrap_or(EIO), e.to_string()),
        }
    }
}
