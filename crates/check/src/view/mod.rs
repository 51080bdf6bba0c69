//! What a check looks at: the superblock or a backup of it, the device with the journal replayed, the descriptors.
//!
//! Main type: [`View`]. [`View::open`] reports what is wrong with these; [`super_block`] has the rules of the fields,
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
use extant_ondisk::superblock::{RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, find_backup};
use zerocopy::FromBytes;

use crate::Options;
use crate::error::{Error, Result};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::{Note, Sink};

/// Features whose structures are not checked, by name.
const UNCHECKED: [(RoCompat, &str); 2] =
    [(RoCompat::VERITY, "Merkle trees (verity)"), (RoCompat::SHARED_BLOCKS, "shared blocks (shared_blocks)")];

/// File systems of so many blocks are believed in, even if the device ends before (64 MiB for their bitmaps), ...
const BELIEVED_BLOCKS: u64 = 1 << 28;
/// ... and so are larger ones of so many times the device's blocks.
const BELIEVED_TIMES: u64 = 16;

/// What is checked.
pub struct View {
    /// The device, with the journal replayed.
    pub device: Arc<dyn BlockDevice>,
    /// The superblock.
    pub sb: SuperBlock,
    /// The descriptors, by group. Bitmaps and tables whose places cannot be used are at block 0.
    pub descs: Vec<GroupDesc>,
    /// Whether the log held something to replay: then the superblock's totals are only hints.
    pub replayed: bool,
}

/// A copy of the superblock.
struct Copy {
    offset: u64,
    raw: RawSuperBlock,
    decoded: Option<SuperBlock>,
}

impl View {
    /// Chooses a superblock, replays the journal in memory and reads the descriptors. `None`: there is a superblock,
    /// but nothing can be checked with it; what is wrong is in the sink.
    pub fn open(
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        sink: &mut Sink,
        notes: &mut Vec<Note>,
    ) -> Result<Option<View>> {
        let Some((copy, backup)) = choose(device, options, sink)? else { return Ok(None) };
        let Some(sb) = copy.decoded else { return Ok(None) };
        if backup {
            notes.push(Note::BackupSuperblock { offset: copy.offset });
        }
        let before = notes.len();
        let replayed = journal::replayed(device, &sb, sink, notes);
        let changed = notes[before..].iter().any(|note| matches!(note, Note::Replayed { .. }));
        // The log may hold a newer superblock; one that cannot be used is reported, and the older one goes on.
        let mut sb = match read(&*replayed, copy.offset) {
            Ok(Some(again)) if changed && !backup => again.decoded.unwrap_or(sb),
            _ => sb,
        };
        if !super_block::layout(sb.raw(), device.size_bytes(), sink) {
            return Ok(None);
        }
        super_block::fields(sb.raw(), options.now, sink);
        let whole = device.size_bytes() >> sb.block_bits;
        if sb.blocks_count > BELIEVED_BLOCKS.max(whole.saturating_mul(BELIEVED_TIMES)) {
            // Memory is not taken on the word of the superblock alone. Otherwise, blocks behind the device's end are
            // reported like others that cannot be read.
            let groups = (whole.saturating_sub(sb.first_data_block) / u64::from(sb.blocks_per_group)) as u32;
            if groups == 0 {
                return Ok(None);
            }
            sb.cut_to(groups);
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

/// Reads the copy at this byte. `None`: there is no magic.
fn read(device: &dyn BlockDevice, offset: u64) -> Result<Option<Copy>> {
    if offset.checked_add(SUPERBLOCK_SIZE as u64).is_none_or(|end| end > device.size_bytes()) {
        return Ok(None);
    }
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(offset, &mut bytes, BioFlags::META)?;
    let Ok(raw) = RawSuperBlock::read_from_bytes(&bytes) else { return Ok(None) };
    if raw.s_magic.get() != extant_ondisk::superblock::MAGIC {
        return Ok(None);
    }
    let decoded = SuperBlock::decode_damaged(&bytes, offset).ok().map(|(sb, _)| sb);
    Ok(Some(Copy { offset, raw, decoded }))
}

/// Whether a copy is whole: its layout can be used and its checksum is right.
fn is_sound(copy: &Copy, device: &dyn BlockDevice) -> bool {
    let mut ignored = Sink::default();
    copy.decoded.is_some()
        && checksum_fits(&copy.raw)
        && super_block::layout(&copy.raw, device.size_bytes(), &mut ignored)
}

fn checksum_fits(raw: &RawSuperBlock) -> bool {
    let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
    !ro_compat.contains(RoCompat::METADATA_CSUM) || raw.s_checksum.get() == raw.compute_checksum()
}

/// The copy to use, and whether it is a backup. `None`: the primary cannot be used and no backup either.
fn choose(device: &Arc<dyn BlockDevice>, options: &Options, sink: &mut Sink) -> Result<Option<(Copy, bool)>> {
    let name = || device.name().to_owned();
    if let Some(block) = options.superblock {
        let sizes: Vec<u64> = match options.block_size {
            Some(size) => vec![size.into()],
            None => (10..=16).map(|bits| 1 << bits).collect(),
        };
        for offset in sizes.into_iter().filter_map(|size| block.checked_mul(size)) {
            if let Some(copy) = read(&**device, offset)?.filter(|copy| copy.decoded.is_some()) {
                return Ok(Some((copy, offset != SUPERBLOCK_OFFSET)));
            }
        }
        let why = format!("block {block} is no superblock; -b takes the number of a backup's block, -B the block size");
        return Err(Error::BadSuperblock { device: name(), why });
    }
    let primary = read(&**device, SUPERBLOCK_OFFSET)?;
    let mut fatal = Sink::default();
    match &primary {
        Some(copy) if super_block::layout(&copy.raw, device.size_bytes(), &mut fatal) => {
            let Some(decoded) = &copy.decoded else {
                // The layout is possible, but unknown: a newer revision or another kind of checksum.
                sink.push(Finding::at(Problem::SbCorrupt, Place::Volume));
                return Ok(backup(&**device, None)?.map(|copy| (copy, true)));
            };
            if checksum_fits(&copy.raw) {
                return Ok(primary.map(|copy| (copy, false)));
            }
            let (found, expected) = (copy.raw.s_checksum.get(), copy.raw.compute_checksum());
            sink.push(Finding::new(Problem::SbCorrupt, Place::Volume, found, expected));
            let found = backup(&**device, Some(decoded))?;
            return Ok(found.map(|copy| (copy, true)).or(primary.map(|copy| (copy, false))));
        }
        Some(_) => sink.merge(fatal),
        None => sink.push(Finding::at(Problem::SbCorrupt, Place::Volume)),
    }
    match backup(&**device, None)? {
        Some(copy) => Ok(Some((copy, true))),
        None if primary.is_some() => Ok(None),
        None => Err(Error::NoSuperblock { device: name() }),
    }
}

/// The first backup that is whole. `like`: the primary, which says where backups are.
fn backup(device: &dyn BlockDevice, like: Option<&SuperBlock>) -> Result<Option<Copy>> {
    if let Some(primary) = like {
        for group in primary.backup_groups() {
            let (block, _) = primary.super_location(group);
            // A copy that cannot be read is none.
            if let Ok(Some(copy)) = read(device, block.0 << primary.block_bits)
                && is_sound(&copy, device)
            {
                return Ok(Some(copy));
            }
        }
        return Ok(None);
    }
    // A candidate that cannot be read is none.
    let look = |offset| read(device, offset).ok().flatten().filter(|copy| is_sound(copy, device))?.decoded;
    let found = find_backup(device.size_bytes(), look);
    Ok(found.map(|(sb, block)| Copy { offset: block.0 << sb.block_bits, raw: *sb.raw(), decoded: Some(sb) }))
}
