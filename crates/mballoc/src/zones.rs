//! [`SystemZones`]: blocks of the file system's own metadata. Linux: `struct ext4_system_blocks`,
//! fs/ext4/block_validity.c.
//!
//! # Locking
//! None: the initial zones are complete before the allocator is shared, and later ones are appended.

use extant_base::append::AppendVec;

/// Merged, sorted ranges `start..end`.
type Ranges = Vec<(u64, u64)>;

/// The zones.
pub struct SystemZones {
    /// The zones at mount.
    base: Ranges,
    /// The zones of groups that were added later: the first block of these groups, and their zones. In ascending order.
    later: AppendVec<(u64, Ranges)>,
}

impl Default for SystemZones {
    fn default() -> SystemZones {
        SystemZones { base: Ranges::new(), later: AppendVec::from_iter([]) }
    }
}

fn merged(mut ranges: Ranges) -> Ranges {
    ranges.retain(|range| range.0 < range.1);
    ranges.sort_unstable();
    let mut merged = Ranges::with_capacity(ranges.len());
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged.shrink_to_fit();
    merged
}

impl SystemZones {
    pub fn add(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let all = std::mem::take(&mut self.base).into_iter().chain(ranges).collect();
        self.base = merged(all);
    }

    /// Adds the zones of groups that begin at block `first`, behind all others.
    pub fn append(&self, first: u64, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.later.push((first, merged(ranges.into_iter().collect())));
    }

    /// The lists that may have ranges in `start..end`.
    fn lists(&self, start: u64, end: u64) -> impl Iterator<Item = &Ranges> {
        let (mut low, mut high) = (0, self.later.len());
        while low < high {
            let middle = low.midpoint(high);
            let is_before = self.later.get(middle).is_some_and(|(first, _)| *first <= start);
            (low, high) = if is_before { (middle + 1, high) } else { (low, middle) };
        }
        let later = (low.saturating_sub(1)..self.later.len()).map_while(|at| self.later.get(at));
        std::iter::once(&self.base).chain(later.take_while(move |(first, _)| *first < end).map(|(_, ranges)| ranges))
    }

    /// Whether a block of `start..end` is in a zone. Called for each extent that comes from disk (Linux:
    /// `ext4_sb_block_valid`): it is a search among the merged ranges, of which each flex group has one or two.
    pub fn overlap(&self, start: u64, end: u64) -> bool {
        self.lists(start, end).any(|ranges| {
            let at = ranges.partition_point(|r| r.1 <= start);
            ranges.get(at).is_some_and(|r| r.0 < end)
        })
    }

    /// The end of the zone that contains `block`.
    pub fn end_of(&self, block: u64) -> Option<u64> {
        self.lists(block, block.saturating_add(1)).find_map(|ranges| {
            let at = ranges.partition_point(|r| r.1 <= block);
            ranges.get(at).filter(|r| r.0 <= block).map(|r| r.1)
        })
    }

    /// The parts of zones that are inside `start..end`.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.lists(start, end).flat_map(move |ranges| {
            let first = ranges.partition_point(|r| r.1 <= start);
            ranges[first..].iter().take_while(move |r| r.0 < end).map(move |r| (r.0.max(start), r.1.min(end)))
        })
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

    #[test]
    fn appended_zones_lie_behind_the_others() {
        let mut z = SystemZones::default();
        z.add([(10, 20), (90, 100)]);
        z.append(100, [(100, 110), (140, 150)]);
        z.append(200, [(205, 210)]);
        z.append(300, []);
        assert_eq!(z.within(0, 400).collect::<Vec<_>>(), [(10, 20), (90, 100), (100, 110), (140, 150), (205, 210)]);
        assert_eq!(
            (z.end_of(145), z.end_of(99), z.end_of(204), z.end_of(206)),
            (Some(150), Some(100), None, Some(210))
        );
        for start in 0..320 {
            for end in start + 1..321 {
                assert_eq!(z.overlap(start, end), z.within(start, end).count() > 0, "{start}..{end}");
            }
        }
    }

    /// Measures the cost of a lookup on 8 TiB of 4 KiB blocks in 65,536 groups: `cargo test --release -p extant-mballoc
    /// --lib cost_of_a_lookup -- --ignored --nocapture`.
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
                println!("{name}, {} ranges, {order}: {ns:.1} ns per lookup", z.base.len());
            }
            assert!(hits > 0);
        }
    }
}
