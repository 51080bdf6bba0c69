//! Images on the command line, opened and mounted in this process.
//!
//! [`extant_image`] determines the part of an image, its format and its users. This module turns its errors into
//! messages with a next step ([`Failure`]), prints its notes, and applies a command's options for images
//! ([`ImageArgs`]). [`open_image`] mounts an image in this process.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_block::{BlockDevice, Error as DeviceError};
use extant_fs::{Error, Filesystem, JournalDevice, Messages, MountOptions, Mounted};
pub use extant_image::{Access, Claim, ImageSpec, Part};
use extant_image::{Note, OpenImage, UnrecognizedContent, has_magic, identify_unpartitioned, nothing_found};
use extant_ondisk::partition::Partition;
use extant_recovery::read::find_super;
pub use extant_transfer::attributes::xattrs;
use extant_transfer::content::{Missing, is_expected};
pub use extant_transfer::path::walk;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::args::ImageArgs;
use crate::failure::{Failure, HURT, OPERATIONAL, Result, plain_text, warn};
use crate::keys::Keys;
use crate::opened;
use crate::size;
use crate::source_date::SourceDate;
use crate::text::{argument, shown};

/// Writes of at least this many bytes bypass Extant's cache if the image file is opened through the page cache. The
/// host caches them anyway, and a second copy would only use memory.
pub const WRITE_THROUGH_BYTES: u64 = 65536;

/// Opens the file system's part of an image.
pub fn open(spec: &ImageSpec, access: &Access) -> Result<OpenImage> {
    opened_by(extant_image::open, spec, access)
}

/// As [`open`], for a caller that needs only the device.
pub fn open_device(spec: &ImageSpec, access: &Access) -> Result<Arc<dyn BlockDevice>> {
    Ok(open(spec, access)?.device)
}

/// Opens the image from its first byte on.
pub fn open_whole(spec: &ImageSpec, access: &Access) -> Result<OpenImage> {
    opened_by(extant_image::open_whole, spec, access)
}

fn opened_by(
    open: fn(&ImageSpec, &Access) -> extant_image::Result<OpenImage>,
    spec: &ImageSpec,
    access: &Access,
) -> Result<OpenImage> {
    if !access.read_only && !spec.is_block_device() {
        lift_file_size_limit();
    }
    let opened = open(spec, &Access { tell, ..access.clone() })?;
    opened::remember(opened.file, access.read_only);
    Ok(opened)
}

/// A user's limit on the size of files (`ulimit -Sf`) is meant for new files, but an image already exists. Any process
/// may raise its own limit, up to the hard limit.
fn lift_file_size_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_FSIZE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, hard, hard);
    }
}

/// Prints a note about an open as a message.
pub fn tell(note: &Note<'_>) {
    match note {
        Note::BackupTable { image } => warn(&format!("{image}: {BACKUP_GPT}")),
        // The host cannot exclude other users.
        Note::Unguarded { image, why, read_only } => {
            let while_what = if *read_only { "while it is read" } else { "while it is written" };
            warn(&format!("{image}: {}: make sure that no other program writes it {while_what}", plain_text(why)));
        }
        Note::Member { image, member } => {
            warn(&format!("{image}: {} (its mark is at byte {}): {}", member.name, member.byte, member.advice(image)));
        }
        Note::Waiting { image, holder } if std::io::stderr().is_terminal() => {
            warn(&format!("{image}: waiting for {} to close it", holder.processes()));
        }
        _ => {}
    }
}

impl From<extant_image::Error> for Failure {
    fn from(e: extant_image::Error) -> Failure {
        use extant_image::Error as E;
        let mut table = Vec::new();
        let message = match e {
            E::Device(e @ DeviceError::NoLocks { .. }) => format!(
                "{}; if no other program uses it, write it with --no-lock (a mount: -o no_lock)",
                plain_text(&e.to_string())
            ),
            E::Device(e) => return e.into(),
            E::Foreign { image, format, backup } => {
                let there = backup.map_or(String::new(), |backup| {
                    let (block, kib) = (backup.block, backup.byte >> 10);
                    format!(
                        "; a copy of an ext superblock is at block {block} of it: --sb {kib} (a mount: -o ro,sb={kib}) \
                         reads what was there"
                    )
                });
                format!("{image}: no ext2/3/4 file system, but {}: {}{there}", format.name(), format.advice(&image))
            }
            E::NoProgram { image, format, program } => format!(
                "{image}: {} is read and written through {program}, which is not installed: install it (Debian: \
                 qemu-utils), or {}",
                format.name(),
                format.advice(&image)
            ),
            E::NoPartition { image, number, partitions } => {
                table = list(&partitions);
                format!("{image}: no partition {number}; there are:")
            }
            E::Ambiguous { image, with_ext: 0, partitions } => {
                table = list(&partitions);
                let whole = argument(image.as_bytes(), "");
                table.push(format!("\"extant info --scan {whole}\" looks for superblocks and backups everywhere"));
                format!(
                    "{image}: a whole disk, but none of its partitions has an ext2/3/4 superblock at its byte 1024; \
                     --partition N, -o partition=N or {image}@N uses one anyway:"
                )
            }
            E::Ambiguous { image, with_ext, partitions } => {
                table = list(&partitions);
                format!(
                    "{image}: a whole disk with {with_ext} ext2/3/4 file systems; choose a partition (--partition N, \
                     -o partition=N or {image}@N):"
                )
            }
            E::Member { image, member } => format!(
                "{image}: not written: it is {} (its mark is at byte {}), and a change would make its members differ; {}; \
                 --write-member (a mount: -o write_member) writes it all the same",
                member.name,
                member.byte,
                member.advice(&image)
            ),
            E::ReadOnly { image } => {
                format!("{image}: may only be read; 'extant mount -o ro {image} DIR' mounts it read-only")
            }
            E::InUse { image, holder, .. } if !holder.mounts.is_empty() => {
                format!("{image}: in use: {}: use it there, or unmount it", holder.who())
            }
            E::Loop { image, mounted: Some(mounted), .. } => {
                format!("{image}: in use: {mounted}; unmount it there first")
            }
            E::Loop { image, device, mounted: None } => format!(
                "{image}: in use by {device} (losetup -d {device} detaches it); it may be read, -o ro mounts it"
            ),
            e => plain_text(&e.to_string()),
        };
        Failure { table, ..Failure::op(message) }
    }
}

/// The warning for a disk whose first sectors are damaged.
pub const BACKUP_GPT: &str = "the partition table at the start is damaged; using its backup at the end of the disk";

/// Lists partitions as a table: number, start, size, type, label.
pub fn list(partitions: &[Partition]) -> Vec<String> {
    let mut lines = vec![format!("{:>4} {:>16} {:>10}  {}", "N", "START (bytes)", "SIZE", "TYPE")];
    for p in partitions {
        let label = if p.label.is_empty() { String::new() } else { format!("  \"{}\"", shown(p.label.as_bytes())) };
        lines.push(format!("{:>4} {:>16} {:>10}  {}{label}", p.number, p.start, size::human(p.len), p.type_name));
    }
    lines
}

impl ImageArgs {
    /// The image that `arg` names, and the part of it.
    pub fn spec(&self, arg: &OsStr) -> ImageSpec {
        ImageSpec::parse(arg).or(self.part())
    }

    /// The part to use of an image whose name does not contain one.
    pub fn part(&self) -> Part {
        Part::from_options(self.partition, self.offset)
    }

    /// How a command with these options opens an image.
    pub fn access(&self, read_only: bool) -> Access {
        let claim = if self.no_lock { Claim::IfPossible } else { Claim::Required };
        let write_member = self.write_member;
        Access { claim, by_superblock: self.sb.is_some(), write_member, ..Access::tool(read_only) }
    }

    /// The way in which a command with these options mounts `image` in this process.
    pub fn mount_options(&self, image: &ImageSpec, read_only: bool) -> Result<MountOptions> {
        let date = SourceDate::from_environment()?;
        Ok(MountOptions {
            read_only,
            rescue: self.rescue,
            keys: Keys::together(&self.keys),
            superblock: self.sb.map(|kib| kib << 10),
            // A change by a command does not count as a mount, which would make a check due earlier; debugfs does the
            // same.
            counted: false,
            // A command has one thread, which waits for its own work. So the result does not depend on the order of
            // threads either.
            threads: false,
            locality_groups: 1,
            clock: date.map_or_else(Clock::real, SourceDate::clock),
            seed: self.seed.or(date.map(SourceDate::seed)),
            journal_device: self
                .journal
                .as_ref()
                .map(|at| open_journal(at, image, &self.access(read_only)))
                .transpose()?,
            ..MountOptions::default()
        })
    }

    /// The options for the destination of a copy; `self` is for the images that the command reads.
    pub fn for_destination(&self) -> ImageArgs {
        ImageArgs { sb: None, rescue: false, ..self.clone() }
    }
}

/// Opens the device of a journal that is not in its image. `access`: that of the image. A journal that is only read may
/// be in use, as the image then is.
pub fn open_journal(at: &OsStr, image: &ImageSpec, access: &Access) -> Result<JournalDevice> {
    let claim = if access.read_only { Claim::OrBeside } else { access.claim };
    let access = Access { by_superblock: true, claim, ..access.clone() };
    match open_device(&ImageSpec::parse(at), &access) {
        Ok(device) => Ok(JournalDevice(device)),
        Err(e) => Err(Failure { message: format!("{}: its journal {}", image.shown(), e.message), ..e }),
    }
}

/// Mounts in this process. For a read-only mount, the log of an image that needs recovery is replayed in memory.
pub fn open_image(spec: &ImageSpec, how: &ImageArgs, read_only: bool) -> Result<Mounted> {
    if how.rescue && !read_only {
        return Err(Failure::usage("--rescue reads: it is for commands that change nothing"));
    }
    let dev = open_device(spec, &how.access(read_only))?;
    let through = (!spec.is_block_device()).then_some(WRITE_THROUGH_BYTES);
    mount(dev, MountOptions { write_through_bytes: through, ..how.mount_options(spec, read_only)? })
}

/// [`Filesystem::mount`], with its messages on standard error, and a clear message if there is no file system.
pub fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
    mount_quietly(dev, MountOptions { messages: Messages::new(warn), ..options })
}

/// As [`mount`], without its messages.
pub fn mount_quietly(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
    let looked_at = dev.clone();
    let (superblock, rescue) = (options.superblock, options.rescue);
    Filesystem::mount(dev, options).map_err(|e| {
        let corrupt = matches!(&e, Error::Mount { source, .. } if source.is_corruption());
        let found = || find_super(&*looked_at, superblock, rescue).is_ok();
        if corrupt && superblock.is_none() && !has_magic(&*looked_at) && !found() {
            let image = looked_at.name();
            if let Some(format) = identify_unpartitioned(&*looked_at) {
                return extant_image::Error::Foreign { image: image.to_owned(), format, backup: None }.into();
            }
            return Failure::op(format!("{image}: no ext2/3/4 file system: {}", search_report(&*looked_at, mounts)));
        }
        let mut failure = explain(e);
        if corrupt && !rescue && !failure.message.contains("mount read-only (-o ro)") {
            failure.message.push_str(NEXT_STEP);
        }
        failure
    })
}

/// A message for a device without a superblock: the places that were searched, and the next step. It proposes a command
/// that overwrites only for an image file without any data. `command` is the next step for a file system that begins at
/// a byte of the image.
pub fn search_report(dev: &dyn BlockDevice, command: fn(&str, u64) -> String) -> String {
    let image = dev.name();
    let looked = "no superblock at byte 1024, no backup superblock";
    match nothing_found(dev) {
        UnrecognizedContent::Empty => {
            let size = if dev.size_bytes() == 0 { " SIZE" } else { "" };
            format!("the file is empty; 'extant mkfs {image}{size}' makes a file system in it")
        }
        UnrecognizedContent::At(start) => {
            format!("{looked}, no partition table; but a file system begins at byte {start}: {}", command(image, start))
        }
        UnrecognizedContent::Unknown { whole } => format!(
            "{looked}{}; if it begins further in, '-o offset=BYTES' (mount) or '--offset BYTES' says where; \
             'extant info' lists the partitions of a disk; 'extant info --scan' and testdisk(8) search for lost ones",
            if whole { ", no partition table" } else { "" }
        ),
    }
}

fn mounts(image: &str, start: u64) -> String {
    format!("'extant mount -o ro,offset={start} {image} DIR' mounts it")
}

/// The next step for damage that prevents a mount.
const NEXT_STEP: &str = "; --rescue (a mount: -o rescue) reads what is there, 'e2fsck -fn' shows what is damaged";

/// An error of the engine that already names the image.
fn explain(e: Error) -> Failure {
    match e {
        Error::Mount { image, source } => match *source {
            // The error names the device itself.
            Error::Device(e) => e.into(),
            source => Failure::op(format!("{image}: {source}")),
        },
        Error::Device(e) => e.into(),
        e => Failure::op(e.to_string()),
    }
}

/// Whether the file system met damage and continued around it. The damage has been reported.
fn is_damaged(fs: &Filesystem) -> bool {
    fs.stats.errors.get() > 0
}

/// The failure of a command that met damage: its result may lack names.
pub fn refuse_damage<'a>(images: impl IntoIterator<Item = &'a Arc<Filesystem>>) -> Result<()> {
    let damaged = images.into_iter().filter(|fs| is_damaged(fs));
    match damaged.map(|fs| if fs.rescues() { HURT } else { OPERATIONAL }).max() {
        None => Ok(()),
        Some(status) => Err(Failure::silent(status)),
    }
}

/// The status for an error of a file in the image. If the image is rescued, damage is expected.
pub fn status_of(fs: &Filesystem, e: &Error) -> u8 {
    if is_expected(fs, e) { HURT } else { OPERATIONAL }
}

/// The message for a file that could be read only in part.
pub fn hurt(fs: &Filesystem, path: &[u8], missing: &Missing) -> Failure {
    Failure::new(HURT, format!("{}: {}: {missing}", fs.image(), shown(path)))
}

/// The failure of an operation on `path` in the image.
pub fn at(fs: &Filesystem, path: &[u8], e: Error) -> Failure {
    let advice = match e {
        Error::Stale(_) if !fs.rescues() => " (of a deleted file, --rescue may still read something)",
        _ => "",
    };
    Failure::new(status_of(fs, &e), format!("{}: {}: {e}{advice}", fs.image(), shown(path)))
}
