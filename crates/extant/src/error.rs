//! The error of every method: a number, a path, an image, a reason.
//!
//! Main type: [`Error`].
//!
//! # Locking
//! None.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use extant_fs::errno::number;
use extant_fs::errno::{device as device_number, host as host_number, kind as kind_of};
use extant_image::Error as ImageError;
use extant_transfer::Cause as TransferCause;

use crate::path::{self, Route};

/// The result of this crate's methods.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Its text is `IMAGE: PATH: REASON`.
///
/// It becomes a [`std::io::Error`] with `?`. That has the same kind and text, and [`Error::of`] finds this error in it.
///
/// ```
/// use std::io::ErrorKind;
///
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// let error = fs.read("/etc/nope").unwrap_err();
/// assert_eq!(error.raw_os_error(), 2); // ENOENT
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.path().unwrap().to_str(), Some("/etc/nope"));
/// assert_eq!(error.to_string(), "memory: /etc/nope: no such file or directory");
///
/// let error = std::io::Error::from(error);
/// assert_eq!(extant::Error::of(&error).map(|e| e.raw_os_error()), Some(2));
/// # Ok::<(), extant::Error>(())
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    number: i32,
    image: String,
    path: Option<PathBuf>,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Fs(extant_fs::Error),
    Image(ImageError),
    Build(extant_build::Error),
    Check(extant_check::Error),
    /// A file of the host, beside the image.
    Host {
        path: PathBuf,
        source: io::Error,
    },
    /// The object of the caller that receives an archive.
    Output(io::Error),
    /// The caller's mistake, which no layer below has seen, or a rule of copies.
    Use(Cow<'static, str>),
}

impl Error {
    /// The error number of Linux's ext4 for the same failure (`libc::ENOENT` and the like).
    pub fn raw_os_error(&self) -> i32 {
        self.0.number
    }

    /// The kind of the error, as `std::fs` reports it.
    pub fn kind(&self) -> io::ErrorKind {
        kind_of(self.0.number)
    }

    /// The path in the image, as the caller gave it; `None` if the error concerns the whole image.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The image's name.
    pub fn image(&self) -> &str {
        &self.0.image
    }

    /// Whether the image is damaged, as opposed to a failing device or a refused request. The source of this error
    /// then says where: it names the structure, the inode and the block.
    pub fn is_damage(&self) -> bool {
        match &self.0.cause {
            Cause::Fs(extant_fs::Error::Mount { source, .. }) => source.is_corruption(),
            Cause::Fs(e) => e.is_corruption(),
            Cause::Image(e) => matches!(e, ImageError::SuperBlock { .. } | ImageError::Table { .. }),
            _ => false,
        }
    }

    /// This crate's error inside of a [`std::io::Error`], for callers of `Read`, `Write` and `Seek`.
    pub fn of(error: &io::Error) -> Option<&Error> {
        error.get_ref()?.downcast_ref()
    }

    fn new(inner: Inner) -> Error {
        Error(Box::new(inner))
    }

    pub(crate) fn fs(image: &str, path: Option<&Path>, e: extant_fs::Error) -> Error {
        let path = path.map(Path::to_path_buf);
        Error::new(Inner { number: e.errno(), image: image.to_owned(), path, cause: Cause::Fs(e) })
    }

    pub(crate) fn with_number(mut self, number: i32) -> Error {
        self.0.number = number;
        self
    }

    pub(crate) fn image_error(image: String, e: ImageError) -> Error {
        Error::new(Inner { number: number_of(&e), image, path: None, cause: Cause::Image(e) })
    }

    pub(crate) fn build(image: String, e: extant_build::Error) -> Error {
        let number = match &e {
            extant_build::Error::Device(e) => device_number(e),
            extant_build::Error::Thread(_) => number::ENOMEM,
            _ => number::EINVAL,
        };
        Error::new(Inner { number, image, path: None, cause: Cause::Build(e) })
    }

    pub(crate) fn check(image: String, e: extant_check::Error) -> Error {
        let number = match &e {
            extant_check::Error::Device(e) => device_number(e),
            extant_check::Error::Memory { .. } | extant_check::Error::Thread(_) => number::ENOMEM,
            _ => number::EINVAL,
        };
        Error::new(Inner { number, image, path: None, cause: Cause::Check(e) })
    }

    /// `path` is in the image, `host` is the file of the host that failed.
    pub(crate) fn host(image: &str, path: &Path, host: &Path, source: io::Error) -> Error {
        let number = host_number(&source);
        let cause = Cause::Host { path: host.to_path_buf(), source };
        Error::new(Inner { number, image: image.to_owned(), path: Some(path.to_path_buf()), cause })
    }

    pub(crate) fn wrong_use(image: &str, path: Option<&Path>, number: i32, why: impl Into<Cow<'static, str>>) -> Error {
        let (path, cause) = (path.map(Path::to_path_buf), Cause::Use(why.into()));
        Error::new(Inner { number, image: image.to_owned(), path, cause })
    }

    /// The error of a copy or an export.
    pub(crate) fn transfer(image: &str, route: &Route, e: extant_transfer::Error) -> Error {
        let is_host = e.place.image.is_none();
        let met = route.met(&e.place.path, is_host);
        match e.cause {
            TransferCause::Elsewhere(inner) => Error::transfer(image, route, *inner),
            TransferCause::Image(e) | TransferCause::Hurt(e) => Error::fs(image, Some(&met), e),
            TransferCause::Missing(missing) => Error::fs(image, Some(&met), missing.why),
            TransferCause::Host(source) | TransferCause::Attributes(source) => {
                Error::host(image, &met, Path::new(path::name(&e.place.path)), source)
            }
            TransferCause::Output(e) => {
                let number = host_number(&e);
                Error::new(Inner { number, image: image.to_owned(), path: Some(met), cause: Cause::Output(e) })
            }
            cause => {
                let number = match cause {
                    TransferCause::Incomplete => number::EUCLEAN,
                    TransferCause::Shrank(_) => number::EIO,
                    _ => number::EINVAL,
                };
                Error::wrong_use(image, Some(&met), number, cause.to_string())
            }
        }
    }
}

/// The number that mount(2) or open(2) would give for an image that cannot be opened.
fn number_of(e: &ImageError) -> i32 {
    match e {
        ImageError::Device(e) => device_number(e),
        ImageError::Host { source, .. } => host_number(source),
        ImageError::ReadOnly { .. } => number::EROFS,
        ImageError::Member { .. } | ImageError::InUse { .. } | ImageError::Loop { .. } | ImageError::Taken { .. } => {
            number::EBUSY
        }
        ImageError::Changed { .. } => number::EIO,
        _ => number::EINVAL,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause: &dyn fmt::Display = match &self.0.cause {
            // These name the image themselves.
            Cause::Fs(e @ extant_fs::Error::Mount { .. }) => return e.fmt(f),
            Cause::Image(e) => return e.fmt(f),
            Cause::Check(e) => return e.fmt(f),
            Cause::Fs(e) => e,
            Cause::Build(e) => e,
            Cause::Host { source, .. } => source,
            Cause::Output(e) => e,
            Cause::Use(e) => e,
        };
        write!(f, "{}: ", extant_image::shown(self.0.image.as_bytes()))?;
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", extant_image::shown(path.as_os_str().as_encoded_bytes()))?;
        }
        if let Cause::Host { path, .. } = &self.0.cause {
            write!(f, "{}: ", extant_image::shown(path.as_os_str().as_encoded_bytes()))?;
        }
        cause.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Fs(e) => Some(e),
            Cause::Image(e) => Some(e),
            Cause::Build(e) => Some(e),
            Cause::Check(e) => Some(e),
            Cause::Host { source, .. } | Cause::Output(source) => Some(source),
            Cause::Use(_) => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        io::Error::new(e.kind(), e)
    }
}
