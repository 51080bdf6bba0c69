//! ext2, ext3 and ext4 images in user space, read and written as `std::fs` knows a file system.
//!
//! Main types: [`Image`] (which image, and how), [`Fs`] (its file system while it is mounted), [`File`],
//! [`OpenOptions`], [`Metadata`], [`Error`]. [`device`] turns memory, or anything with `Read + Write + Seek`, into a
//! device.
//!
//! ```
//! use std::io::Write;
//!
//! use extant::{Image, OpenOptions};
//!
//! let fs = Image::memory(16 << 20).format()?.mount()?;
//! fs.create_dir_all("/etc/app")?;
//! fs.write("/etc/app/motd", "Hello.\n")?;
//! let mut motd = OpenOptions::new().append(true).open(&fs, "/etc/app/motd")?;
//! writeln!(motd, "Hello again.")?;
//! motd.sync_all()?;
//! assert_eq!(fs.read_to_string("/etc/app/motd")?, "Hello.\nHello again.\n");
//! for entry in fs.read_dir("/etc")? {
//!     println!("{}", entry?.path().display());
//! }
//! drop(motd);
//! fs.unmount()?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Errors
//! Every method returns [`Error`]: the error number of the kernel's ext4 on the same call, the path, the image, and
//! the reason. `?` turns it into a [`std::io::Error`] of the right kind, which still holds it: see [`Error::of`].
//!
//! # Paths
//! A path starts at the root of the image, with or without a leading slash, and may be any bytes but NUL. Symbolic
//! links are followed inside of the image and never lead out of it. Permissions are not checked: the caller is root
//! there.
//!
//! # Threads
//! [`Fs`] can be cloned and used by many threads at once; no lock is common to all operations. There is no async: an
//! operation may wait for the disk, and a mount has background threads of its own. In an async program, call it from
//! the runtime's `spawn_blocking`, as for `std::fs`.
//!
//! # Locking
//! None of its own, except that of [`device::from_io`].
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![deny(missing_docs)]

mod copy;
pub mod device;
mod directory;
mod error;
#[cfg(target_os = "linux")]
mod export;
mod file;
mod fs;
mod image;
mod metadata;
mod open;
mod path;
mod shared;

pub use directory::{DirEntry, ReadDir, Walk};
pub use error::{Error, Result};
#[cfg(target_os = "linux")]
pub use export::ExportOptions;
pub use extant_check::{Finding, Problem, Report, Severity};
pub use extant_fs::{BadKey, KeyRing, Secret};
pub use file::File;
pub use fs::{Fs, Space};
pub use image::Image;
pub use metadata::{FileType, Metadata};
pub use open::OpenOptions;
