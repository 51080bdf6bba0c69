//! Inodes under rescue. A damaged inode is used if its fields are consistent with each other.
//!
//! Main functions: `Rescue::iget` and `Rescue::load`, which replace those of `iget.rs`; [`judge`], which the survey
//! uses as well.
//!
//! What it does not do: guess fields. Flags that contradict `i_block` are the exception, because the bytes of `i_block`
//! show its kind.
//!
//! # Locking
//! As in `iget.rs`.

use extant_ondisk::damage::Damage as _;
use extant_ondisk::extent::{self, NodeContext};
use extant_ondisk::inode::{FAST_SYMLINK_LIMIT, FileType, InodeDamage, InodeDesc, InodeFlags};
use extant_ondisk::map::{self, Form, StepItem};
use extant_ondisk::{InodeNr, LogicalBlock};

use super::state::Rescue;
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::{MapRoot, MapState};

/// An inode that can be used, perhaps in spite of damage.
pub(super) struct Judged {
    pub desc: InodeDesc,
    /// Whether the checksum is right; always false without `metadata_csum`.
    pub is_proven: bool,
    /// Whether the size field may be right.
    pub has_size: bool,
    /// The damage that was tolerated.
    pub doubt: Option<Error>,
}

impl Rescue<InodeRef> {
    /// The inode that a name refers to.
    pub fn iget(&self, fs: &Filesystem, ino: InodeNr) -> Result<InodeRef> {
        if let Some(stand_in) = self.stand_in(ino) {
            return Ok(stand_in.clone());
        }
        if fs.own_inodes.is_reserved(ino) {
            return Err(Error::Stale(ino));
        }
        self.load(fs, ino)
    }

    /// Any inode, including deleted ones.
    pub fn load(&self, fs: &Filesystem, ino: InodeNr) -> Result<InodeRef> {
        if let Some(found) = self.stand_in(ino).cloned().or_else(|| fs.inodes.find(ino)) {
            return Ok(found);
        }
        let (buffer, offset) = fs.inode_slot(ino)?;
        let judged = buffer.read(|b| judge(&b[offset..offset + fs.geo.inode_size], ino, fs))?;
        let Judged { desc, has_size, doubt, .. } = judged;
        let inode = fs.adopt_inode(ino, desc)?;
        if !has_size {
            // The mapped blocks determine the size.
            let end = mapped_end(fs, &inode).min(inode.size());
            inode.set_size(end);
            inode.meta.write().desc.size = end;
        }
        if let Some(doubt) = doubt {
            fs.doubt(&inode, doubt);
        }
        Ok(inode)
    }
}

impl Inode {
    /// The damage in spite of which a rescue uses the inode, so that its content may be wrong. For a directory, this
    /// includes the damage that its listings have found.
    pub fn known_damage(&self) -> Option<&Error> {
        self.doubt.get().map(|e| &**e).or_else(|| self.listings.damage())
    }
}

/// Creates a directory that the image lacks, for a rescue. It has no blocks and is never written.
pub(super) fn make_stand_in(fs: &Filesystem, ino: InodeNr, permissions: u16) -> InodeRef {
    let mut desc = InodeDesc::new(FileType::Directory.mode_bits() | permissions, &fs.geo);
    // It has no attributes, because those in the table belong to another inode.
    (desc.links, desc.extra_isize, desc.crtime) = (2, 0, None);
    let map = MapRoot::empty(ino, false, None);
    let tid = fs.journal.running_tid().0;
    Inode::new(fs, &fs.inodes, ino, desc, map, fs.es.attach(ino), tid).reference()
}

/// Decides whether the inode in these bytes is used.
///
/// # Errors
/// [`Error::Corrupt`] if it is not used, because nothing is left of it or its fields are inconsistent. A regular file
/// with inconsistent fields is used nevertheless, because a name may refer to it and its map may have intact parts.
pub(super) fn judge(bytes: &[u8], ino: InodeNr, fs: &Filesystem) -> Result<Judged> {
    let refused = |detail: String| Err(Error::corrupt(Damage::Inode, detail).of(ino));
    let mut desc = InodeDesc::parse(bytes, ino, &fs.geo)?;
    if desc.file_type().is_none() {
        return refused("never used, or nothing is left of it".into());
    }
    let (mut checksum, mut other) = (None, None);
    desc.damage(bytes, ino, &fs.geo, &mut |damage: InodeDamage| match damage {
        InodeDamage::Checksum { .. } => checksum = Some(damage),
        damage if damage.is_fatal() => other = other.or(Some(damage)),
        _ => {}
    });
    let mended = mend_flags(&mut desc, fs);
    let is_senseless = checksum.is_some() && !is_plausible(&desc, fs);
    if let Some(damage) = checksum.filter(|_| is_senseless && !desc.is_regular()) {
        return refused(format!("{damage}, and its fields contradict each other"));
    }
    let limit = fs.size_limit(desc.has_extents());
    let has_size = !desc.is_regular() || desc.flags.contains(InodeFlags::INLINE_DATA) || desc.size <= limit;
    let doubt = match (checksum.or(other), desc.links) {
        (Some(damage), _) => Some(format!("{damage}; used nevertheless")),
        (None, _) if !has_size => Some(format!("a file of {} bytes, more than its map can hold ({limit})", desc.size)),
        (None, 0) => Some("deleted: what is left of it may belong to other files by now".into()),
        (None, _) => {
            mended.then(|| "its flags contradict its content or the file system's features; used without them".into())
        }
    };
    let doubt = doubt.map(|detail| Error::corrupt(Damage::Inode, detail).of(ino));
    let is_proven = fs.geo.metadata_csum && checksum.is_none();
    Ok(Judged { desc, is_proven, has_size: has_size && !is_senseless, doubt })
}

/// The numbers of intact and of damaged entries in the root of a map.
fn count_entries(desc: &InodeDesc, fs: &Filesystem) -> (usize, usize) {
    let form = if desc.has_extents() { Form::Extents } else { Form::Indirect };
    let valid = |start, len: u32| fs.placement.may_be_owned(start, len.into());
    let context = NodeContext { seed: None, is_dir: desc.is_dir(), cluster_bits: 0, valid };
    let (mut sound, mut damaged) = (0, 0);
    map::root(form, &desc.i_block, fs.geo.block_size, &context, &mut |found| match found {
        StepItem::Damage(damage) => damaged += usize::from(damage.is_fatal()),
        // Adjacent pointers are reported as one run.
        StepItem::Run(run) if form == Form::Indirect => sound += run.len as usize,
        StepItem::Run(_) | StepItem::Child(_) => sound += 1,
    });
    (sound, damaged)
}

/// Sets the flags that describe the content according to its bytes, and clears the flags of features that the file
/// system does not have (e2fsck: `PR_1_EXTENT_FEATURE` and its neighbours). Returns whether the flags were wrong.
fn mend_flags(desc: &mut InodeDesc, fs: &Filesystem) -> bool {
    let before = desc.flags;
    if fs.rescue.as_ref().is_some_and(|rescue| !rescue.encrypts) {
        desc.flags.remove(InodeFlags::ENCRYPT);
    }
    if !fs.geo.ea_inode {
        desc.flags.remove(InodeFlags::EA_INODE);
    }
    if desc.has_map(&fs.geo) {
        mend_map_flags(desc, fs);
    }
    desc.flags != before
}

fn mend_map_flags(desc: &mut InodeDesc, fs: &Filesystem) {
    let has_tree = fs.geo.extents && extent::NodeRef::sound(&desc.i_block).is_some();
    if desc.flags.contains(InodeFlags::INLINE_DATA) && (!fs.inline_data || (desc.has_extents() && has_tree)) {
        desc.flags.remove(InodeFlags::INLINE_DATA);
    }
    if !desc.flags.contains(InodeFlags::INLINE_DATA) {
        if has_tree {
            desc.flags.insert(InodeFlags::EXTENTS);
        } else if desc.has_extents() {
            let pointers = InodeDesc { flags: desc.flags - InodeFlags::EXTENTS, ..desc.clone() };
            if matches!(count_entries(&pointers, fs), (1.., 0)) {
                *desc = pointers;
            }
        }
    } else {
        desc.flags.remove(InodeFlags::EXTENTS);
    }
}

/// Whether the fields of an inode may belong to a file in use. Random bytes fail this test. If the map shows that they
/// do, a wrong size or count does not matter.
pub(super) fn is_plausible(desc: &InodeDesc, fs: &Filesystem) -> bool {
    let inline = desc.flags.contains(InodeFlags::INLINE_DATA);
    let sectors = fs.geo.blocks_count << (fs.geo.block_bits - 9);
    let has_content = |size_max: u64| match count_entries(desc, fs) {
        _ if inline => desc.size <= size_max,
        (sound, damaged) if desc.has_extents() => {
            damaged <= sound && extent::NodeRef::sound(&desc.i_block).is_some_and(|node| !node.is_empty())
                || (damaged == 0 && desc.size <= size_max)
        }
        (1.., 0) => true,
        (sound, damaged) => damaged <= sound && desc.size <= size_max && desc.blocks <= sectors,
    };
    match desc.file_type() {
        Some(FileType::Regular) => has_content(fs.size_limit(desc.has_extents())),
        Some(FileType::Directory) => has_content(fs.geo.blocks_count << fs.geo.block_bits),
        Some(FileType::Symlink) if desc.size < FAST_SYMLINK_LIMIT && !desc.has_extents() && !inline => {
            let end = desc.i_block.iter().position(|byte| *byte == 0).unwrap_or(desc.i_block.len());
            desc.size > 0 && (end as u64 == desc.size || has_content(FAST_SYMLINK_LIMIT))
        }
        Some(FileType::Symlink) => desc.size <= fs.geo.block_size.into() && has_content(fs.geo.block_size.into()),
        Some(_) => desc.size == 0 && !desc.has_extents() && !inline && desc.blocks <= sectors,
        None => false,
    }
}

/// One past the last byte of the last mapped block.
fn mapped_end(fs: &Filesystem, inode: &InodeRef) -> u64 {
    let view = fs.map_view(inode);
    let map = inode.map.read();
    let last = map.logical_end(fs.geo.block_size);
    let (mut at, mut end, mut left) = (0, 0, fs.geo.blocks_count);
    while at < last && left > 0 {
        let len = match map.salvage(&view, LogicalBlock(at), last - at) {
            Ok(found) => {
                if found.state != MapState::Hole {
                    end = u64::from(at) + u64::from(found.len);
                    left = left.saturating_sub(found.len.into());
                }
                found.len
            }
            Err(lost) => {
                left -= 1;
                (lost.end.saturating_sub(at.into())).clamp(1, u64::from(last - at)) as u32
            }
        };
        at = at.saturating_add(len);
    }
    end << fs.geo.block_bits
}
