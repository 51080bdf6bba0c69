//! The command line of `extant fsck`, whose letters are e2fsck's.
//!
//! # Locking
//! None.

use std::ffi::OsString;

use clap::{ArgAction, Args, Parser};

/// Check a file system for damage
///
/// Reads everything that describes files, follows every rule of the format, and prints the problems, one line each.
/// Nothing is changed: repair is still to come, so -n must be given; -p and -y check, and fail if something is to be
/// repaired. The log is replayed in memory. An image that is
/// mounted is checked all the same; changes that its writer makes meanwhile may then look like damage.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant fsck -n disk.img
  extant fsck -fn whole-disk.img@2
  extant fsck -n -b 32768 -B 4096 disk.img

Exit status: 0 (no damage), 4 (damage), 8 (the image cannot be read or has no superblock; -p, -y: damage that is not repaired), 12 (damage, and not everything \
could be checked), 16 (usage, or -n is missing).")]
pub struct FsckArgs {
    #[command(flatten)]
    pub letters: FsckLetters,
    /// Threads; all processors by default
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Partition of a whole disk; IMAGE@N says it, too
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Where the file system begins; IMAGE?offset=BYTES says it, too
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}

/// The command line under e2fsck's names.
#[derive(Parser, Debug)]
#[command(name = "e2fsck", version = crate::VERSION, disable_version_flag = true)]
pub struct FsckProgram {
    #[command(flatten)]
    pub letters: FsckLetters,
    /// Print the version
    #[arg(short = 'V', action = ArgAction::Version)]
    pub version: Option<bool>,
}

/// The options of both commands.
#[derive(Args, Debug)]
pub struct FsckLetters {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Change nothing, and answer no to every question
    #[arg(short = 'n')]
    pub no: bool,
    /// Exit status 0 if there is nothing to repair; this version cannot repair
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "no")]
    pub preen: bool,
    /// As -p
    #[arg(short = 'y', conflicts_with_all = ["no", "preen"])]
    pub yes: bool,
    /// Check even a file system that is marked as clean
    #[arg(short = 'f')]
    pub force: bool,
    /// Use the superblock in block N
    #[arg(short = 'b', value_name = "N")]
    pub superblock: Option<u64>,
    /// The size in bytes of the blocks that -b counts
    #[arg(short = 'B', value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Write the progress to this file descriptor, as e2fsck does; 0: show a bar
    #[arg(short = 'C', value_name = "FD")]
    pub progress: Option<i32>,
    /// Print how long it took
    #[arg(short = 't', action = ArgAction::Count)]
    pub time: u8,
    /// Print the number of files and blocks
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Optimize directories: without effect, for e2fsck's command lines; so are -k, -F and -E
    #[arg(short = 'D', hide = true)]
    pub optimize: bool,
    #[arg(short = 'k', hide = true)]
    pub keep_bad_blocks: bool,
    #[arg(short = 'F', hide = true)]
    pub flush: bool,
    #[arg(short = 'E', value_name = "OPTIONS", hide = true)]
    pub extended: Option<String>,
}
