//! [`RangeSet`]: a set of blocks, stored as merged ranges.
//!
//! # Locking
//! None; the owner provides locking.

use std::collections::BTreeMap;

/// A set of disjoint, non-adjacent ranges of u32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start → end (exclusive)
    map: BTreeMap<u32, u32>,
    total: u32,
}

impl RangeSet {
    pub fn of(start: u32, len: u32) -> RangeSet {
        let mut set = RangeSet::default();
        set.insert(start, len);
        set
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The number of members.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// `(start, len)` in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.map.iter().map(|(&s, &e)| (s, e - s))
    }

    /// The range that contains `at`, as `(start, len)`.
    pub fn containing(&self, at: u32) -> Option<(u32, u32)> {
        let (&s, &e) = self.map.range(..=at).next_back()?;
        (at < e).then_some((s, e - s))
    }

    /// The first member from `from` on.
    pub fn next(&self, from: u32) -> Option<u32> {
        match self.containing(from) {
            Some(_) => Some(from),
            None => self.map.range(from..).next().map(|(&s, _)| s),
        }
    }

    pub fn overlaps(&self, start: u32, len: u32) -> bool {
        let end = start.saturating_add(len);
        self.map.range(..end).next_back().is_some_and(|(_, &e)| e > start)
    }

    pub fn contains(&self, start: u32, len: u32) -> bool {
        self.containing(start).is_some_and(|(s, l)| start - s + len <= l)
    }

    /// Adds a range that does not overlap the set. Returns false, without a change, if it does or is empty.
    pub fn insert(&mut self, start: u32, len: u32) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        if len == 0 || self.overlaps(start, len) {
            return false;
        }
        let (mut s, mut e) = (start, end);
        if let Some((&ps, &pe)) = self.map.range(..start).next_back()
            && pe == start
        {
            self.map.remove(&ps);
            s = ps;
        }
        if let Some(ne) = self.map.remove(&end) {
            e = ne;
        }
        self.map.insert(s, e);
        self.total += len;
        true
    }

    /// Removes a range that lies entirely in the set. Returns false, without a change, if it does not.
    pub fn remove(&mut self, start: u32, len: u32) -> bool {
        if len == 0 || !self.contains(start, len) {
            return false;
        }
        let Some((s, l)) = self.containing(start) else { return false };
        let (e, end) = (s + l, start + len);
        self.map.remove(&s);
        if s < start {
            self.map.insert(s, start);
        }
        if end < e {
            self.map.insert(end, e);
        }
        self.total -= len;
        true
    }

    /// Removes `len` members from the first range that has as many, and returns their start.
    pub fn take_first_fit(&mut self, len: u32) -> Option<u32> {
        let start = self.map.iter().find(|&(&s, &e)| e - s >= len).map(|(&s, _)| s)?;
        self.remove(start, len).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::rng::Rng;

    #[test]
    fn agrees_with_a_plain_array() {
        let mut rng = Rng::new(11);
        let mut set = RangeSet::default();
        let mut model = [false; 128];
        for _ in 0..20_000 {
            let start = rng.below(120) as u32;
            let len = 1 + rng.below(8) as u32;
            let span = start as usize..(start + len) as usize;
            let (all, any) = (model[span.clone()].iter().all(|&b| b), model[span.clone()].iter().any(|&b| b));
            assert_eq!(set.overlaps(start, len), any);
            assert_eq!(set.contains(start, len), all);
            if rng.one_in(2) {
                assert_eq!(set.insert(start, len), !any);
                if !any {
                    model[span].fill(true);
                }
            } else {
                assert_eq!(set.remove(start, len), all);
                if all {
                    model[span].fill(false);
                }
            }
            assert_eq!(set.total() as usize, model.iter().filter(|&&b| b).count());
            assert!(set.iter().zip(set.iter().skip(1)).all(|(a, b)| a.0 + a.1 < b.0), "merged");
        }
    }
}
