//! [`Disk`]: an invented disk, for models of the block allocator. The bitmap of each group follows from its number.
//!
//! States (parameter `state`):
//!
//! | state | what |
//! |---|---|
//! | `fragmented` | in every group runs of `run_blocks` free blocks, used ones between, so that `fill` % are used |
//! | `front-free` | `fill` % of the groups are full, those at the end; the others are empty |
//! | `flex-front` | the first group of each flex group is empty, all others are full |
//! | `empty` | nothing is used |
//!
//! What it does not do: remember marks. The allocator holds the allocated blocks.
//!
//! # Locking
//! None.

use std::ops::Range;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_mballoc::{Allocator, Geometry, GroupStore, GroupSummary, Options, Policy};
use extant_ondisk::GroupNr;

use crate::error::{Error, Result};
use crate::workload::Parameters;

const BLOCK_SIZE: u32 = 4096;

/// More groups would take more memory than a laptop has to spare: 65 TB have 491,520 of them.
const GROUPS_MAX: u64 = 1 << 20;

/// The parameters of a disk.
pub fn parameters() -> Parameters {
    Parameters::new()
        .with_text("state", "fragmented")
        .with("groups", 1024)
        .with("blocks_per_group", 32768)
        .with("flex", 16)
        .with("fill", 50)
        .with("run_blocks", 511)
}

pub fn failed(e: extant_mballoc::Error) -> Error {
    Error::Failed(e.to_string())
}

/// An invented disk: the bitmap of each group follows from its number.
pub struct Disk {
    pub geometry: Geometry,
    /// In a group, `run` free blocks and then used ones, `period` in all.
    run: u64,
    period: u64,
    /// Groups from here on are full.
    full_from: u32,
    /// Only the first group of a flex group has free blocks.
    flex_front: bool,
    seed: u64,
    /// Bitmaps that were loaded.
    loads: AtomicU64,
    /// Requests for them: bitmaps that were read ahead in one request count once.
    reads: AtomicU64,
    /// A bit for each group whose bitmap was read ahead.
    ahead: Box<[AtomicU64]>,
}

impl Disk {
    pub fn new(parameters: &Parameters, seed: u64) -> Result<Disk> {
        let within = |name: &str, least: u64, most: u64| match parameters.get(name) {
            n if (least..=most).contains(&n) => Ok(n),
            n => Err(Error::Usage(format!("{name}={n}: from {least} to {most}"))),
        };
        let groups = within("groups", 1, GROUPS_MAX)?;
        let per_group = within("blocks_per_group", 8, u64::from(BLOCK_SIZE) * 8)?;
        let fill = within("fill", 0, 99)?;
        let run = within("run_blocks", 1, per_group)?;
        let flex = within("flex", 1, 1 << 16)?;
        let geometry = Geometry {
            blocks_count: groups * per_group,
            first_data_block: 0,
            blocks_per_group: per_group as u32,
            groups: groups as u32,
            cluster_bits: 0,
            flex_bg_size: flex as u32,
            stripe: 0,
            block_size: BLOCK_SIZE,
        };
        let disk = Disk {
            geometry,
            run: 1,
            period: 1,
            full_from: groups as u32,
            flex_front: false,
            seed,
            loads: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            ahead: (0..groups.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        };
        match parameters.text("state") {
            "empty" => Ok(disk),
            "flex-front" => Ok(Disk { flex_front: true, ..disk }),
            "front-free" => Ok(Disk { full_from: (groups * (100 - fill)).div_ceil(100) as u32, ..disk }),
            // At least one used block ends a run, even with `fill=0`.
            "fragmented" => Ok(Disk { run, period: (run * 100 / (100 - fill)).max(run + 1), ..disk }),
            other => Err(Error::Usage(format!("state={other}: fragmented, front-free, flex-front or empty"))),
        }
    }

    /// An allocator for it.
    pub fn allocator(self, policy: &str) -> Result<(Allocator<Disk>, Arc<Disk>)> {
        let policy = Policy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let disk = Arc::new(self);
        let summaries: Vec<GroupSummary> = (0..disk.geometry.groups)
            .map(|g| GroupSummary { free: disk.free_in(g), block_uninit: false, maps: 0 })
            .collect();
        let options = Options { policy, ..Options::default() };
        let allocator = Allocator::new(disk.clone(), disk.geometry.clone(), &summaries, options).map_err(failed)?;
        Ok((allocator, disk))
    }

    /// Bitmaps that were loaded, and the requests for them.
    pub fn loads(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.reads.load(Ordering::Relaxed))
    }

    /// The place in a period at which a group begins: its runs differ from other groups'.
    fn offset(&self, group: u32) -> u64 {
        Rng::new(self.seed ^ (u64::from(group) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).below(self.period)
    }

    fn is_full(&self, group: u32) -> bool {
        group >= self.full_from || self.flex_front && !group.is_multiple_of(self.geometry.flex_bg_size)
    }

    pub fn free_in(&self, group: u32) -> u32 {
        if self.is_full(group) {
            return 0;
        }
        let before = |end: u64| end / self.period * self.run + (end % self.period).min(self.run);
        let offset = self.offset(group);
        (before(offset + u64::from(self.geometry.blocks_per_group)) - before(offset)) as u32
    }
}

impl GroupStore for Disk {
    type Txn = ();
    type Error = extant_mballoc::Error;
    type Prepared = ();

    fn load(&self, group: GroupNr) -> std::result::Result<Vec<u8>, extant_mballoc::Error> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let bit = 1 << (group.0 % 64);
        let ahead = self.ahead.get(group.0 as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) & bit != 0);
        self.reads.fetch_add(u64::from(!ahead), Ordering::Relaxed);
        let mut bitmap = vec![0xFF; BLOCK_SIZE as usize];
        if !self.is_full(group.0) {
            let offset = self.offset(group.0);
            let blocks = 0..u64::from(self.geometry.blocks_per_group);
            let free = blocks.filter(|index| (index + offset) % self.period < self.run);
            free.for_each(|index| bitmap[(index / 8) as usize] &= !(1 << (index % 8)));
        }
        Ok(bitmap)
    }

    fn read_ahead(&self, groups: &[GroupNr]) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        for group in groups {
            if let Some(word) = self.ahead.get(group.0 as usize / 64) {
                word.fetch_or(1 << (group.0 % 64), Ordering::Relaxed);
            }
        }
    }

    fn prepare(&self, (): &mut (), _: GroupNr) -> std::result::Result<(), extant_mballoc::Error> {
        Ok(())
    }

    fn mark(
        &self,
        (): &mut (),
        group: GroupNr,
        (): &(),
        _: Range<u32>,
        _: bool,
    ) -> std::result::Result<(), extant_mballoc::Error> {
        Err(extant_mballoc::Error::Invalid { detail: format!("group {} is marked, and nothing should be", group.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_state_agrees_with_its_bitmap() {
        for state in ["fragmented", "front-free", "flex-front", "empty"] {
            for fill in ["fill=0", "fill=37", "fill=95"] {
                let mut p = parameters().with("groups", 11).with("blocks_per_group", 1000).with("run_blocks", 7);
                p.set("flex=4").unwrap();
                p.set(fill).unwrap();
                p.set(&format!("state={state}")).unwrap();
                let disk = Disk::new(&p, 3).unwrap();
                for group in 0..11 {
                    let bitmap = disk.load(GroupNr(group)).unwrap();
                    let free: u32 = bitmap.iter().map(|b| b.count_zeros()).sum();
                    assert_eq!(disk.free_in(group), free, "{state} {fill} group {group}");
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["fill=100", "groups=0", "state=drifting", "flex=0", "blocks_per_group=100000"] {
            let mut p = parameters();
            p.set(bad).unwrap();
            assert!(Disk::new(&p, 1).is_err_and(|e| e.is_usage()), "{bad}");
        }
    }
}
