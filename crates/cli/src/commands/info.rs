//! `extant info`: a description of an image.
//!
//! Features, geometry and state come from the superblock. The journal is read, but not replayed; free space is
//! counted by a read-only mount in memory.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_fs::{Error, Filesystem, JournalDevice, Messages, MountOptions, StatFs};
use extant_image::{Holder, has_magic, identify, look, overwritten, partition_table, probe};
use extant_ondisk::features::{self, Incompat, MountMode};
use extant_ondisk::partition::{Source, Table};
use extant_ondisk::superblock::{FsState, SuperBlock};
use extant_recovery::locate::open_journal;
use extant_recovery::read::{FoundSuper, find_super};
use extant_recovery::{JournalFile, JournalState, Replay, journal_state};
use serde_json::{Value, json};

use crate::args::{ImageArgs, InfoArgs};
use crate::beside;
use crate::commands::scan;
use crate::failure::{Failure, Result, plain_text, warn};
use crate::image::{self, ImageSpec, Part};
use crate::record::escaped;
use crate::size::human;
use crate::text::{self, Output};

pub fn run(args: &InfoArgs, how: &ImageArgs) -> Result<()> {
    if args.scan {
        return scan::run(args, how);
    }
    let spec = how.spec(&args.image);
    let whole = look(&spec)?;
    let whole_size = whole.size_bytes();
    if spec.part == Part::Any && how.sb.is_none() && !has_magic(&*whole) {
        if let Some(format) = identify(&*whole) {
            return Err(overwritten(&*whole, spec.shown(), format).into());
        }
        let table = partition_table(&*whole)?;
        if !table.partitions.is_empty() {
            return print_partitions(args, &spec, &whole, &table);
        }
    }
    drop(whole);
    let (dev, beside) = beside::open(&spec, how)?;
    let named = how.mount_options(&spec, true)?;
    let FoundSuper { sb, backup, .. } = match find_super(&*dev, named.superblock, named.rescue) {
        Ok(found) => found,
        // The mount's error is more precise.
        Err(e) => {
            return Err(image::mount(dev, named).err().unwrap_or_else(|| Failure::op(e.to_string())));
        }
    };
    // Apparent damage may be a change in progress.
    let elsewhere = named.journal_device.clone();
    let messages = if beside.is_some() { Messages::default() } else { Messages::new(warn) };
    let mounted = Filesystem::mount(dev.clone(), MountOptions { messages, ..named }).map_err(Refusal::from);
    let journal = Journal::look(&dev, elsewhere, &sb);
    let written = match beside.is_none() && how.sb.is_none() && !how.rescue && journal.fits_in_memory(sb.block_size) {
        true => may_be_written(&dev, &spec, how)?,
        false => Ok(()),
    };
    let facts = Facts {
        spec: &spec,
        size: if spec.part != Part::Any { dev.size_bytes() } else { whole_size },
        backup: backup.map(|(block, _)| block.0),
        asked: how.sb.is_some(),
        journal,
        refused: mounted.as_ref().err().filter(|_| beside.is_none()),
        read_only: written.err(),
        space: mounted.as_ref().ok().map(|fs| fs.statfs()),
        holder: beside.as_ref().map(|beside| &beside.holder),
        sb,
    };
    let mut out = Output::new();
    if args.json {
        writeln!(out, "{}", escaped(&format!("{:#}", facts.json())))?;
    } else {
        facts.print(&mut out)?;
    }
    out.flush()?;
    image::refuse_damage(mounted.iter().filter(|fs| fs.rescues()).map(|fs| &**fs))
}

/// Why a mount was refused.
struct Refusal {
    why: String,
    is_damage: bool,
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Refusal {
        let e = if let Error::Mount { source, .. } = e { *source } else { e };
        Refusal { why: plain_text(&e.to_string()), is_damage: e.is_corruption() }
    }
}

/// Whether a writing mount takes the image: tries it in memory.
fn may_be_written(
    dev: &Arc<dyn BlockDevice>,
    spec: &ImageSpec,
    how: &ImageArgs,
) -> Result<std::result::Result<(), Refusal>> {
    let copy = Arc::new(MemDevice::over(dev.clone()));
    let options = how.mount_options(spec, true)?;
    let journal_device = options.journal_device.map(|at| JournalDevice(Arc::new(MemDevice::over(at.0))));
    let options = MountOptions { read_only: false, journal_device, ..options };
    Ok(Filesystem::mount(copy, options).map(drop).map_err(Refusal::from))
}

fn print_partitions(args: &InfoArgs, spec: &ImageSpec, whole: &Arc<dyn BlockDevice>, table: &Table) -> Result<()> {
    let Table { partitions, source } = table;
    let mut out = Output::new();
    let mut rows = Vec::new();
    if !args.json {
        writeln!(out, "Image:       {}", spec.shown())?;
        writeln!(out, "Size:        {} ({} bytes)", human(whole.size_bytes()), whole.size_bytes())?;
        if *source == Source::BackupGpt {
            writeln!(out, "Table:       {}", image::BACKUP_GPT)?;
        }
        writeln!(out, "Contents:    {} partitions\n", partitions.len())?;
        writeln!(out, "{}", image::list(partitions).join("\n"))?;
    }
    for p in partitions {
        let part = extant_block::device::OffsetDevice::new(whole.clone(), p.start, p.len & !4095);
        let found = part.ok().and_then(|dev| probe(&dev).ok()).map(|(sb, _)| sb);
        let holder = Holder::of_partition(&ImageSpec { part: Part::Partition(p.number), ..spec.clone() });
        if let (Some(sb), false) = (&found, args.json) {
            let label = text::shown(sb.volume_name().as_bytes());
            let label = if label.is_empty() { label } else { format!(" \"{label}\"") };
            let state = holder.as_ref().map_or_else(|| state(sb), Holder::who);
            writeln!(out, "Partition {}: {}{label}, {state}", p.number, generation(sb))?;
        }
        rows.push(json!({
            "number": p.number,
            "start": p.start,
            "size": p.len,
            "type": p.type_name,
            "label": p.label,
            "filesystem": found.as_ref().map(generation),
            "in_use": holder.as_ref().map(in_use),
        }));
    }
    if args.json {
        let kind = table_name(*source);
        let all = json!({ "image": spec.shown(), "size": whole.size_bytes(), "table": kind, "partitions": rows });
        writeln!(out, "{}", escaped(&format!("{all:#}")))?;
    }
    out.flush()?;
    Ok(())
}

/// The type of the partition table, for JSON.
pub fn table_name(source: Source) -> Option<&'static str> {
    match source {
        Source::None => None,
        Source::Mbr => Some("mbr"),
        Source::Gpt => Some("gpt"),
        Source::BackupGpt => Some("backup-gpt"),
    }
}

/// The users of an image, for JSON.
fn in_use(holder: &Holder) -> Value {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let kernel = holder.kernel.as_ref().filter(|_| holder.mounts.is_empty());
    let one = |(pid, name): &(u32, String)| json!({ "pid": pid, "name": name });
    json!({
        "mounted_on": holder.mounts.last().map(|dir| path(dir)).or_else(|| kernel?.at.clone()),
        "by_kernel": kernel.is_some(),
        "through": kernel.and_then(|kernel| kernel.through.as_deref()).map(path),
        "processes": holder.processes.iter().map(one).collect::<Vec<_>>(),
    })
}

/// The state of the journal.
enum Journal {
    None,
    Unusable(String),
    There {
        blocks: u32,
        state: &'static str,
        transactions: u32,
        copies: u64,
        fast_commits: usize,
        checksum: String,
        errno: i32,
        /// Whether Extant added the journal for a mount, and the unmount that would remove it has failed or not
        /// happened yet.
        borrowed: bool,
    },
}

impl Journal {
    /// `elsewhere`: the device that the user names for a journal that is not in the image.
    fn look(dev: &Arc<dyn BlockDevice>, elsewhere: Option<JournalDevice>, sb: &SuperBlock) -> Journal {
        let opened = match (sb.external_journal(), elsewhere) {
            (Some(uuid), Some(at)) => JournalFile::open_external(at.0, sb.block_size, uuid, sb.uuid()).map(Some),
            _ => open_journal(dev.clone(), sb),
        };
        let journal = match opened {
            Ok(None) => return Journal::None,
            Err(e) => return Journal::Unusable(e.to_string()),
            Ok(Some(journal)) => journal,
        };
        let jsb = journal.super_block();
        let state = match journal_state(jsb, sb.needs_recovery()) {
            JournalState::Clean => "clean",
            JournalState::Live => "needs recovery",
            JournalState::EmptyButFlagged => "empty, although the flag needs_recovery is set",
            JournalState::LiveButUnflagged => "has transactions, but needs_recovery is not set: they will be discarded",
        };
        let (transactions, copies, fast_commits) = match Replay::load(&journal, &**dev, &mut |_| {}) {
            Err(e) => return Journal::Unusable(e.to_string()),
            Ok(replay) => match replay.check() {
                Err(e) => return Journal::Unusable(e.to_string()),
                Ok(()) => (replay.transactions, replay.copies, replay.fast_commits.len()),
            },
        };
        let checksum = format!("{:?}", jsb.csum()).to_lowercase();
        let (blocks, errno, borrowed) = (jsb.max_len, jsb.errno, jsb.is_borrowed());
        Journal::There { blocks, state, transactions, copies, fast_commits, checksum, errno, borrowed }
    }

    /// Whether the blocks that a replay would write fit into memory.
    fn fits_in_memory(&self, block_size: u32) -> bool {
        const REPLAY_BYTES_MAX: u64 = 64 << 20;
        match self {
            Journal::There { copies, .. } => copies.saturating_mul(block_size.into()) <= REPLAY_BYTES_MAX,
            Journal::None | Journal::Unusable(_) => true,
        }
    }
}

struct Facts<'a> {
    spec: &'a ImageSpec,
    size: u64,
    sb: SuperBlock,
    backup: Option<u64>,
    /// Whether the user asked for the backup superblock.
    asked: bool,
    journal: Journal,
    /// Why a mount as this command would make is refused.
    refused: Option<&'a Refusal>,
    /// Why a writable mount is refused.
    read_only: Option<Refusal>,
    space: Option<StatFs>,
    /// The processes and mounts that use the image.
    holder: Option<&'a Holder>,
}

/// The name of the ext version that matches the features.
pub fn generation(sb: &SuperBlock) -> &'static str {
    let later = Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG | Incompat::CSUM_SEED;
    if sb.incompat().intersects(later) || sb.metadata_csum {
        "ext4"
    } else if sb.compat().contains(extant_ondisk::features::Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}

fn state(sb: &SuperBlock) -> String {
    let mut words = Vec::new();
    if sb.needs_recovery() {
        words.push("needs recovery");
    } else if !sb.state().contains(FsState::VALID) {
        words.push("not cleanly unmounted");
    }
    if sb.state().contains(FsState::ERROR) {
        words.push("with errors");
    }
    if words.is_empty() { "clean".into() } else { words.join(", ") }
}

impl Facts<'_> {
    fn features(&self) -> Vec<String> {
        [self.sb.compat().names(), self.sb.incompat().names(), self.sb.ro_compat().names()].concat()
    }

    /// The state according to the superblock, or damage if a mount finds any.
    fn state(&self) -> String {
        let refusals = [self.refused, self.read_only.as_ref()];
        let damage = refusals.into_iter().flatten().any(|refusal| refusal.is_damage);
        if damage { format!("damaged, marked as {}", state(&self.sb)) } else { state(&self.sb) }
    }

    /// Whether Extant can write the image; otherwise the reason.
    fn support(&self) -> String {
        if let Some(refusal) = self.refused {
            return format!("none ({})", refusal.why);
        }
        if let Err(e) = self.sb.geometry().check_device_size(self.size) {
            return format!("read-only ({e})");
        }
        match features::check(&self.sb) {
            Ok(MountMode::ReadWrite) if self.backup.is_some() && !self.asked => {
                "read-only (the primary superblock is damaged)".into()
            }
            Ok(MountMode::ReadWrite) => match &self.read_only {
                Some(refusal) => format!("read-only ({})", refusal.why),
                None => "read and write".into(),
            },
            Ok(MountMode::ReadOnly { reasons }) => format!("read-only ({})", reasons.join(", ")),
            Err(e) => format!("none ({e})"),
        }
    }

    /// Free blocks and inodes, and whether they were counted.
    fn free(&self) -> (u64, u64, bool) {
        match &self.space {
            Some(s) => (s.blocks_free, s.inodes_free, true),
            None => (self.sb.free_blocks(), self.sb.free_inodes().into(), false),
        }
    }

    fn print(&self, out: &mut Output) -> Result<()> {
        let sb = &self.sb;
        let bs = u64::from(sb.block_size);
        writeln!(out, "Image:       {}", self.spec.shown())?;
        match self.spec.part {
            Part::Any => {}
            Part::Partition(n) => writeln!(out, "Partition:   {n}")?,
            Part::Offset(offset) => writeln!(out, "Offset:      {offset}")?,
        }
        writeln!(out, "Size:        {} ({} bytes)", human(self.size), self.size)?;
        write!(out, "File system: {}", generation(sb))?;
        let label = sb.volume_name();
        if !label.is_empty() {
            write!(out, ", label \"{}\"", text::shown(label.as_bytes()))?;
        }
        writeln!(out, ", UUID {}", text::uuid(&sb.uuid()))?;
        match self.holder {
            // The superblock of an image in use looks like that of a crashed image: print its users instead.
            Some(holder) => writeln!(out, "State:       in use: {}", holder.who())?,
            None => writeln!(out, "State:       {}", self.state())?,
        }
        if sb.error_count() > 0 {
            let raw = sb.raw();
            let (first, last) = (raw.s_first_error_time.get().into(), raw.s_last_error_time.get().into());
            let (first, last) = (text::second(first), text::second(last));
            writeln!(out, "Errors:      {} found, first {first}, last {last}", sb.error_count())?;
        }
        if let Some(block) = self.backup {
            let why = if self.asked { "" } else { "the primary is damaged; " };
            writeln!(out, "Superblock:  {why}this is the backup at block {block}")?;
        }
        writeln!(out, "Extant:      {}", self.support())?;
        writeln!(out, "Features:    {}", self.features().join(" "))?;
        let (groups, per_group) = (sb.group_count, sb.blocks_per_group);
        writeln!(out, "Blocks:      {} of {bs} bytes, {groups} groups of {per_group}", sb.blocks_count)?;
        let (free, inodes, counted) = self.free();
        let note = if counted { "" } else { " (as the superblock says)" };
        writeln!(out, "Free:        {free} blocks ({}){note}", human(free.saturating_mul(bs)))?;
        writeln!(out, "Reserved:    {} blocks", sb.reserved_blocks())?;
        writeln!(out, "Inodes:      {} of {} bytes, {inodes} free", sb.inodes_count, sb.inode_size)?;
        self.print_journal(out)?;
        let dir = sb.last_mounted();
        write!(out, "Mounted:     {} times, last {}", sb.mount_count(), text::second(sb.mount_time()))?;
        if !dir.is_empty() {
            write!(out, " on {}", text::shown(dir.as_bytes()))?;
        }
        writeln!(out)?;
        let made = i64::from(sb.raw().s_mkfs_time.get()) | i64::from(sb.raw().s_mkfs_time_hi) << 32;
        writeln!(out, "Made:        {}; last written {}", text::second(made), text::second(sb.write_time()))?;
        Ok(())
    }

    fn print_journal(&self, out: &mut Output) -> Result<()> {
        match &self.journal {
            Journal::None => writeln!(out, "Journal:     none")?,
            Journal::Unusable(why) => writeln!(out, "Journal:     cannot be used: {why}")?,
            Journal::There { blocks, state, transactions, copies, fast_commits, checksum, errno, borrowed } => {
                let size = human(u64::from(*blocks) * u64::from(self.sb.block_size));
                let whose = if *borrowed { " borrowed until a clean unmount" } else { "" };
                write!(out, "Journal:     {size}{whose}, checksums {checksum}, {state}")?;
                if *transactions > 0 {
                    write!(out, ", {transactions} transactions ({copies} blocks) to replay")?;
                }
                if *fast_commits > 0 {
                    write!(out, ", {fast_commits} fast commits to replay")?;
                }
                if *errno != 0 {
                    write!(out, ", aborted with error {errno}")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let sb = &self.sb;
        let (free_blocks, free_inodes, counted) = self.free();
        let journal = match &self.journal {
            Journal::None => Value::Null,
            Journal::Unusable(why) => json!({ "error": why }),
            Journal::There { blocks, state, transactions, copies, fast_commits, checksum, errno, borrowed } => json!({
                "blocks": blocks,
                "borrowed": borrowed,
                "state": state,
                "transactions_to_replay": transactions,
                "blocks_to_replay": copies,
                "fast_commits_to_replay": fast_commits,
                "checksum": checksum,
                "errno": errno,
            }),
        };
        json!({
            "image": self.spec.shown(),
            "partition": self.spec.partition(),
            "offset": if let Part::Offset(offset) = self.spec.part { Some(offset) } else { None },
            "size": self.size,
            "in_use": self.holder.map(in_use),
            "filesystem": {
                "type": generation(sb),
                "label": sb.volume_name(),
                "uuid": text::uuid(&sb.uuid()),
                "state": self.state(),
                "needs_recovery": sb.needs_recovery(),
                "error_count": sb.error_count(),
                "features": self.features(),
                "support": self.support(),
                "backup_superblock": self.backup,
                "block_size": sb.block_size,
                "blocks": sb.blocks_count,
                "blocks_free": free_blocks,
                "blocks_reserved": sb.reserved_blocks(),
                "free_is_counted": counted,
                "groups": sb.group_count,
                "blocks_per_group": sb.blocks_per_group,
                "inode_size": sb.inode_size,
                "inodes": sb.inodes_count,
                "inodes_free": free_inodes,
                "mount_count": sb.mount_count(),
                "mount_time": sb.mount_time(),
                "write_time": sb.write_time(),
                "last_mounted": sb.last_mounted(),
                "journal": journal,
            },
        })
    }
}
