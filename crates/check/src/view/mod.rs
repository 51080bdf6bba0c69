//! The view of a check: the superblock or a backup of it, the device with the journal replayed, the descriptors.
//!
//! Main type: [`View`]. [`View::open`] reports the damage of these; [`super_block`] has the problems of the fields,
//! [`journal`] replays, [`descriptors`] reads the group descriptors, [`resize`] checks the resize inode.
//!
//! # Locking
//! None.

mod descriptors;
mod journal;
mod resize;
mod super_block;

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::RoCompat;
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{
    SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, SuperContext, SuperDamage, begins_at_zero, find_backup,
};
use extant_ondisk::{BlockNr, Damage};

use crate::Options;
use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::{Note, Sink};

/// Features whose structures are not checked, by name.
const UNCHECKED: [(RoCompat, &str); 1] = [(RoCompat::VERITY, "Merkle trees (verity)")];

/// A file system of up to this many blocks is accepted even if the device ends before it (64 MiB for their bitmaps).
const BELIEVED_BLOCKS: u64 = 1 << 28;
/// Larger file systems are accepted up to this many times the device's blocks, and this many times its groups.
const BELIEVED_TIMES: u64 = 16;
/// Up to this many groups are always accepted; each takes a few hundred bytes.
const BELIEVED_GROUPS: u64 = 1 << 17;

/// The file system to check.
pub struct View {
    /// The device, with the journal replayed.
    pub device: Arc<dyn BlockDevice>,
    /// The superblock.
    pub sb: SuperBlock,
    /// The descriptors by group. Bitmaps and tables whose places cannot be used are at block 0.
    pub descs: Vec<GroupDesc>,
    /// Whether the log had something to replay, so that the superblock's totals are only hints.
    pub replayed: bool,
}

/// A copy of the superblock.
struct Copy {
    offset: u64,
    /// `None` if no layout can be derived from it.
    sb: Option<SuperBlock>,
    damage: Vec<SuperDamage>,
}

impl Copy {
    /// Reads the copy at this byte offset; `None` if the bytes have no magic number.
    fn read(device: &dyn BlockDevice, offset: u64, options: &Options) -> Result<Option<Copy>> {
        if offset.checked_add(SUPERBLOCK_SIZE as u64).is_none_or(|end| end > device.size_bytes()) {
            return Ok(None);
        }
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes, BioFlags::META)?;
        let context = SuperContext { device_bytes: Some(device.size_bytes()), now: Some(options.now) };
        let mut damage = Vec::new();
        let sb = SuperBlock::parse(&bytes, &context, &mut |one| damage.push(one));
        let has_magic = !damage.iter().any(|one| matches!(one, SuperDamage::Magic { .. }));
        Ok(has_magic.then_some(Copy { offset, sb, damage }))
    }

    /// Whether a mount would accept the copy, apart from unknown features.
    fn is_sound(&self) -> bool {
        self.sb.is_some() && self.damage.iter().all(|one| !is_refused(one))
    }

    fn report(&self, sink: &mut Sink, which: fn(&SuperDamage) -> bool) {
        sink.extend(self.damage.iter().filter(|one| which(one)).filter_map(|one| super_block::finding(*one)));
    }
}

fn is_refused(damage: &SuperDamage) -> bool {
    damage.is_fatal() && !matches!(damage, SuperDamage::Features { .. })
}

impl View {
    /// Chooses a superblock, replays the journal in memory and reads the descriptors. `None` if there is a superblock,
    /// but nothing can be checked with it; its damage is in the sink.
    pub fn open(
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        sink: &mut Sink,
        notes: &mut Vec<Note>,
    ) -> Result<Option<View>> {
        let (mut copy, backup) = choose(device, options, sink)?;
        let Some(sb) = copy.sb.as_ref() else {
            copy.report(sink, |_| true);
            return Ok(None);
        };
        if backup {
            notes.push(Note::BackupSuperblock { offset: copy.offset });
        }
        let overlay = journal::replayed(device, sb, options, sink, notes);
        let changed = overlay.is_some();
        let replayed = overlay.unwrap_or_else(|| device.clone());
        if changed && !backup {
            // The log may have a newer superblock. If that cannot be used, the check continues with the older one.
            match Copy::read(&*replayed, copy.offset, options) {
                Ok(Some(newer)) if newer.is_sound() => copy = newer,
                Ok(Some(newer)) => newer.report(sink, is_refused),
                Ok(None) => sink.push(Finding::at(Problem::SbCorrupt, Place::Volume)),
                Err(_) => {
                    let place = Place::Blocks(BlockNr(copy.offset >> sb.block_bits));
                    sink.push(Finding::new(Problem::Unreadable, place, SUPERBLOCK_SIZE as u64, copy.offset));
                }
            }
        }
        copy.report(sink, |_| true);
        let Some(mut sb) = copy.sb else { return Ok(None) };
        let whole = device.size_bytes() >> sb.block_bits;
        let groups = whole.saturating_sub(sb.first_data_block) / u64::from(sb.blocks_per_group);
        if sb.blocks_count > BELIEVED_BLOCKS.max(whole.saturating_mul(BELIEVED_TIMES))
            || u64::from(sb.group_count) > BELIEVED_GROUPS.max(groups.saturating_mul(BELIEVED_TIMES))
        {
            // The superblock alone is no reason to allocate memory. Otherwise, blocks past the device's end are
            // reported like other unreadable ones.
            if groups == 0 {
                return Ok(None);
            }
            sb.cut_to(groups as u32);
        }
        let unchecked: Vec<&str> =
            UNCHECKED.iter().filter(|(bit, _)| sb.ro_compat().contains(*bit)).map(|(_, name)| *name).collect();
        if !unchecked.is_empty() {
            notes.push(Note::Unchecked { features: unchecked.join(", ") });
        }
        let descs = descriptors::read(&*replayed, &sb, sink)?;
        resize::check(&*replayed, &sb, &descs, sink);
        Ok(Some(View { device: replayed, sb, descs, replayed: changed }))
    }
}

/// The copy to use, and whether it is a backup. If the primary is not used, its damage is in the sink.
fn choose(device: &Arc<dyn BlockDevice>, options: &Options, sink: &mut Sink) -> Result<(Copy, bool)> {
    let name = || device.name().to_owned();
    if let Some(block) = options.superblock {
        let sizes: Vec<u64> = match options.block_size {
            Some(size) => vec![size.into()],
            None => (10..=16).map(|bits| 1 << bits).collect(),
        };
        for offset in sizes.into_iter().filter_map(|size| block.checked_mul(size)) {
            if let Some(copy) = Copy::read(&**device, offset, options)?.filter(|copy| copy.sb.is_some()) {
                return Ok((copy, offset != SUPERBLOCK_OFFSET));
            }
        }
        let why = format!("block {block} is no superblock; -b takes the number of a backup's block, -B the block size");
        return Err(Error::BadSuperblock { device: name(), why });
    }
    let primary = match Copy::read(&**device, SUPERBLOCK_OFFSET, options)? {
        Some(primary) if primary.is_sound() => return Ok((primary, false)),
        primary => primary,
    };
    match (backup(&**device, primary.as_ref().and_then(|copy| copy.sb.as_ref()), options), primary) {
        (Some(copy), primary) => {
            match primary {
                Some(primary) => primary.report(sink, is_refused),
                None => sink.push(Finding::at(Problem::SbCorrupt, Place::Volume)),
            }
            Ok((copy, true))
        }
        (None, Some(primary)) => Ok((primary, false)),
        (None, None) => Err(Error::NoSuperblock { device: name() }),
    }
}

/// The first sound backup: first at the places according to the primary, if it can be used, and then at the usual ones.
fn backup(device: &dyn BlockDevice, primary: Option<&SuperBlock>, options: &Options) -> Option<Copy> {
    // An unreadable copy does not count.
    let copy = |offset| Copy::read(device, offset, options).ok().flatten().filter(Copy::is_sound);
    let look = |offset| copy(offset)?.sb;
    let mut read = |offset: u64, into: &mut [u8]| device.read_at(offset, into, BioFlags::META).is_ok();
    let byte = |sb: &SuperBlock, group| sb.super_location(group).0.0 << sb.block_bits;
    let mut named = primary.into_iter().flat_map(|sb| sb.backup_groups().map(move |group| byte(sb, group)));
    let named = named.find(|at| look(*at).is_some_and(|sb| begins_at_zero(&sb, *at, look, &mut read)));
    let mut found = || find_backup(device.size_bytes(), look, &mut read);
    let at = named.or_else(|| found().map(|(sb, block)| block.0 << sb.block_bits))?;
    copy(at)
}
