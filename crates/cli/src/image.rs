//! Which image, which part of it, opened how.
//!
//! Main types: [`ImageSpec`] (`IMAGE`, `IMAGE@N` or `IMAGE?offset=N`), [`Part`], [`Access`]. [`open_device`] opens the
//! device of the file system itself: the whole image, or a part of it. [`open_image`] mounts it in this process. What a
//! command's options say of its images ([`ImageArgs`]) has its effect here.
//!
//! An image whose last server is about to end is waited for; one that is mounted is refused, with who has it
//! ([`crate::holder`]).
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::fmt;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::{
    Engine, FileDevice, IoMode, Locking, OffsetDevice, OpenOptions, same_image_in_use, writing_loop_device,
};
use extant_block::{BioFlags, BlockDevice, Error as DeviceError};
use extant_fs::{Error, Filesystem, InodeRef, Messages, MountOptions, Mounted, probe_superblock_at};
use extant_ondisk::InodeNr;
use extant_ondisk::partition::{Partition, Source, Table, read_table};
use extant_ondisk::superblock::{MAGIC, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::args::ImageArgs;
use crate::content::Missing;
use crate::failure::{Failure, HURT, OPERATIONAL, Result, plain_text, warn};
use crate::formats;
use crate::holder::{self, Holder};
use crate::opened;
use crate::size;
use crate::source_date::SourceDate;
use crate::text::shown;

/// Writes of at least this many bytes go straight to an image file that is opened through the page cache: the host
/// keeps them anyway, and a second copy in folios would only cost.
pub const WRITE_THROUGH_BYTES: u64 = 65536;

/// Which part of an image holds the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The whole image, or its only partition with ext2/3/4.
    #[default]
    Any,
    Partition(u32),
    /// From this byte on.
    Offset(u64),
}

impl Part {
    /// What two options say; the parser of the command line refuses both at once.
    pub fn from_options(partition: Option<u32>, offset: Option<u64>) -> Part {
        partition.map(Part::Partition).or(offset.map(Part::Offset)).unwrap_or_default()
    }
}

/// As a mount option.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Any => Ok(()),
            Part::Partition(number) => write!(f, "partition={number}"),
            Part::Offset(offset) => write!(f, "offset={offset}"),
        }
    }
}

/// An image, and the part of it that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSpec {
    pub path: PathBuf,
    pub part: Part,
}

impl ImageSpec {
    /// All of the image at `path`.
    pub fn whole(path: impl Into<PathBuf>) -> ImageSpec {
        ImageSpec { path: path.into(), part: Part::Any }
    }

    /// Takes `IMAGE`, `IMAGE@N` or `IMAGE?offset=N`; a file whose name really ends like that is taken as it is.
    pub fn parse(arg: &OsStr) -> ImageSpec {
        match split_part(arg) {
            Some((path, part)) if !Path::new(arg).exists() => ImageSpec { path, part },
            _ => ImageSpec::whole(arg),
        }
    }

    /// The image, of which `part` is meant unless the name itself says which.
    pub fn or(self, part: Part) -> ImageSpec {
        if self.part == Part::Any { ImageSpec { part, ..self } } else { self }
    }

    pub fn partition(&self) -> Option<u32> {
        if let Part::Partition(number) = self.part { Some(number) } else { None }
    }

    /// As on the command line, fit for a message.
    pub fn shown(&self) -> String {
        let source = shown(self.source().as_os_str().as_bytes());
        if let Part::Offset(offset) = self.part { format!("{source}?offset={offset}") } else { source }
    }

    /// What the kernel shows as the source of its mount, and unmounting goes by.
    pub fn source(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if let Some(number) = self.partition() {
            name.push(format!("@{number}"));
        }
        name.into()
    }

    /// A partition of a block device for which the kernel has a device of its own, as that device.
    pub fn resolved(self) -> ImageSpec {
        let own = self.partition().filter(|_| self.is_block_device()).and_then(|n| partition_device(&self.path, n));
        own.map_or(self, ImageSpec::whole)
    }

    /// The same for all ways to write its name; the only partition that can be meant has its number.
    pub fn canonical(&self) -> ImageSpec {
        let path = self.path.canonicalize().unwrap_or(self.path.clone());
        let only = if self.part == Part::Any { only_partition(self) } else { None };
        ImageSpec { path, part: only.map_or(self.part, Part::Partition) }
    }

    /// A block device that the kernel refuses to write; opening it does not tell.
    pub fn is_read_only_device(&self) -> bool {
        let Ok(meta) = self.path.metadata() else { return false };
        let number = format!("{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let flag = Path::new("/sys/dev/block").join(number).join("ro");
        meta.file_type().is_block_device() && std::fs::read(flag).is_ok_and(|ro| ro.starts_with(b"1"))
    }

    pub fn is_block_device(&self) -> bool {
        self.path.metadata().is_ok_and(|m| m.file_type().is_block_device())
    }
}

fn split_part(arg: &OsStr) -> Option<(PathBuf, Part)> {
    let bytes = arg.as_bytes();
    let at = bytes.iter().rposition(|b| matches!(b, b'@' | b'?')).filter(|at| *at > 0)?;
    let end = std::str::from_utf8(&bytes[at..]).ok()?;
    let part = match end.strip_prefix("?offset=") {
        Some(offset) => Part::Offset(size::parse(offset).ok()?),
        None => Part::Partition(end.strip_prefix('@')?.parse().ok()?),
    };
    Some((OsStr::from_bytes(&bytes[..at]).into(), part))
}

/// The kernel's device for partition `number` of the block device at `disk`.
fn partition_device(disk: &Path, number: u32) -> Option<PathBuf> {
    let disk = disk.canonicalize().ok()?;
    let entries = std::fs::read_dir(Path::new("/sys/class/block").join(disk.file_name()?)).ok()?;
    entries.flatten().find_map(|entry| {
        let of = std::fs::read_to_string(entry.path().join("partition")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        (of.trim().parse() == Ok(number) && device.exists()).then_some(device)
    })
}

/// How to open.
#[derive(Clone, Debug)]
pub struct Access {
    pub read_only: bool,
    pub io: IoMode,
    pub engine: Engine,
    /// Claim a block device (O_EXCL).
    pub exclusive: bool,
    /// The superblock to use is named: whatever else the image begins with does not count.
    pub by_superblock: bool,
    pub claim: Claim,
}

/// What becomes of an image that another process has, or may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is refused.
    Required,
    /// As [`Claim::Required`], but what is on a host that cannot lock files is written all the same (`--no-lock`).
    IfPossible,
    /// It is read beside that process ([`crate::beside`]).
    OrBeside,
    /// As [`Claim::OrBeside`], without a word.
    None,
}

impl Access {
    /// For the tools: through the page cache, nothing in flight.
    pub fn tool(read_only: bool) -> Access {
        let (io, engine) = (IoMode::Buffered, Engine::Psync);
        Access { read_only, io, engine, exclusive: true, by_superblock: false, claim: Claim::Required }
    }
}

/// The device that holds the file system.
pub fn open_device(spec: &ImageSpec, access: &Access) -> Result<Arc<dyn BlockDevice>> {
    open_or_beside(spec, access).map(|(dev, _)| dev)
}

/// As [`open_device`], and beside whom it is opened, if [`Claim::OrBeside`] says that it may be.
pub fn open_or_beside(spec: &ImageSpec, access: &Access) -> Result<(Arc<dyn BlockDevice>, Option<Holder>)> {
    if spec.part != Part::Any {
        let (start, len) = place(spec)?;
        return open_window(spec, access, start, len);
    }
    let whole = look(spec)?;
    if access.by_superblock || has_magic(&*whole) {
        return open_window(spec, access, 0, None);
    }
    if let Some(format) = formats::identify(&*whole) {
        return Err(overwritten(&*whole, format.refuse(&spec.shown())));
    }
    let table = partition_table(&*whole)?;
    // A backup GPT may be older than a file system that fills the disk since, and whose first blocks are lost.
    let stale = || table.source == Source::BackupGpt && extant_fs::probe_superblock(&*whole).is_ok();
    if table.partitions.is_empty() || stale() {
        return open_window(spec, access, 0, None);
    }
    if table.source == Source::BackupGpt {
        warn(&format!("{}: {BACKUP_GPT}", spec.shown()));
    }
    let (number, (start, len)) = choose_partition(spec, &whole, &table.partitions)?;
    open_window(&ImageSpec { part: Part::Partition(number), ..spec.clone() }, access, start, Some(len))
}

/// What is said of an image that begins like another format, which may have been written over an ext file system.
pub fn overwritten(dev: &dyn BlockDevice, mut refused: Failure) -> Failure {
    if let Ok((sb, Some(block))) = extant_fs::probe_superblock(dev) {
        let kib = block << sb.geometry().block_bits >> 10;
        let more =
            format!("; a copy of an ext superblock is at block {block} of it: --sb {kib} (a mount: -o ro,sb={kib})");
        refused.message.push_str(&more);
        refused.message.push_str(" reads what was there");
    }
    refused
}

/// The partition that is meant where none is named, if there is one.
fn only_partition(spec: &ImageSpec) -> Option<u32> {
    let whole = look(spec).ok()?;
    if has_magic(&*whole) || formats::identify(&*whole).is_some() {
        return None;
    }
    let (number, _) = choose_partition(spec, &whole, &partition_table(&*whole).ok()?.partitions).ok()?;
    Some(number)
}

/// Where in the image file its file system is: the first byte, and how many; `None` for all.
pub fn place(spec: &ImageSpec) -> Result<(u64, Option<u64>)> {
    match spec.part {
        Part::Any => Ok((0, None)),
        Part::Partition(number) => find_partition(&*look(spec)?, number).map(|(start, len)| (start, Some(len))),
        Part::Offset(offset) => {
            let failed = |what: &str| {
                Failure::op(format!("{}: offset {offset} {what}", shown(spec.path.as_os_str().as_bytes())))
            };
            if !offset.is_multiple_of(512) {
                return Err(failed("is no multiple of 512"));
            }
            if offset >= look(spec)?.size_bytes() {
                return Err(failed("is past the end"));
            }
            Ok((offset, None))
        }
    }
}

/// The image from its first byte on, whoever has it: for a look at its partitions.
pub fn look(spec: &ImageSpec) -> Result<Arc<dyn BlockDevice>> {
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

/// The superblock of the image's file system, whoever has it.
pub fn super_block_beside(spec: &ImageSpec) -> Result<SuperBlock> {
    // No lock is taken, and none is looked for.
    let dev = open_device(spec, &Access { claim: Claim::None, ..Access::tool(true) })?;
    Ok(extant_fs::probe_superblock(&*dev).map_err(explain)?.0)
}

/// The only partition with an ext file system, if there is one: its number and place.
fn choose_partition(
    spec: &ImageSpec,
    whole: &Arc<dyn BlockDevice>,
    partitions: &[Partition],
) -> Result<(u32, (u64, u64))> {
    let mut with_ext = Vec::new();
    for p in partitions {
        let (start, len) = place_of(p);
        // One that does not answer may be another of them.
        if shows_magic(&OffsetDevice::new(whole.clone(), start, len)?)? {
            with_ext.push((p.number, (start, len)));
        }
    }
    let image = spec.shown();
    let message = match with_ext.len() {
        1 => return Ok(with_ext.remove(0)),
        0 => format!(
            "{image}: a whole disk, but none of its partitions has an ext2/3/4 superblock at its byte 1024; \
             --partition N, -o partition=N or {image}@N takes one nevertheless:"
        ),
        n => format!(
            "{image}: a whole disk with {n} ext2/3/4 file systems; choose a partition (--partition N, -o partition=N or \
             {image}@N):"
        ),
    };
    Err(Failure { table: list(partitions), ..Failure::op(message) })
}

/// The image from its first byte on.
pub fn open_whole(spec: &ImageSpec, access: &Access) -> Result<Arc<dyn BlockDevice>> {
    open_window(spec, access, 0, None).map(|(dev, _)| dev)
}

/// How long somebody who has the image, and whose mount is gone, is given to end.
const ENDING_PATIENCE_NS: u64 = 3_000_000_000;
/// After which a person is told what is waited for.
const ENDING_WORD_NS: u64 = 300_000_000;

fn open_window(
    spec: &ImageSpec,
    access: &Access,
    offset: u64,
    len: Option<u64>,
) -> Result<(Arc<dyn BlockDevice>, Option<Holder>)> {
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
        lift_file_size_limit();
    }
    let beside = |who| {
        let (dev, _) = open_window(spec, &Access { claim: Claim::None, ..access.clone() }, offset, len)?;
        Ok((dev, Some(who)))
    };
    // He keeps it for longer than a lock is waited for.
    if access.claim == Claim::OrBeside && holder::is_served(spec, offset, len) {
        return beside(holder::find(spec));
    }
    let image = spec.shown();
    if access.read_only && access.claim == Claim::Required && holder::is_written(spec, offset, len) {
        let (device, by) = (image.clone(), "a mount that writes it".to_owned());
        return Err(holder::find(spec).explain(&image, DeviceError::Busy { device, by }));
    }
    let only_read =
        || Failure::op(format!("{image}: may only be read; 'extant mount -o ro {image} DIR' mounts it read-only"));
    let clock = Clock::real();
    let mut told = false;
    loop {
        let busy = match FileDevice::open(&spec.path, options.clone()) {
            Ok(_) if !access.read_only && spec.is_read_only_device() => return Err(only_read()),
            Ok(dev) => {
                opened::remember(dev.host_file()?, access.read_only);
                say_unguarded(&dev, access.read_only);
                return Ok((Arc::new(dev), None));
            }
            Err(e @ DeviceError::Busy { .. }) => e,
            Err(e @ DeviceError::NoLocks { .. }) => {
                let e = plain_text(&e.to_string());
                return Err(Failure::op(format!(
                    "{e}; if nobody else uses it, --no-lock (-o no_lock of a mount) writes it all the same"
                )));
            }
            Err(e) if !access.read_only && may_only_be_read(spec, &e) => return Err(only_read()),
            Err(e) => return Err(e.into()),
        };
        // A server lets go of the image after its mount is gone: who has just unmounted need not know.
        let who = holder::find(spec);
        if !who.may_be_ending() || clock.now_ns() > ENDING_PATIENCE_NS {
            return match access.claim {
                Claim::OrBeside => beside(who),
                _ => Err(who.explain(&spec.shown(), busy)),
            };
        }
        if !told && clock.now_ns() > ENDING_WORD_NS && std::io::stderr().is_terminal() {
            warn(&format!("{}: waiting for {} to let go of it", spec.shown(), who.processes()));
            told = true;
        }
        clock.sleep(Duration::from_millis(20));
    }
}

/// What else keeps others away and is missing here is said once, when the image is opened.
fn say_unguarded(dev: &FileDevice, read_only: bool) {
    let while_what = if read_only { "while it is read" } else { "while it is written" };
    for why in dev.unguarded() {
        let why = plain_text(why);
        warn(&format!("{}: {why}: see to it that nobody else writes it {while_what}", dev.name()));
    }
}

/// A user's own limit on the size of files (`ulimit -Sf`) is for what he makes; an image is there already. Nobody is
/// hindered from lifting it, up to the hard one.
fn lift_file_size_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_FSIZE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_FSIZE, hard, hard);
    }
}

/// How long a loop device that is just let go of may take.
const LOOP_PATIENCE_NS: u64 = 1_000_000_000;

/// What a loop device writes would go past us, as ours past it, whether it is mounted, and where, or not.
fn no_loop_device(spec: &ImageSpec, offset: u64, len: Option<u64>) -> Result<()> {
    let clock = Clock::real();
    loop {
        match writing_loop_device(&spec.path, offset, len) {
            None => return Ok(()),
            Some(_) if clock.now_ns() < LOOP_PATIENCE_NS => clock.sleep(Duration::from_millis(20)),
            Some(device) => {
                let image = spec.shown();
                return Err(Failure::op(match same_image_in_use(&spec.path).ok().flatten() {
                    Some(mounted) => format!("{image}: in use: {mounted}; unmount it there first"),
                    None => format!(
                        "{image}: in use by {device} (losetup -d {device} lets go of it); it may be read, -o ro mounts it"
                    ),
                }));
            }
        }
    }
}

/// That no loop device could write to the image file of a mount. Its name is whatever whoever mounted it said: anything
/// else than a file is left alone.
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

/// Whether an ext superblock, good or bad, is where it should be, and can be read.
pub fn has_magic(dev: &dyn BlockDevice) -> bool {
    shows_magic(dev).unwrap_or(false)
}

fn shows_magic(dev: &dyn BlockDevice) -> Result<bool> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    if dev.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        return Ok(false);
    }
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(u16::from_le_bytes([sb[56], sb[57]]) == MAGIC)
}

/// What a disk whose first sectors are damaged is told about.
pub const BACKUP_GPT: &str = "the partition table at the start is damaged; using its backup at the end of the disk";

/// The partitions of a whole disk, and where they are listed.
pub fn partition_table(dev: &dyn BlockDevice) -> Result<Table> {
    let read = |offset: u64, buf: &mut [u8]| {
        offset.checked_add(buf.len() as u64).is_some_and(|end| end <= dev.size_bytes())
            && dev.read_at(offset, buf, BioFlags::META).is_ok()
    };
    if dev.size_bytes() < 512 {
        return Ok(Table { partitions: Vec::new(), source: Source::None });
    }
    read_table(dev.size_bytes(), read).map_err(|e| Failure::op(format!("{}: {e}", dev.name())))
}

/// Where partition `number` is, in bytes: start and length.
fn find_partition(dev: &dyn BlockDevice, number: u32) -> Result<(u64, u64)> {
    let Table { partitions, .. } = partition_table(dev)?;
    let image = dev.name();
    let Some(found) = partitions.iter().find(|p| p.number == number) else {
        if partitions.is_empty() {
            return Err(Failure::op(format!("{image}: partition {number} wanted, but there is no partition table")));
        }
        let table = list(&partitions);
        return Err(Failure { table, ..Failure::op(format!("{image}: no partition {number}; there are:")) });
    };
    Ok(place_of(found))
}

/// Where a partition begins, and its bytes: whole blocks, however large those of the device are.
fn place_of(partition: &Partition) -> (u64, u64) {
    (partition.start, partition.len - partition.len % 4096)
}

/// A table of partitions: number, start, size, type, label.
pub fn list(partitions: &[Partition]) -> Vec<String> {
    let mut lines = vec![format!("{:>4} {:>16} {:>10}  {}", "N", "START (bytes)", "SIZE", "TYPE")];
    for p in partitions {
        let label = if p.label.is_empty() { String::new() } else { format!("  \"{}\"", shown(p.label.as_bytes())) };
        lines.push(format!("{:>4} {:>16} {:>10}  {}{label}", p.number, p.start, size::human(p.len), p.type_name));
    }
    lines
}

impl ImageArgs {
    /// The image that `arg` names, and which part of it.
    pub fn spec(&self, arg: &OsStr) -> ImageSpec {
        ImageSpec::parse(arg).or(self.part())
    }

    /// Which part of an image is meant whose name does not say.
    pub fn part(&self) -> Part {
        Part::from_options(self.partition, self.offset)
    }

    /// How a command of these options opens an image.
    pub fn access(&self, read_only: bool) -> Access {
        let claim = if self.no_lock { Claim::IfPossible } else { Claim::Required };
        Access { claim, by_superblock: self.sb.is_some(), ..Access::tool(read_only) }
    }

    /// How a command of these options mounts an image in this process.
    pub fn mount_options(&self, read_only: bool) -> Result<MountOptions> {
        let date = SourceDate::from_environment()?;
        Ok(MountOptions {
            read_only,
            rescue: self.rescue,
            superblock: self.sb.map(|kib| kib << 10),
            // A change by itself is no reason to look at the image sooner, as with debugfs.
            counted: false,
            // One command, one thread: it waits for what it does, and has no others to start and to wait for. Nothing
            // depends on who was faster then, either.
            threads: false,
            locality_groups: 1,
            clock: date.map_or_else(Clock::real, SourceDate::clock),
            seed: self.seed.or(date.map(SourceDate::seed)),
            ..MountOptions::default()
        })
    }

    /// The same for an image that a command writes to, while it reads others as these options say.
    pub fn for_destination(&self) -> ImageArgs {
        ImageArgs { sb: None, rescue: false, ..self.clone() }
    }
}

/// Mounts in this process. An image that needs recovery and is only read is replayed in memory.
pub fn open_image(spec: &ImageSpec, how: &ImageArgs, read_only: bool) -> Result<Mounted> {
    if how.rescue && !read_only {
        return Err(Failure::usage("--rescue reads: it is for commands that change nothing"));
    }
    let dev = open_device(spec, &how.access(read_only))?;
    let through = (!spec.is_block_device()).then_some(WRITE_THROUGH_BYTES);
    mount(dev, MountOptions { write_through_bytes: through, ..how.mount_options(read_only)? })
}

/// [`Filesystem::mount`], with its messages on standard error and a plain word for what is no file system at all.
pub fn mount(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
    mount_quietly(dev, MountOptions { messages: Messages::new(warn), ..options })
}

/// As [`mount`], without its messages.
pub fn mount_quietly(dev: Arc<dyn BlockDevice>, options: MountOptions) -> Result<Mounted> {
    let looked_at = dev.clone();
    let (superblock, rescue) = (options.superblock, options.rescue);
    Filesystem::mount(dev, options).map_err(|e| {
        let corrupt = matches!(&e, Error::Mount { source, .. } if source.is_corruption());
        let found = || probe_superblock_at(&*looked_at, superblock, rescue).is_ok();
        if corrupt && superblock.is_none() && !has_magic(&*looked_at) && !found() {
            let image = looked_at.name();
            if let Some(format) = formats::identify_unpartitioned(&*looked_at) {
                return format.refuse(image);
            }
            return Failure::op(format!("{image}: no ext2/3/4 file system: {}", formats::nothing_found(&*looked_at)));
        }
        let mut failure = explain(e);
        if corrupt && !rescue && !failure.message.contains("mount read-only (-o ro)") {
            failure.message.push_str(NEXT_STEP);
        }
        failure
    })
}

/// What to do about damage that keeps an image from being mounted.
const NEXT_STEP: &str = "; --rescue (a mount: -o rescue) reads what is there, 'e2fsck -fn' shows what is damaged";

/// An error of the engine that already names the image.
fn explain(e: Error) -> Failure {
    match e {
        Error::Mount { image, source } => match *source {
            // It names the device itself.
            Error::Device(e) => e.into(),
            source => Failure::op(format!("{image}: {source}")),
        },
        Error::Device(e) => e.into(),
        e => Failure::op(e.to_string()),
    }
}

/// Whether something that was looked at is damaged, though not everything behind it was lost: that has been said.
fn is_damaged(fs: &Filesystem) -> bool {
    fs.stats.errors.get() > 0
}

/// The failure of a command that found damage on its way: names may be missing from what it did.
pub fn refuse_damage<'a>(images: impl IntoIterator<Item = &'a Arc<Filesystem>>) -> Result<()> {
    let damaged = images.into_iter().filter(|fs| is_damaged(fs));
    match damaged.map(|fs| if fs.rescues() { HURT } else { OPERATIONAL }).max() {
        None => Ok(()),
        Some(status) => Err(Failure::silent(status)),
    }
}

/// What an error of a file in the image comes to: if the image is rescued, damage is what was to be expected.
pub fn status_of(fs: &Filesystem, e: &Error) -> u8 {
    let hurt = e.is_corruption() || matches!(e, Error::Device(_) | Error::Unsupported(_));
    if fs.rescues() && hurt { HURT } else { OPERATIONAL }
}

/// The inode at `path`, as [`Filesystem::walk`] finds it. `<N>` stands for inode N, as in debugfs, and a path may begin
/// with it; a file of that name is found with a slash in front.
pub fn walk(fs: &Filesystem, path: &[u8], follow: bool) -> std::result::Result<InodeRef, Error> {
    let number = path.strip_prefix(b"<").and_then(|rest| {
        let end = rest.iter().position(|b| *b == b'>')?;
        let number: u32 = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        let below = &rest[end + 1..];
        (below.is_empty() || below.starts_with(b"/")).then_some((number, below))
    });
    let Some((number, below)) = number else { return fs.walk(path, follow) };
    let inode = fs.iget_by_number(InodeNr(number))?;
    // What begins with a slash would be counted from the root.
    let below = below.iter().position(|b| *b != b'/').map_or(&b""[..], |at| &below[at..]);
    if below.is_empty() { Ok(inode) } else { fs.walk_at(&inode, below, follow) }
}

/// Extended attributes by full name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The values of one file's attributes are in memory together. Each of them may have an inode of its own.
const XATTRS_BYTES_MAX: usize = 16 << 20;

/// All attributes of a file.
pub fn xattrs(fs: &Filesystem, inode: &InodeRef) -> std::result::Result<Xattrs, Error> {
    let (mut xattrs, mut bytes) = (Xattrs::new(), 0);
    for name in fs.list_xattrs(inode)? {
        let value = fs.get_xattr(inode, &name)?;
        bytes += name.len() + value.len();
        if bytes > XATTRS_BYTES_MAX {
            let detail = format!("more than {} MiB of attributes; 'xattr get' reads one", XATTRS_BYTES_MAX >> 20);
            return Err(Error::NoMemory { detail });
        }
        xattrs.push((name, value));
    }
    Ok(xattrs)
}

/// What is said of a file of which only a part could be read.
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

#[cfg(test)]
mod tests {
    use extant_block::device::{Fault, FaultyDevice, MemDevice};

    use super::*;

    /// Nor is another one taken for the only one because it does not answer.
    #[test]
    fn of_two_file_systems_none_is_chosen() {
        let faulty = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(4 << 20))));
        let partition = |number| Partition {
            number,
            start: u64::from(number) << 20,
            len: 1 << 20,
            type_name: "Linux".into(),
            label: String::new(),
        };
        let both = [partition(1), partition(2)];
        let spec = ImageSpec::whole("disk.img");
        let whole: Arc<dyn BlockDevice> = faulty.clone();
        let choose = || choose_partition(&spec, &whole, &both).map(|(number, _)| number).map_err(|e| e.message);
        for (found, said) in [(0, "none of its partitions"), (1, ""), (2, "with 2 ext2/3/4 file systems")] {
            if found > 0 {
                let mut sector = [0; 512];
                sector[56..58].copy_from_slice(&MAGIC.to_le_bytes());
                let at = both[found - 1].start + SUPERBLOCK_OFFSET;
                faulty.write_at(at, &[&sector], BioFlags::empty()).expect("written");
            }
            match choose() {
                Ok(number) => assert_eq!((found, number), (1, 1)),
                Err(e) => assert!(found != 1 && e.contains(said), "{e}"),
            }
        }
        let at = both[0].start + SUPERBLOCK_OFFSET;
        faulty.inject(Fault::eio().range(at..at + 1));
        let said = choose().expect_err("unread");
        assert!(said.contains("Input/output error"), "{said}");
    }

    #[test]
    fn a_name_tells_the_part_of_an_image() {
        let spec = |s: &str| ImageSpec::parse(OsStr::new(s));
        for whole in ["no/such.img", "a@b", "@2", "?offset=512", "a?offset=x", "a?offset=512@", "a?b@x"] {
            assert_eq!(spec(whole), ImageSpec::whole(whole));
        }
        let (path, part) = ("no/such.img".into(), Part::Partition(2));
        assert_eq!(spec("no/such.img@2"), ImageSpec { path, part });
        let (path, part) = ("a@2".into(), Part::Offset(1 << 20));
        assert_eq!(spec("a@2?offset=1M"), ImageSpec { path, part });
        assert_eq!(spec("x@2").or(Part::Offset(512)).part, Part::Partition(2));
        assert_eq!(spec("x").or(Part::Offset(512)).shown(), "x?offset=512");
        let dir = tempfile::tempdir().expect("directory");
        for name in ["x@2", "x?offset=512"] {
            let named = dir.path().join(name);
            std::fs::write(&named, b"").expect("file");
            assert_eq!(ImageSpec::parse(named.as_os_str()), ImageSpec::whole(named));
        }
    }
}
