//! The command lines of `extant tune`, whose letters are tune2fs's, and of its namesakes.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser};

/// Change the label, the UUID, limits and features of a file system
///
/// The image must not be in use. It is checked, changed in a copy-on-write layer, and checked again before anything is
/// written. Then the image's journal makes the change atomic, or a file with the old blocks does, which is removed at
/// the end. So a power cut leaves the old state or the new one.
#[derive(Args, Debug, Default)]
#[command(after_help = "Examples:
  extant tune -l disk.img
  extant tune -L data -U random disk.img
  extant tune -m 0 -e remount-ro disk.img
  extant tune -O metadata_csum,^resize_inode disk.img
  extant tune -O ^has_journal whole-disk.img@2
  extant tune -J device=journal.img disk.img

Features that can be added: dir_index, dir_nlink, ea_inode, encrypt, ext_attr, extent, extra_isize, fast_commit, filetype, \
has_journal, huge_file, large_dir, large_file, metadata_csum, metadata_csum_seed, mmp, orphan_file, read-only, stable_inodes, \
uninit_bg, verity; removed: dir_index, dir_nlink, extra_isize, fast_commit, filetype, has_journal, huge_file, large_file, \
metadata_csum, metadata_csum_seed, mmp, orphan_file, read-only, resize_inode, uninit_bg.

Exit status: 0 (changed, or listed), 1 (not changed).")]
pub struct TuneArgs {
    #[command(flatten)]
    pub letters: TuneLetters,
    /// Partition of a whole disk; same as IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; same as IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}

/// The command line under the name tune2fs.
#[derive(Parser, Debug)]
#[command(name = "tune2fs", version = crate::VERSION)]
pub struct TuneProgram {
    #[command(flatten)]
    pub letters: TuneLetters,
}

/// The command line under the name e2label.
///
/// Prints the label, or changes it.
#[derive(Parser, Debug)]
#[command(name = "e2label", version = crate::VERSION)]
pub struct LabelProgram {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// The new label
    pub label: Option<OsString>,
}

/// The options of both commands.
#[derive(Args, Debug, Default)]
pub struct TuneLetters {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Print the superblock, as tune2fs does; times are UTC
    #[arg(short = 'l')]
    pub list: bool,
    /// The label: at most 16 bytes
    #[arg(short = 'L', value_name = "LABEL")]
    pub label: Option<OsString>,
    /// The UUID; clear: zeros; random or time: a new one
    #[arg(short = 'U', value_name = "UUID")]
    pub uuid: Option<String>,
    /// Reserve this part of the blocks for root, in percent
    #[arg(short = 'm', value_name = "PERCENT", conflicts_with = "reserved_blocks")]
    pub reserved_percent: Option<f64>,
    /// Reserve this many blocks for root
    #[arg(short = 'r', value_name = "BLOCKS")]
    pub reserved_blocks: Option<u64>,
    /// The user that may use reserved blocks, too
    #[arg(short = 'u', value_name = "USER")]
    pub user: Option<String>,
    /// The group that may use reserved blocks, too
    #[arg(short = 'g', value_name = "GROUP")]
    pub group: Option<String>,
    /// The reaction to an error: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "BEHAVIOR")]
    pub errors: Option<String>,
    /// Default mount options: acl, bsdgroups, journal_data, …; ^OPTION removes one
    #[arg(short = 'o', value_name = "[^]OPTION,…")]
    pub mount_options: Vec<String>,
    /// Number of mounts after which a check is due; -1: never
    #[arg(short = 'c', value_name = "COUNT")]
    pub max_mounts: Option<i32>,
    /// Set the number of mounts since the last check
    #[arg(short = 'C', value_name = "COUNT")]
    pub mounts: Option<u16>,
    /// Days after which a check is due, or weeks (w), months (m), seconds (s); 0: never
    #[arg(short = 'i', value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// The time of the last check: YYYYMMDD[HH[MM[SS]]], now or @SECONDS
    #[arg(short = 'T', value_name = "TIME")]
    pub last_check: Option<String>,
    /// The directory of the last mount
    #[arg(short = 'M', value_name = "DIR")]
    pub last_mounted: Option<OsString>,
    /// Features to add, or with ^ to remove
    #[arg(short = 'O', value_name = "[^]FEATURE,…")]
    pub features: Vec<String>,
    /// clear_mmp, force_fsck, hash_alg=NAME, mmp_update_interval=SECONDS, mount_opts=TEXT, stride=BLOCKS,
    /// stripe_width=BLOCKS, test_fs, ^test_fs
    #[arg(short = 'E', value_name = "OPTION,…")]
    pub extended: Vec<String>,
    /// Add a journal
    #[arg(short = 'j')]
    pub journal: bool,
    /// The journal's size: size=MEGABYTES, or with K, M or G; or device=DEVICE, one that 'extant mkfs -O journal_dev'
    /// has made. With -O ^has_journal, device=DEVICE is the journal that is removed
    #[arg(short = 'J', value_name = "size=SIZE|device=DEVICE")]
    pub journal_options: Option<String>,
    /// Write the old blocks to this file, which 'extant fsck --undo' and e2undo(8) take, and keep it
    #[arg(short = 'z', value_name = "FILE")]
    pub undo_file: Option<PathBuf>,
    /// With -J device=, take the journal from another file system; with -O ^has_journal, leave the journal's device as
    /// it is. An image in use is never changed
    #[arg(short = 'f', action = ArgAction::Count)]
    pub force: u8,
    /// Another inode size, which requires a new image
    #[arg(short = 'I', value_name = "BYTES", hide = true)]
    pub inode_size: Option<String>,
    /// Quota files, which 'extant mkfs' makes
    #[arg(short = 'Q', value_name = "OPTIONS", hide = true)]
    pub quota: Option<String>,
}
