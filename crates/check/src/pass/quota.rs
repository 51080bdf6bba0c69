//! Quota files: the usage that they record for each user, group and project, compared with that of the inodes.
//!
//! Main types: [`Owners`] (the owners of an inode), [`Sums`] (the usage counted so far, 16 bytes for each owner and
//! thread). [`count`] adds an inode; [`check`] reads the files' trees level by level, each block of a level once, so a
//! cycle in a tree costs no more than its four levels.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::features::RoCompat;
use extant_ondisk::inode::{InodeDesc, InodeFlags, RawInode, RawInodeExtra};
use extant_ondisk::quota::{BLOCK_BYTES, LEVELS, QuotaDamage, QuotaFile, QuotaKind, ROOT, Usage};
use extant_ondisk::{BlockNr, Damage, InodeNr};
use extant_recovery::JournalMap;
use zerocopy::{FromZeros, IntoBytes};

use super::inodes::Inode;
use super::orphans;
use super::walk::{Tally, Walker};
use crate::claims::Bits;
use crate::context::Check;
use crate::error::{Error, Result};
use crate::finding::{Finding, Place, UsageOf};
use crate::problem::Problem;
use crate::report::Sink;
use crate::scan::{self, Output, Run};

/// A quota file of up to this size is read into memory; a larger one is read level by level.
const KEPT_BYTES: u64 = 256 << 10;
/// Owners are sorted when there are more than this.
const SORT_AT: usize = 1 << 12;

/// The user, group and project of an inode; `None` if no quota counts it.
pub type Owners = Option<[u32; 3]>;

/// The owners of an inode.
pub fn owners(check: &Check, inode: &Inode<'_>) -> Owners {
    let (sb, raw) = (check.sb.raw(), &inode.raw);
    let counted = inode.ino == InodeNr::ROOT.0 || inode.ino >= check.geo.first_ino;
    let own = [check.project_quota(), sb.s_orphan_file_inum.get()].contains(&inode.ino);
    if !check.sb.ro_compat().contains(RoCompat::QUOTA) || !counted || own || inode.flags.contains(InodeFlags::EA_INODE)
    {
        return None;
    }
    let number = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    Some([
        number(raw.i_uid.get(), raw.l_i_uid_high.get()),
        number(raw.i_gid.get(), raw.l_i_gid_high.get()),
        project(inode.bytes),
    ])
}

/// The project of an inode; 0 if it has no room for one.
fn project(bytes: &[u8]) -> u32 {
    let mut extra = RawInodeExtra::new_zeroed();
    let room = &bytes[bytes.len().min(size_of::<RawInode>())..];
    let length = room.len().min(size_of::<RawInodeExtra>());
    extra.as_mut_bytes()[..length].copy_from_slice(&room[..length]);
    let has_project = usize::from(extra.i_extra_isize.get()) >= size_of::<RawInodeExtra>();
    if has_project { extra.i_projid.get() } else { 0 }
}

/// The usage of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OwnerUsage {
    id: u32,
    inodes: u32,
    bytes: u64,
}

/// The usage of all owners of one kind.
#[derive(Debug, Default)]
struct KindUsage {
    list: Vec<OwnerUsage>,
    /// The length at which the parts of each owner are added up; 0 before the first time.
    sort_at: usize,
}

impl KindUsage {
    fn add(&mut self, used: OwnerUsage) {
        match self.list.last_mut() {
            // Adjacent inodes in a table often have the same owner.
            Some(last) if last.id == used.id => join(last, &used),
            _ => self.list.push(used),
        }
        if self.list.len() >= self.sort_at.max(SORT_AT) {
            self.sort();
            // If most of them are different, repeated sorting would take quadratic time.
            self.sort_at = 2 * self.list.len();
        }
    }

    fn sort(&mut self) {
        self.list.sort_unstable_by_key(|used| used.id);
        self.list.dedup_by(|used, kept| {
            let same = used.id == kept.id;
            if same {
                join(kept, used);
            }
            same
        });
    }
}

fn join(to: &mut OwnerUsage, from: &OwnerUsage) {
    to.inodes = to.inodes.saturating_add(from.inodes);
    to.bytes = to.bytes.saturating_add(from.bytes);
}

/// The usage of all owners.
#[derive(Debug, Default)]
pub struct Sums {
    kinds: [KindUsage; 3],
    /// Whether the map of some inode is only partly known.
    partial: bool,
}

impl Sums {
    pub fn merge(&mut self, other: Sums) {
        self.partial |= other.partial;
        for (to, from) in self.kinds.iter_mut().zip(other.kinds) {
            for used in from.list {
                to.add(used);
            }
        }
    }
}

/// The usage of all owners, sorted.
pub struct Usages {
    kinds: [Arc<Vec<OwnerUsage>>; 3],
    partial: bool,
}

impl Usages {
    pub fn new(sums: Sums) -> Usages {
        let sorted = |mut owned: KindUsage| {
            owned.sort();
            Arc::new(owned.list)
        };
        Usages { kinds: sums.kinds.map(sorted), partial: sums.partial }
    }

    /// The usage of the owners of one kind; `None` if part of it is unknown.
    pub fn of(&self, kind: QuotaKind) -> Option<impl Iterator<Item = Usage> + '_> {
        let usage = |used: &OwnerUsage| Usage { id: used.id, bytes: used.bytes, inodes: used.inodes.into() };
        (!self.partial).then(|| self.kinds[kind as usize].iter().map(usage))
    }
}

/// Counts an inode, and the inodes with values of its attributes.
pub fn count(walker: &mut Walker<'_>, tally: &Tally) {
    let Some(owners) = tally.owners else { return };
    let usage = &mut walker.out.usage;
    let bytes =
        (tally.sums.clusters << walker.check.geo.cluster_bits).saturating_mul(walker.check.geo.block_size.into());
    usage.partial |= tally.sums.partial || tally.unknown_values;
    for (owned, id) in usage.kinds.iter_mut().zip(owners) {
        owned.add(OwnerUsage { id, inodes: tally.values.saturating_add(1), bytes });
    }
}

/// Compares the quota files with the counted usage.
pub fn check(check: &Arc<Check>, usages: &Usages, sink: &mut Sink) -> Result<()> {
    if !check.sb.ro_compat().contains(RoCompat::QUOTA) {
        return Ok(());
    }
    let raw = check.sb.raw();
    let files = [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), raw.s_prj_quota_inum.get()];
    for ((kind, ino), owned) in QuotaKind::ALL.into_iter().zip(files).zip(&usages.kinds) {
        if ino == 0 || ino > check.geo.inodes_count {
            continue;
        }
        // Inodes of 128 bytes have no project.
        let has_owners = kind != QuotaKind::Project || check.geo.inode_size > size_of::<RawInode>();
        let expected = if has_owners { owned.clone() } else { Arc::default() };
        let missed = file(check, kind, ino, expected, usages.partial, sink)?;
        for used in missed.iter().filter(|_| !usages.partial) {
            compare(ino, Usage { id: used.id, bytes: 0, inodes: 0 }, *used, sink);
        }
    }
    Ok(())
}

/// Reports the differences between an entry and the counted usage.
fn compare(ino: u32, entry: Usage, used: OwnerUsage, sink: &mut Sink) {
    let counts = [(UsageOf::Bytes, entry.bytes, used.bytes), (UsageOf::Inodes, entry.inodes, used.inodes.into())];
    for (of, found, expected) in counts {
        if found != expected {
            let place = Place::Usage { file: InodeNr(ino), id: entry.id, of };
            sink.push(Finding::new(Problem::UpdateQuotas, place, found, expected));
        }
    }
}

/// Reports damage of the file itself.
fn damaged(place: Place, damage: QuotaDamage, sink: &mut Sink) {
    let (found, expected): (u64, u64) = match damage {
        QuotaDamage::Length { found } | QuotaDamage::Size { found } => (found, 0),
        // The check reads level by level and does not look for these.
        QuotaDamage::Twice { found } | QuotaDamage::Missing { block: found, .. } => (found.into(), 0),
        QuotaDamage::Entries { found, .. } => (found.into(), 0),
        QuotaDamage::Magic { found, expected } => (found.into(), expected.into()),
        QuotaDamage::Version { found } => (found.into(), 1),
        QuotaDamage::Blocks { found, most } => (found.into(), most.into()),
        QuotaDamage::FreeList { found, blocks } | QuotaDamage::Reference { found, blocks } => {
            (found.into(), blocks.into())
        }
    };
    sink.push(Finding::new(Problem::UpdateQuotas, place, found, expected));
}

/// A thread's results of reading a file.
#[derive(Default)]
struct FileOut {
    sink: Sink,
    /// The blocks of a file that are kept in memory.
    kept: KeptBlocks,
}

impl Output for FileOut {
    fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }
}

/// A quota file that is being read.
struct Reading {
    ino: u32,
    header: QuotaFile,
    map: JournalMap,
    expected: Arc<Vec<OwnerUsage>>,
    partial: bool,
    /// The owners that have an entry.
    seen: Bits,
    /// The blocks to which the current level refers.
    next: Bits,
}

impl Reading {
    /// Checks a block of the tree (`level` 0 to 3), or one with entries.
    fn look(&self, level: u32, at: u32, block: BlockNr, bytes: &[u8], sink: &mut Sink) {
        if level < LEVELS {
            let place = Place::Mapped { ino: InodeNr(self.ino), lblk: at.into(), block };
            let mut note = |damage| damaged(place, damage, sink);
            for child in self.header.children(bytes, &mut note) {
                self.next.set(child.into());
            }
            return;
        }
        for entry in self.header.entries(bytes) {
            let known = self.expected.binary_search_by_key(&entry.id, |used| used.id).ok();
            if let Some(at) = known {
                self.seen.set(at as u64);
            }
            if !self.partial {
                let used = known.map_or(OwnerUsage { id: entry.id, ..OwnerUsage::default() }, |at| self.expected[at]);
                compare(self.ino, entry, used, sink);
            }
        }
    }

    /// The blocks to examine next, sorted by place: block of the file system, offset in it, block of the file.
    fn take_level(&self, block_bits: u32) -> Vec<(u64, usize, u32)> {
        let blocks = (0..self.header.blocks).filter(|at| self.next.test((*at).into()));
        let placed = blocks.filter_map(|at| self.place(at, block_bits).map(|(block, byte)| (block, byte, at)));
        let mut places: Vec<_> = placed.collect();
        places.sort_unstable();
        self.next.clear();
        places
    }

    /// The place of a block of the file: the block of the file system, and the offset in it.
    fn place(&self, at: u32, block_bits: u32) -> Option<(u64, usize)> {
        let byte = u64::from(at) * BLOCK_BYTES as u64;
        let (block, _) = self.map.lookup((byte >> block_bits) as u32)?;
        Some((block.0, (byte & ((1 << block_bits) - 1)) as usize))
    }
}

/// Reads a quota file and compares its entries. Returns the owners that were counted and have no entry.
fn file(
    check: &Arc<Check>,
    kind: QuotaKind,
    ino: u32,
    expected: Arc<Vec<OwnerUsage>>,
    partial: bool,
    sink: &mut Sink,
) -> Result<Vec<OwnerUsage>> {
    let bits = check.geo.block_bits;
    let Some(desc) = orphans::inode(check, ino) else { return Ok(expected.to_vec()) };
    // The last block may be partly filled.
    let size = desc.size.checked_next_multiple_of(check.geo.block_size.into()).unwrap_or(0);
    let whole = InodeDesc { size, ..desc.clone() };
    // If the map cannot be followed, all owners are missing.
    let Some(map) = orphans::file_map(check, &whole, ino) else { return Ok(expected.to_vec()) };
    let Some((first, _)) = map.lookup(0) else { return Ok(expected.to_vec()) };
    let kept = if size <= KEPT_BYTES { keep(check, map.blocks())? } else { keep(check, [first].into_iter())? };
    let header = block_of(&kept, first.0);
    let (place, mut fits) = (Place::Inode(InodeNr(ino)), true);
    QuotaFile::damage(header, kind, desc.size, &mut |damage| {
        fits &= !damage.is_fatal();
        damaged(place, damage, sink);
    });
    if !fits {
        return Ok(expected.to_vec());
    }
    let header = QuotaFile::parse(header);
    let memory = |bytes| Error::Memory { device: check.device.name().to_owned(), bytes };
    let seen = Bits::new(expected.len() as u64).map_err(memory)?;
    let next = Bits::new(header.blocks.into()).map_err(memory)?;
    let reading = Arc::new(Reading { ino, header, map, expected, partial, seen, next });
    reading.next.set(ROOT.into());
    for depth in 0..=LEVELS {
        let places = reading.take_level(bits);
        match size <= KEPT_BYTES {
            true => sink.merge(from_memory(&kept, &reading, depth, &places)),
            false => from_device(check, &reading, depth, places)?,
        }
    }
    let missed = |(at, used): (usize, &OwnerUsage)| (!reading.seen.test(at as u64)).then_some(*used);
    Ok(reading.expected.iter().enumerate().filter_map(missed).collect())
}

/// Blocks and their numbers, sorted.
type KeptBlocks = Vec<(u64, Vec<u8>)>;

/// Reads blocks, those near each other together.
fn keep(check: &Arc<Check>, blocks: impl Iterator<Item = BlockNr>) -> Result<KeptBlocks> {
    let mut blocks: Vec<u64> = blocks.map(|block| block.0).collect();
    blocks.sort_unstable();
    let runs = scan::runs(&blocks, check.geo.block_bits, |block| (*block, 1));
    let size = check.geo.block_size as usize;
    let outs = scan::wave(check, runs, move |_, run: &Run, data, out: &mut FileOut| {
        for block in &blocks[run.items.0..run.items.1] {
            let at = (block - run.first) as usize * size;
            out.kept.push((*block, data[at..at + size].to_vec()));
        }
    })?;
    let mut kept: KeptBlocks = outs.into_iter().flat_map(|out| out.kept).collect();
    kept.sort_unstable();
    Ok(kept)
}

fn block_of(kept: &KeptBlocks, block: u64) -> &[u8] {
    kept.binary_search_by_key(&block, |(kept, _)| *kept).map_or(&[], |at| &kept[at].1)
}

fn from_memory(kept: &KeptBlocks, reading: &Reading, depth: u32, places: &[(u64, usize, u32)]) -> Sink {
    let mut sink = Sink::default();
    for (block, byte, at) in places {
        let bytes = block_of(kept, *block).get(*byte..*byte + BLOCK_BYTES).unwrap_or(&[]);
        reading.look(depth, *at, BlockNr(*block), bytes, &mut sink);
    }
    sink
}

fn from_device(check: &Arc<Check>, reading: &Arc<Reading>, depth: u32, places: Vec<(u64, usize, u32)>) -> Result<()> {
    let runs = scan::runs(&places, check.geo.block_bits, |(block, ..)| (*block, 1));
    let reading = reading.clone();
    let bits = check.geo.block_bits;
    scan::wave(check, runs, move |_, run: &Run, data, out: &mut FileOut| {
        for (block, byte, at) in &places[run.items.0..run.items.1] {
            let from = ((block - run.first) << bits) as usize + byte;
            reading.look(depth, *at, BlockNr(*block), &data[from..from + BLOCK_BYTES], &mut out.sink);
        }
    })?;
    Ok(())
}
