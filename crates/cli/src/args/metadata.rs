//! The command line of `extant image`.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Copy the metadata of a file system, without the content of files, for a bug report
///
/// The copy has the size of the file system, and holes in place of files. e2fsck(8) and 'extant fsck' check it as they
/// check the original. With -s all names are replaced; the label and extended attributes are kept.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant image -r disk.img metadata.img && xz metadata.img
  extant image -rs disk.img metadata.img
  extant image -Q /dev/sdb1 metadata.qcow2

Exit status: 0, 1 (usage), 4 (blocks could not be read, and are zeros in the copy), 8 (the image or the system said no).")]
pub struct MetadataArgs {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// The copy, a new file
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// As a sparse file (the default)
    #[arg(short = 'r', conflicts_with = "qcow")]
    pub raw: bool,
    /// As qcow2, whose file has no holes and can be sent as it is
    #[arg(short = 'Q')]
    pub qcow: bool,
    /// Replace names, and targets of symbolic links, by others of the same length; leave the log out
    #[arg(short = 's')]
    pub scramble: bool,
    /// Partition of a whole disk; same as IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; same as IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}
