//! Finds the inodes in use that no name refers to (e2fsck: passes 2 to 4, `check_directory` and `disconnect_inode`).
//!
//! Main function: [`run`]. It reads every inode table once, then every directory that is reachable from the root. Of
//! the remaining inodes, each directory without a name in another directory becomes an entry of `lost+found`, with the
//! tree below it. Directories that only contain each other follow, beginning with the lowest number, and then the other
//! inodes.
//!
//! The survey takes a few bits of memory for each inode in use ([`NumberSet`]), and the time to read the tables and
//! directories. All directories together cannot have more blocks than the file system, so the survey ignores any
//! further ones.
//!
//! What it does not do: show inodes without links (deleted ones), the file system's own inodes, or values of
//! attributes.
//!
//! # Locking
//! The caller holds `rescue survey`. This takes `inode`, shared, of one directory at a time.

use std::hash::BuildHasher;

use extant_base::hash::{HashSet, State};
use extant_block::{AlignedBuf, BioFlags};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{GroupNr, InodeNr};

use super::inodes::{Judged, is_plausible, judge};
use super::state::{Rescue, Survey, number_of};
use crate::dir;
use crate::dir_store::DirView;
use crate::error::{Damage, Error};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::number_set::NumberSet;

/// The number of bytes of an inode table to read at once.
const PIECE_BYTES: u32 = 256 << 10;
/// The number of names in a directory that are remembered. Duplicates among further names are not noticed.
const NAMES_MAX: usize = 1 << 20;

/// Whether all bytes are zero, as in most of a table.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_le_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

struct Work<'a> {
    fs: &'a Filesystem,
    rescue: &'a Rescue<InodeRef>,
    lost_found: Option<InodeNr>,
    /// Inodes in use that no known name refers to.
    unreached: NumberSet,
    /// Directories that have not been entered.
    directories: NumberSet,
    /// The number of further directory blocks that may be read.
    blocks_left: u64,
    /// The reason why the result may be incomplete.
    gaps: Option<Error>,
    survey: Survey,
}

/// Surveys a mount. `lost_found` is the image's own directory of this name.
pub(super) fn run(fs: &Filesystem, rescue: &Rescue<InodeRef>, lost_found: Option<InodeNr>) -> Survey {
    let (unreached, directories) = (NumberSet::new(), NumberSet::new());
    // Directories without a name are read twice.
    let blocks_left = fs.geo.blocks_count.saturating_mul(2);
    let survey = Survey::default();
    let mut work = Work { fs, rescue, lost_found, unreached, directories, blocks_left, gaps: None, survey };
    work.read_tables();
    work.unreached.remove(InodeNr::ROOT.0.into());
    if rescue.root.get().is_none() {
        work.reach_below(InodeNr::ROOT);
    }
    work.adopt_directories();
    work.adopt_rest();
    if let Some(e) = work.gaps {
        fs.note_hurt(&e);
    }
    let survey = work.survey;
    if survey.count > 0 {
        let what = if survey.count == 1 { "inode has" } else { "inodes have" };
        let detail = format!("{} {what} no name, and can be found in /lost+found", survey.count);
        fs.note_hurt(&Error::corrupt(Damage::Tree, detail));
    }
    survey
}

impl Work<'_> {
    fn note_gap(&mut self, detail: String) {
        self.gaps.get_or_insert(Error::corrupt(Damage::Tree, detail));
    }

    fn read_tables(&mut self) {
        let (fs, geo) = (self.fs, &self.fs.geo);
        let step = (PIECE_BYTES >> geo.block_bits).max(1);
        let mut buf = AlignedBuf::zeroed((step << geo.block_bits) as usize);
        for group in geo.groups() {
            let found = fs.placement.groups.with(group, |desc| {
                let unused = if desc.flags.contains(GroupFlags::INODE_UNINIT) { u32::MAX } else { desc.itable_unused };
                (desc.inode_table, geo.inodes_per_group.saturating_sub(unused))
            });
            // The inodes of a lost group cannot be read by number either, so skip them.
            let Ok((table, used)) = found else { continue };
            let blocks = match self.rescue.trusts_descriptors {
                true => used.div_ceil(geo.inodes_per_block()),
                false => geo.inode_table_blocks,
            };
            for first in (0..blocks).step_by(step as usize) {
                let count = step.min(blocks - first);
                let bytes = &mut buf[..(count << geo.block_bits) as usize];
                self.read_blocks(table.0 + u64::from(first), bytes);
                for (block, bytes) in (first..).zip(bytes.chunks(geo.block_size as usize)) {
                    if !is_zero(bytes) {
                        self.judge_block(group, block, used, bytes);
                    }
                }
            }
        }
    }

    /// Reads adjacent blocks; unreadable ones are replaced by zeros.
    fn read_blocks(&self, first: u64, bytes: &mut [u8]) {
        let read =
            |block: u64, bytes: &mut [u8]| self.fs.dev.read_at(block << self.fs.geo.block_bits, bytes, BioFlags::META);
        if read(first, bytes).is_ok() {
            return;
        }
        for (block, bytes) in (first..).zip(bytes.chunks_mut(self.fs.geo.block_size as usize)) {
            if read(block, bytes).is_err() {
                bytes.fill(0);
            }
        }
    }

    /// Examines a block of an inode table. According to the descriptor, inodes of the group from index `used` on were
    /// never used.
    fn judge_block(&mut self, group: GroupNr, block: u32, used: u32, bytes: &[u8]) {
        let (fs, geo) = (self.fs, &self.fs.geo);
        for (slot, bytes) in (0..geo.inodes_per_block()).zip(bytes.chunks_exact(geo.inode_size)) {
            let index = block * geo.inodes_per_block() + slot;
            if (self.rescue.trusts_descriptors && index >= used) || is_zero(bytes) {
                continue;
            }
            let Some(ino) = geo.inode_at(group, index) else { continue };
            let Ok(Judged { desc, is_proven, .. }) = judge(bytes, ino, fs) else { continue };
            if desc.links == 0 || fs.own_inodes.contains(ino) || desc.flags.contains(InodeFlags::EA_INODE) {
                continue;
            }
            let number = u64::from(ino.0);
            // A table may never have been zeroed, so inodes of an older file system may follow those in use.
            let may_be_old = geo.metadata_csum && !is_proven && !self.rescue.trusts_descriptors;
            let is_file = !may_be_old && (is_proven || is_plausible(&desc, fs));
            let fits = (!desc.is_dir() || self.directories.insert(number).is_some())
                && (!is_file || self.unreached.insert(number).is_some());
            if !fits {
                self.note_gap(format!("more inodes than can be remembered: whether {ino} has a name is not known"));
            }
        }
    }

    /// Calls `f` with the inode of each name in a directory.
    fn each_name(&mut self, ino: InodeNr, mut f: impl FnMut(&mut Self, InodeNr)) {
        let Ok(dir) = self.rescue.load(self.fs, ino) else { return };
        if self.blocks_left == 0 {
            self.note_gap("the directories have more blocks than the file system; some were not read".into());
            return;
        }
        let (fs, is_lost_found) = (self.fs, Some(ino) == self.lost_found);
        let _shared = dir.rw.read();
        let view = DirView::new(fs, &dir);
        // Count each name once: a lookup finds only the first of two equal names.
        let (key, mut names) = (State::default(), HashSet::default());
        let listed = dir::readdir(&view, &view.params, 0, |entry| {
            let is_new = names.len() >= NAMES_MAX || names.insert(key.hash_one(entry.name));
            if entry.name != b"." && entry.name != b".." && is_new {
                if is_lost_found && let Some(number) = number_of(entry.name).filter(|number| *number != entry.ino) {
                    self.survey.taken.insert(number.0.into());
                }
                f(self, entry.ino);
            }
            true
        });
        // A listing of the directory reports its damage.
        drop(listed);
        self.blocks_left = self.blocks_left.saturating_sub(view.scanned());
    }

    /// Removes everything below a directory from the unreached inodes.
    fn reach_below(&mut self, top: InodeNr) {
        // The directories to enter. A list of them would grow with their number, so use a set.
        let mut pending = NumberSet::new();
        self.directories.remove(top.0.into());
        pending.insert(top.0.into());
        while let Some(next) = pending.next_from(0) {
            pending.remove(next);
            self.each_name(InodeNr(next as u32), |work, ino| {
                work.unreached.remove(ino.0.into());
                if work.directories.remove(ino.0.into()) && pending.insert(ino.0.into()).is_none() {
                    work.note_gap(format!("more directories than can be remembered: {ino} was not read"));
                }
            });
        }
    }

    fn unreached_directory(&self, from: u64) -> Option<u64> {
        let mut from = from;
        loop {
            let next = self.unreached.next_from(from)?;
            if self.directories.contains(next) {
                return Some(next);
            }
            from = next + 1;
        }
    }

    fn adopt(&mut self, number: u64, is_directory: bool) {
        self.unreached.remove(number);
        if self.survey.adopted.insert(number).is_none()
            || (is_directory && self.survey.directories.insert(number).is_none())
        {
            self.note_gap("more inodes without a name than can be remembered".into());
            return;
        }
        self.survey.count += 1;
    }

    fn adopt_directories(&mut self) {
        // An inode with a name in a directory that itself has no name belongs to that directory.
        let (mut named, mut at) = (NumberSet::new(), 0);
        while let Some(dir) = self.unreached_directory(at) {
            self.each_name(InodeNr(dir as u32), |work, ino| {
                let ino = u64::from(ino.0);
                if ino != dir && work.unreached.contains(ino) && named.insert(ino).is_none() {
                    work.note_gap("more names than can be remembered".into());
                }
            });
            at = dir + 1;
        }
        for tops_only in [true, false] {
            at = 0;
            while let Some(dir) = self.unreached_directory(at) {
                if !(tops_only && named.contains(dir)) {
                    self.adopt(dir, true);
                    self.reach_below(InodeNr(dir as u32));
                }
                at = dir + 1;
            }
        }
    }

    fn adopt_rest(&mut self) {
        while let Some(number) = self.unreached.next_from(0) {
            self.adopt(number, false);
        }
        // If another kind of file is called `lost+found`, the stand-in hides it, so show that file in the stand-in.
        if self.survey.count > 0
            && self.lost_found.is_none()
            && let Ok(root) = self.fs.root()
            && let Ok(hidden) = self.fs.lookup_own(&root, super::names::NAME)
        {
            self.adopt(hidden.ino.0.into(), false);
        }
    }
}
