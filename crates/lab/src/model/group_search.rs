//! `group-search`: the block allocator searches for free blocks on an invented disk ([`super::disk`]). It counts groups
//! visited, groups searched under their lock, and bitmaps read: the sums, and the most for one request.
//!
//! Goals lie in `goals` groups, as those of so many directories do. `keep` answers are held at the same time. `known`:
//! all bitmaps were read before. `data`: requests are for file data, which Linux keeps out of the first group of a flex
//! group while it can. Nothing is marked; the blocks found are held for a while and freed.
//!
//! # Locking
//! None.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_mballoc::{Allocator, Chosen, InodePreallocation, Policy, Request, RequestFlags};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::disk::{self, Disk, failed};
use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

/// See the page.
pub struct GroupSearch;

impl Model for GroupSearch {
    fn name(&self) -> &'static str {
        "group-search"
    }

    fn summary(&self) -> &'static str {
        "the block allocator looks for free blocks on a made-up disk (state: fragmented, front-free, flex-front, empty)"
    }

    fn headline(&self) -> &'static str {
        "groups_visited"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        disk::parameters()
            .with("known", 0)
            .with("data", 0)
            .with("request_blocks", 512)
            .with("requests", 1000)
            .with("goals", 16)
            .with("keep", 16)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let disk = Disk::new(parameters, 0)?;
        match parameters.get("request_blocks") {
            n if (1..=u64::from(disk.geometry.blocks_per_group)).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("request_blocks={n}: from 1 to {}", disk.geometry.blocks_per_group))),
        }
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let (allocator, disk) = Disk::new(parameters, bench.seed())?.allocator(policy)?;
        if parameters.get("known") > 0 {
            read_all(&allocator)?;
        }
        let mut work = Work {
            owner: (parameters.get("data") > 0).then(|| InodePreallocation::new(InodeNr(12))),
            rng: bench.rng(),
            kept: VecDeque::new(),
            keep: parameters.get("keep") as usize,
            goals: parameters.get("goals").clamp(1, u64::from(disk.geometry.groups)),
            len: parameters.get("request_blocks") as u32,
            short: 0,
            start: Took::of(&allocator, &disk),
            before: Took::of(&allocator, &disk),
            most: Took::default(),
            allocator,
            disk,
        };
        bench.time("search", parameters.get("requests"), &mut work, Work::goal, Work::search)?;
        work.note();
        let (sum, most) = (work.before.since(&work.start), work.most);
        bench.count("groups_visited", sum.visited);
        bench.count("groups_visited_max", most.visited);
        bench.count("groups_searched", sum.searched);
        bench.count("groups_searched_max", most.searched);
        bench.count("bitmaps_read", sum.bitmaps);
        bench.count("reads", sum.reads);
        bench.count("reads_max", most.reads);
        bench.count("extents_measured", sum.extents);
        bench.count("requests_cut_short", work.short);
        for chosen in work.kept.drain(..) {
            work.allocator.cancel(chosen);
        }
        Ok(())
    }
}

/// Reads every bitmap, and drops the buddies again.
fn read_all(allocator: &Allocator<Disk>) -> Result<()> {
    let geometry = allocator.geometry().clone();
    for group in 0..u64::from(geometry.groups) {
        let block = BlockNr(group * u64::from(geometry.blocks_per_group));
        let here = Request { flags: RequestFlags::GOAL_ONLY, ..Request::metadata(Some(block), 1) };
        match allocator.choose(&here) {
            Ok(chosen) => allocator.cancel(chosen),
            Err(e) if e.is_no_space() => {}
            Err(e) => return Err(failed(e)),
        }
        if allocator.memory_used() > 1 << 28 {
            allocator.drop_unused_buddies(usize::MAX);
        }
    }
    Ok(())
}

/// The costs of requests, since the allocator was made.
#[derive(Clone, Copy, Default)]
struct Took {
    visited: u64,
    searched: u64,
    extents: u64,
    bitmaps: u64,
    reads: u64,
}

impl Took {
    fn of(allocator: &Allocator<Disk>, disk: &Disk) -> Took {
        let s = allocator.statistics();
        let (bitmaps, reads) = disk.loads();
        let visited = s.groups_considered.iter().sum();
        Took { visited, searched: s.groups_scanned, extents: s.extents_scanned, bitmaps, reads }
    }

    fn since(&self, before: &Took) -> Took {
        Took {
            visited: self.visited - before.visited,
            searched: self.searched - before.searched,
            extents: self.extents - before.extents,
            bitmaps: self.bitmaps - before.bitmaps,
            reads: self.reads - before.reads,
        }
    }
}

struct Work {
    allocator: Allocator<Disk>,
    disk: Arc<Disk>,
    owner: Option<InodePreallocation>,
    rng: Rng,
    kept: VecDeque<Chosen>,
    keep: usize,
    goals: u64,
    len: u32,
    short: u64,
    start: Took,
    before: Took,
    most: Took,
}

impl Work {
    /// Records the cost of the last request.
    fn note(&mut self) {
        let now = Took::of(&self.allocator, &self.disk);
        let took = now.since(&self.before);
        self.before = now;
        self.most.visited = self.most.visited.max(took.visited);
        self.most.searched = self.most.searched.max(took.searched);
        self.most.reads = self.most.reads.max(took.reads);
    }

    /// Frees the oldest answer and draws a goal.
    fn goal(&mut self, _: u64) -> Result<BlockNr> {
        self.note();
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
        let request = match &self.owner {
            Some(owner) => Request {
                flags: RequestFlags::NO_PREALLOC | RequestFlags::CLOSED,
                ..Request::data(owner, Some(goal), LogicalBlock(0), self.len, u64::from(self.len))
            },
            None => Request::metadata(Some(goal), self.len),
        };
        let chosen = self.allocator.choose(&request).map_err(failed)?;
        self.short += u64::from(chosen.len < self.len);
        self.kept.push_back(chosen);
        Ok(())
    }
}
