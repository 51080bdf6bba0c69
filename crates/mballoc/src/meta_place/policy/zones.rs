//! `zones`: the maps of up to 128 groups are together. A region's zone begins with areas of a 16th of a group behind
//! the system metadata of its first group. It continues through half of that group, and then in the next group. At
//! mount it has room for the expected maps. It grows when less than half an area of it is free, or when all its free
//! blocks are in pages of other homes. When data finds no block anywhere else, the last area is lent to it; the area
//! returns when much more space is free.
//!
//! Inside, pages of 64 blocks are for the inodes of one group, because a checker reads their maps one after the
//! other. A file with many map blocks continues in windows of 16, so that files that grow together do not interleave.
//!
//! Nothing about a zone is stored on disk. The number of active areas at mount is computed from the used and free
//! blocks in the region and from its inodes. If that is too few, the first requests find the areas full, and the zone
//! grows at once.
//!
//! # Locking
//! None.

use super::{MetaPlace, Place, SetAsideAmount, Zoning};
use crate::MetaRole;

/// For maps of files.
pub static MAPS: Zoning = Zoning {
    region_groups: 128,
    per_group: 8,
    share: 16,
    place: Place::Begin,
    ahead: SetAsideAmount::HalfAnArea,
    owners: 32,
    roles: &[MetaRole::Indirect, MetaRole::ExtentNode],
};
/// For all metadata.
pub static ALL: Zoning = Zoning { roles: &MetaRole::ALL, ..MAPS };

/// This policy has no state except its zones.
pub struct Zones(pub &'static Zoning);

impl MetaPlace for Zones {
    fn zoning(&self) -> Option<&'static Zoning> {
        Some(self.0)
    }
}
