//! Opens an image: chooses its part, refuses other formats than ext, and waits for a server that is about to end.
//!
//! Main functions: [`open`], [`open_whole`], [`look`], [`probe`]; main types: [`Access`], [`Claim`], [`OpenImage`],
//! [`Note`].
//!
//! # Locking
//! None.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::{
    Engine, FileDevice, IoMode, Locking, NbdAddress, NbdDevice, NbdOptions, OpenOptions, same_image_in_use,
    writing_loop_device,
};
use extant_block::{BioFlags, BlockDevice, BusyBy, Error as DeviceError};
use extant_ondisk::BlockNr;
use extant_ondisk::partition::Source;
use extant_ondisk::superblock::{self, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_recovery::read;

use crate::error::{Backup, BadOffset, Error, Result};
use crate::formats::{self, Format};
use crate::holder::{Holder, is_served, is_written};
use crate::member::{Member, member};
use crate::partitions::{choose_partition, find_partition, part_of, partition_table};
#[cfg(target_os = "linux")]
use crate::qemu;
use crate::shown;
use crate::spec::{ImageSpec, Part};

/// How to open.
#[derive(Clone, Debug)]
pub struct Access {
    /// No write is allowed.
    pub read_only: bool,
    /// Whether the host's page cache is used.
    pub io: IoMode,
    /// The engine that carries out requests which do not block their caller.
    pub engine: Engine,
    /// Open a block device exclusively (O_EXCL).
    pub exclusive: bool,
    /// The caller names the superblock to use: other formats at the image's start do not count.
    pub by_superblock: bool,
    /// The rule for an image that another process uses.
    pub claim: Claim,
    /// Write also an image that belongs to an array, a pool or a volume group ([`crate::member`]).
    pub write_member: bool,
    /// Called with messages for the user.
    pub tell: fn(&Note<'_>),
}

/// An event during an open that is no error.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Note<'a> {
    /// The partition table at the start is damaged; the one at the end is used.
    BackupTable {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: &'a str,
    },
    /// The host lacks a means to exclude other users.
    Unguarded {
        /// The device's name.
        image: &'a str,
        /// The missing means.
        why: &'a str,
        /// The image is only read.
        read_only: bool,
    },
    /// The image belongs to an array, a pool or a volume group.
    Member {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: &'a str,
        /// Its owner.
        member: &'a Member,
    },
    /// Opening waits for a process that may be about to end. Sent once.
    Waiting {
        /// The image's name, as [`crate::ImageSpec::shown`] gives it.
        image: &'a str,
        /// The users of the image.
        holder: &'a Holder,
    },
}

/// An open image.
pub struct OpenImage {
    /// The device that holds the file system.
    pub device: Arc<dyn BlockDevice>,
    /// Device and inode number of the file of the host; zeroes for an export of a server.
    pub file: (u64, u64),
    /// Its other users, if [`Claim::OrBeside`] lets it be read beside them.
    pub beside: Option<Holder>,
}

impl fmt::Debug for OpenImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenImage").field("device", &self.device.name()).field("beside", &self.beside).finish()
    }
}

/// The rule for an image that another process uses, or may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The open is refused.
    Required,
    /// As [`Claim::Required`], but an image on a host that cannot lock files may be written.
    IfPossible,
    /// The image may be read beside that process, but not written: two writers would destroy it.
    OrBeside,
    /// The image is only read, regardless of its users.
    None,
}

impl Access {
    /// The access that tools use: through the page cache, one call at a time.
    pub fn tool(read_only: bool) -> Access {
        let (io, engine) = (IoMode::Buffered, Engine::Psync);
        let claim = Claim::Required;
        Access {
            read_only,
            io,
            engine,
            exclusive: true,
            by_superblock: false,
            claim,
            write_member: false,
            tell: |_| {},
        }
    }
}

/// Opens the file system's part of an image: the named part, or the whole image, or its only partition with ext2/3/4.
///
/// # Errors
/// See [`Error`]. [`Error::InUse`] comes after a delay, in which a server that is about to end may do so.
pub fn open(spec: &ImageSpec, access: &Access) -> Result<OpenImage> {
    if let Some(Remote { device, file }) = open_remote(spec, access)? {
        let whole = access.by_superblock && spec.part == Part::Any;
        let device = if whole { device } else { part_of(&device, spec.part)? };
        return Ok(OpenImage { device, file, beside: None });
    }
    if spec.part != Part::Any {
        let (start, len) = place(spec)?;
        return open_window(spec, access, start, len);
    }
    let whole = look(spec)?;
    if access.by_superblock || has_magic(&*whole) {
        return open_window(spec, access, 0, None);
    }
    if let Some(format) = formats::identify(&*whole) {
        return Err(overwritten(&*whole, spec.shown(), format));
    }
    let table = partition_table(&*whole)?;
    // A backup GPT may be older than a file system on the whole disk whose first blocks are lost.
    let stale = || table.source == Source::BackupGpt && probe(&*whole).is_ok();
    if table.partitions.is_empty() || stale() {
        return open_window(spec, access, 0, None);
    }
    if table.source == Source::BackupGpt {
        (access.tell)(&Note::BackupTable { image: &spec.shown() });
    }
    let (number, (start, len)) = choose_partition(spec, &whole, &table.partitions)?;
    open_window(&ImageSpec { part: Part::Partition(number), ..spec.clone() }, access, start, Some(len))
}

/// The error for an image that begins like `format`, which may have been written over an ext file system.
pub fn overwritten(dev: &dyn BlockDevice, image: String, format: &'static Format) -> Error {
    let backup = match probe(dev) {
        Ok((sb, Some(BlockNr(block)))) => Some(Backup { block, byte: block << sb.block_bits }),
        _ => None,
    };
    Error::Foreign { image, format, backup }
}

/// The superblock of the file system on `dev`: the primary, or the first good backup and its block.
///
/// # Errors
/// The damage of the primary, if there is no good backup either, or if the primary may be good: it cannot be read, or
/// has features that this version does not know.
pub fn probe(dev: &dyn BlockDevice) -> Result<(SuperBlock, Option<BlockNr>)> {
    let found = read::find_super(dev, None, false).map_err(|e| match e {
        read::Error::Device(e) => e.into(),
        read::Error::Format(source) => Error::SuperBlock { image: dev.name().to_owned(), source },
    })?;
    Ok((found.sb, found.backup.map(|(block, _)| block)))
}

/// The only partition that a name without a partition can mean, if there is one.
pub(crate) fn only_partition(spec: &ImageSpec) -> Option<u32> {
    let whole = look(spec).ok()?;
    if has_magic(&*whole) || formats::identify(&*whole).is_some() {
        return None;
    }
    let (number, _) = choose_partition(spec, &whole, &partition_table(&*whole).ok()?.partitions).ok()?;
    Some(number)
}

/// The place of the file system in the image file: the first byte, and how many bytes; `None` for all.
///
/// # Errors
/// The partition does not exist, or no file system can begin at the offset.
pub fn place(spec: &ImageSpec) -> Result<(u64, Option<u64>)> {
    match spec.part {
        Part::Any => Ok((0, None)),
        Part::Partition(number) => find_partition(&*look(spec)?, number).map(|(start, len)| (start, Some(len))),
        Part::Offset(offset) => {
            let failed = |why| Error::Offset { image: shown(spec.path.as_os_str().as_encoded_bytes()), offset, why };
            if !offset.is_multiple_of(512) {
                return Err(failed(BadOffset::Unaligned));
            }
            if offset >= look(spec)?.size_bytes() {
                return Err(failed(BadOffset::PastEnd));
            }
            Ok((offset, None))
        }
    }
}

/// The image from its first byte on, regardless of its users: for a look at its partitions.
///
/// # Errors
/// It cannot be opened.
pub fn look(spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    let access = Access { claim: Claim::None, ..Access::tool(true) };
    match open_remote(spec, &access)? {
        Some(Remote { device, .. }) => Ok(device),
        None => look_at_file(spec),
    }
}

/// The file or block device itself, whatever its format.
pub(crate) fn look_at_file(spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
    let options = OpenOptions {
        io: IoMode::Buffered,
        engine: Engine::Psync,
        lock: Locking::None,
        exclusive: false,
        allow_mounted: true,
        ..OpenOptions::read_only()
    };
    Ok(Arc::new(FileDevice::open(&spec.path, options)?))
}

/// The image from its first byte on.
///
/// # Errors
/// As [`open`].
pub fn open_whole(spec: &ImageSpec, access: &Access) -> Result<OpenImage> {
    if let Some(Remote { device, file }) = open_remote(spec, access)? {
        return Ok(OpenImage { device, file, beside: None });
    }
    open_window(spec, access, 0, None)
}

/// Connections for a mount; a single caller needs one.
const CONNECTIONS: usize = 4;

/// An open image that a server shows, from its first byte on.
struct Remote {
    device: Arc<dyn BlockDevice>,
    /// Device and inode number of the disk's file; zeroes for an export.
    file: (u64, u64),
}

/// Opens the image, if a server has to show it.
fn open_remote(spec: &ImageSpec, access: &Access) -> Result<Option<Remote>> {
    let read_only = access.read_only || access.claim == Claim::None;
    let threads = access.engine != Engine::Psync;
    let options = NbdOptions {
        read_only,
        threads,
        connections: if threads { CONNECTIONS } else { 1 },
        shown_as: Some(shown(spec.path.as_os_str().as_encoded_bytes())),
        ..NbdOptions::default()
    };
    if let Some(address) = address(spec) {
        let device = NbdDevice::open(&address?, &options).map_err(|e| read_only_export(spec, e))?;
        return Ok(Some(Remote { device: Arc::new(device), file: (0, 0) }));
    }
    let Some((format, driver)) = foreign(spec) else { return Ok(None) };
    serve(spec, access, &options, format, driver).map(Some)
}

/// Without Linux, nothing starts the program.
#[cfg(not(target_os = "linux"))]
fn serve(spec: &ImageSpec, _: &Access, _: &NbdOptions, format: &'static Format, _: &str) -> Result<Remote> {
    Err(Error::NoProgram { image: spec.shown(), format, program: "qemu-nbd" })
}

/// Lets qemu-nbd show a disk of a virtual machine.
#[cfg(target_os = "linux")]
fn serve(
    spec: &ImageSpec,
    access: &Access,
    options: &NbdOptions,
    format: &'static Format,
    driver: &'static str,
) -> Result<Remote> {
    use std::os::unix::fs::MetadataExt;
    let read_only = options.read_only;
    let opened = || -> std::io::Result<(u64, u64)> {
        let meta = std::fs::File::options().read(true).write(!read_only).open(&spec.path)?.metadata()?;
        Ok((meta.dev(), meta.ino()))
    };
    let file = opened().map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem if !read_only => {
            Error::ReadOnly { image: spec.shown() }
        }
        _ => DeviceError::open(&shown(spec.path.as_os_str().as_encoded_bytes()), e).into(),
    })?;
    let image = spec.shown();
    let device = qemu::served(&spec.path, driver, options, access.claim == Claim::None).map_err(|e| match e {
        qemu::Failure::Host(path, source) => Error::Host { path, source: Arc::new(source) },
        qemu::Failure::NoProgram => Error::NoProgram { image, format, program: qemu::PROGRAM },
        qemu::Failure::Program(why) => Error::Program { image, program: qemu::PROGRAM, why },
        qemu::Failure::Busy => DeviceError::Busy { device: image, by: BusyBy::Lock }.into(),
        qemu::Failure::Device(e) => read_only_export(spec, e),
    })?;
    Ok(Remote { device, file })
}

/// Whether a server shows the image: it is an export, or a disk of a virtual machine. The size of such an image is not
/// that of its file.
pub fn is_remote(spec: &ImageSpec) -> bool {
    NbdAddress::is_one(spec.path.as_os_str().as_encoded_bytes()) || foreign(spec).is_some()
}

/// The address, if the image's name is one.
fn address(spec: &ImageSpec) -> Option<Result<NbdAddress>> {
    let word = spec.path.as_os_str().as_encoded_bytes();
    if !NbdAddress::is_one(word) {
        return None;
    }
    let failed = |why| Error::Address { image: shown(word), why };
    let text = std::str::from_utf8(word).map_err(|_| failed("the name is not UTF-8"));
    Some(text.and_then(|text| NbdAddress::parse(text).map_err(failed)))
}

/// An export that may only be read, to a caller that wants to write.
fn read_only_export(spec: &ImageSpec, e: DeviceError) -> Error {
    match &e {
        DeviceError::Open { source, .. }
            if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem && source.to_string().contains("read-only") =>
        {
            Error::ReadOnly { image: spec.shown() }
        }
        _ => e.into(),
    }
}

/// The format of a file that qemu-nbd can show, and qemu's name for it.
fn foreign(spec: &ImageSpec) -> Option<(&'static Format, &'static str)> {
    if !spec.path.metadata().is_ok_and(|meta| meta.is_file()) {
        return None;
    }
    let file = look_at_file(spec).ok()?;
    if has_magic(&*file) {
        return None;
    }
    let format = formats::identify(&*file)?;
    Some((format, format.qemu_driver()?))
}

/// How long to wait for the end of a process that has the image open after its mount is gone.
const ENDING_PATIENCE_NS: u64 = 3_000_000_000;
/// How long to wait before a message to the user.
const ENDING_WORD_NS: u64 = 300_000_000;

/// Device and inode number of an open image.
#[cfg(unix)]
fn host_file(dev: &FileDevice) -> Result<(u64, u64)> {
    Ok(dev.host_file()?)
}

/// The system has no such numbers.
#[cfg(not(unix))]
fn host_file(_: &FileDevice) -> Result<(u64, u64)> {
    Ok((0, 0))
}

fn open_window(spec: &ImageSpec, access: &Access, offset: u64, len: Option<u64>) -> Result<OpenImage> {
    let access = &Access { read_only: access.read_only || access.claim == Claim::None, ..access.clone() };
    let options = OpenOptions {
        read_only: access.read_only,
        io: access.io,
        engine: access.engine,
        exclusive: access.exclusive,
        lock: match access.claim {
            Claim::Required | Claim::OrBeside => Locking::Required,
            Claim::IfPossible => Locking::IfPossible,
            Claim::None => Locking::None,
        },
        allow_mounted: access.claim == Claim::None,
        offset,
        len,
        shown_as: (spec.part != Part::Any).then(|| spec.shown()),
    };
    if !access.read_only && !spec.is_block_device() {
        no_loop_device(spec, offset, len)?;
    }
    let beside = |holder| {
        let access = Access { claim: Claim::None, read_only: true, ..access.clone() };
        let opened = open_window(spec, &access, offset, len)?;
        Ok(OpenImage { beside: Some(holder), ..opened })
    };
    // A server keeps its lock for longer than an open waits for a lock.
    if access.claim == Claim::OrBeside && is_served(spec, offset, len) {
        return beside(Holder::of(spec));
    }
    let image = spec.shown();
    let in_use = |holder, by| Error::InUse { image: image.clone(), holder: Box::new(holder), by };
    if access.read_only && access.claim == Claim::Required && is_written(spec, offset, len) {
        return Err(in_use(Holder::of(spec), BusyBy::Lock));
    }
    let clock = Clock::real();
    let mut told = false;
    loop {
        let by = match FileDevice::open(&spec.path, options.clone()) {
            Ok(_) if !access.read_only && spec.is_read_only_device() => return Err(Error::ReadOnly { image }),
            Ok(dev) => {
                let file = host_file(&dev)?;
                heed_member(spec, access, &dev, offset)?;
                for why in dev.unguarded() {
                    let (image, read_only) = (dev.name(), access.read_only);
                    (access.tell)(&Note::Unguarded { image, why, read_only });
                }
                return Ok(OpenImage { device: Arc::new(dev), file, beside: None });
            }
            Err(DeviceError::Busy { by, .. }) => by,
            Err(e) if !access.read_only && may_only_be_read(spec, &e) => return Err(Error::ReadOnly { image }),
            Err(e) => return Err(e.into()),
        };
        // A server releases the image after its mount is gone. A user who has just unmounted it need not notice that.
        let holder = Holder::of(spec);
        if !holder.may_be_ending() || clock.now_ns() > ENDING_PATIENCE_NS {
            return match access.claim {
                Claim::OrBeside => beside(holder),
                _ => Err(in_use(holder, by)),
            };
        }
        if !told && clock.now_ns() > ENDING_WORD_NS {
            (access.tell)(&Note::Waiting { image: &image, holder: &holder });
            told = true;
        }
        clock.sleep(Duration::from_millis(20));
    }
}

/// Refuses to write an image that belongs to another owner, or to a disk that does; a reader gets a note.
fn heed_member(spec: &ImageSpec, access: &Access, dev: &FileDevice, offset: u64) -> Result<()> {
    if !has_magic(dev) {
        return Ok(());
    }
    let Ok((sb, _)) = probe(dev) else { return Ok(()) };
    let end = sb.blocks_count.saturating_mul(sb.block_size.into());
    let of_disk =
        || look(&ImageSpec::whole(&spec.path)).ok().and_then(|disk| member(&*disk, offset.saturating_add(end)));
    let owner = member(dev, end).or_else(|| if spec.part == Part::Any { None } else { of_disk() });
    match owner {
        Some(member) if !access.read_only && !access.write_member => Err(Error::Member { image: spec.shown(), member }),
        Some(member) => {
            (access.tell)(&Note::Member { image: &spec.shown(), member: &member });
            Ok(())
        }
        None => Ok(()),
    }
}

/// How long to wait for a loop device that is just being detached.
const LOOP_PATIENCE_NS: u64 = 1_000_000_000;

/// A loop device's writes would bypass ours, and ours its, whether or not it is mounted.
fn no_loop_device(spec: &ImageSpec, offset: u64, len: Option<u64>) -> Result<()> {
    let clock = Clock::real();
    loop {
        match writing_loop_device(&spec.path, offset, len) {
            None => return Ok(()),
            Some(_) if clock.now_ns() < LOOP_PATIENCE_NS => clock.sleep(Duration::from_millis(20)),
            Some(device) => {
                let mounted = same_image_in_use(&spec.path).ok().flatten();
                return Err(Error::Loop { image: spec.shown(), device, mounted });
            }
        }
    }
}

/// Makes sure that no loop device can write to the image file of a mount. The name comes from the user who mounted
/// it, so only a regular file is examined.
///
/// # Errors
/// [`Error::Loop`], or there is no such part of the image.
pub fn refuse_loop_device(spec: &ImageSpec) -> Result<()> {
    if !spec.path.metadata().is_ok_and(|m| m.is_file()) {
        return Ok(());
    }
    let (start, len) = place(&spec.canonical())?;
    no_loop_device(spec, start, len)
}

fn may_only_be_read(spec: &ImageSpec, e: &DeviceError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let refused = |e: &std::io::Error| matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem);
    matches!(e, DeviceError::Open { source, .. } if refused(source)) && std::fs::File::open(&spec.path).is_ok()
}

/// Whether there is an ext superblock, good or bad, in the usual place, and it can be read.
pub fn has_magic(dev: &dyn BlockDevice) -> bool {
    shows_magic(dev).unwrap_or(false)
}

pub(crate) fn shows_magic(dev: &dyn BlockDevice) -> Result<bool> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    if dev.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        return Ok(false);
    }
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(superblock::has_magic(&sb))
}
