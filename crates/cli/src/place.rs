//! Arguments of `cp` and of the commands that change an image: a path of the host, or `IMAGE:PATH`, `IMAGE@N:PATH`,
//! `IMAGE?offset=N:PATH`.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use extant_block::device::NbdAddress;

use crate::failure::{Failure, Result};
use crate::image::ImageSpec;
use crate::text::shown;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Local(Vec<u8>),
    Inside(ImageSpec, Vec<u8>),
}

impl Place {
    /// Parses an argument. A host path that exists is a host path, whatever its name contains. Otherwise the first
    /// colon after the name of an image counts, or, without an image, the first colon before a slash.
    pub fn parse(arg: &OsStr) -> Place {
        let bytes = arg.as_bytes();
        if NbdAddress::is_one(bytes) {
            return in_export(bytes);
        }
        let local = || Place::Local(bytes.to_vec());
        if Path::new(arg).symlink_metadata().is_ok() {
            return local();
        }
        let colons = || bytes.iter().enumerate().filter(|(i, b)| **b == b':' && *i > 0).map(|(i, _)| i);
        let spec = |at: usize| ImageSpec::parse(OsStr::from_bytes(&bytes[..at]));
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

    /// Whether this is `-`: standard input or output.
    pub fn is_stream(&self) -> bool {
        matches!(self, Place::Local(path) if path == b"-")
    }
}

/// `nbd://HOST/EXPORT:PATH`: splits at the first colon before a slash, after that of `://`, or at a colon at the end.
fn in_export(bytes: &[u8]) -> Place {
    let spec = |end: usize| ImageSpec::parse(OsStr::from_bytes(&bytes[..end]));
    let scheme = bytes.windows(3).position(|part| part == b"://").map_or(0, |at| at + 3);
    match bytes[scheme..].windows(2).position(|part| part == b":/") {
        Some(at) => Place::Inside(spec(scheme + at), bytes[scheme + at + 1..].to_vec()),
        None if bytes.ends_with(b":") => Place::Inside(spec(bytes.len() - 1), Vec::new()),
        None => Place::Local(bytes.to_vec()),
    }
}

/// Parses an image and paths in it, for a command with the arguments `IMAGE PATH...`; `IMAGE:PATH...` means the same,
/// as everywhere else.
pub fn in_image(image: &OsStr, paths: &[OsString]) -> (ImageSpec, Vec<OsString>) {
    let Place::Inside(spec, _) = Place::parse(image) else {
        return (ImageSpec::parse(image), paths.to_vec());
    };
    let word = |(file, word): ((ImageSpec, Vec<u8>), &OsStr)| {
        if file.0 == spec { OsString::from_vec(file.1) } else { word.to_owned() }
    };
    let words = std::iter::once(image).chain(paths.iter().map(OsString::as_os_str));
    let all = in_images(image, paths).into_iter().zip(words).map(word).collect();
    (spec, all)
}

/// As [`in_image`], for commands that also accept files of other images: `IMAGE:PATH OTHER:PATH`. Without any path,
/// returns the root.
pub fn in_images(image: &OsStr, paths: &[OsString]) -> Vec<(ImageSpec, Vec<u8>)> {
    let inner = |path: Vec<u8>| if path.is_empty() { b"/".to_vec() } else { path };
    match Place::parse(image) {
        Place::Inside(spec, first) => {
            let more = paths.iter().map(|path| match Place::parse(path) {
                Place::Inside(other, path) => (other, inner(path)),
                Place::Local(path) => (spec.clone(), path),
            });
            std::iter::once((spec.clone(), inner(first))).chain(more).collect()
        }
        Place::Local(_) => {
            let spec = ImageSpec::parse(image);
            let all = paths.iter().map(|path| (spec.clone(), path.as_bytes().to_vec()));
            if paths.is_empty() { vec![(spec, b"/".to_vec())] } else { all.collect() }
        }
    }
}

/// The path of a command that takes only one; without a path, the root.
pub fn the_path(paths: &[OsString]) -> Result<&[u8]> {
    match paths {
        [] => Ok(b"/"),
        [path] => Ok(path.as_bytes()),
        [path, more, ..] => {
            let (path, more) = (shown(path.as_bytes()), shown(more.as_bytes()));
            Err(Failure::usage(format!("one path at a time: {path} or {more}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Part;

    #[test]
    fn an_image_and_its_path_may_be_one_word() {
        let dir = tempfile::tempdir().expect("directory");
        let image = dir.path().join("a.img").into_os_string();
        std::fs::write(&image, b"").expect("file");
        let word = |end: &str| {
            let mut word = image.clone();
            word.push(end);
            word
        };
        let words = |ends: &[&str]| ends.iter().map(OsString::from).collect::<Vec<_>>();
        let (spec, paths) = in_image(&image, &words(&["/x"]));
        assert_eq!((spec, paths), (ImageSpec::whole(&image), words(&["/x"])));
        let (spec, paths) = in_image(&word("@2:/x"), &[word("@2:/y:z"), "/v".into(), word("@3:/w")]);
        assert_eq!((spec.path.as_os_str(), spec.part), (image.as_os_str(), Part::Partition(2)));
        let other = word("@3:/w").into_string().expect("UTF-8");
        assert_eq!(paths, words(&["/x", "/y:z", "/v", &other]));
        assert_eq!(in_image(&word(":"), &[]).1, words(&["/"]));
        let each = in_images(&word("@2:/x"), &[word("@3:/w"), "/v".into()]);
        let each: Vec<_> = each.iter().map(|(spec, path)| (spec.partition(), path.as_slice())).collect();
        assert_eq!(each, [(Some(2), &b"/x"[..]), (Some(3), b"/w"), (Some(2), b"/v")]);
        assert_eq!(in_images(&image, &[]), [(ImageSpec::whole(&image), b"/".to_vec())]);
    }

    #[test]
    fn an_export_and_its_path_may_be_one_word() {
        for (word, image, part, path) in [
            ("nbd://h:99/e:/x:/y", "nbd://h:99/e", Part::Any, "/x:/y"),
            ("nbd://[::1]:99/e@2:/x", "nbd://[::1]:99/e", Part::Partition(2), "/x"),
            ("nbd+unix:///e?socket=/s:/", "nbd+unix:///e?socket=/s", Part::Any, "/"),
            ("nbd+unix:///?socket=/s?offset=1M:", "nbd+unix:///?socket=/s", Part::Offset(1 << 20), ""),
        ] {
            let spec = ImageSpec { path: image.into(), part };
            assert_eq!(Place::parse(OsStr::new(word)), Place::Inside(spec, path.into()), "{word}");
        }
        assert!(!Place::parse(OsStr::new("nbd://h/e")).is_in_image());
    }

    #[test]
    fn arguments_parse_into_images_and_paths() {
        let dir = tempfile::tempdir().expect("directory");
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        std::fs::write(path("a.img"), b"").expect("file");
        std::fs::write(path("b:c"), b"").expect("file");
        let parse = |s: String| Place::parse(OsStr::new(&s));
        let inside = |image: &str, part, inner: &str| {
            Place::Inside(ImageSpec { path: image.into(), part }, inner.as_bytes().to_vec())
        };
        assert_eq!(parse(path("a.img:/etc")), inside(&path("a.img"), Part::Any, "/etc"));
        assert_eq!(parse(path("a.img@2:x:y")), inside(&path("a.img"), Part::Partition(2), "x:y"));
        assert_eq!(parse(path("a.img?offset=512:/x")), inside(&path("a.img"), Part::Offset(512), "/x"));
        assert_eq!(parse(path("a.img:")), inside(&path("a.img"), Part::Any, ""));
        assert_eq!(parse(path("b:c")), Place::Local(path("b:c").into_bytes()));
        assert_eq!(parse("no.img:/x".into()), inside("no.img", Part::Any, "/x"));
        assert_eq!(parse("no:x".into()), Place::Local(b"no:x".to_vec()));
        assert_eq!(parse(":/x".into()), Place::Local(b":/x".to_vec()));
    }
}
