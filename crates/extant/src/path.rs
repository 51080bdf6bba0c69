//! Paths of the caller as the file system takes them.
//!
//! Main types: [`LastPart`] (the last part of a path, which decides how an operation on a name answers), [`Route`] (the
//! two ends of a copy).
//!
//! # Locking
//! None.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use extant_fs::{Error, Filesystem, InodeRef, Result};

/// The bytes of a path.
///
/// # Errors
/// [`Error::NotFound`] for an empty path, as open(2) has it; [`Error::Invalid`] for a NUL byte, which no system call
/// can pass.
pub(crate) fn bytes(path: &Path) -> Result<Cow<'_, [u8]>> {
    let bytes = raw(path);
    match &*bytes {
        [] => Err(Error::NotFound),
        _ if bytes.contains(&0) => Err(Error::Invalid("a path with a NUL byte")),
        _ => Ok(bytes),
    }
}

/// The bytes of a path as an image has them, unchecked.
#[cfg(unix)]
pub(crate) fn raw(path: &Path) -> Cow<'_, [u8]> {
    path.as_os_str().as_encoded_bytes().into()
}

/// The bytes of a path as an image has them, unchecked: `std` joins paths with another separator here.
#[cfg(not(unix))]
pub(crate) fn raw(path: &Path) -> Cow<'_, [u8]> {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    bytes.map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect::<Vec<_>>().into()
}

/// A name in an image as a part of a path.
#[cfg(unix)]
pub(crate) fn name(bytes: &[u8]) -> &OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// A name in an image as a part of a path. This system has no word for one that is not UTF-8.
#[cfg(not(unix))]
pub(crate) fn name(bytes: &[u8]) -> &OsStr {
    OsStr::new(std::str::from_utf8(bytes).unwrap_or("\u{fffd}"))
}

/// The last part of a path.
pub(crate) enum LastPart<'p> {
    /// The path is `/`.
    Root,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// `slash`: slashes follow the name, so it must be a directory.
    Name { name: &'p [u8], slash: bool },
}

/// The directory of the last part of `path`, and that part. A relative path starts at `start`, or at the root.
pub(crate) fn parent<'p>(
    fs: &Filesystem,
    start: Option<&InodeRef>,
    path: &'p [u8],
) -> Result<(InodeRef, LastPart<'p>)> {
    let walk = |path: &[u8]| match start {
        Some(dir) => fs.walk_at(dir, path, true),
        None => fs.walk(path, true),
    };
    let Some(last) = path.iter().rposition(|b| *b != b'/') else { return Ok((fs.root()?, LastPart::Root)) };
    let (whole, slash) = (&path[..=last], last + 1 < path.len());
    let cut = whole.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let (dir, name) = whole.split_at(cut);
    let dir = walk(dir)?;
    if !is_dir(fs, &dir) {
        return Err(Error::NotDirectory);
    }
    let last = match name {
        b"." => LastPart::Dot,
        b".." => LastPart::DotDot,
        name => LastPart::Name { name, slash },
    };
    Ok((dir, last))
}

/// Whether the inode is a directory.
pub(crate) fn is_dir(fs: &Filesystem, inode: &InodeRef) -> bool {
    crate::metadata::FileType::of_mode(fs.getattr(inode).mode).is_dir()
}

/// The inode at `path`. As for the kernel, a path that ends in a slash or in `/.` is that of a directory.
pub(crate) fn walk(fs: &Filesystem, path: &[u8], follow: bool) -> Result<InodeRef> {
    let as_dir = path.ends_with(b"/") || path.ends_with(b"/.");
    let inode = fs.walk(path, follow || as_dir)?;
    if as_dir && !is_dir(fs, &inode) {
        return Err(Error::NotDirectory);
    }
    Ok(inode)
}

/// The two ends of a copy between the image and the host, so that errors of both sides name the path in the image as
/// the caller gave it.
pub(crate) struct Route {
    /// As the caller gave it.
    given: PathBuf,
    /// From the root on. A relative path that begins with `<` would mean the number of an inode.
    inside: Vec<u8>,
    host: Vec<u8>,
}

impl Route {
    pub(crate) fn new(given: &Path, host: &Path) -> Route {
        let bytes = raw(given);
        let inside = if bytes.starts_with(b"/") { bytes.to_vec() } else { [b"/", &*bytes].concat() };
        Route { given: given.to_path_buf(), inside, host: raw(host).to_vec() }
    }

    /// The path in the image.
    pub(crate) fn inside(&self) -> &[u8] {
        &self.inside
    }

    /// The path in the image of something that the copy has met at `at`, on the host or in the image.
    pub(crate) fn met(&self, at: &[u8], is_host: bool) -> PathBuf {
        let top = if is_host { &self.host } else { &self.inside };
        let end = top.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let below = at.strip_prefix(&top[..end]).unwrap_or_default();
        match below.iter().position(|b| *b != b'/') {
            Some(start) if below.starts_with(b"/") || end == 0 => self.given.join(name(&below[start..])),
            _ => self.given.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_both_sides_name_the_path_in_the_image() {
        let route = Route::new(Path::new("srv/site/"), Path::new("/host/tree"));
        for (at, is_host, met) in [
            ("/srv/site/a/b", false, "srv/site/a/b"),
            ("/srv/site", false, "srv/site/"),
            ("/srv", false, "srv/site/"),
            ("/host/tree/a", true, "srv/site/a"),
            ("/host/tree", true, "srv/site/"),
            ("/host/trees", true, "srv/site/"),
        ] {
            assert_eq!(route.met(at.as_bytes(), is_host), Path::new(met), "{at}");
        }
        assert_eq!(Route::new(Path::new("/"), Path::new("x")).met(b"/a/b", false), Path::new("/a/b"));
    }
}
