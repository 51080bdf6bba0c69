//! The owners of files that a copy creates in an image.
//!
//! Main type: [`Owners`].
//!
//! # Locking
//! None.

use extant_fs::{Cred, Error as FsError, Filesystem, InodeRef, NewNode, SetAttr};

/// The rule for the owners of new files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The caller.
    pub cred: Cred,
    /// The caller has no privilege: new files get owner and group of their directory.
    pub of_directory: bool,
    /// An owner that takes precedence.
    pub uid: Option<u32>,
    /// A group that takes precedence.
    pub gid: Option<u32>,
}

impl Owners {
    /// The credentials for a new file in `dir`.
    fn cred(&self, fs: &Filesystem, dir: &InodeRef) -> Cred {
        let cred = if self.of_directory { self.cred.of_directory(&fs.getattr(dir), true, true) } else { self.cred };
        Cred { uid: self.uid.unwrap_or(cred.uid), gid: self.gid.unwrap_or(cred.gid), ..cred }
    }

    /// Creates `name` in `dir`.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn create(
        &self,
        fs: &Filesystem,
        dir: &InodeRef,
        name: &[u8],
        node: NewNode<'_>,
    ) -> std::result::Result<InodeRef, FsError> {
        let inode = fs.create(dir, name, node, self.cred(fs, dir))?;
        // A set-group-ID directory sets its own group; an explicit one takes precedence.
        if self.gid.is_some_and(|gid| gid != fs.getattr(&inode).gid) {
            fs.setattr(&inode, &SetAttr { gid: self.gid, ..SetAttr::default() })?;
        }
        Ok(inode)
    }
}
