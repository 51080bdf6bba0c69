//! The policies, side by side.
//!
//! | name | idea | Linux | judged by |
//! |---|---|---|---|
//! | `vanilla` | beside the block that points to it, else beside its data | all | none yet |
//! | `inline` | each indirect block in front of the data that it maps | ext3 without delayed allocation | none yet |
//! | `metacluster` | a 128th of each group, in its middle, for indirect blocks | Abhishek Rai's patch of 2007, never merged | none yet |
//! | `metacluster-begin` | the same at the group's beginning | the same | none yet |
//! | `metacluster-end` | the same at the group's end | the same | none yet |
//! | `metacluster-4` | four of a quarter of the size, spread over the group | none | none yet |
//! | `zones` | zones of many groups, which grow and are lent to data | none | none yet |
//! | `zones-all` | the same, also for directories, attributes and symbolic links | none | none yet |
//!
//! Main types: [`MetaPolicy`] (the choice at mount), [`MetaPlace`] (the interface of a policy), [`Zoning`] (its
//! zones, as data).
//!
//! # Locking
//! None.

pub mod inline;
pub mod metacluster;
pub mod vanilla;
pub mod zones;

#[cfg(test)]
mod contract;

use extant_ondisk::BlockNr;

use crate::{MetaRequest, MetaRole};

extant_base::policies! {
    /// The policies.
    pub enum MetaPolicy: "meta_policy", "where metadata blocks lie", default Vanilla {
        Vanilla = "vanilla", "beside the block that points to them, else beside their data (Linux)";
        Inline = "inline", "each indirect block in front of the data that it maps (ext3 in 2007)";
        Metacluster = "metacluster", "indirect blocks in a 128th of each group, in its middle (Abhishek Rai's patch of 2007)";
        MetaclusterBegin = "metacluster-begin", "the same at the group's beginning";
        MetaclusterEnd = "metacluster-end", "the same at the group's end";
        MetaclusterFour = "metacluster-4", "the same in four places of each group";
        Zones = "zones", "indirect blocks and extent nodes in zones of many groups, which grow and are lent to data";
        ZonesAll = "zones-all", "the same, and directories, attributes and symbolic links";
    }
}

/// The place of an area in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Behind the file system's own blocks.
    Begin,
    Middle,
    End,
    /// Several areas, at equal distances.
    Spread,
}

/// How much of a region is set aside while there is plenty of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAsideAmount {
    /// All areas.
    All,
    /// Enough areas to leave half an area of free blocks.
    HalfAnArea,
}

/// The zones of a policy, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zoning {
    /// The number of groups whose areas have a common order; the last region may have fewer.
    pub region_groups: u32,
    /// The number of areas in each group.
    pub per_group: u32,
    /// The length of an area is the size of a group divided by this.
    pub share: u32,
    pub place: Place,
    pub ahead: SetAsideAmount,
    /// How many owners continue in windows of their own. If it is not 0, there are pages, each for inodes of the same
    /// group; if it is 0, there are neither.
    pub owners: usize,
    /// The kinds of metadata in the zones.
    pub roles: &'static [MetaRole],
}

/// The interface of a policy.
pub trait MetaPlace: Send + Sync {
    /// Whether pointer blocks are allocated together with the first data that they map, in front of it.
    fn in_front(&self) -> bool {
        false
    }

    /// The block in whose group the search begins if no zone has a block.
    fn goal(&self, meta: &MetaRequest) -> Option<BlockNr> {
        vanilla::goal(meta)
    }

    /// The policy's zones; None if it has none.
    fn zoning(&self) -> Option<&'static Zoning> {
        None
    }
}

impl MetaPolicy {
    /// The state of the policy for one mount.
    pub fn state(self) -> Box<dyn MetaPlace> {
        match self {
            MetaPolicy::Vanilla => Box::new(vanilla::Vanilla),
            MetaPolicy::Inline => Box::new(inline::Inline),
            MetaPolicy::Metacluster => Box::new(metacluster::Metacluster(&metacluster::MIDDLE)),
            MetaPolicy::MetaclusterBegin => Box::new(metacluster::Metacluster(&metacluster::BEGIN)),
            MetaPolicy::MetaclusterEnd => Box::new(metacluster::Metacluster(&metacluster::END)),
            MetaPolicy::MetaclusterFour => Box::new(metacluster::Metacluster(&metacluster::FOUR)),
            MetaPolicy::Zones => Box::new(zones::Zones(&zones::MAPS)),
            MetaPolicy::ZonesAll => Box::new(zones::Zones(&zones::ALL)),
        }
    }
}
