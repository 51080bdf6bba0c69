//! The command lines of `extant chattr`, `lsattr`, `encrypt` and `trim`.
//!
//! # Locking
//! None.

// The comments of arguments are help texts, in which brackets have their usual meaning, not that of links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsString;

use clap::{Args, ValueEnum};

/// Change the flags of files, as chattr(1)
///
/// MODE is +LETTERS, -LETTERS or =LETTERS; several may follow each other. Letters: a append only, A no access
/// times, c compress, C no copy on write, d no dump, D synchronous directory, i immutable, P project of the
/// directory, s erase, S synchronous, t no tail merging, T top of directories, u undeletable, x direct access.
/// Letters without effect in ext4 are stored. e, F and j are not changed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant chattr +i disk.img:/etc/resolv.conf
  extant chattr -R -i disk.img:/srv
  extant chattr -p 7 +P disk.img:/srv/eve")]
#[command(disable_version_flag = true)]
pub struct ChattrArgs {
    /// MODE, and files to change as IMAGE:PATH
    #[arg(required = true, value_name = "MODE IMAGE:PATH", allow_hyphen_values = true)]
    pub words: Vec<OsString>,
    /// Everything below, too, except symbolic links
    #[arg(short = 'R')]
    pub recursive: bool,
    /// The project ID
    #[arg(short = 'p', value_name = "PROJECT")]
    pub project: Option<u32>,
    /// Print each file and its new flags
    #[arg(short = 'V')]
    pub verbose: bool,
    /// Print no message about a file that cannot have the flags
    #[arg(short = 'f')]
    pub force: bool,
}

/// List the flags of files, as lsattr(1)
///
/// For a directory, lists the flags of its files; names that begin with a dot only with -a.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lsattr disk.img:/etc
  extant lsattr -d disk.img:/srv
  extant lsattr -R disk.img | grep -- -i-")]
pub struct LsattrArgs {
    /// Files and directories, as IMAGE:PATH; an image alone means its root
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Everything below, too
    #[arg(short = 'R')]
    pub recursive: bool,
    /// Include names that begin with a dot
    #[arg(short = 'a')]
    pub all: bool,
    /// List directories themselves, not their files
    #[arg(short = 'd')]
    pub directory: bool,
    /// Print flags as words
    #[arg(short = 'l')]
    pub long: bool,
    /// Print the project ID, too
    #[arg(short = 'p')]
    pub project: bool,
    /// Print the file's version (generation), too
    #[arg(short = 'v')]
    pub generation: bool,
}

/// The version of an encryption policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyVersion {
    V1,
    V2,
}

/// Encrypt empty directories (fscrypt)
///
/// All that is made in them from then on is encrypted with the key of --key: contents, names, targets of links. Their
/// policy is that of fscryptctl(1): AES-256-XTS for contents, AES-256-CBC-CTS for names. It never changes and never
/// goes. `extant tune -O encrypt` adds the feature to an image that lacks it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  head -c 64 /dev/urandom > key
  extant mkdir disk.img:/private && extant encrypt --key key disk.img:/private
  extant cp --key key notes.txt disk.img:/private
  extant mount -o fscrypt_key=key disk.img /mnt")]
pub struct EncryptArgs {
    /// Empty directories, as IMAGE:PATH
    #[arg(required = true, value_name = "IMAGE:PATH")]
    pub paths: Vec<OsString>,
    /// Version of the policy; v1 needs a key of 64 bytes
    #[arg(long, value_enum, default_value = "v2")]
    pub policy: PolicyVersion,
    /// Pad names to multiples of so many bytes: 4, 8, 16 or 32
    #[arg(long, value_name = "BYTES", default_value_t = 32, value_parser = padding)]
    pub padding: u32,
}

fn padding(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|bytes| [4, 8, 16, 32].contains(bytes)).ok_or_else(|| "none of 4, 8, 16, 32".into())
}

/// Punch what is free out of an image file, or discard it on a device
///
/// The host gets the space of deleted files back. Prints how many bytes were free, as fstrim(8) does. Needs no mount.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant trim disk.img
  extant trim -m 1M whole-disk.img@2")]
pub struct TrimArgs {
    /// Image file or block device; IMAGE@N for a partition
    pub image: OsString,
    /// Begin at this byte of the file system
    #[arg(short = 'o', value_name = "BYTES", value_parser = extant_base::size::parse, default_value_t = 0)]
    pub start: u64,
    /// Trim only this many bytes from there on
    #[arg(short = 'l', long = "length", value_name = "BYTES", value_parser = extant_base::size::parse)]
    pub length: Option<u64>,
    /// Ignore shorter free runs
    #[arg(short = 'm', long = "minimum", value_name = "BYTES", value_parser = extant_base::size::parse, default_value_t = 0)]
    pub minimum: u64,
    /// Accepted for compatibility: the bytes are printed anyway
    #[arg(short = 'v', hide = true)]
    pub verbose: bool,
}
