//! `extant mkfs`: makes a file system.
//!
//! `extant_build` plans and writes it. This module turns the command line into a request, makes or opens the image,
//! and protects existing content. Called as `mkfs.ext4` and the like, it skips that protection when no user can
//! answer a question, as mke2fs does.
//!
//! # Locking
//! None.

mod origin;
mod unfinished;

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_block::{BioFlags, BlockDevice, Error as DeviceError};
use extant_build::content::{ContentPlan, Spare, add_lost_found, digest, fit};
use extant_build::options::{Fact, Options, Request, SizeAsked, UuidAsked, parse_bytes, parse_uuid};
use extant_build::plan::Plan;
use extant_build::skeleton::Empty;
use extant_build::source::{self, Source};
use extant_build::sparse;
use extant_build::tree::Content;
use extant_build::tree::{self, IdKind, Owners};
use extant_build::write::write_with_progress;
use extant_image::{has_magic, identify, partition_table};
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::time::Timestamp;
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::{Group, User};
use rustix::rand::{GetRandomFlags, getrandom};

use self::unfinished::Unfinished;
use crate::args::{MkfsArgs, MkfsFormat, MkfsLetters, MkfsProgram, MkfsSource};
use crate::failure::{Failure, Result, USAGE, plain, plain_text, warn};
use crate::image::{Access, ImageSpec, Part, open_device, open_whole};
use crate::owner::warn_of_fakeroot;
use crate::source_date::SourceDate;
use crate::text::Output;

/// The variable by which mke2fs's tests set the time.
const FAKE_TIME: &str = "E2FSPROGS_FAKE_TIME";
/// A placeholder until the size is computed.
const SIZE_BEFORE_FIT: &str = "1M";
/// The width of a line in the list of backups.
const WIDTH: usize = 72;

pub fn run(args: MkfsArgs) -> Result<()> {
    let fs_type = args.fs_type.or_else(|| Some("ext4".into()));
    let (letters, source) = (args.letters, args.source);
    let job = Job { fs_type, letters, source, image: args.image, size: args.size, guarded: true };
    job.run().map_err(|e| e.with_status(USAGE))
}

/// Runs as the program `name`, for which [`is_name`] is true.
pub fn run_program(name: &str, args: MkfsProgram) -> Result<()> {
    let by_name = name.strip_prefix("mkfs.").unwrap_or("ext2");
    let fs_type = args.fs_type.or_else(|| Some(by_name.into()));
    let guarded = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut letters = args.letters;
    letters.journal |= name == "mkfs.ext3";
    let source = MkfsSource::default();
    let job = Job { fs_type, letters, source, image: args.image, size: args.size, guarded };
    job.run().map_err(|e| e.with_status(USAGE))
}

/// Whether a program of this name makes file systems.
pub fn is_name(name: &str) -> bool {
    ["mke2fs", "mkfs.ext2", "mkfs.ext3", "mkfs.ext4"].contains(&name)
}

struct Job {
    fs_type: Option<String>,
    letters: MkfsLetters,
    source: MkfsSource,
    image: std::ffi::OsString,
    size: Option<String>,
    /// Overwriting a file system or other data requires -F.
    guarded: bool,
}

impl Job {
    fn run(mut self) -> Result<()> {
        unfinished::watch_signals();
        self.refuse_letters()?;
        let from = self.source.from.take().or_else(|| self.letters.directory.take().map(PathBuf::into_os_string));
        if from.is_none() {
            self.refuse_owners()?;
        }
        let spare = self.spare(from.is_some())?;
        let by_content = self.by_content(from.is_some())?;
        let request = self.request()?;
        let spec = ImageSpec::parse(&self.image);
        let offset = request.offset().map_err(failed)?;
        let spec = if offset > 0 { spec.or(Part::Offset(offset)) } else { spec };
        let mut target = Target::prepare(spec, &request, self.letters.dry)?;
        target.fits = spare.is_some();
        if let Some(word) = &from {
            origin::refuse(&target.spec.path, &target.name, word)?;
        }
        if self.source.format != MkfsFormat::Raw && !target.is_file() {
            let text = format!("{}: --format is for an image file as a whole; leave it out", target.name);
            return Err(Failure::usage(text));
        }
        let reproducible = SourceDate::from_environment()?.is_some();
        let mut fact = self.facts(&target, request.label.as_deref().unwrap_or_default())?;
        let mut source = match from {
            Some(word) => Some(self.read(&word, &fact)?),
            None => None,
        };
        let root_owner = request.root_owner(&fact).map_err(|e| target.failed(e))?;
        if let (Some(source), Some(owner)) = (&mut source, root_owner) {
            source.tree.set_root_owner(owner);
        }
        if let Some(source) = source.as_ref().filter(|_| by_content || reproducible) {
            // With only SOURCE_DATE_EPOCH, random numbers depend on the tree, and are the same each time.
            let bytes = by_content.then_some(&*source.content as &dyn Content);
            fact.random = digest(&source.tree, bytes).map_err(|e| target.failed(e))?;
        }
        let options = match (&source, spare) {
            (Some(source), Some(spare)) => fit(&request, &fact, &source.tree, spare).map(|(options, _)| options),
            _ => request.resolve(&fact),
        };
        let options = options.map_err(|e| target.failed(e))?;
        for warning in options.warnings.iter().filter(|_| !self.letters.quiet) {
            warn(&format!("{}: {warning}", target.name));
        }
        match source {
            None => {
                let plan = Empty::plan(&options).map_err(|e| target.failed(e))?;
                self.write(&mut target, &plan, plan.superblock(), &options)
            }
            Some(source) => {
                let plan = ContentPlan::new(&options, &source.tree, &*source.content).map_err(|e| target.failed(e))?;
                if let Some(warning) = plan.warning().filter(|_| !self.letters.quiet) {
                    warn(&format!("{}: {warning}", target.name));
                }
                self.write(&mut target, &plan, plan.superblock(), &options)
            }
        }
    }

    /// Refuses letters of mke2fs that have no meaning here.
    fn refuse_letters(&self) -> Result<()> {
        let letters = &self.letters;
        let text = if letters.test_blocks > 0 {
            "-c: Extant does not look for bad blocks; leave it out"
        } else if letters.bad_blocks.is_some() {
            "-l: Extant keeps no list of bad blocks; leave it out"
        } else if letters.superblocks_only {
            "-S: Extant makes whole file systems only; e2fsck -b takes a backup of the superblock"
        } else {
            return Ok(());
        };
        Err(Failure::usage(text))
    }

    fn refuse_owners(&self) -> Result<()> {
        for (option, given) in [("--owner", self.source.owner.is_some()), ("--owners", self.source.owners.is_some())] {
            if given {
                return Err(Failure::usage(format!("{option}: it needs a source; give one with -d or --from")));
            }
        }
        Ok(())
    }

    /// The free space besides the content, if it decides the size.
    fn spare(&mut self, has_source: bool) -> Result<Option<Spare>> {
        let spare = match self.source.wanted_size.as_deref() {
            Some("auto") => Spare::DEFAULT,
            Some("min") => Spare::NONE,
            _ => {
                self.size = self.source.wanted_size.take().or_else(|| self.size.take());
                return Ok(None);
            }
        };
        if !has_source {
            return Err(Failure::usage("--size auto and min: they need a source; give one with -d or --from"));
        }
        // A placeholder, so that the image's own size is not used.
        self.size = Some(SIZE_BEFORE_FIT.into());
        Ok(Some(spare))
    }

    /// Whether UUID and hash seed are derived from the source.
    fn by_content(&mut self, has_source: bool) -> Result<bool> {
        let asked = self.letters.uuid.as_deref().is_some_and(|word| word.eq_ignore_ascii_case("content"));
        if asked && !has_source {
            return Err(Failure::usage("-U content: it needs a source; give one with -d or --from"));
        }
        if asked {
            self.letters.uuid = None;
        }
        Ok(asked)
    }

    /// Reads the source, with its lost+found.
    fn read(&self, word: &std::ffi::OsStr, fact: &Fact) -> Result<Source> {
        if std::path::Path::new(word).is_dir() {
            warn_of_fakeroot();
        }
        let mut tree = tree::Options { default_time: Timestamp::from_seconds(fact.now), ..tree::Options::default() };
        tree.clamp = SourceDate::from_environment()?.map(|_| Timestamp::from_seconds(fact.now));
        if let Some(owner) = self.source.owner {
            let wrong = || Failure::usage("--owner: it takes a user and a group, such as 0:0");
            tree.owner = Some(owner.uid.zip(owner.gid).ok_or_else(wrong)?);
        }
        if let Some(path) = &self.source.owners {
            let text = std::fs::read(path).map_err(|e| Failure::io(path, e))?;
            tree.owners = Owners::parse(&path.display().to_string(), &text, &id_of).map_err(failed)?;
        }
        let options = source::Options { tree, ..source::Options::default() };
        let mut source = Source::open(word, options).map_err(failed)?;
        for warning in source.warnings.iter().filter(|_| !self.letters.quiet) {
            warn(warning);
        }
        add_lost_found(&mut source.tree).map_err(failed)?;
        Ok(source)
    }

    fn request(&mut self) -> Result<Request> {
        let letters = &mut self.letters;
        let bytes = |letter: char, text: &Option<String>| -> Result<Option<u64>> {
            let Some(text) = text else { return Ok(None) };
            let wrong = || Failure::usage(format!("-{letter} {text}: it takes bytes, such as 4096 or 4k"));
            parse_bytes(text, 1).map(Some).ok_or_else(wrong)
        };
        let size = match &self.size {
            None => SizeAsked::Device,
            Some(text) => match text.parse() {
                Ok(blocks) => SizeAsked::Blocks(blocks),
                Err(_) => {
                    let wrong =
                        || Failure::usage(format!("size {text}: it takes blocks, or a suffix: s, k, M, G or T"));
                    SizeAsked::Bytes(parse_bytes(text, 0).ok_or_else(wrong)?)
                }
            },
        };
        if matches!(size, SizeAsked::Blocks(0) | SizeAsked::Bytes(0)) {
            return Err(Failure::usage("size 0: a file system needs blocks; give it a size, such as 1G"));
        }
        Ok(Request {
            fs_type: self.fs_type.clone(),
            usage: letters.usage.take(),
            block_size: bytes('b', &letters.block_size)?,
            cluster_size: bytes('C', &letters.cluster_size)?,
            extended: std::mem::take(&mut letters.extended),
            errors: letters.errors.take(),
            blocks_per_group: letters.blocks_per_group,
            flex_bg_size: letters.flex_bg_size,
            inode_ratio: bytes('i', &letters.inode_ratio)?,
            inode_size: letters.inode_size,
            journal: letters.journal,
            journal_options: std::mem::take(&mut letters.journal_options),
            label: letters.label.take().map(OsStringExt::into_vec),
            reserved_percent: letters.reserved,
            last_mounted: letters.last_mounted.take().map(OsStringExt::into_vec),
            inodes: letters.inodes,
            features: std::mem::take(&mut letters.features),
            revision: letters.revision,
            uuid: uuid(letters.uuid.as_deref())?,
            size,
        })
    }

    /// `label`: two file systems of the same moment, such as a root and its data, get different random numbers.
    fn facts(&self, target: &Target, label: &[u8]) -> Result<Fact> {
        let source_date = SourceDate::from_environment()?;
        let clock = source_date.map_or_else(Clock::real, SourceDate::clock);
        let fake = std::env::var(FAKE_TIME).ok().and_then(|text| text.parse().ok());
        let mut random = [0; 32];
        match source_date {
            Some(date) => {
                let seed = label.iter().fold(date.seed(), |seed, byte| Rng::new(seed ^ u64::from(*byte)).next_u64());
                let mut numbers = Rng::new(seed);
                for bytes in random.as_chunks_mut::<8>().0 {
                    *bytes = numbers.next_u64().to_le_bytes();
                }
            }
            None => {
                let io = |e: rustix::io::Errno| Failure::op(format!("no random numbers: {e}"));
                getrandom(&mut random, GetRandomFlags::empty()).map_err(io)?;
            }
        }
        Ok(Fact {
            device_bytes: target.bytes,
            sector_size: target.sector_size,
            zeroed: true,
            now: fake.unwrap_or_else(|| clock.wall().sec),
            random,
            user: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        })
    }

    fn write<P: Plan>(&self, target: &mut Target, plan: &P, sb: &SuperBlock, options: &Options) -> Result<()> {
        if self.letters.dry {
            return self.describe(sb, options);
        }
        let bytes = plan.blocks_count() * u64::from(plan.block_size());
        let guarded = self.guarded && self.letters.force == 0;
        let device = target.open(bytes, guarded)?;
        self.describe(sb, options)?;
        let result = self.write_blocks(&*device, plan);
        drop(device);
        match result {
            Ok(()) => {
                if self.source.format == MkfsFormat::AndroidSparse {
                    target.pack(plan.block_size())?;
                }
                target.unfinished.keep();
                Ok(())
            }
            Err(e) => Err(target.failed(e)),
        }
    }

    fn write_blocks<P: Plan>(&self, device: &dyn BlockDevice, plan: &P) -> extant_build::Result<()> {
        let blocks: u64 = plan.pieces().chain(plan.superblocks()).map(|piece| u64::from(piece.blocks)).sum();
        let bar = progress(self.letters.quiet, blocks * u64::from(plan.block_size()));
        let threads = self.letters.threads.unwrap_or_else(task::processors);
        let result = write_with_progress(device, plan, threads, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        result
    }

    /// Prints the same description as mke2fs.
    fn describe(&self, sb: &SuperBlock, options: &Options) -> Result<()> {
        if self.letters.quiet && !self.letters.dry {
            return Ok(());
        }
        let mut out = Output::new();
        let geo = sb.geometry();
        if self.letters.verbose {
            let unused = options.wanted.blocks_count - geo.blocks_count;
            if unused > 0 {
                writeln!(out, "{unused} blocks at the end are not used")?;
            }
            writeln!(out, "Label: {}", crate::text::shown(sb.volume_name().as_bytes()))?;
            writeln!(out, "Block size: {}", geo.block_size)?;
            if geo.cluster_bits > 0 {
                writeln!(out, "Cluster size: {}", geo.block_size << geo.cluster_bits)?;
            }
            let (stride, width) = (options.wanted.stride, options.wanted.stripe_width);
            writeln!(out, "Stride: {stride} blocks, stripe width: {width} blocks")?;
            let percent = 100.0 * sb.reserved_blocks() as f64 / geo.blocks_count as f64;
            writeln!(out, "Reserved for root: {} blocks ({percent:.2} %)", sb.reserved_blocks())?;
            let (groups, blocks, inodes) = (geo.group_count, geo.blocks_per_group, geo.inodes_per_group);
            writeln!(out, "Groups: {groups} of {blocks} blocks and {inodes} inodes")?;
        }
        let (blocks, kib, inodes) = (geo.blocks_count, geo.block_size >> 10, geo.inodes_count);
        writeln!(out, "Creating filesystem with {blocks} {kib}k blocks and {inodes} inodes")?;
        if geo.group_count > 1 {
            if sb.uuid() != [0; 16] {
                writeln!(out, "Filesystem UUID: {}", crate::text::uuid(&sb.uuid()))?;
            }
            write!(out, "Superblock backups stored on blocks: ")?;
            let mut left = 0;
            for (i, group) in geo.backup_groups().enumerate() {
                let number = geo.first_block_of_group(group).0.to_string();
                if i > 0 {
                    write!(out, ", ")?;
                }
                if number.len() + 2 > left {
                    write!(out, "\n\t")?;
                    left = WIDTH;
                }
                left -= number.len() + 2;
                write!(out, "{number}")?;
            }
            writeln!(out)?;
        }
        writeln!(out)?;
        Ok(out.flush()?)
    }
}

/// The number of a user or group of this host.
fn id_of(kind: IdKind, name: &str) -> Option<u32> {
    match kind {
        IdKind::User => Some(User::from_name(name).ok()??.uid.as_raw()),
        IdKind::Group => Some(Group::from_name(name).ok()??.gid.as_raw()),
    }
}

fn progress(quiet: bool, bytes: u64) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    let bar = ProgressBar::new(bytes);
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

fn uuid(text: Option<&str>) -> Result<UuidAsked> {
    match text {
        None => Ok(UuidAsked::Random),
        Some(word) if word.eq_ignore_ascii_case("random") => Ok(UuidAsked::Random),
        Some(word) if word.eq_ignore_ascii_case("time") => Ok(UuidAsked::Time),
        Some(word) if word.eq_ignore_ascii_case("clear") || word.eq_ignore_ascii_case("null") => Ok(UuidAsked::Clear),
        Some(text) => {
            let wrong = || Failure::usage(format!("-U {text}: it takes a UUID, clear, random, time or content"));
            parse_uuid(text).map(UuidAsked::Given).ok_or_else(wrong)
        }
    }
}

fn failed(e: extant_build::Error) -> Failure {
    Failure::op(e.to_string())
}

/// The image that is made or overwritten.
struct Target {
    spec: ImageSpec,
    name: String,
    /// Size of the chosen part; 0: it does not exist.
    bytes: u64,
    sector_size: u32,
    /// Storage of zeroed ranges may be unmapped.
    discards: bool,
    /// The size is computed, not given: a file is cut to it.
    fits: bool,
    /// The file, if this command made it and it is not complete.
    unfinished: Unfinished,
}

impl Target {
    /// Examines the target.
    fn prepare(spec: ImageSpec, request: &Request, dry: bool) -> Result<Target> {
        let name = spec.shown();
        let unfinished = Unfinished::default();
        let discards = request.discards().map_err(failed)?;
        let mut target = Target { spec, name, bytes: 0, sector_size: 0, discards, fits: false, unfinished };
        match target.spec.path.metadata() {
            Ok(meta) if meta.is_file() && target.spec.part == Part::Any => target.bytes = meta.len(),
            Ok(meta) if meta.is_dir() => {
                return Err(Failure::op(format!("{}: it is a directory; give a file in it", target.name)));
            }
            Ok(_) if dry && request.size != SizeAsked::Device => {}
            Ok(_) => {
                let access = Access { claim: crate::image::Claim::None, ..Access::tool(true) };
                let device = target.device(&access)?;
                target.bytes = device.size_bytes();
                if target.spec.is_block_device() {
                    target.sector_size = device.limits().logical_block;
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && target.spec.part == Part::Any => {
                if request.size == SizeAsked::Device {
                    let text = format!(
                        "{}: it does not exist; give a size after it, such as 1G, or --size auto with a source",
                        target.name
                    );
                    return Err(Failure::op(text));
                }
            }
            Err(e) => return Err(Failure::io(&target.spec.path, e)),
        }
        Ok(target)
    }

    fn device(&self, access: &Access) -> Result<Arc<dyn BlockDevice>> {
        if self.spec.part == Part::Any { open_whole(&self.spec, access) } else { open_device(&self.spec, access) }
    }

    /// Opens it for writing, with room for `bytes` zero bytes; makes it if it does not exist.
    fn open(&mut self, bytes: u64, guarded: bool) -> Result<Arc<dyn BlockDevice>> {
        let path = self.spec.path.clone();
        if self.is_file() {
            let file = if path.exists() {
                self.refuse_read_only()?;
                let device = self.device(&Access::tool(false))?;
                self.refuse_overwriting(&*device, guarded)?;
                let file = OpenOptions::new().write(true).open(&path).map_err(|e| Failure::io(&path, e))?;
                if self.bytes > 0 {
                    self.unfinished.overwrite(&self.name);
                }
                file
            } else {
                let make = || OpenOptions::new().write(true).create_new(true).open(&path);
                self.unfinished.make(&path, make).map_err(|e| Failure::io(&path, e))?
            };
            // The old content becomes a hole. As mke2fs does, a file that is longer than requested keeps its length.
            let bytes = if self.fits { bytes } else { bytes.max(self.bytes) };
            let resized = file.set_len(0).and_then(|()| file.set_len(bytes));
            resized.map_err(|e| {
                let lost = self.unfinished.remove();
                Failure::op(format!("{}: it cannot get {bytes} bytes: {}{lost}", self.name, plain(&e)))
            })?;
            return self.device(&Access::tool(false));
        }
        let device = self.device(&Access::tool(false))?;
        self.refuse_overwriting(&*device, guarded)?;
        let has = device.size_bytes();
        if has < bytes {
            return Err(Failure::op(format!("{}: it has {has} bytes, not {bytes}; give a smaller size", self.name)));
        }
        self.unfinished.overwrite(&self.name);
        // Unmapping takes no time, and no space on thin storage.
        let how = if self.discards { BioFlags::UNMAP } else { BioFlags::empty() };
        device.write_zeroes(0, bytes, how).map_err(|e| self.failed(e.into()))?;
        Ok(device)
    }

    fn refuse_read_only(&self) -> Result<()> {
        match OpenOptions::new().write(true).open(&self.spec.path) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(Failure::op(format!(
                "{}: the file is not writable; change its mode, or name another file",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the target is a whole image file.
    fn is_file(&self) -> bool {
        self.spec.part == Part::Any && !self.spec.is_block_device()
    }

    fn refuse_overwriting(&self, device: &dyn BlockDevice, guarded: bool) -> Result<()> {
        if !guarded || device.size_bytes() == 0 {
            return Ok(());
        }
        let what = if has_magic(device) {
            "has an ext2/3/4 file system".to_owned()
        } else if let Some(format) = identify(device) {
            format!("holds data ({})", format.name())
        } else if self.spec.part == Part::Any && partition_table(device).is_ok_and(|table| !table.partitions.is_empty())
        {
            "has a partition table".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::op(format!("{}: it {what}; -F overwrites it", self.name)))
    }

    /// Replaces the image by its Android sparse form, with the same mode.
    fn pack(&self, block_size: u32) -> Result<()> {
        let packed = || -> std::io::Result<()> {
            // A symbolic link stays, and leads to the packed image.
            let path = std::fs::canonicalize(&self.spec.path)?;
            let mut image = std::fs::File::open(&path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut beside = Unfinished::default();
            let file = beside.make_named(|| tempfile::NamedTempFile::with_prefix_in(".extant-", dir))?;
            file.as_file().set_permissions(image.metadata()?.permissions())?;
            sparse::write(&mut image, block_size, &mut file.as_file())?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            beside.keep();
            Ok(())
        };
        packed().map_err(|e| Failure::write(&self.name, &e))
    }

    /// Removes an unfinished image.
    fn failed(&mut self, e: extant_build::Error) -> Failure {
        let lost = self.unfinished.remove();
        if let extant_build::Error::Device(DeviceError::Io { source, .. }) = &e
            && source.kind() == std::io::ErrorKind::StorageFull
        {
            let mut failure = Failure::write(&self.name, source);
            failure.message.push_str(lost);
            return failure;
        }
        // An error of a device begins with its name.
        let text = plain_text(&e.to_string());
        let text = text.strip_prefix(&format!("{}: ", self.name)).unwrap_or(&text);
        Failure::op(format!("{}: {text}{lost}", self.name))
    }
}
