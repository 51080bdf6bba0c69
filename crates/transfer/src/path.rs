//! Paths of images and of the host, as bytes.
//!
//! # Locking
//! None.

use extant_fs::{Error as FsError, Filesystem, InodeRef};
use extant_ondisk::InodeNr;

use crate::error::{Cause, Place, Result};

/// The directory of a path, and the last name in it, without trailing slashes; the name is empty for the root.
pub fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    path[..end].split_at(start)
}

/// The directory of a new path, and the name in it.
pub(crate) fn split(path: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let (dir, name) = split_last(path);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Cause::refused("cannot be made").at(|| Place::host(path)));
    }
    Ok((dir.to_vec(), name.to_vec()))
}

/// Appends a name to a path. An empty path means the current directory.
pub(crate) fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

pub(crate) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    push(&mut path, name);
    path
}

/// The inode at `path`, as [`Filesystem::walk`] finds it. `<N>` means inode N, as in debugfs, and a path may begin
/// with it; for a file of that name, put a slash in front.
///
/// # Errors
/// As [`Filesystem::walk`] and [`Filesystem::iget_by_number`].
pub fn walk(fs: &Filesystem, path: &[u8], follow: bool) -> std::result::Result<InodeRef, FsError> {
    let number = path.strip_prefix(b"<").and_then(|rest| {
        let end = rest.iter().position(|b| *b == b'>')?;
        let number: u32 = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        let below = &rest[end + 1..];
        (below.is_empty() || below.starts_with(b"/")).then_some((number, below))
    });
    let Some((number, below)) = number else { return fs.walk(path, follow) };
    let inode = fs.iget_by_number(InodeNr(number))?;
    // A leading slash would start at the root.
    let below = below.iter().position(|b| *b != b'/').map_or(&b""[..], |at| &below[at..]);
    if below.is_empty() { Ok(inode) } else { fs.walk_at(&inode, below, follow) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_split_into_directory_and_name() {
        assert_eq!(split(b"a").unwrap(), (b"".to_vec(), b"a".to_vec()));
        assert_eq!(split(b"/x/y/").unwrap(), (b"/x/".to_vec(), b"y".to_vec()));
        assert!(split(b"/").is_err());
        assert!(split(b"x/..").is_err());
        assert_eq!(joined(b"", b"a"), b"a");
        assert_eq!(joined(b"/", b"a"), b"/a");
        assert_eq!(joined(b"x", b"a"), b"x/a");
        assert_eq!(split_last(b"/etc/passwd"), (&b"/etc/"[..], &b"passwd"[..]));
        assert_eq!(split_last(b"a//"), (&b""[..], &b"a"[..]));
        assert_eq!(split_last(b"/"), (&b""[..], &b""[..]));
    }
}
