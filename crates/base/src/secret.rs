//! Memory for keys: it is not swapped out, not part of a core dump, wiped when dropped, and never printed.
//!
//! Main type: [`Secret`].
//!
//! What it does not do: protect what a caller copies out of it. A host that permits no locked memory (RLIMIT_MEMLOCK)
//! may swap a secret out, as it may swap out any memory.
//!
//! # Locking
//! None.

#![allow(unsafe_code)]

use std::fmt;
use std::io::{self, Read};
use std::ptr::from_mut;

use rustix::mm::{Advice, madvise, mlock, munlock};
use zeroize::Zeroize;

/// The most bytes of a secret: one page, so that no other allocation shares the locked memory (on hosts with larger
/// pages, its neighbours are locked with it).
pub const SECRET_MAX: usize = 4096;

#[repr(C, align(4096))]
struct Page([u8; SECRET_MAX]);

/// Up to [`SECRET_MAX`] secret bytes.
pub struct Secret {
    page: Box<Page>,
    len: usize,
    is_locked: bool,
}

impl Secret {
    /// No bytes yet, in locked memory.
    fn empty() -> Secret {
        let mut page = Box::new(Page([0; SECRET_MAX]));
        let at = from_mut(&mut *page).cast();
        // SAFETY: the range is exactly the page, which lives in its box until after `munlock`. Neither call changes or
        // reads its bytes.
        let is_locked = unsafe {
            let _ = madvise(at, SECRET_MAX, Advice::LinuxDontDump);
            mlock(at, SECRET_MAX).is_ok()
        };
        Secret { page, len: 0, is_locked }
    }

    /// A copy of `bytes`. `None`: there are more than [`SECRET_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Secret> {
        let mut secret = Secret::empty();
        secret.page.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        secret.len = bytes.len();
        Some(secret)
    }

    /// Reads up to the end of `from`, but no more than `most` bytes and one.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn read_from(from: &mut impl Read, most: usize) -> io::Result<Secret> {
        let mut secret = Secret::empty();
        let most = most.saturating_add(1).min(SECRET_MAX);
        while secret.len < most {
            match from.read(&mut secret.page.0[secret.len..most]) {
                Ok(0) => break,
                Ok(n) => secret.len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(secret)
    }

    /// The bytes. A caller that copies them wipes the copy.
    pub fn expose(&self) -> &[u8] {
        &self.page.0[..self.len]
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.page.0.zeroize();
        if self.is_locked {
            let at = from_mut(&mut *self.page).cast();
            // SAFETY: the range is the page that `empty` locked.
            let _ = unsafe { munlock(at, SECRET_MAX) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_its_bytes_and_does_not_print_them() {
        let secret = Secret::new(b"hunter2").expect("short");
        assert_eq!(secret.expose(), b"hunter2");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert!(Secret::new(&[1; SECRET_MAX + 1]).is_none());
    }

    #[test]
    fn reading_stops_one_byte_behind_the_most() {
        let read = |bytes: &[u8]| Secret::read_from(&mut &*bytes, 64).expect("read").len();
        assert_eq!((read(&[7; 0]), read(&[7; 64]), read(&[7; 65]), read(&[7; 9000])), (0, 64, 65, 65));
    }
}
