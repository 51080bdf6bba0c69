//! The command line of `extant mkfs`, whose letters are mke2fs's.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, ValueEnum};

use crate::owner::OwnerSpec;

/// Make a file system
///
/// Without a source the file system is empty, and byte for byte equal to that of mke2fs with the same options. Defaults
/// are those of Debian's /etc/mke2fs.conf; no configuration file is read. Unused blocks of an image file are holes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant mkfs disk.img 1G
  extant mkfs -t ext3 -L data disk.img 500M
  extant mkfs -d rootfs/ disk.img 2G
  extant mkfs --from rootfs.tar.zst --size auto root.img
  tar -c -C rootfs . | extant mkfs --from - --size min root.img
  extant mkfs -F whole-disk.img@2

The image file is made if it does not exist. SIZE is a number of blocks (of 1 KiB unless -b says otherwise), or has a \
suffix: s (sectors), k, M, G, T; without it, the image keeps its size.

Exit status: 0, 1 (usage, or it cannot be made), 129, 130 and 143 (ended by SIGHUP, SIGINT or SIGTERM; a new image file is \
removed, and one that was being overwritten has no file system).")]
pub struct MkfsArgs {
    /// ext2, ext3 or ext4 [default: ext4]
    #[arg(short = 't', value_name = "TYPE")]
    pub fs_type: Option<String>,
    #[command(flatten)]
    pub letters: MkfsLetters,
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Size of the file system; see below
    pub size: Option<String>,
    #[command(flatten)]
    pub source: MkfsSource,
}

/// The format of an image file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MkfsFormat {
    /// The image as it is
    #[default]
    Raw,
    /// The format that fastboot(1) takes
    AndroidSparse,
}

/// Options for the content of the file system, its free space and its format.
#[derive(Args, Debug, Default)]
pub struct MkfsSource {
    /// The content of the file system: a directory, or a tar archive (- for standard input). Layers of a container
    /// image in either are recognized by their content; oci:SRC and oci:SRC:TAG name one, and dir: or tar: takes the
    /// files as they are. image:OLD takes the files of an ext2, ext3 or ext4 image, also of image:DISK@N
    #[arg(long, value_name = "SRC", conflicts_with = "directory")]
    pub from: Option<OsString>,
    /// As SIZE; auto: the size that the source needs and a tenth more; min: the size that it needs; auto+200M: with so
    /// much free space
    #[arg(long = "size", value_name = "SIZE", conflicts_with = "size")]
    pub wanted_size: Option<String>,
    /// Give everything to one owner and group, by number or name
    #[arg(long, value_name = "USER:GROUP", value_parser = OwnerSpec::parse)]
    pub owner: Option<OwnerSpec>,
    /// Change owners as this file specifies: lines 'uid FROM TO COUNT', 'gid FROM TO COUNT' and 'PATH USER:GROUP'
    #[arg(long, value_name = "FILE")]
    pub owners: Option<PathBuf>,
    /// Make this directory of the source, and those below it, ignore case (needs -O casefold); / is all of them
    #[arg(long, value_name = "DIR")]
    pub casefold: Vec<OsString>,
    /// The format of the image file
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: MkfsFormat,
}

/// mke2fs(8): makes an ext2, ext3 or ext4 file system
///
/// As 'extant mkfs', for programs that call mke2fs or mkfs.ext4; see 'extant help mkfs'.
#[derive(Parser, Debug)]
#[command(name = "mke2fs", version = crate::VERSION, disable_version_flag = true)]
pub struct MkfsProgram {
    /// ext2, ext3 or ext4; by default according to the program's name
    #[arg(short = 't', value_name = "TYPE")]
    pub fs_type: Option<String>,
    #[command(flatten)]
    pub letters: MkfsLetters,
    /// Print the version
    #[arg(short = 'V', action = ArgAction::Version)]
    pub version: Option<bool>,
    /// Image file or block device
    pub image: OsString,
    /// Size of the file system
    pub size: Option<String>,
}

/// The options of both commands.
#[derive(Args, Debug)]
pub struct MkfsLetters {
    /// Block size in bytes; with a leading minus, the minimum
    #[arg(short = 'b', value_name = "BYTES")]
    pub block_size: Option<String>,
    /// Look for bad blocks
    #[arg(short = 'c', action = ArgAction::Count, hide = true)]
    pub test_blocks: u8,
    /// Cluster size in bytes, for bigalloc
    #[arg(short = 'C', value_name = "BYTES")]
    pub cluster_size: Option<String>,
    /// The content of the file system: a directory, or another source as with --from
    #[arg(short = 'd', value_name = "SRC")]
    pub directory: Option<PathBuf>,
    /// Old form of -E nodiscard
    #[arg(short = 'K', hide = true)]
    pub keeps_storage: bool,
    /// Old form of -E
    #[arg(short = 'R', hide = true)]
    pub extended_old: Vec<String>,
    /// A file for the overwritten data
    #[arg(short = 'z', value_name = "FILE", hide = true)]
    pub undo: Option<OsString>,
    /// The creator OS: linux, hurd, freebsd, lites or a number
    #[arg(short = 'o', value_name = "OS")]
    pub creator_os: Option<String>,
    /// Bypass the host's page cache; never needed here
    #[arg(short = 'D', hide = true)]
    pub direct: bool,
    /// The kernel's reaction to errors: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "WHAT")]
    pub errors: Option<String>,
    /// More options: hash_seed=UUID, stride=N, stripe_width=N, resize=SIZE, offset=BYTES, root_owner=UID:GID,
    /// root_perms=MODE, root_selinux=LABEL, no_copy_xattrs, android_sparse, …
    #[arg(short = 'E', value_name = "WORDS")]
    pub extended: Vec<String>,
    /// Overwrite a file system
    #[arg(short = 'F', action = ArgAction::Count)]
    pub force: u8,
    /// Blocks per group
    #[arg(short = 'g', value_name = "BLOCKS")]
    pub blocks_per_group: Option<u64>,
    /// Groups whose bitmaps and tables are stored together
    #[arg(short = 'G', value_name = "GROUPS")]
    pub flex_bg_size: Option<u64>,
    /// Bytes of space per inode
    #[arg(short = 'i', value_name = "BYTES")]
    pub inode_ratio: Option<String>,
    /// Inode size in bytes
    #[arg(short = 'I', value_name = "BYTES")]
    pub inode_size: Option<u64>,
    /// Add a journal, which ext3 and ext4 have anyway
    #[arg(short = 'j')]
    pub journal: bool,
    /// The journal: size=MEGABYTES, location=BLOCK, fast_commit_size=KILOBYTES; or device=DEVICE, one that -O
    /// journal_dev has made
    #[arg(short = 'J', value_name = "WORDS")]
    pub journal_options: Vec<String>,
    /// A file with the list of bad blocks
    #[arg(short = 'l', value_name = "FILE", hide = true)]
    pub bad_blocks: Option<PathBuf>,
    /// The label
    #[arg(short = 'L', value_name = "LABEL")]
    pub label: Option<OsString>,
    /// Percentage of the blocks that is reserved for root [default: 5]
    #[arg(short = 'm', value_name = "PERCENT")]
    pub reserved: Option<f64>,
    /// The directory of the last mount
    #[arg(short = 'M', value_name = "DIR")]
    pub last_mounted: Option<OsString>,
    /// Print the plan, and write nothing
    #[arg(short = 'n')]
    pub dry: bool,
    /// Number of inodes, at least
    #[arg(short = 'N', value_name = "INODES")]
    pub inodes: Option<u64>,
    /// Features to add, or with ^ to leave out; journal_dev makes a journal for other file systems' -J device=
    #[arg(short = 'O', value_name = "FEATURES")]
    pub features: Vec<String>,
    /// Print only errors, and a list of what is left out of the source
    #[arg(short = 'q')]
    pub quiet: bool,
    /// Revision of the format: 0 or 1
    #[arg(short = 'r', value_name = "N", hide = true)]
    pub revision: Option<u64>,
    /// Write only superblocks and group descriptors
    #[arg(short = 'S', hide = true)]
    pub superblocks_only: bool,
    /// The usage type: small, floppy, big, huge, news, largefile or largefile4; by default according to the size
    #[arg(short = 'T', value_name = "USAGE")]
    pub usage: Option<String>,
    /// The UUID, or clear, random, time or content (with the hash seed: from names, attributes and sizes of the source)
    #[arg(short = 'U', value_name = "UUID")]
    pub uuid: Option<String>,
    /// Print more
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Threads; all processors by default
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}
