//! The command line of `extant fsck`, whose letters are e2fsck's.
//!
//! # Locking
//! None.

use std::ffi::OsString;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, ValueEnum};

/// Check a file system for damage, and repair it
///
/// Reads all metadata, checks it against every rule of the format, and prints one line per problem. The repair is
/// planned and carried out on a copy-on-write layer, and checked there. A repair is only written if the check then
/// finds nothing wrong, and its losses are printed first. The image's journal makes it atomic, or else a file with the
/// old blocks does, which --undo and e2undo(8) take.
///
/// With -n nothing is written, and the plan is printed; this also checks a mounted image. With -p only safe steps are
/// taken, which lose nothing and need no decision; if others are needed, the image is not changed. With -y all steps
/// are taken. Without these options, each step is a question on the terminal.
#[derive(Args, Debug, Default)]
#[command(after_help = "Examples:
  extant fsck -n disk.img
  extant fsck -fn whole-disk.img@2
  extant fsck -y disk.img
  extant fsck --undo disk.img.undo disk.img
  extant fsck -n -b 32768 -B 4096 disk.img
  extant fsck -p -j journal.img disk.img

Exit status: 0 (no damage), 1 (repaired), 4 (damage that stays), 5 (repaired in part), 8 (the image cannot be read or \
written, or has no superblock), 12 (damage, and not everything could be checked), 16 (usage, or no terminal for \
questions).")]
pub struct FsckArgs {
    #[command(flatten)]
    pub letters: FsckLetters,
    /// Threads; all processors by default
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Restore the old blocks from FILE: undo a repair (-f: even if the image has changed since)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no", "preen", "yes"])]
    pub undo: Option<PathBuf>,
    /// Write in place if the image has no journal, without a file that undoes it
    #[arg(long, conflicts_with = "undo_file")]
    pub no_undo: bool,
    /// Resolve blocks that several files claim
    #[arg(long, value_enum, default_value_t, value_name = "RULE")]
    pub shared: Shared,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Partition of a whole disk; same as IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; same as IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub offset: Option<u64>,
}

/// How to resolve blocks that several files claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Shared {
    /// Every file gets a copy; if space is short, as winner
    #[default]
    Copy,
    /// The file with the better evidence keeps them, and the others get holes
    Winner,
    /// All files get holes
    Hole,
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
#[derive(Args, Debug, Default)]
pub struct FsckLetters {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Change nothing, and answer no to every question
    #[arg(short = 'n')]
    pub no: bool,
    /// Make only repairs that are safe and lose nothing; change nothing if others are needed
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "no")]
    pub preen: bool,
    /// Repair everything that can be repaired
    #[arg(short = 'y', conflicts_with_all = ["no", "preen"])]
    pub yes: bool,
    /// The device or file of its journal, if that is not in the image
    #[arg(short = 'j', long, value_name = "DEVICE")]
    pub journal: Option<OsString>,
    /// Check even a file system that is marked as clean
    #[arg(short = 'f')]
    pub force: bool,
    /// Use the superblock in block N
    #[arg(short = 'b', value_name = "N")]
    pub superblock: Option<u64>,
    /// The block size, in bytes, for -b
    #[arg(short = 'B', value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Write the progress to this file descriptor, as e2fsck does; 0: show a progress bar
    #[arg(short = 'C', value_name = "FD")]
    pub progress: Option<i32>,
    /// Print how long the check took
    #[arg(short = 't', action = ArgAction::Count)]
    pub time: u8,
    /// Print the number of files and blocks
    #[arg(short = 'v')]
    pub verbose: bool,
    /// First write the old blocks to this file, which --undo and e2undo(8) take
    #[arg(short = 'z', value_name = "FILE")]
    pub undo_file: Option<OsString>,
    /// Optimize directories: accepted for e2fsck's command lines without effect; so are -k, -F and -E
    #[arg(short = 'D', hide = true)]
    pub optimize: bool,
    #[arg(short = 'k', hide = true)]
    pub keep_bad_blocks: bool,
    #[arg(short = 'F', hide = true)]
    pub flush: bool,
    #[arg(short = 'E', value_name = "OPTIONS", hide = true)]
    pub extended: Option<String>,
}
