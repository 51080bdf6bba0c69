//! The definition of the command line for clap; help, completions and manual pages are made from it.
//!
//! # Locking
//! None.

// The comments of arguments are help texts, in which brackets have their usual meaning, not that of HTML.
#![allow(rustdoc::invalid_html_tags)]

mod attributes;
mod fsck;
mod metadata;
mod mkfs;
mod quota;
mod resize;
mod tune;
mod undelete;
mod unknown;
mod verbs;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use extant_lab::measure::Recorded;

pub use self::attributes::{ChattrArgs, EncryptArgs, LsattrArgs, PolicyVersion, TrimArgs};
pub use self::fsck::{FsckArgs, FsckProgram, Shared};
pub use self::metadata::MetadataArgs;
pub use self::mkfs::{MkfsArgs, MkfsFormat, MkfsLetters, MkfsProgram, MkfsSource};
pub use self::quota::{QuotaArgs, QuotaCommand, QuotaGraceArgs, QuotaReportArgs, QuotaSetArgs};
pub use self::resize::{ResizeArgs, ResizeProgram};
pub use self::tune::{LabelProgram, TuneArgs, TuneLetters, TuneProgram};
pub use self::undelete::UndeleteArgs;
pub use self::unknown::{advice, may_be_proposed};
pub use self::verbs::{
    ChmodArgs, ChownArgs, DfArgs, DuArgs, FindArgs, Line, LnArgs, MkdirArgs, MknodArgs, MvArgs, NodeKind, RmArgs,
    ScriptArgs, TouchArgs, XattrArgs, XattrCommand,
};
use crate::commands::lab::LabArgs;
use crate::mount_options;
use crate::owner::OwnerSpec;
use crate::record::Format;

/// Mount, inspect and change ext2/3/4 images, and copy in and out of them, without root.
#[derive(Parser, Debug)]
#[command(name = "extant", version = crate::VERSION, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  extant info disk.img
  extant ls -l disk.img /etc
  extant cp disk.img:/etc/passwd .
  extant cp -r site/ disk.img@2:/var/www
  extant mount disk.img /mnt && extant unmount /mnt

An image is a file or a block device. IMAGE@N is its partition N; the only one with ext2/3/4 need not be named. \
IMAGE?offset=BYTES is a file system that begins there.

Exit status: 0, 1 (usage; a script's line that failed), 4 (--rescue: something is hurt), 8 (the image or the system said no), 128 and its number for a signal \
(SIGINT 130, SIGTERM 143), 141 (nobody reads the output). mount and unmount: those of mount(8).")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Mount(MountArgs),
    Unmount(UnmountArgs),
    /// Make a mount's image clean and hold back changes, for a copy or a snapshot
    ///
    /// Changes wait until `extant thaw`; reads do not.
    #[command(after_help = "Example:
  extant freeze /mnt && cp --reflink=auto disk.img copy.img; extant thaw /mnt")]
    Freeze(FreezeArgs),
    /// End `extant freeze`
    Thaw(FreezeArgs),
    #[command(mut_args(reads_only))]
    Info(OnImage<InfoArgs>),
    Fsck(FsckArgs),
    Mkfs(Box<MkfsArgs>),
    Resize(ResizeArgs),
    Tune(Box<TuneArgs>),
    Undelete(UndeleteArgs),
    Quota(QuotaArgs),
    Image(MetadataArgs),
    #[command(mut_args(reads_only))]
    Ls(OnImage<LsArgs>),
    #[command(mut_args(reads_only))]
    Cat(OnImage<CatArgs>),
    #[command(mut_args(reads_only))]
    Stat(OnImage<StatArgs>),
    #[command(mut_args(reads_only))]
    Tree(OnImage<TreeArgs>),
    #[command(mut_args(reads_only))]
    Find(OnImage<FindArgs>),
    #[command(mut_args(reads_only))]
    Du(OnImage<DuArgs>),
    #[command(mut_args(reads_only))]
    Df(OnImage<DfArgs>),
    Cp(OnImage<CpArgs>),
    #[command(mut_args(reads_only))]
    Export(OnImage<ExportArgs>),
    Rm(OnImage<RmArgs>),
    Mkdir(OnImage<MkdirArgs>),
    Ln(OnImage<LnArgs>),
    Mv(OnImage<MvArgs>),
    Chmod(OnImage<ChmodArgs>),
    Chown(OnImage<ChownArgs>),
    Mknod(OnImage<MknodArgs>),
    Touch(OnImage<TouchArgs>),
    Chattr(OnImage<ChattrArgs>),
    #[command(mut_args(reads_only))]
    Lsattr(OnImage<LsattrArgs>),
    Xattr(OnImage<XattrArgs>),
    Encrypt(OnImage<EncryptArgs>),
    Trim(OnImage<TrimArgs>),
    Script(OnImage<ScriptArgs>),
    Lab(LabArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Parses options as getopt(3) does. A value may begin with a hyphen (`-O -metadata_csum`, `-d -1day`), and the last
/// occurrence of an option counts.
pub fn as_getopt(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| command.mut_subcommand(name, as_getopt));
    command.args_override_self(true).mut_args(|arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        if has_value { arg.allow_hyphen_values(true) } else { arg }
    })
}

/// Hides the options of commands that write.
fn reads_only(arg: clap::Arg) -> clap::Arg {
    let writes = ["seed", "no_lock", "write_member"].contains(&arg.get_id().as_str());
    if writes { arg.hide(true) } else { arg }
}

/// Mount an image on a directory
///
/// Returns once the mount can be used; a process in the background serves it until it is unmounted.
#[derive(Args, Debug)]
#[command(after_help = MOUNT_HELP, after_long_help = mount_help())]
pub struct MountArgs {
    /// Image file or block device; IMAGE@N for a partition (not needed for a remount)
    pub image: OsString,
    /// Where to mount it
    pub dir: Option<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Read-only, as -o ro
    #[arg(short = 'r', long, overrides_with = "read_write")]
    pub read_only: bool,
    /// For reading and writing, as -o rw (the default)
    #[arg(short = 'w', long = "rw", visible_alias = "read-write", overrides_with = "read_only")]
    pub read_write: bool,
    /// Serve in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Print each step
    #[arg(short, long)]
    pub verbose: bool,
    /// Ignore unknown options
    #[arg(short = 's', long)]
    pub sloppy: bool,
    /// Type, as for mount(8); the image itself determines the ext version
    #[arg(short = 't', value_name = "TYPE", hide = true, value_parser = ["ext2", "ext3", "ext4", "auto"])]
    pub kind: Option<String>,
    /// Count the mount's operations, and write the counts to FILE (JSON) at the end: for `extant lab`
    #[arg(long, value_name = "FILE", hide = true)]
    pub stats: Option<PathBuf>,
    /// The counts to record
    #[arg(long, value_name = "PARTS", hide = true, default_value_t = Recorded::ALL)]
    pub stats_of: Recorded,
    /// Started by the foreground command: writes "mounted" to standard output, which is a pipe
    #[arg(long, hide = true)]
    pub background_server: bool,
}

/// The examples of a mount, and its exit statuses.
const MOUNT_HELP: &str = "Examples:
  extant mount disk.img /mnt
  extant mount -r -o noatime disk.img /mnt
  extant mount -o partition=2,cache=64M whole-disk.img /mnt
  extant mount -f -v disk.img /mnt        # in the foreground; Ctrl-C unmounts

Exit status: 0, 1 (usage or permissions), 2 (system), 32 (the mount failed).";

/// The end of `extant help mount`: lists the words of `-o` between the examples and the exit statuses.
fn mount_help() -> String {
    let (examples, status) = MOUNT_HELP.split_once("\n\n").expect("two parts");
    format!("{examples}\n\n{}{status}", mount_options::help::on_screen())
}

/// mount(8) helper: mounts SOURCE on TARGET
///
/// mount(8) calls it for the types fuse.extant and fuseblk.extant. umount(8) calls its sibling umount.fuse.extant, and
/// returns when everything is in the image. Mounts are nosuid,nodev unless root gives suid or dev in fstab, because an
/// image may come from any user. mount(8) does not pass these two options on from its command line.
#[derive(Parser, Debug)]
#[command(name = "mount.fuse.extant", version = crate::VERSION)]
#[command(after_help = "Example of fstab:
  /srv/disk.img  /mnt/disk  fuse.extant  allow_other,noatime,nofail  0  0

'extant help mount' lists the options. The kernel's loop driver heeds no locks: it lets root mount an image that is mounted \
here.

Exit status: 0, 1 (usage or permissions), 2 (system), 32 (the mount failed).")]
pub struct MountHelper {
    /// Image file or block device; IMAGE@N for a partition
    pub source: OsString,
    /// Where to mount it
    pub target: PathBuf,
    /// Ignore unknown options
    #[arg(short)]
    pub sloppy: bool,
    /// Check, but do not mount
    #[arg(short)]
    pub fake: bool,
    /// Write no mtab: there is none
    #[arg(short)]
    pub no_mtab: bool,
    /// Print each step
    #[arg(short)]
    pub verbose: bool,
    /// The type; ignored
    #[arg(short = 't')]
    pub fs_type: Option<String>,
    /// The mount namespace to work in (/proc/PID/ns/mnt)
    #[arg(short = 'N')]
    pub namespace: Option<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// umount(8) helper: unmounts TARGET and waits until everything is in the image
#[derive(Parser, Debug)]
#[command(name = "umount.fuse.extant", version = crate::VERSION)]
pub struct UnmountHelper {
    /// The directory, or the image that is mounted on it
    pub dir: PathBuf,
    /// Check, but do not unmount
    #[arg(long)]
    pub fake: bool,
    /// Detach at once, even if busy, and do not wait
    #[arg(short)]
    pub lazy: bool,
    /// Print each step
    #[arg(short)]
    pub verbose: bool,
    /// Write no mtab: there is none
    #[arg(short)]
    pub no_mtab: bool,
    /// Do not wait for a server that does not answer
    #[arg(short)]
    pub force: bool,
    /// Remount read-only if the mount cannot be unmounted: accepted, but not done
    #[arg(short)]
    pub read_only: bool,
    /// The type; ignored
    #[arg(short = 't')]
    pub fs_type: Option<String>,
    /// The mount namespace to work in (/proc/PID/ns/mnt)
    #[arg(short = 'N')]
    pub namespace: Option<PathBuf>,
}

/// Unmount, and wait until everything is in the image
///
/// Returns only when the image is marked clean and the server has closed it. If data could not be written, it reports
/// that and fails. It also fails if another mount namespace still has the mount: its server then continues.
#[derive(Args, Debug)]
#[command(visible_alias = "umount")]
#[command(after_help = "Examples:
  extant unmount /mnt
  extant unmount /mnt/a /mnt/b
  extant unmount disk.img && e2fsck -fn disk.img

Of several each is tried.

Exit status: 0, 1 (usage), 2 (not everything is in the image, or that is unknown), 32 (busy, or not mounted); of several, \
the highest.")]
pub struct UnmountArgs {
    /// Directories, or the images that are mounted on them
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Detach at once, even if busy, and do not wait
    #[arg(short, long)]
    pub lazy: bool,
    /// Do not wait for a server that does not answer; data that it has not written may be lost (root)
    #[arg(short, long)]
    pub force: bool,
    /// Print each step
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Args, Debug)]
pub struct FreezeArgs {
    /// The directory, or the image that is mounted on it
    pub dir: PathBuf,
}

/// Show the contents of an image: features, geometry, state, journal, free space, partitions
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant info disk.img
  extant info --json disk.img | jq .filesystem.state
  extant info --partition 2 whole-disk.img
  extant info --scan damaged.img

--scan reads all of the image but its holes. It looks at each sector for a superblock, says where the file systems begin \
to which they belong, whether superblocks and the group descriptors behind them are sound, and which commands check and \
mount by the best of them. It ends with status 8 if there are none.")]
pub struct InfoArgs {
    /// Image file or block device
    pub image: OsString,
    /// Search a damaged disk for superblocks, backups and partitions
    #[arg(long)]
    pub scan: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// List directories
///
/// All names but "." and "..", sorted by their bytes. With -l: mode, links, owner, group, size, time (UTC), name. If
/// several paths are given, files come first, and each directory has a heading. With -R or several paths, -0 and --json
/// print whole paths.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant ls disk.img
  extant ls -lh disk.img /etc
  extant ls -lt disk.img /var/log /tmp
  extant ls -R -0 disk.img /home | xargs -0 printf '%s\\n'")]
#[command(disable_help_flag = true)]
pub struct LsArgs {
    /// Image file or block device; or IMAGE:PATH
    pub image: OsString,
    /// Paths in the image [default: /]
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Long format
    #[arg(short)]
    pub long: bool,
    /// Sizes as 4.0K, 12M
    #[arg(short = 'h', long = "human-readable")]
    pub human: bool,
    /// Subdirectories too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// List directories themselves, not their contents
    #[arg(short = 'd', long)]
    pub directory: bool,
    /// Sort by time, newest first
    #[arg(short = 't')]
    pub time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', conflicts_with = "time")]
    pub size: bool,
    /// Reverse the order
    #[arg(short, long)]
    pub reverse: bool,
    /// Print inode numbers
    #[arg(short, long)]
    pub inode: bool,
    /// Accepted for compatibility: all names are listed anyway, one per line, with numeric owners
    #[arg(short = 'a', short_aliases = ['A', '1'], hide = true, action = clap::ArgAction::Count)]
    pub usual: u8,
    /// As -l
    #[arg(short = 'n', hide = true)]
    pub numeric: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,
    #[command(flatten)]
    pub format: Format,
}

/// Print files
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant cat disk.img /etc/fstab
  extant cat disk.img:/etc/fstab
  extant cat disk.img /var/log/a /var/log/b | grep error")]
pub struct CatArgs {
    /// Image file or block device; or IMAGE:PATH
    pub image: OsString,
    /// Paths in the image
    pub paths: Vec<OsString>,
}

/// Everything about one file, its extents included; symbolic links are not followed
///
/// Extents are counted in blocks. A path may be <N>, as in debugfs: the file with inode number N.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant stat disk.img /bin/su
  extant stat 'disk.img:<12>'")]
pub struct StatArgs {
    /// Image file or block device; or IMAGE:PATH
    pub image: OsString,
    /// Path in the image
    pub path: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Draw a directory tree
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant tree disk.img
  extant tree -L 2 disk.img /usr")]
pub struct TreeArgs {
    /// Image file or block device; or IMAGE:PATH
    pub image: OsString,
    /// Path in the image [default: /]
    pub path: Option<OsString>,
    /// Descend at most this many levels
    #[arg(short = 'L', value_name = "LEVELS")]
    pub levels: Option<u32>,
    #[command(flatten)]
    pub format: Format,
}

/// Copy files into an image, out of one, or from one to another
///
/// A path in an image is IMAGE:PATH or IMAGE@PARTITION:PATH; - is standard input or output. The copy has the modes,
/// times, hard and symbolic links, holes and extended attributes of the source; for root, the owners, too. An existing
/// file is overwritten, and a symbolic link that is named as the destination is followed. A pipe or a device of the
/// host is read to its end; with -r the pipe or device itself is copied.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant cp disk.img:/etc/passwd .
  extant cp -r disk.img:/home backup
  extant cp motd disk.img:/etc/motd
  extant cp -r rootfs/. whole-disk.img@2:/
  extant cp -r --owner 0:0 files disk.img:/srv
  tar c dir | extant cp - disk.img:/dir.tar

Images are not trusted: what is copied out of one gets no set-user-ID and set-group-ID bits, device files are left out, and so are \
attributes of security and trusted, unless --privileges asks for them. That takes root.

Under fakeroot(1) a copy stores the owners, modes and devices that fakeroot shows, as if by root. A statically linked extant cannot see \
them, and says so.

SOURCE_DATE_EPOCH, in seconds since 1970, makes a copy reproducible: no later time is stored, access times are those of modification, and \
the same copy into copies of one image leaves the same bytes.")]
pub struct CpArgs {
    /// Sources, then the destination
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    pub paths: Vec<OsString>,
    /// Directories with all their contents
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// The same as -r -p
    #[arg(short, long)]
    pub archive: bool,
    /// Copy owners into an image, even if not root
    #[arg(short, long)]
    pub preserve: bool,
    /// Do not overwrite existing files
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Print each copied file
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub owner: OwnerArg,
    /// Follow symbolic links in the image that lead to directories, where the source has a directory
    #[arg(long)]
    pub keep_directory_symlink: bool,
    /// Out of an image, copy set-ID bits, devices, and the attributes security.* and trusted.*
    #[arg(long)]
    pub privileges: bool,
}

/// Write a tree as a tar archive or an OCI image layout
///
/// Writes the whole image, or the tree at PATH, as `./`. The archive goes to standard output. It is in the PAX format,
/// with hard links, devices, times with nanoseconds, extended attributes, ACLs and holes; sockets are left out. Names
/// are sorted, so the same tree gives the same bytes. tar(1) restores all of it as root with --xattrs
/// --xattrs-include='*' --acls.
///
/// An OCI image layout has the archive, compressed with gzip, as the only layer of one image. skopeo(1), podman(1) and
/// umoci(1) take it as `oci:DIR[:TAG]`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant export disk.img > disk.tar
  extant export -o usr.tar disk.img@2 /usr
  extant export disk.img | docker import -
  extant export --format oci -o layout:latest disk.img

If a file cannot be read, the export ends with status 8 and names it. The file of -o is then not made, and a stream ends in \
the middle of an entry, which tar reports. With --rescue, what cannot be read is left out, or zeros, and files without a name are in ./lost+found.")]
pub struct ExportArgs {
    /// Image file or block device; IMAGE@N for a partition; or IMAGE:PATH
    pub image: OsString,
    /// Path in the image [default: /]
    pub path: Option<OsString>,
    /// Write the archive to FILE, which is created or replaced once the archive is complete. For a layout: DIR or
    /// DIR:TAG, a directory that is empty or does not exist
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The format of the output
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: ExportFormat,
}

/// The formats in which a tree can be exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// A tar archive
    #[default]
    Tar,
    /// A directory with an OCI image layout
    Oci,
}

/// Print the completions of a shell
#[derive(Args, Debug)]
#[command(after_help = "Example:
  extant completions bash > ~/.local/share/bash-completion/completions/extant")]
pub struct CompletionsArgs {
    pub shell: Shell,
}

/// Print the manual page, or write all of them into a directory
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant man | man -l -
  extant man ~/.local/share/man/man1")]
pub struct ManArgs {
    pub dir: Option<PathBuf>,
}

// No doc comment, see below.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OwnerArg {
    /// Owner and group of everything that is created in an image: numbers, or names that this host knows. By default,
    /// files of root belong to root, and those of another caller to the owner and group of their directory
    #[arg(long, value_name = "USER:GROUP", value_parser = OwnerSpec::parse)]
    pub owner: Option<OwnerSpec>,
}

// A command that names images: its own arguments, and the options that all such commands have. No doc comment on either
// type: it would become the help text of each command.
#[derive(Args, Debug)]
pub struct OnImage<A: Args> {
    #[command(flatten)]
    pub verb: A,
    #[command(flatten)]
    pub how: ImageArgs,
}

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Image")]
pub struct ImageArgs {
    /// Partition of a whole disk; for one image, IMAGE@N
    #[arg(long, value_name = "N", conflicts_with = "offset", global = true)]
    pub partition: Option<u32>,
    /// Start of the file system in bytes; for one image, IMAGE?offset=BYTES
    #[arg(long, value_name = "BYTES", value_parser = extant_base::size::parse, global = true)]
    pub offset: Option<u64>,
    /// Use the copy of the superblock at block N, in units of 1 KiB as in ext4(5): 131072 is block 32768 of 4 KiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 50), global = true)]
    pub sb: Option<u64>,
    /// Read what is left of a damaged image, including files without a name (/lost+found); exit status 4 if anything is
    /// damaged
    #[arg(long, global = true)]
    pub rescue: bool,
    /// A raw key of encrypted files (fscrypt), 16 to 64 bytes: FILE or fd:N; DESCRIPTOR:FILE for a policy of version 1
    /// whose descriptor is not derived from the key. Repeat it for more keys
    #[arg(
        long = "key",
        value_name = "FILE",
        value_parser = clap::builder::OsStringValueParser::new().try_map(crate::keys::Keys::read),
        action = clap::ArgAction::Append,
        global = true
    )]
    pub keys: Vec<crate::keys::Keys>,
    /// Where random numbers begin that a change draws (generations of inodes, groups of directories): the same number
    /// on copies of an image leaves the same image. SOURCE_DATE_EPOCH sets one, too, and is the newest time that is
    /// written
    #[arg(long, value_name = "N", global = true)]
    pub seed: Option<u64>,
    /// The device or file of its journal, if that is not in the image
    #[arg(long, value_name = "DEVICE", global = true)]
    pub journal: Option<OsString>,
    /// Write it also where files cannot be locked; no other process may use it then
    #[arg(long, global = true)]
    pub no_lock: bool,
    /// Write the image even if it is a member of a RAID, a pool or a volume group; the other members are not updated
    #[arg(long, global = true)]
    pub write_member: bool,
}
