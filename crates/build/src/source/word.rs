//! The arguments by which a command line specifies a source.
//!
//! Main type: [`Word`].
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::shown;
use crate::{Error, Result};

/// The prefixes for an image of layers. Their kinds are distinguished by the content.
const IMAGES: [&[u8]; 3] = [b"oci:", b"oci-archive:", b"docker-archive:"];

/// A source as it is specified: `PATH` or `-`, whose kind depends on the content; or with `tar:`, `dir:` or `oci:`
/// before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The required kind.
    pub form: Form,
    /// The file or directory; `None` for standard input.
    pub path: Option<PathBuf>,
}

/// The required kind of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// The content decides.
    Any,
    /// A tar archive, whose entries are the files, even if they form an image.
    Archive,
    /// A directory, whose entries are the files, even if they form an image.
    Directory,
    /// The layers of an image in a directory or an archive: the one with this tag, or the only one.
    Image(Option<String>),
}

impl Word {
    /// Splits a word. A file whose name begins like a form is specified with `./` before it.
    ///
    /// # Errors
    /// A tag is not text.
    pub fn parse(word: &OsStr) -> Result<Word> {
        let bytes = word.as_bytes();
        let place = |bytes: &[u8]| (bytes != b"-").then(|| PathBuf::from(OsStr::from_bytes(bytes)));
        if let Some(rest) = bytes.strip_prefix(b"tar:") {
            return Ok(Word { form: Form::Archive, path: place(rest) });
        }
        if let Some(rest) = bytes.strip_prefix(b"dir:") {
            return Ok(Word { form: Form::Directory, path: Some(OsStr::from_bytes(rest).into()) });
        }
        let Some(rest) = IMAGES.iter().find_map(|prefix| bytes.strip_prefix(*prefix)) else {
            return Ok(Word { form: Form::Any, path: place(bytes) });
        };
        let (path, tag) = split(rest);
        let text = |tag| std::str::from_utf8(tag).map(str::to_owned);
        let tag = tag.map(text).transpose();
        let tag = tag.map_err(|_| Error::Source { name: shown(rest), why: "its tag is no text".into() })?;
        Ok(Word { form: Form::Image(tag), path: place(path) })
    }
}

/// Splits `PATH[:TAG]`, where both may contain colons: at the longest path that exists; if there is none, at the last
/// colon.
fn split(word: &[u8]) -> (&[u8], Option<&[u8]>) {
    let is_there = |path: &[u8]| path == b"-" || Path::new(OsStr::from_bytes(path)).exists();
    if is_there(word) {
        return (word, None);
    }
    let colons = || (0..word.len()).rev().filter(|at| word[*at] == b':');
    match colons().find(|at| is_there(&word[..*at])).or_else(|| colons().next()) {
        Some(at) => (&word[..at], Some(&word[at + 1..])),
        None => (word, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_a_form_a_place_and_a_tag() {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| format!("{}/{name}", dir.path().display());
        for name in ["a", "a:b", "x.tar"] {
            std::fs::write(at(name), "").expect("file");
        }
        let image = |tag: Option<&str>| Form::Image(tag.map(str::to_owned));
        for (word, form, path) in [
            ("-".to_owned(), Form::Any, None),
            ("tar:-".to_owned(), Form::Archive, None),
            ("oci:-".to_owned(), image(None), None),
            ("docker-archive:-:name:latest".to_owned(), image(Some("name:latest")), None),
            (at("a:b"), Form::Any, Some(at("a:b"))),
            (format!("tar:{}", at("a:b")), Form::Archive, Some(at("a:b"))),
            ("dir:-".to_owned(), Form::Directory, Some("-".to_owned())),
            (format!("oci:{}", at("a")), image(None), Some(at("a"))),
            (format!("oci:{}", at("a:b")), image(None), Some(at("a:b"))),
            (format!("oci:{}", at("a:b:c")), image(Some("c")), Some(at("a:b"))),
            (format!("oci-archive:{}", at("x.tar:name:1.0")), image(Some("name:1.0")), Some(at("x.tar"))),
            (format!("oci:{}", at("none:1.0")), image(Some("1.0")), Some(at("none"))),
            (format!("oci:{}", at("none")), image(None), Some(at("none"))),
        ] {
            let expected = Word { form, path: path.map(PathBuf::from) };
            assert_eq!(Word::parse(word.as_ref()).expect("a word"), expected, "{word}");
        }
        assert!(Word::parse(OsStr::from_bytes(b"oci:x:\xff")).is_err());
    }
}
