//! Finds superblocks and their backups while the layout is unknown.
//!
//! Main functions: [`find`] returns the primary superblock or a backup; [`find_backup`] tries the usual places
//! ([`backup_candidates`]); [`backup_at`] decides whether a layout has a backup at a byte; [`find_start`] returns where
//! a file system with a copy at a byte may begin; [`vote`] returns the starts on which several copies agree.
//!
//! Each copy contains the number of its group. If this is not the number of the group at its place, the copy belongs to
//! a file system that begins elsewhere. The number 0 means the primary superblock, but kernels before 5.18 wrote 0 into
//! all copies when they resized. Such a copy counts as a backup if most copies of the file system agree on its start.
//!
//! What it does not do: read. The caller passes functions that read, and that judge a copy at a byte. So a mount, the
//! checker and a device opener may accept different copies, but they look in the same places.
//!
//! # Locking
//! None.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Geometry, SUPERBLOCK_OFFSET, SuperBlock, backup_candidates};
use crate::group_desc::GroupDesc;
use crate::inode::{FileType, InodeDesc};
use crate::{BlockNr, GroupNr, InodeNr};

/// Fills a buffer with the bytes at this offset. Returns false if they cannot be read.
pub type Read<'a> = dyn FnMut(u64, &mut [u8]) -> bool + 'a;

/// The block of the backup superblock at this byte offset, if the layout has one there.
pub fn backup_at(geo: &Geometry, byte: u64) -> Option<BlockNr> {
    let block = BlockNr(byte >> geo.block_bits);
    let (group, at) = geo.group_of_block(block)?;
    let is_backup = byte.is_multiple_of(geo.block_size.into()) && at == 0 && geo.has_super_backup(group);
    (is_backup && group.0 > 0).then_some(block)
}

/// Returns the superblock of a device of `device_bytes`: the primary superblock, or the first backup with its block and
/// the fault of the primary. `look` reads and checks the copy at a byte, `fits` checks a backup, and `read` only reads.
/// `is_lost` decides from the error of the primary whether a backup may replace it.
///
/// # Errors
/// The fault of the primary superblock, if no backup may replace it or there is no backup.
#[allow(clippy::type_complexity)]
pub fn find<E>(
    device_bytes: u64,
    mut look: impl FnMut(u64) -> Result<SuperBlock, E>,
    read: &mut Read<'_>,
    fits: impl Fn(&SuperBlock) -> bool,
    is_lost: impl FnOnce(&E) -> bool,
) -> Result<(SuperBlock, Option<(BlockNr, E)>), E> {
    let primary = match look(SUPERBLOCK_OFFSET) {
        Ok(sb) => return Ok((sb, None)),
        Err(e) if !is_lost(&e) => return Err(e),
        Err(e) => e,
    };
    match find_backup(device_bytes, |byte| look(byte).ok().filter(&fits), read) {
        Some((sb, block)) => Ok((sb, Some((block, primary)))),
        None => Err(primary),
    }
}

/// Returns the first backup on a device of `device_bytes`, and its block. `look` reads the copy at a byte, and returns
/// `None` if it rejects the copy. A copy that belongs to a file system with another start, or to a file, is not
/// accepted.
pub fn find_backup(
    device_bytes: u64,
    mut look: impl FnMut(u64) -> Option<SuperBlock>,
    read: &mut Read<'_>,
) -> Option<(SuperBlock, BlockNr)> {
    backup_candidates(device_bytes).find_map(|(byte, block_size)| {
        let sb = look(byte).filter(|sb| sb.block_size == block_size)?;
        let block = backup_at(&sb, byte).filter(|_| begins_at_zero(&sb, byte, &mut look, read))?;
        Some((sb, block))
    })
}

/// The number of copies that are examined for each possible start, including the primary.
const WITNESSES: usize = 6;

/// Whether the file system of the copy `sb` at `byte` begins at byte 0.
pub fn begins_at_zero(
    sb: &SuperBlock,
    byte: u64,
    mut look: impl FnMut(u64) -> Option<SuperBlock>,
    read: &mut Read<'_>,
) -> bool {
    match find_start(sb, byte).find(|start| start.start == 0) {
        None => return false,
        Some(start) if !start.guessed => return true,
        Some(_) => {}
    }
    let places = |start: Start| {
        let byte = |group| sb.super_location(group).0.0 * u64::from(sb.block_size) + sb.super_location(group).1 as u64;
        let groups = [GroupNr(0)].into_iter().chain(sb.backup_groups());
        groups.take(WITNESSES).filter_map(move |group| start.start.checked_add(byte(group)))
    };
    let mut copies: BTreeMap<u64, Option<SuperBlock>> = BTreeMap::new();
    for place in find_start(sb, byte).flat_map(places) {
        let same = |other: &SuperBlock| other.uuid() == sb.uuid() && other.block_size == sb.block_size;
        copies.entry(place).or_insert_with(|| look(place).filter(same));
    }
    copies.insert(byte, Some(sb.clone()));
    let copies: Vec<_> = copies.iter().filter_map(|(byte, copy)| Some((*byte, copy.as_ref()?))).collect();
    let ballots = vote(copies.iter().copied());
    let most = ballots.first().map_or(0, |ballot| ballot.votes.len());
    let likely = || ballots.iter().take_while(|ballot| ballot.votes.len() == most);
    let mut rooted = likely().filter(|ballot| {
        ballot.votes.iter().any(|(index, vote)| has_root(copies[*index].1, copies[*index].0, *vote, read))
    });
    rooted.next().or(likely().next()).is_some_and(|ballot| ballot.start == 0)
}

/// Whether the root directory is at its place, according to the descriptors after the copy `sb` at `byte`.
fn has_root(sb: &SuperBlock, byte: u64, start: Start, read: &mut Read<'_>) -> bool {
    const ROOT: InodeNr = InodeNr(2);
    let root = |read: &mut Read<'_>| {
        let mut desc = vec![0; sb.desc_size];
        let behind = byte - sb.super_location(start.group).1 as u64 + u64::from(sb.block_size);
        let described = sb.desc_blocks_behind(start.group).next() == Some(0) && read(behind, &mut desc);
        let desc = described.then(|| GroupDesc::parse(&desc, GroupNr(0), sb).ok())??;
        let mut inode = vec![0; sb.inode_size];
        let at = desc.inode_table.0.checked_mul(sb.block_size.into())?.checked_add(sb.inode_size as u64)?;
        let at = at.checked_add(start.start)?;
        let inode = read(at, &mut inode).then(|| InodeDesc::decode(&inode, ROOT, sb).ok())??;
        inode.file_type()
    };
    root(read) == Some(FileType::Directory)
}

/// Copies that agree on a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// Where the file system begins.
    pub start: u64,
    /// The indexes of the copies, in the order in which they were given, and their groups.
    pub votes: Vec<(usize, Start)>,
}

impl Ballot {
    /// The number of copies that contain their own group number.
    pub fn named(&self) -> usize {
        self.votes.iter().filter(|(_, vote)| !vote.guessed).count()
    }
}

/// The possible starts of the file system with these copies of its superblock (byte and copy). The start with the most
/// votes comes first, then the one with the most copies that contain their own group number.
pub fn vote<'a>(copies: impl Iterator<Item = (u64, &'a SuperBlock)>) -> Vec<Ballot> {
    let mut votes: BTreeMap<u64, Vec<(usize, Start)>> = BTreeMap::new();
    for (index, (byte, sb)) in copies.enumerate() {
        for vote in find_start(sb, byte) {
            votes.entry(vote.start).or_default().push((index, vote));
        }
    }
    let mut ballots: Vec<_> = votes.into_iter().map(|(start, votes)| Ballot { start, votes }).collect();
    ballots.sort_by_cached_key(|ballot| (Reverse((ballot.votes.len(), ballot.named())), ballot.start));
    ballots
}

/// The number of groups that are tried for a copy that does not contain its own group number.
const GUESSES_MAX: usize = 40;
/// The last group that is tried.
const GUESSED_GROUP_MAX: u32 = 8192;
/// `s_block_group_nr` has 16 bits.
const GROUP_NUMBERS: usize = 1 << 16;
/// The number that mke2fs writes for all groups with a larger number.
const GROUP_NUMBER_MAX: u32 = u16::MAX as u32;
/// The number of groups with the same stored number that are tried.
const SAME_NUMBER_MAX: usize = 64;

/// Where a file system may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The first byte, which is at the beginning of a sector.
    pub start: u64,
    /// The group that the copy belongs to with this start.
    pub group: GroupNr,
    /// The copy does not contain its group number: kernels before 5.18 wrote 0 into all copies when they resized.
    pub guessed: bool,
}

/// The possible starts of the file system that has the copy `sb` of its superblock at `byte`, the likeliest first.
pub fn find_start(sb: &SuperBlock, byte: u64) -> impl Iterator<Item = Start> + '_ {
    let number = u32::from(sb.raw().s_block_group_nr.get());
    let named = (number..sb.group_count).step_by(GROUP_NUMBERS).take(SAME_NUMBER_MAX).map(GroupNr);
    let named = named.filter(|group| sb.has_super_backup(*group));
    let last = if number == GROUP_NUMBER_MAX { usize::MAX } else { 0 };
    let large = sb.backup_groups().take(last).filter(|group| group.0 > GROUP_NUMBER_MAX).take(SAME_NUMBER_MAX);
    let named = named.chain(large).filter(move |group| number > 0 || group.0 == 0).map(|group| (group, false));
    let last = if number == 0 { sb.group_count.min(GUESSED_GROUP_MAX) } else { 0 };
    let guessed = (1..last).map(GroupNr).filter(|group| sb.has_super_backup(*group));
    let guessed = guessed.take(GUESSES_MAX).map(|group| (group, true));
    named.chain(guessed).filter_map(move |(group, guessed)| {
        let (block, offset) = sb.super_location(group);
        let start = byte.checked_sub(block.0.checked_mul(sb.block_size.into())?.checked_add(offset as u64)?)?;
        start.is_multiple_of(512).then_some(Start { start, group, guessed })
    })
}
