//! `append`: `files` files grow in turn, `step` blocks at a time, on an invented disk ([`super::disk`]). It counts
//! their pieces, beside the fewest that are possible there.
//!
//! With `turnovers` the disk is used first: files of sizes up to `file_blocks` are written, `files` at a time, until
//! `occupied` % are in use. Then random files are deleted and others written, until the given multiple of that has been
//! written. The figures are those of the files at the end. Blocks of deleted files are free at once.
//!
//! Nothing is marked on the disk: the allocator holds the blocks of the files.
//!
//! # Locking
//! None.

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
pub struct Append;

impl Model for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn summary(&self) -> &'static str {
        "files grow in turn on a made-up disk: in how many pieces they lie"
    }

    fn headline(&self) -> &'static str {
        "extents"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        disk::parameters()
            .with_text("state", "empty")
            .with("groups", 128)
            .with("files", 16)
            .with("file_blocks", 4096)
            .with("step", 1)
            .with("turnovers", 0)
            .with("occupied", 90)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let disk = Disk::new(parameters, 0)?;
        let all = parameters.get("files").saturating_mul(parameters.get("file_blocks"));
        let free: u64 = (0..disk.geometry.groups).map(|g| u64::from(disk.free_in(g))).sum();
        let turns = parameters.get("turnovers") > 0;
        match () {
            () if parameters.get("step") == 0 || all == 0 => {
                Err(Error::Usage("files=, file_blocks=, step=: 1 at least".into()))
            }
            () if !turns && all > free => {
                Err(Error::Usage(format!("files=, file_blocks=: {all} blocks, {free} are free")))
            }
            () if parameters.get("occupied") > 98 => Err(Error::Usage("occupied=: 98 at most".into())),
            () => Ok(()),
        }
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let (allocator, disk) = Disk::new(parameters, bench.seed())?.allocator(policy)?;
        let (files, most, step) = (parameters.get("files"), parameters.get("file_blocks"), parameters.get("step"));
        let groups = u64::from(disk.geometry.groups);
        let mut work = Work { allocator, rng: bench.rng(), step: step as u32, groups, next: 0, open: Vec::new() };
        let mut left = Vec::new();
        let turnovers = parameters.get("turnovers");
        let free = work.allocator.free_blocks();
        if turnovers == 0 {
            work.open = (0..files).map(|_| work.file(most)).collect();
            let requests = files * most.div_ceil(step);
            bench.time(
                "append",
                requests,
                &mut work,
                |work, i| Ok((i % work.open.len() as u64) as usize),
                Work::grow,
            )?;
            left.append(&mut work.open);
        } else {
            let room = free * parameters.get("occupied") / 100;
            let mut writer = Turns { work, left: Vec::new(), used: 0, room, most, files };
            let mut written = 0;
            while written < free.saturating_mul(turnovers) {
                written += writer.step()?;
                if bench.is_stopped() {
                    return Err(Error::Interrupted);
                }
            }
            writer.left.append(&mut writer.work.open);
            (work, left) = (writer.work, writer.left);
        }
        let extents: u64 = left.iter().map(|f| u64::from(f.extents)).sum();
        let blocks: u64 = left.iter().map(|f| f.blocks).sum();
        // A file cannot have fewer than its blocks in the longest runs there are.
        let run = match parameters.text("state") {
            "fragmented" => parameters.get("run_blocks"),
            _ => parameters.get("blocks_per_group"),
        };
        bench.count("files", left.len() as u64);
        bench.count("extents", extents);
        bench.count("extents_max", left.iter().map(|f| u64::from(f.extents)).max().unwrap_or(0));
        bench.count("extents_least", left.iter().map(|f| f.blocks.div_ceil(run)).sum());
        bench.count("blocks_an_extent", blocks / extents.max(1));
        bench.count("groups_searched", work.allocator.statistics().groups_scanned);
        for file in left {
            file.chosen.into_iter().for_each(|c| work.allocator.cancel(c));
            work.allocator.discard_preallocations(&file.owner);
        }
        Ok(())
    }
}

struct File {
    owner: Arc<InodePreallocation>,
    /// The goal of the first block.
    home: BlockNr,
    chosen: Vec<Chosen>,
    blocks: u64,
    extents: u32,
    /// The block after the last.
    end: u64,
    wanted: u64,
}

struct Work {
    allocator: Allocator<Disk>,
    rng: Rng,
    step: u32,
    groups: u64,
    next: u32,
    open: Vec<File>,
}

impl Work {
    fn file(&mut self, wanted: u64) -> File {
        self.next += 1;
        let group = self.rng.below(self.groups);
        let home = BlockNr(group * u64::from(self.allocator.geometry().blocks_per_group));
        let owner = Arc::new(InodePreallocation::new(InodeNr(11 + self.next)));
        File { owner, home, chosen: Vec::new(), blocks: 0, extents: 0, end: 0, wanted }
    }

    /// The file gets `step` blocks more, or the rest of its length.
    fn grow(&mut self, at: usize) -> Result<()> {
        let file = &mut self.open[at];
        let mut more = u64::from(self.step).min(file.wanted - file.blocks);
        while more > 0 {
            let goal = if file.blocks == 0 { file.home } else { BlockNr(file.end) };
            let flags = if file.blocks == 0 { RequestFlags::NONE } else { RequestFlags::TRY_GOAL };
            let logical = LogicalBlock(file.blocks as u32);
            let request = Request::data(&file.owner, Some(goal), logical, more as u32, file.blocks + more);
            let request = Request { flags, ..request };
            let chosen = self.allocator.choose(&request).map_err(failed)?;
            let got = u64::from(chosen.len);
            file.extents += u32::from(file.blocks == 0 || chosen.start.0 != file.end);
            file.end = chosen.start.0 + got;
            file.blocks += got;
            more -= got;
            file.chosen.push(chosen);
        }
        Ok(())
    }
}

/// A disk in use.
struct Turns {
    work: Work,
    left: Vec<File>,
    used: u64,
    /// Blocks that may be in use.
    room: u64,
    most: u64,
    files: u64,
}

impl Turns {
    /// One of the open files grows; returns by how much. Others make room for it.
    fn step(&mut self) -> Result<u64> {
        while (self.work.open.len() as u64) < self.files {
            // Each magnitude is as likely as the others.
            let magnitude = self.work.rng.below(u64::from(self.most.ilog2()) + 1);
            let size = (1 << magnitude) + self.work.rng.below(1 << magnitude);
            let file = self.work.file(size.min(self.most));
            self.work.open.push(file);
        }
        while self.used + u64::from(self.work.step) > self.room && !self.left.is_empty() {
            let victim = self.work.rng.below(self.left.len() as u64) as usize;
            let file = self.left.swap_remove(victim);
            self.used -= file.blocks;
            file.chosen.into_iter().for_each(|c| self.work.allocator.cancel(c));
        }
        let at = self.work.rng.below(self.work.open.len() as u64) as usize;
        let before = self.work.open[at].blocks;
        self.work.grow(at)?;
        let file = &self.work.open[at];
        let got = file.blocks - before;
        self.used += got;
        if file.blocks >= file.wanted {
            let file = self.work.open.swap_remove(at);
            self.work.allocator.discard_preallocations(&file.owner);
            self.left.push(file);
        }
        Ok(got)
    }
}
