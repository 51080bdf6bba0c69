//! The command line of `extant undelete`.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Find deleted files by the copies that the journal still has
///
/// The journal keeps older copies of inodes, directories and block maps until its ring wraps around. Files that appear
/// in these copies and have been deleted are listed, or copied into a new directory. A file is whole if its map is
/// complete, all its blocks are free, and neither bitmaps nor log show another use since. Others are listed as partial,
/// and copied only with --partial, with the suffix .partial.
///
/// Nothing is written to the image. Stop using it first: each write may take blocks of deleted files.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant undelete disk.img
  extant undelete --since -2hours disk.img
  extant undelete -o found disk.img

Exit status: 0 (files were found), 1 (usage), 4 (none was found), 8 (the image or the system said no).")]
pub struct UndeleteArgs {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// List files that can be found; the default without -o
    #[arg(short = 'l', long, conflicts_with = "output")]
    pub list: bool,
    /// Copy whole files into this directory, which is created or must be empty
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Copy partial files, too, as NAME.partial
    #[arg(long, requires = "output")]
    pub partial: bool,
    /// Only files deleted at this time or later; for the forms, see touch -d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Partition of a whole disk; same as IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; same as IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}
