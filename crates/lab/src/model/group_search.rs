//! `group-search`: the block allocator looks for free blocks on a disk whose state is made up: groups visited, groups
//! searched under their lock, bitmaps read. Nothing is marked; what was found is kept for a while and given back.
//!
//! States of the disk (parameter `state`):
//!
//! | state | what |
//! |---|---|
//! | `fragmented` | in every group runs of `run_blocks` free blocks, used ones between, so that `fill` % are used |
//! | `front-free` | `fill` % of the groups are full, those at the end; the others are empty |
//! | `empty` | nothing is used |
//!
//! Goals lie in `goals` groups, as those of so many directories do. `keep` answers are held at the same time.
//!
//! # Locking
//! None.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_mballoc::{Allocator, Chosen, Geometry, GroupStore, GroupSummary, Options, Policy, Request};
use extant_ondisk::{BlockNr, GroupNr};

use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const BLOCK_SIZE: u32 = 4096;

/// More would take more memory for what is known of groups than a laptop has to spare: 65 TB have 491,520 of them.
const GROUPS_MAX: u64 = 1 << 20;

/// See the page.
pub struct GroupSearch;

impl Model for GroupSearch {
    fn name(&self) -> &'static str {
        "group-search"
    }

    fn summary(&self) -> &'static str {
        "the block allocator looks for free blocks on a made-up disk (state: fragmented, front-free, empty)"
    }

    fn headline(&self) -> &'static str {
        "groups_visited"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new()
            .with_text("state", "fragmented")
            .with("groups", 1024)
            .with("blocks_per_group", 32768)
            .with("fill", 50)
            .with("run_blocks", 511)
            .with("request_blocks", 512)
            .with("requests", 1000)
            .with("goals", 16)
            .with("keep", 16)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        Disk::new(parameters, 0).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let policy = Policy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let disk = Arc::new(Disk::new(parameters, bench.seed())?);
        let summaries: Vec<GroupSummary> =
            (0..disk.geometry.groups).map(|g| GroupSummary { free: disk.free_in(g), block_uninit: false }).collect();
        let options = Options { policy, ..Options::default() };
        let allocator = Allocator::new(disk.clone(), disk.geometry.clone(), &summaries, options).map_err(failed)?;
        let mut work = Work {
            allocator,
            rng: bench.rng(),
            kept: VecDeque::new(),
            keep: parameters.get("keep") as usize,
            goals: parameters.get("goals").clamp(1, u64::from(disk.geometry.groups)),
            len: parameters.get("request_blocks") as u32,
            short: 0,
        };
        bench.time("search", parameters.get("requests"), &mut work, Work::goal, Work::search)?;
        for chosen in work.kept.drain(..) {
            work.allocator.cancel(chosen);
        }
        let statistics = work.allocator.statistics();
        bench.count("groups_visited", statistics.groups_considered.iter().sum());
        bench.count("groups_searched", statistics.groups_scanned);
        bench.count("bitmaps_read", disk.loads.load(Ordering::Relaxed));
        bench.count("extents_measured", statistics.extents_scanned);
        bench.count("requests_cut_short", work.short);
        Ok(())
    }
}

fn failed(e: extant_mballoc::Error) -> Error {
    Error::Failed(e.to_string())
}

struct Work {
    allocator: Allocator<Disk>,
    rng: Rng,
    kept: VecDeque<Chosen>,
    keep: usize,
    goals: u64,
    len: u32,
    short: u64,
}

impl Work {
    /// Gives the oldest answer back and draws where to look.
    fn goal(&mut self, _: u64) -> Result<BlockNr> {
        if self.kept.len() > self.keep
            && let Some(oldest) = self.kept.pop_front()
        {
            self.allocator.cancel(oldest);
        }
        let geometry = self.allocator.geometry();
        let group = self.rng.below(self.goals) * u64::from(geometry.groups) / self.goals;
        let index = self.rng.below(u64::from(geometry.blocks_per_group));
        Ok(BlockNr((group * u64::from(geometry.blocks_per_group) + index).min(geometry.blocks_count - 1)))
    }

    fn search(&mut self, goal: BlockNr) -> Result<()> {
        let chosen = self.allocator.choose(&Request::metadata(Some(goal), self.len)).map_err(failed)?;
        self.short += u64::from(chosen.len < self.len);
        self.kept.push_back(chosen);
        Ok(())
    }
}

/// A disk that is nowhere: the bitmap of each group follows from its number.
struct Disk {
    geometry: Geometry,
    /// In a group, `run` free blocks and then used ones, `period` together.
    run: u64,
    period: u64,
    /// Groups from here on are full.
    full_from: u32,
    seed: u64,
    loads: AtomicU64,
}

impl Disk {
    fn new(parameters: &Parameters, seed: u64) -> Result<Disk> {
        let within = |name: &str, least: u64, most: u64| match parameters.get(name) {
            n if (least..=most).contains(&n) => Ok(n),
            n => Err(Error::Usage(format!("{name}={n}: from {least} to {most}"))),
        };
        let groups = within("groups", 1, GROUPS_MAX)?;
        let per_group = within("blocks_per_group", 8, u64::from(BLOCK_SIZE) * 8)?;
        let fill = within("fill", 0, 99)?;
        let run = within("run_blocks", 1, per_group)?;
        within("request_blocks", 1, per_group)?;
        let geometry = Geometry {
            blocks_count: groups * per_group,
            first_data_block: 0,
            blocks_per_group: per_group as u32,
            groups: groups as u32,
            cluster_bits: 0,
            flex_bg_size: 1,
            stripe: 0,
            block_size: BLOCK_SIZE,
        };
        let disk = Disk { geometry, run: 1, period: 1, full_from: groups as u32, seed, loads: AtomicU64::new(0) };
        match parameters.text("state") {
            "empty" => Ok(disk),
            "front-free" => Ok(Disk { full_from: (groups * (100 - fill)).div_ceil(100) as u32, ..disk }),
            // At least one used block ends a run, whatever is to be used.
            "fragmented" => Ok(Disk { run, period: (run * 100 / (100 - fill)).max(run + 1), ..disk }),
            other => Err(Error::Usage(format!("state={other}: fragmented, front-free or empty"))),
        }
    }

    /// Where in a period a group begins: runs do not lie alike in all.
    fn offset(&self, group: u32) -> u64 {
        Rng::new(self.seed ^ (u64::from(group) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).below(self.period)
    }

    fn free_in(&self, group: u32) -> u32 {
        if group >= self.full_from {
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

    fn load(&self, group: GroupNr) -> std::result::Result<Vec<u8>, extant_mballoc::Error> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let mut bitmap = vec![0xFF; BLOCK_SIZE as usize];
        if group.0 < self.full_from {
            let offset = self.offset(group.0);
            let blocks = 0..u64::from(self.geometry.blocks_per_group);
            let free = blocks.filter(|index| (index + offset) % self.period < self.run);
            free.for_each(|index| bitmap[(index / 8) as usize] &= !(1 << (index % 8)));
        }
        Ok(bitmap)
    }

    fn mark(
        &self,
        (): &mut (),
        group: GroupNr,
        _: u32,
        _: u32,
        _: bool,
    ) -> std::result::Result<(), extant_mballoc::Error> {
        Err(extant_mballoc::Error::Invalid { detail: format!("group {} is marked, and nothing should be", group.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_group_says_is_what_its_bitmap_has() {
        for state in ["fragmented", "front-free", "empty"] {
            for fill in ["fill=0", "fill=37", "fill=95"] {
                let mut p =
                    GroupSearch.parameters().with("groups", 11).with("blocks_per_group", 1000).with("run_blocks", 7);
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
        for bad in ["fill=100", "groups=0", "state=drifting", "request_blocks=0", "blocks_per_group=100000"] {
            let mut p = GroupSearch.parameters();
            p.set(bad).unwrap();
            assert!(Disk::new(&p, 1).is_err_and(|e| e.is_usage()), "{bad}");
        }
    }
}
