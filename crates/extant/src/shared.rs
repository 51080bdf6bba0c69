//! A mount and the facts about it that all its handles share.
//!
//! Main type: [`Shared`].
//!
//! # Locking
//! None.

use std::path::Path;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_fs::{Cred, Filesystem, InodeRef, Mounted};

use crate::error::{Error, Result, number};
use crate::path;

/// A mounted image. The last handle that drops it unmounts.
pub(crate) struct Shared {
    pub(crate) mounted: Mounted,
    /// The owner of what is created.
    pub(crate) cred: Cred,
    ended: AtomicBool,
}

impl Shared {
    pub(crate) fn new(mounted: Mounted, cred: Cred) -> Shared {
        Shared { mounted, cred, ended: AtomicBool::new(false) }
    }

    /// The file system, unless it has been unmounted. Without this check, a read after the unmount would go to a
    /// device that may have another owner.
    pub(crate) fn live(&self, path: &Path) -> Result<&Filesystem> {
        if self.ended.load(Ordering::Acquire) {
            let why = "the image has been unmounted";
            return Err(Error::wrong_use(self.mounted.image(), Some(path), number::EBADF, why));
        }
        Ok(&self.mounted)
    }

    /// Ends the mount for all handles.
    pub(crate) fn end(&self) -> Result<()> {
        self.ended.store(true, Ordering::Release);
        self.mounted.unmount().map_err(|e| Error::fs(self.mounted.image(), None, e))
    }

    /// Runs an operation on `path`, whose bytes it gets.
    pub(crate) fn on<T>(
        &self,
        path: &Path,
        operation: impl FnOnce(&Filesystem, &[u8]) -> extant_fs::Result<T>,
    ) -> Result<T> {
        let fs = self.live(path)?;
        path::bytes(path)
            .and_then(|bytes| operation(fs, &bytes))
            .map_err(|e| Error::fs(self.mounted.image(), Some(path), e))
    }

    /// The inode at `path`.
    pub(crate) fn inode(&self, path: &Path, follow: bool) -> Result<InodeRef> {
        self.on(path, |fs, bytes| path::walk(fs, bytes, follow))
    }
}
