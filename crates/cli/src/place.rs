//! Arguments of `cp` and of the commands that change an image: a path of the host, or `IMAGE:PATH`, `IMAGE@N:PATH`.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::image::ImageSpec;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Local(Vec<u8>),
    Inside(ImageSpec, Vec<u8>),
}

impl Place {
    /// A host path that exists is one, whatever is in its name. Else the first colon after the name of an image counts,
    /// or failing that the first that is followed by a slash.
    pub fn parse(arg: &OsStr) -> Place {
        let bytes = arg.as_bytes();
        let local = || Place::Local(bytes.to_vec());
        if Path::new(arg).symlink_metadata().is_ok() {
            return local();
        }
        let colons = || bytes.iter().enumerate().filter(|(i, b)| **b == b':' && *i > 0).map(|(i, _)| i);
        let spec = |at: usize| ImageSpec::parse(OsStr::from_bytes(&bytes[..at]), None);
        let inside = |at: usize| Place::Inside(spec(at), bytes[at + 1..].to_vec());
        let is_image = |at: &usize| {
            let meta = spec(*at).path.metadata();
            meta.is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
        };
        if let Some(at) = colons().find(is_image) {
            return inside(at);
        }
        match colons().find(|at| bytes.get(at + 1) == Some(&b'/')) {
            Some(at) => inside(at),
            None => local(),
        }
    }

    pub fn is_in_image(&self) -> bool {
        matches!(self, Place::Inside(..))
    }

    /// `-`: standard input or output.
    pub fn is_stream(&self) -> bool {
        matches!(self, Place::Local(path) if path == b"-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let dir = tempfile::tempdir().expect("directory");
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(path("a.img"), b"").expect("file");
        std::fs::write(path("b:c"), b"").expect("file");
        let parse = |s: String| Place::parse(OsStr::new(&s));
        let inside = |image: &str, partition, inner: &str| {
            Place::Inside(ImageSpec { path: image.into(), partition }, inner.as_bytes().to_vec())
        };
        assert_eq!(parse(path("a.img:/etc")), inside(&path("a.img"), None, "/etc"));
        assert_eq!(parse(path("a.img@2:x:y")), inside(&path("a.img"), Some(2), "x:y"));
        assert_eq!(parse(path("a.img:")), inside(&path("a.img"), None, ""));
        assert_eq!(parse(path("b:c")), Place::Local(path("b:c").into_bytes()));
        assert_eq!(parse("no.img:/x".into()), inside("no.img", None, "/x"));
        assert_eq!(parse("no:x".into()), Place::Local(b"no:x".to_vec()));
        assert_eq!(parse(":/x".into()), Place::Local(b":/x".to_vec()));
    }
}
