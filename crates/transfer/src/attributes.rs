//! Attributes of files that a copy takes along.
//!
//! Functions: [`xattrs`], [`without_acl`].
//!
//! # Locking
//! None.

use extant_fs::{Error as FsError, Filesystem, InodeRef};

/// Extended attributes by full name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The values of one file's attributes are in memory at the same time. Each of them may have an inode of its own.
const XATTRS_BYTES_MAX: usize = 16 << 20;

/// The attributes of a file that can be read, and the first error for the others.
pub fn xattrs(fs: &Filesystem, inode: &InodeRef) -> (Xattrs, Option<FsError>) {
    let (mut xattrs, mut bytes) = (Xattrs::new(), 0);
    let names = match fs.list_xattrs(inode) {
        Ok(names) => names,
        Err(e) => return (xattrs, Some(e)),
    };
    let mut missed = None;
    for name in names {
        match fs.get_xattr(inode, &name) {
            Ok(value) => {
                bytes += name.len() + value.len();
                xattrs.push((name, value));
            }
            Err(e) => missed = missed.or(Some(e)),
        }
        if bytes > XATTRS_BYTES_MAX {
            let detail = format!("more than {} MiB of attributes; 'xattr get' reads one", XATTRS_BYTES_MAX >> 20);
            return (Xattrs::new(), Some(FsError::NoMemory { detail }));
        }
    }
    (xattrs, missed)
}

/// Permissions for a copy without the file's ACL, if it may have one. The mask of an ACL looks like the group's
/// permissions, but must not become those. The group gets the permissions of others.
pub fn without_acl(mode: u16) -> u16 {
    mode & !(0o70 & !((mode & 0o7) << 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_an_acl_does_not_become_the_groups_permissions() {
        for (mode, copied) in [(0o675, 0o655), (0o770, 0o700), (0o4757, 0o4757), (0o640, 0o600)] {
            assert_eq!(format!("{:o}", without_acl(mode)), format!("{copied:o}"));
        }
    }
}
