//! Counters of the allocator's work: [`Statistics`] (a snapshot). Linux: /proc/fs/ext4/*/mb_stats.
//!
//! # Locking
//! None: every counter is sharded.

use extant_base::counter::{self, Counter};

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Sums since mount.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Groups examined without a lock, per criterion 0..=3.
            pub groups_considered: [u64; 4],
            /// Searches that ended with blocks in criterion 0..=3.
            pub criterion_hits: [u64; 4],
        }

        /// The live counters.
        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub $name: Counter,)*
            pub groups_considered: [Counter; 4],
            pub criterion_hits: [Counter; 4],
        }

        impl Default for Counters {
            fn default() -> Counters {
                let [$($name,)* g0, g1, g2, g3, h0, h1, h2, h3] = counter::group();
                Counters { $($name,)* groups_considered: [g0, g1, g2, g3], criterion_hits: [h0, h1, h2, h3] }
            }
        }

        impl Counters {
            pub fn snapshot(&self) -> Statistics {
                Statistics {
                    $($name: self.$name.get(),)*
                    groups_considered: std::array::from_fn(|i| self.groups_considered[i].get()),
                    criterion_hits: std::array::from_fn(|i| self.criterion_hits[i].get()),
                }
            }
        }
    };
}

statistics! {
    /// Requests.
    requests,
    /// Requests that got blocks.
    success,
    /// Blocks allocated.
    blocks_allocated,
    /// Blocks freed (in a transaction).
    blocks_freed,
    /// Blocks made available again after their commit.
    blocks_released,
    /// Groups whose buddy was searched under the lock.
    groups_scanned,
    /// Free extents measured.
    extents_scanned,
    /// Requests served at the goal block itself.
    goal_hits,
    /// Requests served by a power-of-two buddy.
    order2_hits,
    /// Requests served from an inode's preallocation.
    inode_pa_hits,
    /// Requests served from a locality group's preallocation.
    group_pa_hits,
    /// Searches that stopped at the limit of extents to measure.
    breaks,
    /// Extents found and then lost to another thread.
    lost,
    /// Preallocations made for inodes.
    inode_pa_new,
    /// Preallocations made for locality groups.
    group_pa_new,
    /// Blocks set aside by inode and group preallocations.
    pa_blocks,
    /// Blocks set aside by preallocations that were then allocated or freed.
    pa_spent,
    /// Preallocations discarded.
    pa_discarded,
    /// Blocks freed with discarded preallocations.
    pa_discarded_blocks,
    /// Buddies built from a bitmap.
    buddies_loaded,
    /// Bitmaps of a flex group read ahead for a search.
    read_aheads,
    /// Buddies dropped to free memory.
    buddies_dropped,
    /// Requests for metadata served from a zone ([`crate::meta_place`]).
    zone_hits,
    /// Requests for metadata that belongs in a zone, made when the zone had no block.
    zone_overflows,
    /// Activations of areas since the mount; an area that was lent and returns counts again.
    zone_areas_grown,
    /// Areas lent to data because nothing else was free.
    zone_areas_lent,
    /// Blocks that data could use because of lent areas.
    zone_blocks_lent,
    /// Groups found bad.
    groups_bad,
    /// Groups skipped because another thread had their lock.
    groups_busy,
    /// Requests that found no free block.
    no_space,
    /// Releases of blocks that were not pending; always 0 unless the caller is wrong.
    bad_releases,
}
