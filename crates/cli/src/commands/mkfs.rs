//! `extant mkfs`: makes a file system.
//!
//! `extant_build` plans and writes it. This module turns the command line into a request, makes or opens the image,
//! and protects existing content. Called as `mkfs.ext4` and the like, it skips that protection when no user can
//! answer a question, as mke2fs does.
//!
//! # Locking
//! None.

mod old_image;
mod origin;
mod target;
mod unfinished;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_block::BlockDevice;
use extant_build::content::{ContentPlan, Spare, add_lost_found, digest, fit};
use extant_build::journal_device::JournalPlan;
use extant_build::options::{Fact, Options, Request, SizeAsked, UuidAsked, parse_bytes, parse_uuid};
use extant_build::plan::Plan;
use extant_build::skeleton::Empty;
use extant_build::source::{self, Form, Source, Word};
use extant_build::tree::Content;
use extant_build::tree::{self, IdKind, Owners};
use extant_build::write;
use extant_ondisk::features::Incompat;
use extant_ondisk::superblock::SuperBlock;
use extant_ondisk::time::Timestamp;
use indicatif::{ProgressBar, ProgressStyle};
use nix::unistd::{Group, User};
use rustix::rand::{GetRandomFlags, getrandom};

use self::target::Target;
use super::journal_device::Journal;
use crate::args::{MkfsArgs, MkfsFormat, MkfsLetters, MkfsProgram, MkfsSource};
use crate::failure::{Failure, Result, USAGE, warn};
use crate::image::{ImageSpec, Part};
use crate::owner::warn_of_fakeroot;
use crate::source_date::SourceDate;
use crate::text::Output;

/// The variable with which mke2fs's tests set the time.
const FAKE_TIME: &str = "E2FSPROGS_FAKE_TIME";
/// The variable with which mke2fs's callers set the sector size.
const SECTOR_SIZE: &str = "MKE2FS_DEVICE_SECTSIZE";
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

/// Where the content comes from.
enum ContentSource {
    /// A source that `build` reads.
    Word(Word),
    /// Another file system.
    Image(ImageSpec),
}

impl ContentSource {
    fn parse(word: OsString) -> Result<ContentSource> {
        match old_image::named(&word) {
            Some(spec) => Ok(ContentSource::Image(spec)),
            None => Word::parse(&word).map(ContentSource::Word).map_err(failed),
        }
    }

    /// The file or directory that the source is read from.
    fn word(&self) -> Word {
        match self {
            ContentSource::Word(word) => word.clone(),
            ContentSource::Image(spec) => Word { form: Form::Archive, path: Some(spec.path.clone()) },
        }
    }
}

impl Job {
    fn run(mut self) -> Result<()> {
        unfinished::watch_signals();
        self.refuse_letters()?;
        let from = self.source.from.take().or_else(|| self.letters.directory.take().map(PathBuf::into_os_string));
        let from = from.map(ContentSource::parse).transpose()?;
        if from.is_none() {
            self.refuse_owners()?;
        }
        self.old_letters();
        let spare = self.spare(from.is_some())?;
        let by_content = self.by_content(from.is_some())?;
        let mut request = self.request()?;
        let makes_journal = request.makes_journal().map_err(failed)?;
        let spec = ImageSpec::parse(&self.image);
        let offset = request.offset().map_err(failed)?;
        let spec = if offset > 0 { spec.or(Part::Offset(offset)) } else { spec };
        let mut target = Target::prepare(spec, &request, self.letters.dry)?;
        target.fits = spare.is_some();
        if let Some(word) = &from {
            origin::refuse(&target.spec.path, &target.name, &word.word())?;
        }
        if request.is_android_sparse().map_err(failed)? {
            self.source.format = MkfsFormat::AndroidSparse;
        }
        if self.source.format != MkfsFormat::Raw && !target.is_file() {
            let text = format!(
                "{}: --format and -E android_sparse are for an image file as a whole; leave them out",
                target.name
            );
            return Err(Failure::usage(text));
        }
        if makes_journal {
            return self.make_journal(&mut target, &request, from.is_some());
        }
        let forced = self.letters.force > 0 || !self.guarded;
        let journal = request.journal_device().map_err(failed)?;
        let mut journal = journal.map(|path| Journal::open(&path, None, forced, self.letters.dry)).transpose()?;
        request.external_journal = journal.as_ref().map(Journal::external);
        let reproducible = SourceDate::from_environment()?.is_some();
        let mut fact = self.facts(&target, request.label.as_deref().unwrap_or_default())?;
        let source = self.source(from, &request, &fact, &mut target)?;
        if let Some(source) = source.as_ref().filter(|_| by_content || reproducible) {
            // With SOURCE_DATE_EPOCH alone, random numbers depend on the tree, and are the same each time.
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
                self.write_system(&mut target, &plan, plan.superblock(), &options, &mut journal)
            }
            Some(source) => {
                let plan = ContentPlan::new(&options, &source.tree, &*source.content).map_err(|e| target.failed(e))?;
                let can_fold = plan.superblock().incompat().contains(Incompat::CASEFOLD);
                if !self.source.casefold.is_empty() && !can_fold {
                    return Err(Failure::usage(format!("{}: --casefold needs -O casefold", target.name)));
                }
                if let Some(warning) = plan.warning().filter(|_| !self.letters.quiet) {
                    warn(&format!("{}: {warning}", target.name));
                }
                self.write_system(&mut target, &plan, plan.superblock(), &options, &mut journal)
            }
        }
    }

    /// Reads the source, and gives its root what -E wants of it. `None`: an empty file system, as mke2fs makes it.
    fn source(
        &self,
        from: Option<ContentSource>,
        request: &Request,
        fact: &Fact,
        target: &mut Target,
    ) -> Result<Option<Source>> {
        let (root_perms, root_selinux) = request.root().map_err(|e| target.failed(e))?;
        let mut tree = self.tree_options(fact)?;
        tree.no_xattrs = request.drops_xattrs().map_err(|e| target.failed(e))?;
        let mut source = match from {
            Some(word) => Some(self.read(&word, tree)?),
            // The empty file system that mke2fs would make cannot have these options, so a source without files
            // replaces it.
            None if root_perms.is_some() || root_selinux.is_some() || !self.source.casefold.is_empty() => {
                Some(self.no_files(tree)?)
            }
            None => None,
        };
        if let (Some(source), Some(permissions)) = (&mut source, root_perms) {
            source.tree.set_root_permissions(permissions);
        }
        if let (Some(source), Some(label)) = (&mut source, root_selinux) {
            // With a trailing NUL, as Linux stores a label.
            source.tree.set_root_xattr(b"security.selinux", &[label.as_bytes(), b"\0"].concat());
        }
        for path in &self.source.casefold {
            let found = source.as_mut().is_some_and(|source| source.tree.ignore_case(path.as_bytes()));
            if !found {
                let path = path.display();
                return Err(Failure::usage(format!("{}: --casefold {path}: no such directory", target.name)));
            }
        }
        let root_owner = request.root_owner(fact).map_err(|e| target.failed(e))?;
        if let (Some(source), Some(owner)) = (&mut source, root_owner) {
            source.tree.set_root_owner(owner);
        }
        Ok(source)
    }

    /// Makes a journal's device (`-O journal_dev`).
    fn make_journal(&self, target: &mut Target, request: &Request, has_source: bool) -> Result<()> {
        if has_source || self.source.format != MkfsFormat::Raw {
            return Err(Failure::usage("-O journal_dev: it makes a journal and no file system; leave the source out"));
        }
        let fact = self.facts(target, request.label.as_deref().unwrap_or_default())?;
        let plan = JournalPlan::new(request.resolve_journal(&fact).map_err(|e| target.failed(e))?);
        let describe = || {
            if self.letters.quiet && !self.letters.dry {
                return Ok(());
            }
            let mut out = Output::new();
            let (blocks, kib) = (plan.blocks_count(), plan.block_size() >> 10);
            writeln!(out, "Creating journal with {blocks} {kib}k blocks")?;
            writeln!(out, "Journal UUID: {}", crate::text::uuid(&plan.wanted().uuid))?;
            Ok(out.flush()?)
        };
        self.write(target, &plan, &describe, &mut || Ok(()))
    }

    /// Writes a file system. Its journal, if that is on another device, knows of it before the first superblock exists.
    fn write_system<P: Plan>(
        &self,
        target: &mut Target,
        plan: &P,
        sb: &SuperBlock,
        options: &Options,
        journal: &mut Option<Journal>,
    ) -> Result<()> {
        let mut bind = || journal.as_mut().map_or(Ok(()), |journal| journal.bind(sb.uuid()));
        self.write(target, plan, &|| self.describe(sb, options), &mut bind)
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
        } else if letters.undo.is_some() {
            "-z: Extant writes no undo file; copy what the image holds, and leave it out"
        } else {
            return Ok(());
        };
        Err(Failure::usage(text))
    }

    /// Converts options that mke2fs keeps for compatibility with its older versions.
    fn old_letters(&mut self) {
        if self.letters.keeps_storage {
            warn("-K: it is out of date; use -E nodiscard");
            self.letters.extended.push("nodiscard".into());
        }
        self.letters.extended.append(&mut self.letters.extended_old);
    }

    fn refuse_owners(&self) -> Result<()> {
        for (option, given) in [("--owner", self.source.owner.is_some()), ("--owners", self.source.owners.is_some())] {
            if given {
                return Err(Failure::usage(format!("{option}: it needs a source; give one with -d or --from")));
            }
        }
        Ok(())
    }

    /// The free space in addition to the content, if that determines the size.
    fn spare(&mut self, has_source: bool) -> Result<Option<Spare>> {
        let wanted = self.source.wanted_size.as_deref().unwrap_or_default();
        let (word, more) = wanted.split_once('+').map_or((wanted, None), |(word, more)| (word, Some(more)));
        let spare = match word {
            "auto" => Spare::DEFAULT,
            "min" => Spare::NONE,
            _ => {
                self.size = self.source.wanted_size.take().or_else(|| self.size.take());
                return Ok(None);
            }
        };
        if !has_source {
            return Err(Failure::usage("--size auto and min: they need a source; give one with -d or --from"));
        }
        let wrong = || Failure::usage(format!("--size {wanted}: bytes must follow the +, such as 200M"));
        let bytes = more.map_or(Some(0), |more| parse_bytes(more, 1)).ok_or_else(wrong)?;
        let spare = Spare { bytes, ..spare };
        // A placeholder, so that the image's own size is not used.
        self.size = Some(SIZE_BEFORE_FIT.into());
        Ok(Some(spare))
    }

    /// Whether the UUID and the hash seed are derived from the source.
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

    /// The changes to apply to a source's entries.
    fn tree_options(&self, fact: &Fact) -> Result<tree::Options> {
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
        Ok(tree)
    }

    /// A source without files, with its lost+found.
    fn no_files(&self, tree: tree::Options) -> Result<Source> {
        let mut source = Source::empty(source::Options { tree, ..source::Options::default() }).map_err(failed)?;
        add_lost_found(&mut source.tree).map_err(failed)?;
        Ok(source)
    }

    /// Reads the source, with its lost+found.
    fn read(&self, from: &ContentSource, tree: tree::Options) -> Result<Source> {
        let options = source::Options { tree, ..source::Options::default() };
        let mut source = match from {
            ContentSource::Word(word) => self.read_word(word, options)?,
            ContentSource::Image(spec) => old_image::read(spec, options)?,
        };
        // Printed even with -q: these warn of a loss, and do not describe the image.
        source.warnings.iter().for_each(|warning| warn(warning));
        add_lost_found(&mut source.tree).map_err(failed)?;
        Ok(source)
    }

    fn read_word(&self, word: &Word, options: source::Options) -> Result<Source> {
        if word.path.as_ref().is_some_and(|path| path.is_dir()) {
            warn_of_fakeroot();
        }
        Source::open(word, options).map_err(|e| match e {
            extant_build::Error::Unknown { .. } => origin::unknown(word, &e),
            e => failed(e),
        })
    }

    fn request(&mut self) -> Result<Request> {
        let letters = &mut self.letters;
        let bytes = |letter: char, text: &Option<String>| -> Result<Option<u64>> {
            let Some(text) = text else { return Ok(None) };
            let wrong = || Failure::usage(format!("-{letter} {text}: it takes bytes, such as 4096 or 4k"));
            parse_bytes(text, 1).map(Some).ok_or_else(wrong)
        };
        let least = letters.block_size.as_deref().and_then(|text| text.strip_prefix('-')).map(str::to_owned);
        let exact = letters.block_size.clone().filter(|_| least.is_none());
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
            block_size: bytes('b', &exact)?,
            block_size_least: bytes('b', &least)?,
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
            creator_os: letters.creator_os.take(),
            features: std::mem::take(&mut letters.features),
            revision: letters.revision,
            uuid: uuid(letters.uuid.as_deref())?,
            size,
            external_journal: None,
        })
    }

    /// `label`: file systems made at the same moment, such as a root and its data, get different random numbers.
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
        // As in mke2fs; systemd-repart sets it for disks whose sector size differs from that of the image file.
        let sector_size = std::env::var(SECTOR_SIZE).ok().and_then(|text| text.parse().ok());
        Ok(Fact {
            device_bytes: target.bytes,
            sector_size: sector_size.unwrap_or(target.sector_size),
            zeroed: true,
            now: fake.unwrap_or_else(|| clock.wall().sec),
            random,
            user: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        })
    }

    /// Writes an image. `finish` runs when all but the superblocks is durable.
    fn write<P: Plan>(
        &self,
        target: &mut Target,
        plan: &P,
        describe: &dyn Fn() -> Result<()>,
        finish: &mut dyn FnMut() -> extant_build::Result<()>,
    ) -> Result<()> {
        if self.letters.dry {
            return describe();
        }
        let bytes = plan.blocks_count() * u64::from(plan.block_size());
        target.claim(bytes, self.guarded && self.letters.force == 0)?;
        describe()?;
        match self.source.format {
            MkfsFormat::Raw => {
                let device = target.empty(bytes)?;
                // No signal ends the command between the first superblock and its own end, so that status and image
                // agree.
                let done = self.write_blocks(&*device, plan, &mut || {
                    target.settle();
                    finish()
                });
                done.map_err(|e| target.failed(e))?;
            }
            MkfsFormat::AndroidSparse => {
                let mut raw = target.raw(bytes)?;
                self.write_blocks(&*raw.device, plan, finish).map_err(|e| target.failed(e))?;
                target.pack(&mut raw, plan.block_size())?;
            }
        }
        target.keep();
        Ok(())
    }

    /// Calls `finish` when all but the superblocks is durable.
    fn write_blocks<P: Plan>(
        &self,
        device: &dyn BlockDevice,
        plan: &P,
        finish: &mut dyn FnMut() -> extant_build::Result<()>,
    ) -> extant_build::Result<()> {
        let blocks: u64 = plan.pieces().chain(plan.superblocks()).map(|piece| u64::from(piece.blocks)).sum();
        let bar = progress(self.letters.quiet, blocks * u64::from(plan.block_size()));
        let tell = |bytes| bar.inc(bytes);
        let threads = self.letters.threads.unwrap_or_else(task::processors);
        let result = write::body(device, plan, threads, &tell).and_then(|()| {
            finish()?;
            write::superblocks(device, plan, &tell)
        });
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

/// The ID of a user or group of this host.
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
