//! Memory for keys: it is not swapped out or written to a core dump, is wiped when dropped, and is never printed.
//!
//! Main type: [`Secret`].
//!
//! What it does not do: protect data that a caller copies out of it. A host that permits no locked memory
//! (RLIMIT_MEMLOCK) may swap a secret out, like all other memory.
//!
//! # Locking
//! None.

#![allow(unsafe_code)]

use std::fmt;
use std::io::{self, Read};

use zeroize::Zeroize;

/// The maximum size of a secret in bytes: one page, so that no other allocation is on the locked page (on hosts with
/// larger pages, its neighbours are locked with it).
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
    /// Creates an empty secret in locked memory.
    fn empty() -> Secret {
        let mut page = Box::new(Page([0; SECRET_MAX]));
        let is_locked = memory::lock(&mut page);
        Secret { page, len: 0, is_locked }
    }

    /// Copies `bytes`. Returns `None` if there are more than [`SECRET_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Secret> {
        let mut secret = Secret::empty();
        secret.page.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        secret.len = bytes.len();
        Some(secret)
    }

    /// Reads to the end of `from`, but at most `most` bytes plus one, so that the caller notices a longer input.
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

    /// The bytes. A caller that copies them must wipe the copy.
    pub fn expose(&self) -> &[u8] {
        &self.page.0[..self.len]
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(target_os = "linux")]
mod memory {
    use std::ptr::from_mut;

    use rustix::mm::{Advice, madvise, mlock, munlock};

    use super::Page;

    /// Keeps the page in memory and out of core dumps, if the host permits it. Returns whether the page is locked.
    pub fn lock(page: &mut Page) -> bool {
        let (at, len) = (from_mut(page).cast(), size_of::<Page>());
        // SAFETY: the range is exactly the page. Neither call changes or reads its bytes.
        unsafe {
            let _ = madvise(at, len, Advice::LinuxDontDump);
            mlock(at, len).is_ok()
        }
    }

    /// Undoes [`lock`], because the allocator may use the page for anything afterwards.
    pub fn unlock(page: &mut Page) {
        let (at, len) = (from_mut(page).cast(), size_of::<Page>());
        // SAFETY: the same as for `lock`.
        unsafe {
            let _ = madvise(at, len, Advice::LinuxDoDump);
            let _ = munlock(at, len);
        }
    }
}

/// For hosts without these calls.
#[cfg(not(target_os = "linux"))]
mod memory {
    use super::Page;

    pub fn lock(_: &mut Page) -> bool {
        false
    }

    pub fn unlock(_: &mut Page) {}
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
            memory::unlock(&mut self.page);
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
