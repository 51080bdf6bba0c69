//! [`PageCache`]: pages that a program has read are in the host's memory, so reading them again needs no request.
//!
//! e2fsck reads nearly every block of an inode table twice, once with its neighbours and once alone. Nothing is
//! evicted: a check reads 6.5 GB of a 400 GB disk, and the machine in the e-mail of 2007 had 8 GB.
//!
//! # Locking
//! None.

use std::collections::HashMap;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The pages in memory: one bit each, 64 per entry.
#[derive(Debug, Default)]
pub(super) struct PageCache(HashMap<u64, u64>);

impl PageCache {
    /// The parts of a read that come from the device, as offset and length in whole pages. Afterwards they are in
    /// memory.
    pub(super) fn read(&mut self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            let (word, bit) = (self.0.entry(page / 64).or_default(), 1 << (page % 64));
            if *word & bit != 0 {
                continue;
            }
            *word |= bit;
            match parts.last_mut() {
                Some((start, len)) if *start + *len == page * PAGE => *len += PAGE,
                _ => parts.push((page * PAGE, PAGE)),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_from_the_device_once() {
        let mut cache = PageCache::default();
        assert_eq!(cache.read(5000, 100), [(4096, 4096)]);
        assert_eq!(cache.read(4096, 4096), []);
        assert_eq!(cache.read(0, 16384), [(0, 4096), (8192, 8192)]);
        assert_eq!(cache.read(1 << 40, 0), []);
        assert_eq!(cache.read(63 * PAGE, 2 * PAGE), [(63 * PAGE, 2 * PAGE)]);
    }
}
