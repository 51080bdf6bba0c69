//! Older copies of damaged blocks in the log, which still contains them after everything in it is home.
//!
//! Main functions: [`choose`] (the copies that leave fewer findings), [`take`] (puts one in its place). Main type:
//! [`LoggedBlock`].
//!
//! A copy may be older than the damaged block, so it is used only if the check then finds less damage. Of a table, only
//! damaged inodes are taken, because their neighbours may be newer than the copy.
//!
//! What it does not do: compare losses. The proof does, because it knows the losses of a repair without copies.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::CowDevice;
use extant_check::{Finding, Problem as P, Report, Severity, examine};
use extant_ondisk::inode::{FileType, RawInode};
use extant_ondisk::map::{Form, Run};
use extant_ondisk::{BlockNr, InodeNr, extent};
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::{JournalFile, JournalMap, Newest};
use zerocopy::FromZeros;

use super::damage;
use crate::error::{Refusal, Result, StepResult};
use crate::prove::Options;
use crate::view::Image;
use crate::view::inode::Inode;
use crate::view::map::Mapped;

/// The maximum number of copies that are tried, each of which requires reading the log.
const CANDIDATES_MAX: usize = 4096;
/// The maximum number of copies that are tried one by one, each with a check.
const SINGLE_MAX: usize = 16;
/// The number of times that copies are searched, because one that is put back may show more damage below it.
const PASSES_MAX: usize = 4;
/// The maximum number of blocks of a map that become candidates because of one finding about the inode.
const NODES_MAX: usize = 64;

/// A block of the log that is used, or an inode in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoggedBlock {
    /// The block of which it is a copy.
    pub block: BlockNr,
    /// The inode in it that is used; `None` for the whole block.
    pub ino: Option<InodeNr>,
}

/// The log of a file system; `None` if there is none or it cannot be read.
pub fn history(image: &Image) -> Option<Newest> {
    let shared: Arc<dyn BlockDevice> = image.device.clone();
    let open = || open_journal(shared.clone(), &read_super(&*shared).ok()?).ok()?;
    // The superblock has a copy of the journal's map.
    let journal = open().or_else(|| {
        let runs = stored_map(image)?;
        let map = JournalMap::from_runs(runs.iter().map(|run| (run.pblk, run.len))).ok()?;
        JournalFile::open(shared.clone(), image.geo.block_size, map).ok()
    })?;
    Newest::load(journal, &*shared).ok()
}

/// The blocks of the journal, according to the copy of its map in the superblock.
fn stored_map(image: &Image) -> Option<Vec<Run>> {
    let (i_block, _) = crate::apply::journal::stored_map(image)?;
    let mut raw = RawInode::new_zeroed();
    raw.i_mode.set(FileType::Regular.mode_bits());
    raw.i_block = i_block;
    let is_tree = i_block.starts_with(&extent::MAGIC.to_le_bytes());
    let form = if is_tree { Form::Extents } else { Form::Indirect };
    let inode = Inode { ino: InodeNr::JOURNAL, bytes: Vec::new(), raw };
    let runs = image.map_as(&inode, form).runs;
    let mut end = 0;
    let is_whole = runs.iter().all(|run| {
        let follows = run.lblk.0 == end;
        end = run.lblk.0 + run.len;
        follows
    });
    (is_whole && !runs.is_empty()).then_some(runs)
}

/// Puts a copy in its place.
pub fn take(image: &mut Image, history: &Newest, one: LoggedBlock) -> StepResult {
    let lost = Refusal::Lost("the log has no copy of it");
    let copy = history.read(one.block).ok().flatten().ok_or(lost.clone())?;
    let Some(ino) = one.ino else { return image.put_block(one.block, &copy) };
    let (at, len) = (image.inode_at(ino).ok_or(lost.clone())?, image.geo.inode_size);
    let inside = (at - (one.block.0 << image.geo.block_bits)) as usize;
    image.touch(ino);
    image.write(at, copy.get(inside..inside + len).ok_or(lost)?)
}

/// Candidates: damaged structures whose copies in the log differ from them.
struct Candidates<'a> {
    image: &'a Image,
    history: &'a Newest,
    found: BTreeSet<LoggedBlock>,
    /// The map of the last directory, because findings about one directory follow each other.
    last: Option<(InodeNr, Mapped)>,
    /// Inodes whose maps have been examined.
    seen: BTreeSet<u32>,
}

impl Candidates<'_> {
    /// Adds a block.
    fn block(&mut self, block: BlockNr) {
        if self.found.len() >= CANDIDATES_MAX || !self.image.can_have(block, 1) || self.image.is_unreadable(block, 1) {
            return;
        }
        let one = LoggedBlock { block, ino: None };
        let copy = self.history.read(block).ok().flatten();
        let other = |copy: &Vec<u8>| self.image.block(block).is_ok_and(|now| now != *copy);
        if copy.as_ref().is_some_and(other) {
            self.found.insert(one);
        }
    }

    /// Adds an inode.
    fn inode(&mut self, ino: InodeNr) {
        let Some(at) = self.image.inode_at(ino).filter(|_| self.found.len() < CANDIDATES_MAX) else { return };
        let block = BlockNr(at >> self.image.geo.block_bits);
        let one = LoggedBlock { block, ino: Some(ino) };
        if self.found.contains(&one) || self.image.is_unreadable(block, 1) {
            return;
        }
        let Some(copy) = self.history.read(block).ok().flatten() else { return };
        let inside = (at - (block.0 << self.image.geo.block_bits)) as usize;
        let Some(then) = copy.get(inside..inside + self.image.geo.inode_size) else { return };
        // An inode that was free then gives no information.
        if then.iter().any(|byte| *byte != 0) && self.image.inode(ino).is_ok_and(|now| now.bytes != then) {
            self.found.insert(one);
        }
    }

    /// Adds the structures in a finding.
    fn direct(&mut self, finding: &Finding) {
        use extant_check::Place;
        match finding.place {
            Place::Group(group) if finding.problem.code() < 0x02_0000 => {
                let desc = self.image.geo.group_desc_block(group);
                desc.into_iter().for_each(|(block, _)| self.block(block));
            }
            Place::Node { ino, node, block, .. } => {
                if node.0 == 0 {
                    self.inode(ino)
                } else {
                    self.block(node)
                }
                // The node may be right, and the block to which it refers wrong.
                self.block(block);
            }
            Place::Attributes { ino, block } => {
                self.block(block);
                self.inode(ino);
            }
            Place::Entry { dir, lblk, ino, .. } => {
                self.directory(dir, lblk.into());
                self.inode(ino);
            }
            Place::Mapped { ino, lblk, .. } => {
                self.directory(ino, lblk);
                self.inode(ino);
            }
            Place::Inode(ino) => {
                // This is one finding for a run of inodes.
                let count = if finding.problem == P::InodeUnused { finding.found.clamp(1, 64) as u32 } else { 1 };
                (ino.0..ino.0.saturating_add(count)).for_each(|ino| self.inode(InodeNr(ino)));
            }
            _ => {}
        }
    }

    /// Adds a block of a directory.
    fn directory(&mut self, dir: InodeNr, lblk: u64) {
        if self.last.as_ref().is_none_or(|(known, _)| *known != dir) {
            let inode = self.image.inode(dir).ok().filter(|inode| inode.is_dir());
            self.last = Some((dir, inode.map(|inode| self.image.map(&inode)).unwrap_or_default()));
        }
        let place = self.last.as_ref().and_then(|(_, mapped)| mapped.place(lblk));
        place.into_iter().for_each(|block| self.block(block));
    }

    /// Adds the possible causes of a finding about an inode: the blocks of its map, and the first block of a directory
    /// or symlink.
    fn related(&mut self, finding: &Finding) {
        let fresh = finding.place.ino().filter(|ino| self.seen.insert(ino.0));
        let Some(inode) = fresh.and_then(|ino| self.image.inode(ino).ok()) else { return };
        let mapped = self.image.map(&inode);
        mapped.nodes.iter().take(NODES_MAX).for_each(|node| self.block(*node));
        if inode.is_dir() || inode.is_symlink() {
            mapped.place(0).into_iter().for_each(|block| self.block(block));
        }
        inode.file_acl(self.image).into_iter().for_each(|block| self.block(block));
    }
}

/// The candidates for a report: the structures in its findings, and those that may be the cause of them.
fn candidates(image: &Image, report: &Report, history: &Newest) -> [BTreeSet<LoggedBlock>; 2] {
    let is_damage = |finding: &&Finding| finding.problem.severity() == Severity::Damage;
    let mut all = Candidates { image, history, found: BTreeSet::new(), last: None, seen: BTreeSet::new() };
    report.findings.iter().filter(is_damage).for_each(|finding| all.direct(finding));
    let direct = std::mem::take(&mut all.found);
    report.findings.iter().filter(is_damage).take(CANDIDATES_MAX).for_each(|finding| all.related(finding));
    let related = all.found.difference(&direct).copied().collect();
    [direct, related]
}

/// A state with copies in it, and its check.
struct Trial {
    device: Arc<CowDevice>,
    damage: u64,
    checked: Option<(Image, Report)>,
}

/// Puts copies in their places in an overlay over `device`, and checks the result.
fn tried<'a>(
    device: &Arc<CowDevice>,
    image: &Image,
    history: &Newest,
    copies: impl Iterator<Item = &'a LoggedBlock>,
    options: &Options,
) -> Result<Trial> {
    let over = Arc::new(options.layers.over(device.clone()));
    let mut changed = image.with(over.clone());
    for one in copies {
        // A copy that cannot be used changes nothing.
        let _ = take(&mut changed, history, *one);
    }
    let shared: Arc<dyn BlockDevice> = over.clone();
    let checked = examine(&shared, &options.check)?;
    let damage = damage(&checked.report);
    Ok(Trial { device: over.clone(), damage, checked: Image::new(over, checked, options.now) })
}

/// The copies with which the check of `image` finds less: all structures in findings at once, if nothing is wrong then,
/// and otherwise each copy that makes a difference.
///
/// # Errors
/// Those of the devices.
pub fn choose(image: &Image, report: &Report, history: &Newest, options: &Options) -> Result<BTreeSet<LoggedBlock>> {
    let mut chosen = BTreeSet::new();
    let mut now = Trial { device: image.device.clone(), damage: damage(report), checked: None };
    for _ in 0..PASSES_MAX {
        let (current, report) = now.checked.as_ref().map_or((image, report), |(image, report)| (image, report));
        let [direct, related] = candidates(current, report, history);
        let fresh = |of: BTreeSet<LoggedBlock>| of.into_iter().filter(|one| !chosen.contains(one)).collect::<Vec<_>>();
        let (direct, related) = (fresh(direct), fresh(related));
        let together = match direct.is_empty() {
            true => None,
            false => Some(tried(&now.device, current, history, direct.iter(), options)?),
        };
        let few = direct.len() + related.len() <= SINGLE_MAX;
        let better = match together.filter(|trial| trial.damage < now.damage) {
            Some(trial) if trial.damage == 0 || !few => Some((trial, direct)),
            _ if few => one_by_one(&now, current, history, direct.iter().chain(&related), options)?,
            other => other.map(|trial| (trial, direct)),
        };
        let Some((trial, taken)) = better else { break };
        chosen.extend(taken);
        now = trial;
        if now.damage == 0 {
            break;
        }
    }
    Ok(chosen)
}

/// Uses each copy that leaves fewer findings than those before it.
fn one_by_one<'a>(
    now: &Trial,
    image: &Image,
    history: &Newest,
    copies: impl Iterator<Item = &'a LoggedBlock>,
    options: &Options,
) -> Result<Option<(Trial, Vec<LoggedBlock>)>> {
    let mut best: Option<(Trial, Vec<LoggedBlock>)> = None;
    for one in copies {
        let (device, least) =
            best.as_ref().map_or((&now.device, now.damage), |(trial, _)| (&trial.device, trial.damage));
        if least == 0 {
            break;
        }
        let trial = tried(device, image, history, [one].into_iter(), options)?;
        if trial.damage < least {
            let mut taken = best.take().map_or_else(Vec::new, |(_, taken)| taken);
            taken.push(*one);
            best = Some((trial, taken));
        }
    }
    Ok(best)
}
