//! Assigns new numbers in the remaining groups to the inodes of removed groups.
//!
//! Main type: [`Numbers`]. Main functions: [`Numbers::new`] (chooses them), [`carry_out`] (moves the inodes, and
//! changes everything that refers to them).
//!
//! An inode's number is in its names, in `.` and in `..` of its children, in attributes whose values it contains, and
//! in the superblock. The checksums of the inode itself, of the nodes of its extent tree, and of the blocks of a
//! directory and of the orphan file also begin with it.
//!
//! What it does not do: move blocks. Reserved inodes keep their numbers, and so does every inode of a file system whose
//! encryption depends on them (`stable_inodes`).
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};

use extant_check::InodeState;
use extant_ondisk::dirent::{HEADER_LEN, InlineDir, StoredEntry};
use extant_ondisk::extent::NodeMut;
use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::{InodeFlags, inline};
use extant_ondisk::map::Form;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::xattr::inode_area::{area_of, scan_area};
use extant_ondisk::xattr::{HEADER_LEN as XATTR_HEADER_LEN, MAGIC, XattrContext, renumber_values, seal_block};
use extant_ondisk::{GroupNr, InodeNr, bitmap};

use super::relocate::seal_orphan_file;
use super::shrink::CannotShrink;
use crate::apply::directories;
use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::dir::I_BLOCK_AT;
use crate::view::inode::Inode;

/// The number of bytes in an attribute area before its first entry.
const AREA_HEADER_LEN: usize = 4;

/// The new numbers of the inodes that get one.
pub struct Numbers(BTreeMap<u32, u32>);

impl Numbers {
    /// Chooses numbers for the inodes of the groups that `new` does not have: the lowest free ones.
    pub fn new(old: &Image, new: &Geometry) -> Result<Numbers, CannotShrink> {
        let going = (new.group_count..old.geo.group_count).map(GroupNr);
        let used = going.flat_map(|group| old.facts.inodes_of(group).collect::<Vec<_>>());
        let moving: Vec<u32> = used.filter(|(_, state)| state.has(InodeState::USED)).map(|(ino, _)| ino.0).collect();
        let Some(first) = moving.first() else { return Ok(Numbers(BTreeMap::new())) };
        if *first < old.geo.first_ino {
            return Err(CannotShrink::Fixed("a group with reserved inodes would go"));
        }
        if old.sb.compat().contains(Compat::STABLE_INODES) {
            return Err(CannotShrink::Fixed(
                "its encryption depends on the numbers of inodes (stable_inodes), and some of them would change",
            ));
        }
        let numbers: BTreeMap<u32, u32> = moving.iter().copied().zip(free(old, new)).collect();
        if numbers.len() < moving.len() {
            return Err(CannotShrink::Inodes { moving: moving.len(), there: numbers.len() });
        }
        Ok(Numbers(numbers))
    }

    /// The current number of an inode.
    pub fn of(&self, ino: InodeNr) -> InodeNr {
        InodeNr(self.get(ino.0).unwrap_or(ino.0))
    }

    /// The number of inodes that get a new number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, ino: u32) -> Option<u32> {
        self.0.get(&ino).copied()
    }
}

/// The numbers of free inodes in the remaining groups, ascending.
fn free<'a>(old: &'a Image, new: &'a Geometry) -> impl Iterator<Item = u32> + 'a {
    new.groups().flat_map(|group| {
        let (used, _) = old.facts.inode_bitmap(group);
        let first = group.0 * new.inodes_per_group + 1;
        let indexes = (0..new.inodes_per_group).filter(move |index| !bitmap::test(&used, *index));
        indexes.map(move |index| first + index).filter(|ino| *ino >= new.first_ino)
    })
}

/// Moves the inodes and changes the references to them. Blocks are still in their old places.
pub fn carry_out(old: &Image, new: &mut Image, numbers: &Numbers) -> StepResult {
    if numbers.0.is_empty() {
        return Ok(());
    }
    for (from, to) in &numbers.0 {
        move_inode(old, new, InodeNr(*from), InodeNr(*to))?;
    }
    for dir in old.facts.directories().collect::<Vec<_>>() {
        directory(old, new, dir, numbers)?;
    }
    let is_value = |from: &u32| old.facts.inode(InodeNr(*from)).has(InodeState::VALUE);
    if numbers.0.keys().any(is_value) {
        values(old, new, numbers)?;
    }
    for to in numbers.0.values() {
        reseal(old, new, InodeNr(*to))?;
    }
    new.change_super(|raw| {
        for field in [
            &mut raw.s_journal_inum,
            &mut raw.s_usr_quota_inum,
            &mut raw.s_grp_quota_inum,
            &mut raw.s_prj_quota_inum,
            &mut raw.s_lpf_ino,
            &mut raw.s_orphan_file_inum,
        ] {
            if let Some(to) = numbers.get(field.get()) {
                field.set(to);
            }
        }
    })?;
    match old.sb.orphan_file().and_then(|ino| numbers.get(ino.0)) {
        Some(to) => seal_orphan_file(&old.with(new.device.clone()), InodeNr(to)),
        None => Ok(()),
    }
}

/// Copies an inode. The unused part of the table then begins after its new place.
fn move_inode(old: &Image, new: &mut Image, from: InodeNr, to: InodeNr) -> StepResult {
    let lost = Refusal::Lost("an inode has no place in a table");
    let place = new.geo.inode_location(to).map_err(|_| lost.clone())?;
    let per_group = new.geo.inodes_per_group;
    let desc = new.descs.get_mut(place.group.0 as usize).ok_or(lost)?;
    let is_fresh = desc.flags.contains(GroupFlags::INODE_UNINIT);
    let unused = if is_fresh { per_group } else { desc.itable_unused.min(per_group) };
    desc.flags.remove(GroupFlags::INODE_UNINIT);
    desc.itable_unused = unused.min(per_group - place.index - 1);
    for index in per_group - unused..place.index {
        new.zero_inode(InodeNr(place.group.0 * per_group + index + 1))?;
    }
    let bytes = old.inode(from)?.bytes;
    new.touch(to);
    new.change_inode_bytes(to, |now| now.copy_from_slice(&bytes))
}

/// Changes the numbers in a directory, and the checksums of a directory that has moved.
fn directory(old: &Image, new: &Image, dir: InodeNr, numbers: &Numbers) -> StepResult {
    let ino = numbers.of(dir);
    let inode = new.inode(ino)?;
    if inode.has(InodeFlags::INLINE_DATA) {
        return inline_directory(new, &inode, numbers);
    }
    for (_, block) in old.map(&inode).blocks() {
        let mut bytes = old.block(block)?;
        if entries(&mut bytes, numbers) || ino != dir {
            directories::seal(new, &inode, &mut bytes)?;
            new.put_block(block, &bytes)?;
        }
    }
    Ok(())
}

/// Changes the numbers in the entries of a block, which are sound. Returns whether there were any.
fn entries(bytes: &mut [u8], numbers: &Numbers) -> bool {
    let (mut at, mut is_changed) = (0, false);
    while let Some(entry) = StoredEntry::at(bytes, at) {
        let rec_len = entry.rec_len;
        is_changed |= number(&mut bytes[at..at + 4], numbers);
        at += rec_len.max(HEADER_LEN);
    }
    is_changed
}

/// Changes one number.
fn number(bytes: &mut [u8], numbers: &Numbers) -> bool {
    let Some(now) = numbers.get(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) else { return false };
    bytes.copy_from_slice(&now.to_le_bytes());
    true
}

/// Changes the number of the parent, the entries after it, and those in the attribute with the rest.
fn inline_directory(new: &Image, inode: &Inode, numbers: &Numbers) -> StepResult {
    let mut bytes = inode.bytes.clone();
    let block = &mut bytes[I_BLOCK_AT..I_BLOCK_AT + inline::ROOM];
    let mut is_changed = number(&mut block[..InlineDir::PARENT_LEN], numbers);
    is_changed |= entries(&mut block[InlineDir::PARENT_LEN..], numbers);
    let context = XattrContext { seed: None, ea_inode: true, inodes: (1, u32::MAX) };
    let mut rest = None;
    if let Some(area) = area_of(&bytes) {
        let start = area.as_ptr().addr();
        scan_area(area, &context, &mut |step| {
            // An empty value has no place.
            if let Ok(entry) = step
                && entry.name == inline::DATA
                && !entry.value.is_empty()
            {
                let at = entry.value.as_ptr().addr() - start;
                rest = Some((bytes.len() - area.len() + at, entry.value.len()));
            }
        });
    }
    if let Some((at, len)) = rest {
        is_changed |= entries(&mut bytes[at..at + len], numbers);
    }
    if is_changed {
        new.change_inode_bytes(inode.ino, |now| now.copy_from_slice(&bytes))?;
    }
    Ok(())
}

/// Changes the numbers of inodes that contain values, in all attributes.
fn values(old: &Image, new: &Image, numbers: &Numbers) -> StepResult {
    let seed = new.geo.metadata_csum.then(|| new.geo.seed.raw());
    let mut shared = BTreeSet::new();
    for group in old.geo.groups() {
        let used = old.facts.inodes_of(group).filter(|(_, state)| state.has(InodeState::USED));
        for ino in used.map(|(ino, _)| numbers.of(ino)).collect::<Vec<_>>() {
            let mut inode = new.inode(ino)?;
            let area = area_of(&inode.bytes).map(|area| inode.bytes.len() - area.len() + AREA_HEADER_LEN);
            if let Some(area) = area
                && renumber_values(&mut inode.bytes[area..], |value| numbers.get(value))
            {
                new.change_inode_bytes(ino, |now| now.copy_from_slice(&inode.bytes))?;
            }
            let Some(block) = inode.file_acl(old).filter(|block| shared.insert(block.0)) else { continue };
            let mut bytes = old.block(block)?;
            let has_entries = bytes.starts_with(&MAGIC.to_le_bytes());
            if has_entries && renumber_values(&mut bytes[XATTR_HEADER_LEN..], |value| numbers.get(value)) {
                seal_block(&mut bytes, block, seed);
                new.put_block(block, &bytes)?;
            }
        }
    }
    Ok(())
}

/// Updates the checksums of the nodes of an inode's extent tree.
fn reseal(old: &Image, new: &Image, ino: InodeNr) -> StepResult {
    let inode = new.inode(ino)?;
    let Some(seed) = new.seed(ino, inode.generation()) else { return Ok(()) };
    if !inode.has_map(new) || inode.form(new) != Form::Extents {
        return Ok(());
    }
    for block in &old.map(&inode).nodes {
        let mut bytes = old.block(*block)?;
        let lost = |_| Refusal::Lost("a block of a map is no node");
        NodeMut::parse(&mut bytes, block.0).map_err(lost)?.seal(Some(seed.raw()));
        new.put_block(*block, &bytes)?;
    }
    Ok(())
}
