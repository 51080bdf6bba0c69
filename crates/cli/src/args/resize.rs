//! The command lines of `extant resize`, and of its namesake resize2fs.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};

/// Make a file system larger or smaller
///
/// The image file grows or shrinks with its file system, and so does a partition in it: to grow, it must be the last
/// one. On a block device, the file system can grow to the end of the device. An IMAGE must not be in use. It is
/// checked, changed in a copy-on-write layer, and checked again before anything is written. Blocks that the old file
/// system does not use are written first. Then the image's journal makes the rest atomic, or a file with the old blocks
/// does, which is removed at the end. So a power cut leaves the old size or the new one.
///
/// DIR, a mount of Extant, grows while programs use it: the image file grows, and each group or flex group is added in
/// one transaction. A power cut leaves the size after one of these steps. A block device and a partition keep their
/// size, and a smaller SIZE is refused. Only the user who controls the mount may do this.
///
/// When a file system shrinks, blocks behind the new end move, and inodes there get other numbers.
///
/// Bytes that do not fill a block, and a last group without room for files, remain unused.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant resize disk.img 8G
  extant resize disk.img +200M
  extant resize disk.img 500M
  extant resize disk.img min
  truncate -s 8G disk.img && extant resize disk.img max
  extant resize whole-disk.img@2 8G
  extant resize /mnt/data +2G

Exit status: 0 (done, or it has this size already), 1 (not resized).")]
pub struct ResizeArgs {
    /// Image file or block device; IMAGE@N for a partition; or the directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    pub image: OsString,
    /// The size of the file system in bytes, or with K, M, G or T; +SIZE: grow by so much; min: the smallest size that
    /// its files fit into; max: all of the file, the disk or the device
    #[arg(value_name = "SIZE|+SIZE|min|max")]
    pub size: String,
    /// Write the old blocks to this file, which 'extant fsck --undo' and e2undo(8) take, and keep it
    #[arg(short = 'z', long, value_name = "FILE")]
    pub undo_file: Option<PathBuf>,
    /// Partition of a whole disk; same as IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; same as IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}

/// The command line under the name resize2fs.
///
/// The image is checked before and after, so no separate check is needed.
#[derive(Parser, Debug)]
#[command(name = "resize2fs", version = crate::VERSION)]
pub struct ResizeProgram {
    /// Image file or block device that is not in use; IMAGE@N for a partition; or the directory of a mount
    #[arg(value_name = "IMAGE|DIR")]
    pub image: OsString,
    /// The size of the file system in its blocks, or with s (512 bytes), K, M, G or T; without it, all of the file or
    /// device
    pub size: Option<String>,
    /// Make it as small as its files allow
    #[arg(short = 'M', conflicts_with_all = ["size", "print_least"])]
    pub least: bool,
    /// Print the minimum number of blocks, and change nothing
    #[arg(short = 'P', conflicts_with = "size")]
    pub print_least: bool,
    /// Write the old blocks to this file, which 'extant fsck --undo' and e2undo(8) take, and keep it
    #[arg(short = 'z', value_name = "FILE")]
    pub undo_file: Option<PathBuf>,
    #[arg(short = 'f', hide = true, help = "For resize2fs's command lines, without effect")]
    pub force: bool,
    #[arg(short = 'F', hide = true, help = "For resize2fs's command lines, without effect")]
    pub flush: bool,
    #[arg(short = 'p', hide = true, help = "For resize2fs's command lines, without effect")]
    pub progress: bool,
    #[arg(short = 'd', value_name = "FLAGS", hide = true, help = "For resize2fs's command lines, without effect")]
    pub debug: Option<String>,
    #[arg(short = 'S', value_name = "BLOCKS", hide = true, help = "For resize2fs's command lines, without effect")]
    pub stride: Option<String>,
}
