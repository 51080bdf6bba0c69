//! Adding and removing features.
//!
//! Main type: [`Plan`] (the other changes that new feature words need). Main functions: [`apply`], [`recount`].
//!
//! # Locking
//! None.

use extant_ondisk::csum::ChecksumSeed;
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::superblock::{DescChecksum, RawSuperBlock, SuperBlock};
use extant_ondisk::{GroupNr, InodeNr, orphan};

use super::fields::{features, set_feature};
use super::{CannotTune, Feature, reseal};
use crate::apply::{content, directories, groups, inodes, journal, super_block};
use crate::error::StepResult;
use crate::view::Image;

/// The first inode of files in the first revision of the format; the size of an inode in it follows.
const FIRST_INO_GOOD_OLD: u32 = 11;
const INODE_SIZE_GOOD_OLD: u16 = 128;
/// The value of `s_checksum_type`.
const CRC32C: u8 = 1;
/// The encryption of data and of names (fscrypt: AES-256-XTS, AES-256-CTS).
const ENCRYPT_ALGOS: [u8; 4] = [1, 4, 0, 0];

/// Features that are only a bit, or that this module can add.
const CAN_COME: (Compat, Incompat, RoCompat) = (
    Compat::HAS_JOURNAL
        .union(Compat::DIR_INDEX)
        .union(Compat::EXT_ATTR)
        .union(Compat::FAST_COMMIT)
        .union(Compat::STABLE_INODES)
        .union(Compat::ORPHAN_FILE),
    Incompat::FILETYPE
        .union(Incompat::EXTENTS)
        .union(Incompat::EA_INODE)
        .union(Incompat::MMP)
        .union(Incompat::CSUM_SEED)
        .union(Incompat::LARGE_DIR)
        .union(Incompat::ENCRYPT),
    RoCompat::LARGE_FILE
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::READONLY)
        .union(RoCompat::VERITY),
);
/// Features that it can remove. The check of the result finds those in use.
const CAN_GO: (Compat, Incompat, RoCompat) = (
    Compat::HAS_JOURNAL
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX)
        .union(Compat::FAST_COMMIT)
        .union(Compat::ORPHAN_FILE),
    Incompat::FILETYPE.union(Incompat::MMP).union(Incompat::CSUM_SEED),
    RoCompat::LARGE_FILE
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::METADATA_CSUM)
        .union(RoCompat::READONLY),
);

/// The directories that are rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Directories {
    #[default]
    None,
    Indexed,
    All,
}

/// The changes of the other metadata that a new superblock requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    come: Words,
    go: Words,
    /// Whether the seed of checksums changes, or checksums are new.
    reseal: bool,
    directories: Directories,
    /// The checksum of descriptors before and after.
    descs: Option<(DescChecksum, DescChecksum)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Words {
    compat: Compat,
    incompat: Incompat,
    ro_compat: RoCompat,
}

impl Plan {
    /// Compares the superblock with the wanted one, completes the latter, and rejects impossible changes.
    pub fn of(before: &SuperBlock, raw: &mut RawSuperBlock) -> Result<Plan, CannotTune> {
        let old = features(before.raw());
        if raw.s_feature_ro_compat.get() & RoCompat::METADATA_CSUM.bits() != 0 {
            // The stronger checksum replaces the weaker one.
            set_feature(raw, Feature::RoCompat(RoCompat::GDT_CSUM), false);
        } else if old.2.contains(RoCompat::METADATA_CSUM) {
            // This is as in tune2fs: flags of groups stay valid.
            set_feature(raw, Feature::RoCompat(RoCompat::GDT_CSUM), true);
            set_feature(raw, Feature::Incompat(Incompat::CSUM_SEED), false);
        }
        let new = features(raw);
        let words = |one: (Compat, Incompat, RoCompat), other: (Compat, Incompat, RoCompat)| Words {
            compat: one.0.difference(other.0),
            incompat: one.1.difference(other.1),
            ro_compat: one.2.difference(other.2),
        };
        let mut plan = Plan { come: words(new, old), go: words(old, new), ..Plan::default() };
        plan.refuse_unknown()?;
        plan.refuse_combinations(before, new)?;
        plan.complete(before, raw);
        let seed = |raw: &RawSuperBlock| match features(raw) {
            (.., ro) if !ro.contains(RoCompat::METADATA_CSUM) => None,
            (_, incompat, _) if incompat.contains(Incompat::CSUM_SEED) => Some(raw.s_checksum_seed.get()),
            _ => Some(ChecksumSeed::from_uuid(&raw.s_uuid).raw()),
        };
        let (was, is) = (seed(before.raw()), seed(raw));
        plan.reseal = was != is;
        let by_uuid = new.2.contains(RoCompat::GDT_CSUM) && raw.s_uuid != before.raw().s_uuid;
        let kind = |ro: RoCompat| match () {
            () if ro.contains(RoCompat::METADATA_CSUM) => DescChecksum::Crc32c,
            () if ro.contains(RoCompat::GDT_CSUM) => DescChecksum::Crc16,
            () => DescChecksum::None,
        };
        let kinds = (kind(old.2), kind(new.2));
        plan.descs = (kinds.0 != kinds.1 || by_uuid).then_some(kinds);
        let form = (plan.come.incompat | plan.go.incompat).contains(Incompat::FILETYPE);
        plan.directories = match () {
            () if form || plan.come.ro_compat.contains(RoCompat::METADATA_CSUM) => Directories::All,
            () if plan.go.ro_compat.contains(RoCompat::METADATA_CSUM) => Directories::Indexed,
            () if plan.go.compat.contains(Compat::DIR_INDEX) => Directories::Indexed,
            () => Directories::None,
        };
        Ok(plan)
    }

    /// Whether only the superblock and its copies change.
    pub fn is_plain(&self) -> bool {
        let files = Compat::HAS_JOURNAL.union(Compat::RESIZE_INODE).union(Compat::ORPHAN_FILE);
        !self.reseal
            && self.descs.is_none()
            && self.directories == Directories::None
            && !(self.come.compat | self.go.compat).intersects(files)
            && !(self.come.incompat | self.go.incompat).contains(Incompat::MMP)
    }

    fn refuse_unknown(&self) -> Result<(), CannotTune> {
        let other = |words: &Words, known: (Compat, Incompat, RoCompat)| {
            let compat = words.compat.difference(known.0).names();
            let incompat = words.incompat.difference(known.1).names();
            [compat, incompat, words.ro_compat.difference(known.2).names()].concat().into_iter().next()
        };
        for (words, known, on) in [(&self.come, CAN_COME, true), (&self.go, CAN_GO, false)] {
            if let Some(feature) = other(words, known) {
                let why = "it is part of the layout, or of structures that are not made in place";
                return Err(CannotTune::Feature { feature, on, why });
            }
        }
        Ok(())
    }

    fn refuse_combinations(&self, before: &SuperBlock, new: (Compat, Incompat, RoCompat)) -> Result<(), CannotTune> {
        let refuse = |feature: &str, on: bool, why: &'static str| {
            Err(CannotTune::Feature { feature: feature.to_owned(), on, why })
        };
        if new.1.contains(Incompat::CSUM_SEED) && !new.2.contains(RoCompat::METADATA_CSUM) {
            return refuse("metadata_csum_seed", true, "only metadata_csum has such a seed");
        }
        if new.0.contains(Compat::ORPHAN_FILE) && !new.0.contains(Compat::HAS_JOURNAL) {
            if self.come.compat.contains(Compat::ORPHAN_FILE) {
                return refuse("orphan_file", true, "it needs a journal; add has_journal, too");
            }
            return refuse("has_journal", false, "the orphan file needs a journal; remove orphan_file, too");
        }
        if new.0.contains(Compat::FAST_COMMIT) && !new.0.contains(Compat::HAS_JOURNAL) {
            if self.come.compat.contains(Compat::FAST_COMMIT) {
                return refuse("fast_commit", true, "it needs a journal; add has_journal, too");
            }
            return refuse("has_journal", false, "fast commits need a journal; remove fast_commit, too");
        }
        if self.go.compat.contains(Compat::ORPHAN_FILE) && before.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
            return refuse("orphan_file", false, "it has entries; a mount or 'extant fsck -p' removes them");
        }
        if self.come.compat.contains(Compat::ORPHAN_FILE) && before.ro_compat().contains(RoCompat::QUOTA) {
            return refuse("orphan_file", true, "quota counts its blocks");
        }
        Ok(())
    }

    /// Sets the fields that belong to changed features.
    fn complete(&self, before: &SuperBlock, raw: &mut RawSuperBlock) {
        let old = before.raw();
        if old.s_rev_level.get() == 0 && self.come != Words::default() {
            // Only the second revision has features; its other fields get the values that the first one implies.
            raw.s_rev_level.set(1);
            raw.s_first_ino.set(FIRST_INO_GOOD_OLD);
            raw.s_inode_size.set(INODE_SIZE_GOOD_OLD);
        }
        if self.come.incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed.set(ChecksumSeed::from_uuid(&old.s_uuid).raw());
        }
        if self.go.incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed.set(0);
        }
        if self.come.ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.s_checksum_type = CRC32C;
        }
        if self.go.ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.s_checksum_type = 0;
            raw.s_checksum.set(0);
        }
        if self.come.incompat.contains(Incompat::ENCRYPT) {
            raw.s_encrypt_algos = ENCRYPT_ALGOS;
        }
        if self.go.compat.contains(Compat::RESIZE_INODE) {
            raw.s_reserved_gdt_blocks.set(0);
        }
        if self.go.compat.contains(Compat::HAS_JOURNAL) && before.external_journal().is_some() {
            raw.s_journal_uuid = [0; 16];
            raw.s_journal_dev.set(0);
        }
        if self.come.incompat.contains(Incompat::MMP) && raw.s_mmp_update_interval.get() == 0 {
            raw.s_mmp_update_interval.set(extant_ondisk::mmp::INTERVAL);
        }
    }
}

/// Changes the metadata of `old` to that of `new`, whose superblock is on the device.
pub fn apply(old: &Image, new: &mut Image, plan: &Plan, journal_blocks: Option<u32>) -> Result<(), CannotTune> {
    let sb = &old.sb;
    if plan.reseal && new.geo.metadata_csum && sb.incompat().contains(Incompat::EA_INODE) && has_values(old) {
        return Err(CannotTune::Values);
    }
    if plan.reseal && new.sb.compat().contains(Compat::STABLE_INODES) && old.geo.metadata_csum {
        return Err(CannotTune::Value(
            "the feature stable_inodes says that the UUID stays: encryption depends on it".into(),
        ));
    }
    if plan.directories != Directories::None {
        let all: Vec<InodeNr> = old.facts.directories().collect();
        for ino in all {
            if plan.directories == Directories::All || old.inode(ino)?.has(InodeFlags::INDEX) {
                directories::rewrite(old, new, ino)?;
            }
        }
    }
    if plan.go.compat.contains(Compat::HAS_JOURNAL)
        && let Some(ino) = sb.journal_inode()
    {
        let clusters = clusters_of(old, ino)?;
        remove_file(new, ino)?;
        new.change_super(|raw| {
            raw.s_journal_inum.set(0);
            raw.s_jnl_backup_type = 0;
            raw.s_jnl_blocks = [0.into(); 17];
            let overhead = raw.s_overhead_clusters.get();
            raw.s_overhead_clusters.set(overhead.saturating_sub(clusters));
        })?;
    }
    if plan.go.compat.contains(Compat::ORPHAN_FILE)
        && let Some(ino) = sb.orphan_file()
    {
        remove_file(new, ino)?;
        new.change_super(|raw| raw.s_orphan_file_inum.set(0))?;
    }
    if plan.go.compat.contains(Compat::RESIZE_INODE) {
        remove_file(new, InodeNr::RESIZE)?;
    }
    if plan.go.incompat.contains(Incompat::MMP) {
        new.change_super(|raw| raw.s_mmp_block.set(0))?;
    }
    if plan.come.compat.contains(Compat::HAS_JOURNAL) && new.sb.external_journal().is_none() {
        journal::create(new, journal_blocks)?;
        let clusters = clusters_of(new, InodeNr::JOURNAL)?;
        new.change_super(|raw| {
            let overhead = raw.s_overhead_clusters.get();
            raw.s_overhead_clusters.set(if overhead == 0 { 0 } else { overhead.saturating_add(clusters) });
        })?;
    }
    if plan.come.compat.contains(Compat::ORPHAN_FILE) {
        create_orphan_file(new)?;
    }
    if plan.come.incompat.contains(Incompat::MMP) {
        groups::multi_mount(new)?;
    }
    if let Some(kinds) = plan.descs {
        checksums_of_descriptors(new, kinds)?;
    }
    if plan.go.ro_compat.contains(RoCompat::METADATA_CSUM) && !plan.go.compat.contains(Compat::ORPHAN_FILE) {
        clear_orphan_file(new)?;
    }
    let changed = plan.reseal && new.geo.metadata_csum;
    if changed {
        reseal::everything(new)?
    } else {
        reseal::descriptors(new)?
    }
    Ok(())
}

fn clusters_of(image: &Image, ino: InodeNr) -> StepResult<u32> {
    let inode = image.inode(ino)?;
    let blocks = image.map(&inode).blocks().count() as u64;
    Ok((blocks >> image.geo.cluster_bits) as u32)
}

/// Whether an attribute has a separate inode.
fn has_values(image: &Image) -> bool {
    use extant_check::InodeState;
    image.geo.groups().any(|group| image.facts.inodes_of(group).any(|(_, state)| state.has(InodeState::VALUE)))
}

/// Frees the inode of a file to which only the superblock refers. Its blocks are free when they are counted again.
fn remove_file(image: &mut Image, ino: InodeNr) -> StepResult {
    image.zero_inode(ino)
}

/// The number of blocks in an orphan file (e2fsprogs: `ext2fs_default_orphan_file_blocks`).
fn orphan_blocks(image: &Image) -> usize {
    let blocks: u64 = match image.geo.blocks_count {
        0..0x2_0000 => 32,
        count @ 0x2_0000..0x20_0000 => count / 4096,
        _ => 512,
    };
    blocks.next_multiple_of(1 << image.geo.cluster_bits) as usize
}

/// Empties the orphan file, and clears the checksums of its blocks, because e2fsck compares all bytes.
fn clear_orphan_file(image: &Image) -> StepResult {
    let Some(ino) = image.sb.orphan_file() else { return Ok(()) };
    for (_, block) in image.map(&image.inode(ino)?).blocks() {
        let mut bytes = vec![0; image.geo.block_size as usize];
        orphan::init(&mut bytes, block, None);
        image.put_block(block, &bytes)?;
    }
    Ok(())
}

fn create_orphan_file(image: &mut Image) -> StepResult {
    let ino = image.take_inode()?;
    inodes::fresh(image, ino, FileType::Regular, 0o600, 1)?;
    let count = orphan_blocks(image);
    let blocks = content::blocks(image, Vec::new(), count)?;
    let seed = image.seed(ino, image.inode(ino)?.generation());
    for block in &blocks {
        let mut bytes = vec![0; image.geo.block_size as usize];
        orphan::init(&mut bytes, *block, seed);
        image.put_block(*block, &bytes)?;
    }
    content::set_blocks(image, ino, &blocks, (count as u64) << image.geo.block_bits)?;
    image.change_super(|raw| raw.s_orphan_file_inum.set(ino.0))
}

/// Changes the checksum of descriptors. Without one, nothing says that a bitmap or a table was never written.
fn checksums_of_descriptors(image: &mut Image, (was, is): (DescChecksum, DescChecksum)) -> StepResult {
    for group in image.geo.groups() {
        let at = group.0 as usize;
        match (was, is) {
            (DescChecksum::None, _) => {
                // Tables were zeroed when the file system was created.
                image.descs[at].flags = GroupFlags::INODE_ZEROED;
                image.descs[at].itable_unused = 0;
            }
            (_, DescChecksum::None) => {
                zero_unused(image, group)?;
                let desc = &mut image.descs[at];
                (desc.flags, desc.itable_unused) = (GroupFlags::empty(), 0);
                groups::clear_flags(image, group)?;
            }
            _ => {}
        }
        if is != DescChecksum::Crc32c {
            let desc = &mut image.descs[at];
            (desc.block_bitmap_csum, desc.inode_bitmap_csum) = (0, 0);
        }
    }
    Ok(())
}

/// Writes zeros over the inodes of a table that were never used, unless they are zero already.
fn zero_unused(image: &Image, group: GroupNr) -> StepResult {
    let (geo, desc) = (&image.geo, &image.descs[group.0 as usize]);
    let unused = match desc.flags.contains(GroupFlags::INODE_UNINIT) {
        true => geo.inodes_per_group,
        false => desc.itable_unused,
    };
    if unused == 0 || desc.flags.contains(GroupFlags::INODE_ZEROED) {
        return Ok(());
    }
    let size = geo.inode_size as u64;
    let table = desc.inode_table.0 << geo.block_bits;
    let end = table + u64::from(geo.inode_table_blocks) * u64::from(geo.block_size);
    let start = table + u64::from(geo.inodes_per_group - unused) * size;
    let mut at = start;
    while at < end {
        let block_end = (at | (u64::from(geo.block_size) - 1)) + 1;
        image.write(at, &vec![0; (block_end.min(end) - at) as usize])?;
        at = block_end;
    }
    Ok(())
}

/// Sets bitmaps, counts and totals according to the current files.
pub fn recount(image: &mut Image, plan: &Plan) -> StepResult {
    if plan.descs.is_some_and(|(_, is)| is == DescChecksum::None) {
        image.descs.iter_mut().for_each(|desc| desc.flags = GroupFlags::empty());
    }
    for group in image.geo.groups() {
        groups::recount(image, group)?;
    }
    super_block::totals(image)
}
