//! Where metadata goes: the interface between the search (mechanism) and its [`policy`], and the zones that policies
//! describe.
//!
//! A *zone* is a set of blocks for metadata. It consists of *areas*, each a range of one group. The areas of a *region*
//! (some consecutive groups) have an order, and some of them, from the first on, are *active*. The free blocks of an
//! active area are *set aside*, unless the region has enough of them. Their group holds them like preallocated blocks,
//! so no search finds them. None of this is on disk. After a mount the group summaries determine how many areas are
//! active, and the bitmaps which of their blocks are free.
//!
//! Main types: [`MetaZones`] (which areas are active), [`Area`]. `set_aside.rs` moves the blocks.
//!
//! # Locking
//! [`MetaZones`] consists of atomics. After a thread has changed the number of active areas, it visits the affected
//! group under its lock. A thread that frees blocks of the group reads the number under the same lock. So whichever
//! comes last sees the newest number.

pub mod policy;
mod set_aside;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use extant_ondisk::GroupNr;

pub use policy::MetaPolicy;
use policy::{Place, SetAsideAmount, Zoning};

use crate::zones::SystemZones;
use crate::{Geometry, GroupSummary};

/// A range of one group, for metadata while it is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    pub group: GroupNr,
    pub start: u32,
    pub len: u32,
}

/// How many adjacent blocks an owner of many blocks gets, if as many are free.
const WINDOW: u32 = 16;
/// Blocks per page, counted from the group's first block. A page is for the metadata of inodes of one group, so that
/// blocks which a checker needs at the same time are together. A page is read at once. A multiple of [`WINDOW`].
pub(crate) const PAGE: u32 = 64;

/// Groups whose areas have a common order.
#[derive(Default)]
struct Region {
    /// The number of active areas.
    active: AtomicU32,
    /// The number of areas.
    most: u32,
    /// How many blocks its active areas should have at mount, including used ones.
    wanted: u64,
    /// Blocks set aside.
    free: AtomicU32,
    /// A hint: no group of the region before this one (counted from the region's first) has blocks set aside.
    lowest: AtomicU32,
    /// How many groups' bitmaps, counted from the first, have been examined.
    seen: AtomicU32,
    /// Whether blocks of active areas were left free because enough were set aside.
    left: AtomicBool,
    /// The place of each owner's last block, packed. These are hints, written without a lock.
    owners: Box<[AtomicU64]>,
}

/// The zones of one mount.
pub struct MetaZones {
    zoning: &'static Zoning,
    /// The usual length of an area.
    area_len: u32,
    regions: Box<[Region]>,
    /// Blocks set aside in all regions.
    total: AtomicU64,
    /// The number of released blocks when data last had to wait for a commit, or [`NEVER`].
    told_to_wait: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl MetaZones {
    pub fn new(zoning: &'static Zoning, geometry: &Geometry, groups: &[GroupSummary]) -> MetaZones {
        let area_len = (geometry.blocks_in_group(GroupNr(0)) / zoning.share).max(1);
        let regions = groups.chunks(zoning.region_groups as usize).zip((0u32..).step_by(zoning.region_groups as usize));
        let regions = regions.map(|(groups, first)| {
            let most = groups.len() as u32 * zoning.per_group;
            let wanted = match zoning.ahead {
                SetAsideAmount::All => u64::MAX,
                SetAsideAmount::HalfAnArea => {
                    let blocks: u64 =
                        (first..).take(groups.len()).map(|g| u64::from(geometry.blocks_in_group(GroupNr(g)))).sum();
                    let free = groups.iter().map(|g| u64::from(g.free)).sum::<u64>().min(blocks);
                    let maps = groups.iter().map(|g| u64::from(g.maps)).sum::<u64>().min(blocks / BLOCKS_PER_GUESS);
                    (maps + free / FREE_PER_BLOCK_AHEAD).max(1)
                }
            };
            let owners = (0..zoning.owners).map(|_| AtomicU64::new(0)).collect();
            Region { most, wanted, owners, ..Region::default() }
        });
        let zones = MetaZones {
            zoning,
            area_len,
            regions: regions.collect(),
            total: AtomicU64::new(0),
            told_to_wait: AtomicU64::new(NEVER),
        };
        zones.begin(geometry, &SystemZones::default());
        zones
    }

    /// Activates enough areas for the blocks that are wanted at mount, not counting those of the file system itself.
    pub fn begin(&self, geometry: &Geometry, system: &SystemZones) {
        for (nr, region) in (0..).zip(&self.regions) {
            let (mut active, mut blocks) = (0, 0);
            while active < region.most && blocks < region.wanted {
                if let Some(area) = self.area(geometry, system, nr, active) {
                    let start = geometry.block(area.group, area.start).0;
                    let end = start + u64::from(area.len);
                    blocks += end - start - system.within(start, end).map(|(s, e)| e - s).sum::<u64>();
                }
                active += 1;
            }
            region.active.store(active, Ordering::Relaxed);
        }
    }

    fn region(&self, group: GroupNr) -> Option<(u32, &Region)> {
        let nr = group.0 / self.zoning.region_groups;
        self.regions.get(nr as usize).map(|r| (nr, r))
    }

    fn first_group(&self, region: u32) -> u32 {
        region * self.zoning.region_groups
    }

    /// The `nr`th area of a region; None if its group has no space for it.
    fn area(&self, geometry: &Geometry, system: &SystemZones, region: u32, nr: u32) -> Option<Area> {
        let z = self.zoning;
        let (group, i) = (GroupNr(self.first_group(region) + nr / z.per_group), nr % z.per_group);
        let blocks = geometry.blocks_in_group(group);
        let len = blocks / z.share;
        let start = match z.place {
            Place::Begin => {
                let first = geometry.group_start(group).0;
                system.end_of(first).map_or(0, |end| (end - first).min(u64::from(blocks)) as u32) + i * len
            }
            Place::Middle => blocks / 2 + i * len,
            Place::End => blocks - (i + 1) * len,
            Place::Spread => (u64::from(blocks) * u64::from(2 * i + 1) / u64::from(2 * z.per_group)) as u32,
        };
        let len = len.min(blocks.saturating_sub(start));
        (len > 0).then_some(Area { group, start, len })
    }

    /// The region of a group, if some of its active areas have not been examined since the mount.
    fn unseen(&self, group: GroupNr) -> Option<(u32, &Region)> {
        let known =
            |r: &Region| r.seen.load(Ordering::Relaxed) * self.zoning.per_group >= r.active.load(Ordering::Relaxed);
        self.region(group).filter(|(_, region)| !known(region))
    }

    /// The active areas of a group.
    fn active<'a>(
        &'a self,
        geometry: &'a Geometry,
        system: &'a SystemZones,
        group: GroupNr,
    ) -> impl Iterator<Item = Area> + 'a {
        let per_group = self.zoning.per_group;
        let region = self.region(group);
        region.into_iter().flat_map(move |(nr, region)| {
            let first = (group.0 - self.first_group(nr)) * per_group;
            let active = region.active.load(Ordering::Relaxed).min(first + per_group);
            (first..active).filter_map(move |i| self.area(geometry, system, nr, i))
        })
    }

    /// Whether blocks that become free in active areas of this group's region should be left to data, which may use
    /// most of these areas.
    fn has_enough(&self, group: GroupNr) -> bool {
        let Some((_, region)) = self.region(group) else { return false };
        let enough = self.is_rich(region);
        if enough {
            region.left.store(true, Ordering::Relaxed);
        }
        enough
    }

    /// Whether a region has at least as many free blocks as at mount, and at least a few areas.
    fn is_rich(&self, region: &Region) -> bool {
        let most = region.wanted.max(ENOUGH_AREAS * u64::from(self.area_len));
        u64::from(region.free.load(Ordering::Relaxed)) >= most
    }

    /// Records that blocks of a group were set aside.
    fn added(&self, group: GroupNr, blocks: u32) {
        if let Some((nr, region)) = self.region(group) {
            region.free.fetch_add(blocks, Ordering::Relaxed);
            self.total.fetch_add(u64::from(blocks), Ordering::Relaxed);
            region.lowest.fetch_min(group.0 - self.first_group(nr), Ordering::Relaxed);
        }
    }

    /// Records that blocks of a group are no longer set aside.
    fn removed(&self, group: GroupNr, blocks: u32) {
        if let Some((_, region)) = self.region(group) {
            region.free.fetch_sub(blocks, Ordering::Relaxed);
            self.total.fetch_sub(u64::from(blocks), Ordering::Relaxed);
        }
    }

    /// Blocks set aside.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> usize {
        self.regions.len() * (size_of::<Region>() + self.zoning.owners * size_of::<AtomicU64>())
    }
}

/// A zone leaves further freed blocks to data once this many areas are free in it, and as many blocks as at mount.
const ENOUGH_AREAS: u64 = 4;
/// At mount a region sets aside one block per this many free ones: four times the need of full indirect blocks.
const FREE_PER_BLOCK_AHEAD: u64 = 256;
/// At mount, at most one in this many blocks is assumed to belong to a map. The estimate uses the number of inodes,
/// most of which may be small. A zone that extends into data collects single blocks wherever data is deleted.
const BLOCKS_PER_GUESS: u64 = 256;
