//! Opening an image: which file, which part of it, in which format, and its other users.
//!
//! Main functions: [`open()`] gives the device of the file system itself, [`look`] the whole image regardless of its
//! users, [`probe`] a superblock or a backup of it, [`scan()`] all that are on a damaged disk. Main types:
//! [`ImageSpec`] (`IMAGE`, `IMAGE@N` or `IMAGE?offset=N`), [`Access`], [`Holder`] (the users of an image),
//! [`DeviceClaim`] (the block device of a mount, and whose it is), [`Mount`] (a line of the kernel's table),
//! [`Format`] (other formats than ext), [`Error`].
//!
//! The disks of virtual machines (qcow2 and others) are used through `qemu-nbd`, which this crate starts; an image may
//! also be the export of an NBD server (`nbd://HOST/EXPORT`).
//!
//! If the last server of an image is about to end, opening waits for it. A mounted image is refused, with its users.
//!
//! On other systems than Linux, images are files and NBD exports alone, and their users are not shown.
//!
//! What it does not do: mount, check or change a file system; print. Messages for the user during an open go to
//! [`Access::tell`].
//!
//! ```
//! use extant_image::{Access, Error, ImageSpec, open};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("archive.gz");
//! std::fs::write(&path, [b"\x1f\x8b\x08".as_slice(), &[0; 65536]].concat())?;
//! match open(&ImageSpec::whole(&path), &Access::tool(true)) {
//!     Err(Error::Foreign { format, .. }) => assert_eq!(format.name(), "compressed with gzip"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Locking
//! One lock, of [`DeviceClaim`].
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

#[cfg(target_os = "linux")]
mod claim;
mod error;
mod formats;
mod holder;
mod member;
#[cfg(target_os = "linux")]
mod mounts;
mod open;
mod partitions;
#[cfg(target_os = "linux")]
mod qemu;
mod scan;
mod spec;

#[cfg(target_os = "linux")]
pub use claim::{ClaimState, DeviceClaim};
pub use error::{Backup, BadOffset, Error, Result};
pub use formats::{Format, UnrecognizedContent, identify, identify_unpartitioned, nothing_found};
pub use holder::Holder;
pub use member::{Member, member};
#[cfg(target_os = "linux")]
pub use mounts::{Mount, absolute, fstab_options, mounts, seen_by};
pub use open::{
    Access, Claim, Note, OpenImage, has_magic, is_remote, look, open, open_whole, overwritten, place, probe,
    refuse_loop_device,
};
pub use partitions::{part_of, part_of_any, partition_end, partition_table, write_stages};
pub use scan::{Descriptors, FileSystem, Scan, Sighting, scan};
pub use spec::{ImageSpec, Part};

/// A name inside a message: control characters could drive the terminal, or forge a line.
pub fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
