//! Fingerprints of frames that were recently evicted, which suffice to notice one that is needed again too soon.
//!
//! Main type: [`Ghosts`] (Linux: shadow entries, mm/workingset.c; the ghost queue of S3-FIFO, SOSP 2023, and ARC, FAST
//! 2003). An entry is a fingerprint of 32 bits and the time at which the frame was evicted, 8 bytes in total, in
//! buckets of eight. So it needs no list, and an expired entry need not be removed. When a bucket is full, its oldest
//! entry is replaced. For each frame that fits into the cache there are two to four entries, 16 to 32 bytes. Linux
//! keeps up to four shadow entries for a page (`count_shadow_nodes` of 3.15: one node of 64 for 16 pages), 36 bytes.
//!
//! What it does not do: distinguish all frames. Two frames may have the same fingerprint (one in 2^29 pairs of a
//! bucket); then the younger one is mistaken for the older one.
//!
//! # Locking
//! The lock of [`super::Reclaim`] protects everything here.

use super::frame::{Key, OwnerId};

const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Ghost {
    /// 0 marks an empty entry.
    print: u32,
    left: u32,
}

/// The fingerprints of evicted frames, each with its time. The caller defines the unit of time, and the time may wrap
/// around.
#[derive(Default)]
pub(super) struct Ghosts {
    buckets: Vec<[Ghost; WAYS]>,
}

impl Ghosts {
    /// Makes room for about `count` frames. If the table has to grow, it loses its entries.
    pub fn reserve(&mut self, count: u64) {
        let buckets = (count.max(64).div_ceil(WAYS as u64) * 2).next_power_of_two() as usize;
        if self.buckets.len() < buckets {
            self.buckets = vec![[Ghost::default(); WAYS]; buckets];
        }
    }

    fn place(&mut self, owner: OwnerId, key: Key) -> Option<(&mut [Ghost; WAYS], u32)> {
        // The last steps of splitmix64 (Steele, Lea, Flood, 2014).
        let mut h = key.object ^ key.page.rotate_left(32) ^ (u64::from(owner.0) << 48);
        h = (h ^ (h >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        h = (h ^ (h >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        h ^= h >> 31;
        let at = h as usize & (self.buckets.len().wrapping_sub(1));
        Some((self.buckets.get_mut(at)?, ((h >> 32) as u32).max(1)))
    }

    /// Records that the frame is evicted now.
    pub fn add(&mut self, owner: OwnerId, key: Key, now: u32) {
        let Some((bucket, print)) = self.place(owner, key) else { return };
        let at = bucket
            .iter()
            .position(|g| g.print == print || g.print == 0)
            .or_else(|| (0..WAYS).max_by_key(|i| now.wrapping_sub(bucket[*i].left)));
        if let Some(at) = at {
            bucket[at] = Ghost { print, left: now };
        }
    }

    /// Must be called when a frame is needed again. Returns the time since its eviction, if there is an entry.
    pub fn take(&mut self, owner: OwnerId, key: Key, now: u32) -> Option<u32> {
        self.left(owner, key).map(|left| now.wrapping_sub(left))
    }

    /// Must be called when a frame is needed again. Returns the time of its eviction, if there is an entry.
    pub fn left(&mut self, owner: OwnerId, key: Key) -> Option<u32> {
        let (bucket, print) = self.place(owner, key)?;
        let ghost = bucket.iter_mut().find(|g| g.print == print)?;
        Some(std::mem::take(ghost).left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_reports_once_how_long_its_frame_was_away() {
        let mut g = Ghosts::default();
        let key = |n| Key { object: n, page: n };
        assert_eq!(g.take(OwnerId(0), key(1), 5), None, "an empty table");
        g.reserve(1000);
        for n in 0..1000 {
            g.add(OwnerId(1), key(n), (u32::MAX - 500).wrapping_add(n as u32));
        }
        let known = (0..1000).filter(|n| g.take(OwnerId(1), key(*n), 499) == Some(1000 - *n as u32)).count();
        assert!(known > 990, "{known}");
        assert_eq!(g.take(OwnerId(1), key(999), 499), None, "taken once");
        assert_eq!(g.take(OwnerId(2), key(3), 499), None, "another owner's");
    }

    #[test]
    fn the_table_has_two_to_four_entries_for_each_frame() {
        for frames in [64, 65, 1000, 4096, 4097] {
            let mut g = Ghosts::default();
            g.reserve(frames);
            for n in 0..20 * frames {
                g.add(OwnerId(0), Key { object: n, page: 0 }, n as u32);
            }
            let entries = (g.buckets.len() * WAYS) as u64;
            assert!((2 * frames..=4 * frames).contains(&entries), "{frames}: {entries}");
        }
    }

    #[test]
    fn full_buckets_forget_the_oldest() {
        let mut g = Ghosts::default();
        g.reserve(64);
        let frames = (g.buckets.len() * WAYS) as u64;
        for n in 0..frames * 8 {
            g.add(OwnerId(0), Key { object: n, page: 0 }, n as u32);
        }
        let now = (frames * 8) as u32;
        let away: Vec<_> =
            (0..frames * 8).filter_map(|n| g.take(OwnerId(0), Key { object: n, page: 0 }, now)).collect();
        let young = away.iter().filter(|a| u64::from(**a) <= frames * 3).count();
        assert!(young * 10 > away.len() * 9, "{young} of {}", away.len());
    }
}
