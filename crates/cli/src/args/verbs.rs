//! The command lines of commands that change an image without a mount, and of those that search or count in one.
//!
//! # Locking
//! None.

// The comments of arguments are help texts, in which brackets have their usual meaning, not that of links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::OwnerArg;
use crate::owner::OwnerSpec;
use crate::record::Format;

/// For commands in which `-h` means something else: human-readable sizes, or links that are not followed.
#[derive(Args, Debug)]
pub struct LongHelp {
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,
}

/// Remove files and directories
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant rm disk.img:/etc/motd
  extant rm -rf disk.img:/var/cache disk.img:/tmp/old")]
pub struct RmArgs {
    /// Files and directories to remove, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Directories with all their contents
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Ignore names that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// Remove empty directories, too
    #[arg(short, long)]
    pub dir: bool,
    /// Print each removed name
    #[arg(short, long)]
    pub verbose: bool,
}

/// Make directories
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant mkdir disk.img:/srv
  extant mkdir -p -m 750 disk.img:/srv/www/data")]
pub struct MkdirArgs {
    /// Directories to make, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Create parents, too; no error if a directory exists
    #[arg(short, long)]
    pub parents: bool,
    /// Mode, as for chmod
    #[arg(short, long)]
    pub mode: Option<String>,
    /// Print each directory
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub owner: OwnerArg,
}

/// Make a hard or symbolic link
///
/// If LINK is a directory, the link is made in it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant ln disk.img:/bin/busybox disk.img:/bin/sh
  extant ln -s ../run disk.img:/var/run")]
pub struct LnArgs {
    /// The target: IMAGE:PATH, with -s any text
    pub target: OsString,
    /// The link, as IMAGE:PATH
    pub link: OsString,
    /// A symbolic link
    #[arg(short, long)]
    pub symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    pub force: bool,
    /// Treat LINK as a name even if it leads to a directory
    #[arg(short, long)]
    pub no_dereference: bool,
    #[command(flatten)]
    pub owner: OwnerArg,
}

/// Rename files and directories within an image
///
/// If the last argument is a directory, the others go into it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant mv disk.img:/etc/hosts disk.img:/etc/hosts.old
  extant mv disk.img:/a disk.img:/b disk.img:/srv")]
pub struct MvArgs {
    /// The sources, then the destination, as IMAGE:PATH
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    pub paths: Vec<OsString>,
    /// Do not overwrite existing files
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Treat DESTINATION as a name even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print each renamed file
    #[arg(short, long)]
    pub verbose: bool,
}

/// Change modes
///
/// MODE is octal (644) or symbolic (u+rw,go-w). Symbolic links are followed if they are named, and not changed below a
/// directory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant chmod 600 disk.img:/etc/shadow
  extant chmod -R u+rwX,go-w disk.img:/srv")]
pub struct ChmodArgs {
    /// Octal or symbolic mode
    #[arg(allow_hyphen_values = true)]
    pub mode: String,
    /// Files to change, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Everything below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// Change owners
///
/// OWNER is USER, USER:GROUP or :GROUP: numbers, or names that this host (not the image) knows.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant chown 0:0 disk.img:/etc/shadow
  extant chown -R www-data: disk.img:/srv/www")]
#[command(disable_help_flag = true)]
pub struct ChownArgs {
    /// USER:GROUP
    #[arg(value_parser = OwnerSpec::parse)]
    pub owner: OwnerSpec,
    /// Files to change, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Everything below, too; links themselves, not their targets
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Change symbolic links themselves
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    #[command(flatten)]
    pub help: LongHelp,
}

/// The largest major and minor device numbers (Linux: `MINORBITS`).
const MAJOR_MAX: i64 = (1 << 12) - 1;
const MINOR_MAX: i64 = (1 << 20) - 1;

/// The kinds of special files that mknod makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NodeKind {
    /// Block device
    #[value(name = "b")]
    Block,
    /// Character device
    #[value(name = "c", alias = "u")]
    Char,
    /// Fifo
    #[value(name = "p")]
    Fifo,
    /// Socket
    #[value(name = "s")]
    Socket,
}

/// Make a device, a fifo or a socket
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant mknod -m 666 disk.img:/dev/null c 1 3
  extant mknod disk.img:/run/control p")]
pub struct MknodArgs {
    /// The file to make, as IMAGE:PATH
    #[arg(value_name = "IMAGE:PATH")]
    pub path: OsString,
    /// The kind of file
    pub kind: NodeKind,
    /// Major device number
    #[arg(value_parser = clap::value_parser!(u32).range(..=MAJOR_MAX))]
    pub major: Option<u32>,
    /// Minor device number
    #[arg(value_parser = clap::value_parser!(u32).range(..=MINOR_MAX))]
    pub minor: Option<u32>,
    /// Mode, as for chmod
    #[arg(short, long)]
    pub mode: Option<String>,
    #[command(flatten)]
    pub owner: OwnerArg,
}

/// Set times; create missing files
///
/// Without -a and -m, sets both times; without -d and -t, to the current time.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant touch disk.img:/etc/firstboot
  extant touch -c -d '2024-02-29 12:00' disk.img:/etc/motd
  extant touch -d @1700000000 disk.img:/a disk.img:/b")]
#[command(disable_help_flag = true)]
pub struct TouchArgs {
    /// Files, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// The access time
    #[arg(short = 'a')]
    pub access: bool,
    /// The modification time
    #[arg(short = 'm')]
    pub modification: bool,
    /// Create no files
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Change symbolic links themselves
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// @SECONDS, a date (UTC, or with an offset), or a span from now: yesterday, -3days, 2 hours ago
    #[arg(short, long)]
    pub date: Option<String>,
    #[arg(short = 't', conflicts_with = "date", help = "[[CC]YY]MMDDhhmm[.ss], UTC")]
    pub stamp: Option<String>,
    #[command(flatten)]
    pub owner: OwnerArg,
    #[command(flatten)]
    pub help: LongHelp,
}

/// Show how much space files take
///
/// Prints each directory with all its contents, in units of 1024 bytes. A file with several names counts once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant du -sh disk.img:/usr disk.img:/var
  extant du disk.img | sort -n | tail")]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Starting points: IMAGE:PATH, or IMAGE for the whole image
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Print only the sum
    #[arg(short, long)]
    pub summarize: bool,
    /// Print files, too
    #[arg(short, long, conflicts_with = "summarize")]
    pub all: bool,
    /// Sizes as 4.0K, 12M
    #[arg(short = 'h', long = "human-readable")]
    pub human: bool,
    /// Print the lengths of files, in bytes, instead of the space that they use
    #[arg(short = 'b', long = "bytes")]
    pub apparent: bool,
    #[command(flatten)]
    pub format: Format,
    #[command(flatten)]
    pub help: LongHelp,
}

/// Show how much space images have
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant df -h disk.img
  extant df -i a.img b.img@2")]
#[command(disable_help_flag = true)]
pub struct DfArgs {
    /// Image files or block devices
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<OsString>,
    /// Sizes as 4.0K, 12M
    #[arg(short = 'h', long = "human-readable")]
    pub human: bool,
    /// Print inodes instead of blocks
    #[arg(short, long)]
    pub inodes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub help: LongHelp,
}

/// Search for files
///
/// The words are those of find(1). Tests: -name, -iname and -path PATTERN, -type fdlcbps, -size [+-]N[cwbkMG], -links,
/// -inum, -uid, -gid and -mtime [+-]N, -user and -group NAME, -perm [-/]MODE, -newer FILE (of the host, or IMAGE:PATH),
/// -empty. All must be true; -o is or, ! negates the next test, and parentheses group. -prune does not descend into a
/// directory. -maxdepth N and -mindepth N. -print0 (or -0) ends paths with NUL.
///
/// From a bad sector to its file: -block N (of the file system), -sector N (512 bytes, of the whole disk) and -inode N.
/// If the place belongs to no file, a message says what it is.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant find disk.img -name '*.conf' -type f
  extant find disk.img:/usr -perm -4000
  extant find disk.img -newer stamp -type f
  extant find disk.img -sector 1245184
  extant find disk.img -path /proc -prune -o -name '*.so' -print
  extant find disk.img:/var -size +10M -print0 | xargs -0 printf '%s\\n'")]
pub struct FindArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// End each path with NUL instead of a newline
    #[arg(short = '0', long = "null", conflicts_with = "json")]
    pub null: bool,
    /// Starting points (IMAGE:PATH, or IMAGE for the whole image), then tests
    #[arg(required = true, value_name = "IMAGE:PATH", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// List, read and change extended attributes
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant xattr list disk.img:/bin/ping
  extant xattr get security.capability disk.img:/bin/ping | xxd
  extant xattr set user.origin build-7 disk.img:/srv/data
  extant xattr remove user.origin disk.img:/srv/data")]
pub struct XattrArgs {
    #[command(subcommand)]
    pub command: XattrCommand,
}

#[derive(Subcommand, Debug)]
pub enum XattrCommand {
    /// List names; with --json values as well
    List {
        /// Files, as IMAGE:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
        /// Use symbolic links themselves, not their targets
        #[arg(short = 'P', long)]
        no_dereference: bool,
        #[command(flatten)]
        format: Format,
    },
    /// Print a value as it is
    Get {
        /// Full name, such as user.origin
        name: OsString,
        /// File, as IMAGE:PATH
        #[arg(value_name = "IMAGE:PATH")]
        path: OsString,
        /// Use symbolic links themselves, not their targets
        #[arg(short = 'P', long)]
        no_dereference: bool,
    },
    /// Set a value
    Set {
        /// Full name, such as user.origin
        name: OsString,
        /// The value; 0x… is hexadecimal
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// Files, as IMAGE:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
        /// Use symbolic links themselves, not their targets
        #[arg(short = 'P', long)]
        no_dereference: bool,
    },
    /// Remove an attribute
    #[command(visible_alias = "rm")]
    Remove {
        /// Full name, such as user.origin
        name: OsString,
        /// Files, as IMAGE:PATH
        #[arg(required = true, value_name = "IMAGE:PATH")]
        paths: Vec<OsString>,
        /// Use symbolic links themselves, not their targets
        #[arg(short = 'P', long)]
        no_dereference: bool,
    },
}

/// Change an image by a list of commands
///
/// One command per line: rm, mkdir, ln, mv, chmod, chown, chattr, mknod, touch and xattr, with paths in the image, and
/// put and get, which copy from and to the host. The first line that fails ends the script (exit status 1) with a
/// message that has its number; the changes of earlier lines are kept, unless --atomic is given.
///
/// Words are quoted as in a shell; # begins a comment. $'a\nb' interprets the escapes of C, for names with line breaks,
/// as bash's printf %q writes them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant script disk.img < changes
  printf 'mkdir -p /srv/www\\nput -r site/. /srv/www\\n' | extant script --atomic disk.img

With --atomic the lines work on a copy of what they change. After the last one, everything is written by one transaction of the \
image's journal: a power cut leaves all or nothing, and so does a line that fails. What does not fit the journal is refused.")]
pub struct ScriptArgs {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// The commands (default: standard input)
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Apply all lines or none
    #[arg(long)]
    pub atomic: bool,
    /// Print each line before it runs
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub owner: OwnerArg,
}

/// A line of a script.
#[derive(Parser, Debug)]
#[command(multicall = true, disable_version_flag = true)]
pub enum Line {
    Rm(RmArgs),
    Mkdir(MkdirArgs),
    Ln(LnArgs),
    Mv(MvArgs),
    Chmod(ChmodArgs),
    Chown(ChownArgs),
    Chattr(super::ChattrArgs),
    Mknod(MknodArgs),
    Touch(TouchArgs),
    Xattr(XattrArgs),
    /// Copy from the host: put [OPTIONS] HOST… PATH
    Put(super::CpArgs),
    /// Copy to the host: get [OPTIONS] PATH… HOST
    Get(super::CpArgs),
}
