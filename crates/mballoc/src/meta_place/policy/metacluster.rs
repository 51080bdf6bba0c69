//! `metacluster`: a 128th of each group is reserved for the indirect blocks of the data in that group. Data uses it
//! last. A request that finds it full is served as by `vanilla`. Abhishek Rai, "Clustering indirect blocks in Ext3",
//! 2007; the size and the place are Theodore Ts'o's summary of it (linux-ext4, 16 November 2007).
//!
//! Drawbacks: the size is fixed, so files of less than half a megabyte, with one indirect block each, overflow it. In a
//! group full of data, none of it is left.
//!
//! # Locking
//! None.

use super::{MetaPlace, Place, SetAsideAmount, Zoning};
use crate::MetaRole;

pub static MIDDLE: Zoning = Zoning {
    region_groups: 1,
    per_group: 1,
    share: 128,
    place: Place::Middle,
    ahead: SetAsideAmount::All,
    owners: 0,
    roles: &[MetaRole::Indirect],
};
pub static BEGIN: Zoning = Zoning { place: Place::Begin, ..MIDDLE };
pub static END: Zoning = Zoning { place: Place::End, ..MIDDLE };
pub static FOUR: Zoning = Zoning { place: Place::Spread, per_group: 4, share: 512, ..MIDDLE };

/// This policy has no state except its zones.
pub struct Metacluster(pub &'static Zoning);

impl MetaPlace for Metacluster {
    fn zoning(&self) -> Option<&'static Zoning> {
        Some(self.0)
    }
}
