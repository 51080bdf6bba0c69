//! [`SystemZones`]: blocks of the file system's own metadata. Linux: `struct ext4_system_blocks`,
//! fs/ext4/block_validity.c.
//!
//! # Locking
//! None: changed before the allocator is shared, then only read.

/// Merged, sorted ranges `start..end`.
#[derive(Clone, Debug, Default)]
pub struct SystemZones(Vec<(u64, u64)>);

impl SystemZones {
    pub fn add(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.0.extend(ranges.into_iter().filter(|r| r.0 < r.1));
        self.0.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.0.len());
        for &(start, end) in &self.0 {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        merged.shrink_to_fit();
        self.0 = merged;
    }

    /// Whether a block of `start..end` is in a zone. Called for each extent that comes from disk (Linux:
    /// `ext4_sb_block_valid`): a search among the merged ranges, which are one or two for each flex group.
    pub fn overlap(&self, start: u64, end: u64) -> bool {
        let at = self.0.partition_point(|r| r.1 <= start);
        self.0.get(at).is_some_and(|r| r.0 < end)
    }

    /// The end of the zone that contains `block`.
    pub fn end_of(&self, block: u64) -> Option<u64> {
        let at = self.0.partition_point(|r| r.1 <= block);
        self.0.get(at).filter(|r| r.0 <= block).map(|r| r.1)
    }

    /// The parts of the zones inside `start..end`.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.0.partition_point(|r| r.1 <= start);
        self.0[first..].iter().take_while(move |r| r.0 < end).map(move |r| (r.0.max(start), r.1.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_clipped() {
        let mut z = SystemZones::default();
        z.add([(10, 20), (30, 40), (5, 5)]);
        z.add([(20, 25), (35, 50)]);
        assert_eq!(z.within(0, 100).collect::<Vec<_>>(), [(10, 25), (30, 50)]);
        assert_eq!(z.within(24, 31).collect::<Vec<_>>(), [(24, 25), (30, 31)]);
        assert_eq!(z.within(25, 30).count(), 0);
        for start in 0..60 {
            for end in start + 1..61 {
                assert_eq!(z.overlap(start, end), z.within(start, end).count() > 0, "{start}..{end}");
            }
        }
    }

    /// The cost of a lookup, on 8 TiB of 4 KiB blocks in 65,536 groups: `cargo test --release -p extant-mballoc --lib
    /// cost_of_a_lookup -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn cost_of_a_lookup() {
        let clock = extant_base::clock::Clock::real();
        for (name, flex) in [("16 groups a flex group", 16u64), ("no flex groups", 1)] {
            let mut z = SystemZones::default();
            z.add((0..65_536u64).step_by(flex as usize).map(|g| (g << 15, (g << 15) + 514 * flex)));
            let (mut rng, mut hits) = (extant_base::rng::Rng::new(1), 0u64);
            let places: Vec<u64> = (0..1 << 16).map(|_| rng.below(65_536 << 15)).collect();
            for (order, spread) in [("anywhere", u64::MAX), ("in one file's gigabyte", (1 << 18) - 1)] {
                let begin = clock.now_ns();
                for round in 0..50 {
                    for place in &places {
                        let at = (place & spread) + round;
                        hits += u64::from(z.overlap(at, at + 100));
                    }
                }
                let ns = (clock.now_ns() - begin) as f64 / (50.0 * places.len() as f64);
                println!("{name}, {} ranges, {order}: {ns:.1} ns per lookup", z.0.len());
            }
            assert!(hits > 0);
        }
    }
}
