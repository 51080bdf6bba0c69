//! The error of a copy: a place and a cause.
//!
//! Main types: [`Error`], [`Place`], [`Cause`] (an error without its place). A side of a copy returns causes alone:
//! the copy knows the path, so no side has to store paths, which in a deep tree are longer than everything else.
//!
//! # Locking
//! None.

use std::borrow::Cow;
use std::fmt;
use std::io;

use extant_fs::Error as FsError;
use extant_image::shown;

use crate::content::Missing;

/// The result of a copy.
pub type Result<T> = std::result::Result<T, Error>;
/// The result of one step, whose place the caller knows.
pub type Step<T> = std::result::Result<T, Cause>;

/// A path on one side of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The image's name; `None` for the host.
    pub image: Option<String>,
    /// The path there.
    pub path: Vec<u8>,
}

impl Place {
    /// A path of the host.
    pub fn host(path: &[u8]) -> Place {
        Place { image: None, path: path.to_vec() }
    }

    /// A path in an image.
    pub fn inside(image: &str, path: &[u8]) -> Place {
        Place { image: Some(image.to_owned()), path: path.to_vec() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(image) = &self.image {
            write!(f, "{}: ", shown(image.as_bytes()))?;
        }
        f.write_str(&shown(&self.path))
    }
}

/// Why something cannot be copied.
#[derive(Debug)]
pub struct Error {
    /// The place of the failure.
    pub place: Box<Place>,
    /// The cause of the failure.
    pub cause: Cause,
}

/// An error without its place.
#[derive(Debug)]
pub enum Cause {
    /// The file system of an image refused, or is damaged.
    Image(FsError),
    /// The same, of an image that is rescued: damage is expected there, and the copy goes around it.
    Hurt(FsError),
    /// The host refused.
    Host(io::Error),
    /// The file has extended attributes that cannot be read.
    Attributes(io::Error),
    /// A rule of copies forbids it.
    Refused(Cow<'static, str>),
    /// A directory, which is copied only with all its content.
    Directory,
    /// The destination, which is given, lies in the directory that is copied.
    IntoItself(Place),
    /// Parts of a file could not be read.
    Missing(Missing),
    /// The file became shorter, down to this size, while it was read.
    Shrank(u64),
    /// The image is damaged, and the mount went around it: names may be missing.
    Incomplete,
    /// The caller has stopped the copy.
    Stopped,
    /// The caller's own output failed.
    Output(io::Error),
    /// The error of another place.
    Elsewhere(Box<Error>),
}

impl Cause {
    /// The cause of something that a rule of copies forbids, with the rule's text.
    pub fn refused(why: impl Into<Cow<'static, str>>) -> Cause {
        Cause::Refused(why.into())
    }

    /// The error with its place.
    pub fn at(self, place: impl FnOnce() -> Place) -> Error {
        match self {
            Cause::Elsewhere(e) => *e,
            cause => Error { place: Box::new(place()), cause },
        }
    }
}

impl Error {
    /// Whether it concerns one file, so that others may still be copied.
    pub fn is_of_one(&self) -> bool {
        match &self.cause {
            Cause::Stopped => false,
            Cause::Output(e) => e.kind() != io::ErrorKind::BrokenPipe,
            _ => true,
        }
    }

    /// Whether it is damage in an image that is rescued.
    pub fn is_hurt(&self) -> bool {
        matches!(self.cause, Cause::Hurt(_) | Cause::Missing(_))
    }
}

impl From<FsError> for Cause {
    fn from(e: FsError) -> Cause {
        Cause::Image(e)
    }
}

impl From<io::Error> for Cause {
    fn from(e: io::Error) -> Cause {
        Cause::Host(e)
    }
}

#[cfg(target_os = "linux")]
impl From<rustix::io::Errno> for Cause {
    fn from(e: rustix::io::Errno) -> Cause {
        Cause::Host(e.into())
    }
}

impl From<Error> for Cause {
    fn from(e: Error) -> Cause {
        Cause::Elsewhere(Box::new(e))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Image(e) | Cause::Hurt(e) => e.fmt(f),
            Cause::Host(e) | Cause::Output(e) => f.write_str(&plain(e)),
            Cause::Attributes(e) => write!(f, "extended attributes: {}", plain(e)),
            Cause::Refused(why) => f.write_str(why),
            Cause::Directory => f.write_str("is a directory"),
            Cause::IntoItself(to) => write!(f, "cannot be copied into itself, {to}"),
            Cause::Missing(missing) => missing.fmt(f),
            Cause::Shrank(size) => write!(f, "shrank while it was read, to {size} bytes"),
            Cause::Incomplete => f.write_str("the image is damaged, so names may be missing"),
            Cause::Stopped => f.write_str("stopped"),
            Cause::Elsewhere(e) => e.fmt(f),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::IntoItself(to) => write!(f, "cannot copy a directory, {}, into itself, {to}", self.place),
            cause => write!(f, "{}: {cause}", self.place),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Image(e) | Cause::Hurt(e) => Some(e),
            Cause::Host(e) | Cause::Attributes(e) | Cause::Output(e) => Some(e),
            Cause::Missing(missing) => Some(&missing.why),
            _ => None,
        }
    }
}

/// The error's text, without "(os error 2)".
pub fn plain(e: &io::Error) -> String {
    plain_text(&e.to_string())
}

/// A message without "(os error 2)".
pub fn plain_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, number)) = rest.split_once(" (os error ") {
        out.push_str(before);
        rest = match number.split_once(')') {
            Some((digits, after)) if digits.bytes().all(|b| b.is_ascii_digit()) => after,
            _ => {
                out.push_str(" (os error ");
                number
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_are_for_machines() {
        assert_eq!(plain(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(plain(&io::Error::other("(odd) text")), "(odd) text");
        let twice = "/x (os error 7): no (os error 13), so (os error is) not (os error 1) (it)";
        assert_eq!(plain_text(twice), "/x: no, so (os error is) not (it)");
        assert_eq!(plain_text("(os error 2) (os error "), "(os error 2) (os error ");
    }

    #[test]
    fn an_error_keeps_the_place_that_it_already_has() {
        let inner = Cause::refused("why").at(|| Place::inside("a\n.img", b"/x"));
        assert_eq!(inner.to_string(), "a?.img: /x: why");
        let outer = Cause::from(inner).at(|| Place::host(b"y"));
        assert_eq!((outer.to_string(), outer.is_of_one()), ("a?.img: /x: why".to_owned(), true));
    }
}
