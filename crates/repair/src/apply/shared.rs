//! Blocks that several files claim: every owner except one gets copies.
//!
//! Main type: [`Owners`] (the inode that keeps each cluster).
//!
//! # Locking
//! None.

use std::collections::HashMap;

use extant_ondisk::map::Run;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::error::{Refusal, StepResult};
use crate::view::Image;

/// The rule for blocks that several files claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Every file gets a copy. If there is no room, the same as `Winner`.
    #[default]
    Copy,
    /// The file with the better evidence keeps them, the others get holes.
    Winner,
    /// No file keeps them.
    Hole,
}

/// The inodes that keep the clusters that several inodes claim.
#[derive(Default)]
pub struct Owners {
    /// The rule that applies.
    pub sharing: Sharing,
    keeps: Option<HashMap<u64, u32>>,
}

impl Owners {
    /// Creates owners that are not decided yet.
    pub fn new(sharing: Sharing) -> Owners {
        Owners { sharing, keeps: None }
    }

    /// Forgets the owners, because a check has found others.
    pub fn forget(&mut self) {
        self.keeps = None;
    }

    /// Assigns each cluster to an owner. Blocks of maps and attributes identify themselves, so they come first, then
    /// directories, then files by their numbers. The file system's own metadata has no owner here.
    fn decide(&mut self, image: &Image) -> &HashMap<u64, u32> {
        self.keeps.get_or_insert_with(|| {
            let mut keeps = HashMap::new();
            let sharers: Vec<_> =
                image.facts.sharers().iter().filter_map(|ino| image.inode(InodeNr(*ino)).ok()).collect();
            let mut keep = |block: BlockNr, blocks: u64, ino: InodeNr| {
                for cluster in image.facts.clusters(block, blocks) {
                    if image.facts.is_shared(cluster..cluster + 1) && !is_system(image, cluster) {
                        keeps.entry(cluster).or_insert(ino.0);
                    }
                }
            };
            for inode in &sharers {
                image.map(inode).nodes.iter().for_each(|block| keep(*block, 1, inode.ino));
                inode.file_acl(image).into_iter().for_each(|block| keep(block, 1, inode.ino));
            }
            let (directories, files): (Vec<_>, Vec<_>) = sharers.iter().partition(|inode| inode.is_dir());
            for inode in directories.into_iter().chain(files) {
                image.map(inode).runs.iter().for_each(|run| keep(run.pblk, run.len.into(), inode.ino));
            }
            keeps
        })
    }
}

/// Whether the cluster belongs to the file system itself.
fn is_system(image: &Image, cluster: u64) -> bool {
    let bits = image.geo.cluster_bits;
    (cluster << bits..(cluster + 1) << bits).any(|block| image.facts.is_metadata(BlockNr(block)))
}

/// Gives an inode separate blocks for those that another owner keeps.
pub fn own(image: &mut Image, ino: InodeNr, owners: &mut Owners) -> StepResult {
    let (sharing, inode) = (owners.sharing, image.inode(ino)?);
    let mapped = image.map(&inode);
    let bits = image.geo.cluster_bits;
    let keeps = owners.decide(image);
    // The logical cluster in which each cluster was first met.
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut runs: Vec<Run> = Vec::new();
    // The logical and physical cluster of the last copy.
    let mut last: Option<(u64, u64, u64)> = None;
    let (mut changed, mut out_of_room) = (false, sharing != Sharing::Copy);
    for run in &mapped.runs {
        for step in 0..u64::from(run.len) {
            let (lblk, block) = (u64::from(run.lblk.0) + step, run.pblk.0 + step);
            let cluster = block >> bits;
            let shared = image.facts.is_shared(cluster..cluster + 1);
            let logical = lblk >> bits;
            let mine = shared && keeps.get(&cluster) == Some(&ino.0) && sharing != Sharing::Hole;
            // A second place in the same file gets a copy, too.
            let again = mine && *seen.entry(cluster).or_insert(logical) != logical;
            let place = if !shared || (mine && !again) {
                Some(block)
            } else {
                changed = true;
                copy(image, run, (logical, cluster, block), &mut last, &mut out_of_room)?
            };
            let Some(place) = place else { continue };
            match runs.last_mut() {
                Some(tail)
                    if u64::from(tail.lblk.0 + tail.len) == lblk
                        && tail.pblk.0 + u64::from(tail.len) == place
                        && tail.unwritten == run.unwritten =>
                {
                    tail.len += 1;
                }
                _ => {
                    let lblk = LogicalBlock(lblk as u32);
                    runs.push(Run { lblk, len: 1, pblk: BlockNr(place), unwritten: run.unwritten });
                }
            }
        }
    }
    let foreign = |block: &BlockNr| {
        image
            .facts
            .clusters(*block, 1)
            .any(|cluster| image.facts.is_shared(cluster..cluster + 1) && keeps.get(&cluster) != Some(&ino.0))
    };
    let nodes = mapped.nodes.iter().any(foreign);
    let attributes = inode.file_acl(image).filter(foreign);
    if changed || nodes {
        image.set_map(ino, &runs)?;
    }
    if let Some(block) = attributes {
        copy_attributes(image, ino, block)?;
    }
    Ok(())
}

/// Copies a block to a separate cluster. `None` if there is no room, or no copies are wanted.
fn copy(
    image: &mut Image,
    run: &Run,
    (logical, cluster, block): (u64, u64, u64),
    last: &mut Option<(u64, u64, u64)>,
    out_of_room: &mut bool,
) -> StepResult<Option<u64>> {
    let bits = image.geo.cluster_bits;
    let base = match *last {
        Some((of, from, base)) if (of, from) == (logical, cluster) => base,
        _ if *out_of_room => return Ok(None),
        _ => match image.take_block(run.pblk) {
            Ok(taken) => taken.0 >> bits,
            Err(Refusal::NoBlock) => {
                *out_of_room = true;
                return Ok(None);
            }
            Err(other) => return Err(other),
        },
    };
    *last = Some((logical, cluster, base));
    let place = (base << bits) + (block - (cluster << bits));
    if !run.unwritten {
        // Bytes that cannot be read are zero in the copy.
        let bytes = image.block(BlockNr(block)).unwrap_or_else(|_| vec![0; image.geo.block_size as usize]);
        image.put_block(BlockNr(place), &bytes)?;
    }
    Ok(Some(place))
}

fn copy_attributes(image: &mut Image, ino: InodeNr, block: BlockNr) -> StepResult {
    image.touch(ino);
    let bytes = image.block(block)?;
    let place = image.take_block(block)?;
    super::attributes::write_block(image, place, bytes, Some(1))?;
    image.change_inode(ino, |raw| {
        raw.i_file_acl_lo.set(place.0 as u32);
        raw.l_i_file_acl_high.set((place.0 >> 32) as u16);
    })
}
