//! [`Maxima`]: one byte per group, and above them a tree of maxima with 64 children per node. From a position on, it
//! finds the nearest group whose byte is at least a given value. It also finds the largest byte. Both examine only a
//! few nodes.
//!
//! The bytes are classes of lengths. [`class_of`] rounds an existing length down and [`class_for`] rounds a needed
//! length up, so a group of the needed class has enough. Lengths below 8 are exact, others within an eighth.
//!
//! It takes 1.02 bytes per group. Changing a byte examines one node of each level, and changes the nodes of which it
//! was or becomes the maximum.
//!
//! What it does not do: it does not guarantee exact nodes while bytes change. A thread that stores a byte of a node
//! examines the node again, and then corrects the level above. So once no thread changes anything, every node is the
//! maximum of its children. Until then, a node may be too large or too small. A caller that must not miss a group reads
//! the bytes themselves ([`Maxima::first_nonzero`]).
//!
//! # Locking
//! None. Only the holder of a group's lock changes the group's byte.

use extant_base::sim;
use extant_base::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a node.
const NODE: usize = 64;
const WORDS: usize = NODE / 8;
/// The highest class: all lengths of at least 245,760 blocks (in groups of 64 KiB blocks) have this class.
const CLASS_MAX: u32 = 127;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The class of a run of `len` blocks.
pub fn class_of(len: u32) -> u8 {
    let class = match len.checked_ilog2() {
        None | Some(0..3) => len,
        Some(order) => 8 + (order - 3) * 8 + (len >> (order - 3) & 7),
    };
    class.min(CLASS_MAX) as u8
}

/// The lowest class in which every run has at least `len` blocks (but see [`CLASS_MAX`]).
pub fn class_for(len: u32) -> u8 {
    let down = class_of(len);
    let exact = len < 8 || len.trailing_zeros() + 3 >= len.ilog2();
    if exact { down } else { (down + 1).min(CLASS_MAX as u8) }
}

/// One level: one byte per child.
struct Level(Box<[AtomicU64]>);

impl Level {
    fn new(bytes: usize) -> Level {
        Level((0..bytes.div_ceil(NODE) * WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at / 8).map_or(0, |w| (w.load(Ordering::SeqCst) >> (at % 8 * 8)) as u8)
    }

    fn set(&self, at: usize, byte: u8) {
        let Some(word) = self.0.get(at / 8) else { return };
        sim::line_written("maxima", &self.0[at / NODE * WORDS]);
        let shift = at % 8 * 8;
        let change = |w: u64| Some(w & !(0xFF << shift) | u64::from(byte) << shift);
        let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }

    fn words(&self, node: usize) -> &[AtomicU64] {
        self.0.get(node * WORDS..(node + 1) * WORDS).unwrap_or_default()
    }

    /// The first byte of the node, from `at` on and before `end`, that is at least `least`.
    fn first_in_node(&self, at: usize, end: usize, least: u8) -> Option<usize> {
        let node = at / NODE;
        if let Some(first) = self.words(node).first() {
            sim::line_read("maxima", first);
        }
        for (i, word) in self.words(node).iter().enumerate().skip(at % NODE / 8) {
            let first = node * NODE + i * 8;
            if first >= end {
                return None;
            }
            // No byte exceeds 127, so exactly the bytes that are large enough have their high bit set.
            let mut large = (word.load(Ordering::Relaxed) | HIGH).wrapping_sub(ONES * u64::from(least)) & HIGH;
            if first < at {
                large &= u64::MAX << ((at - first) * 8);
            }
            if large != 0 {
                return Some(first + large.trailing_zeros() as usize / 8).filter(|&found| found < end);
            }
        }
        None
    }

    fn largest_in(&self, range: std::ops::Range<usize>) -> u8 {
        range.map(|at| self.byte(at)).max().unwrap_or(0)
    }

    fn largest_of_node(&self, node: usize) -> u8 {
        let mut bytes = [0u8; NODE];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words(node)) {
            to.copy_from_slice(&word.load(Ordering::SeqCst).to_le_bytes());
        }
        bytes.into_iter().max().unwrap_or(0)
    }
}

/// A tree of maxima; see the module.
pub struct Maxima {
    /// The lowest level, with the groups' bytes, comes first.
    levels: Vec<Level>,
}

impl Maxima {
    pub fn new(groups: u32) -> Maxima {
        let mut levels = vec![Level::new(groups as usize)];
        let mut bytes = groups as usize;
        while bytes > NODE {
            bytes = bytes.div_ceil(NODE);
            levels.push(Level::new(bytes));
        }
        Maxima { levels }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(|l| l.0.len() * 8).sum()
    }

    pub fn get(&self, group: u32) -> u8 {
        self.levels.first().map_or(0, |l| l.byte(group as usize))
    }

    /// Sets a group's byte, at most 127.
    pub fn set(&self, group: u32, byte: u8) {
        let Some(groups) = self.levels.first().filter(|groups| groups.byte(group as usize) != byte) else { return };
        groups.set(group as usize, byte);
        sim::point("maxima: set");
        self.correct_above(0, group as usize);
    }

    /// Makes the nodes above a byte equal to the maximum of their children, level by level.
    fn correct_above(&self, level: usize, mut at: usize) {
        for pair in self.levels[level..].windows(2) {
            let [below, above] = pair else { return };
            at /= NODE;
            let mut largest = below.largest_of_node(at);
            sim::point("maxima: looked");
            while above.byte(at) != largest {
                above.set(at, largest);
                sim::point("maxima: stored");
                largest = below.largest_of_node(at);
            }
        }
    }

    /// The first group below `limit` whose byte is not 0, found without the nodes above.
    pub fn first_nonzero(&self, limit: u32) -> Option<u32> {
        let words = &self.levels.first()?.0;
        let (at, word) = (0..).zip(words).map(|(i, w)| (i, w.load(Ordering::SeqCst))).find(|(_, w)| *w != 0)?;
        Some(at * 8 + word.trailing_zeros() / 8).filter(|&group| group < limit)
    }

    /// The first group in `from..to` whose byte is at least `least` (1 at least).
    pub fn next(&self, from: u32, to: u32, least: u8) -> Option<u32> {
        let (mut at, end) = (from as usize, to as usize);
        while at < end {
            match self.next_once(at, end, least) {
                Ok(found) => return found.map(|g| g as u32),
                // The nodes above this one were too large.
                Err(behind) => at = behind,
            }
        }
        None
    }

    /// One attempt. `Err`: no group before this one qualifies after all.
    fn next_once(&self, from: usize, end: usize, least: u8) -> Result<Option<usize>, usize> {
        // Goes up until a node has a candidate to the right of the starting point.
        let mut at = from;
        let mut level = 0;
        let found = loop {
            let Some(bytes) = self.levels.get(level) else { return Ok(None) };
            let width = NODE.pow(level as u32);
            if at * width >= end {
                return Ok(None);
            }
            if let Some(found) = bytes.first_in_node(at, end.div_ceil(width), least) {
                break found;
            }
            at = at / NODE + 1;
            level += 1;
        };
        // Goes down again.
        let mut at = found;
        while level > 0 {
            match self.levels[level - 1].first_in_node(at * NODE, usize::MAX, least) {
                Some(child) => at = child,
                None => {
                    self.correct_above(level - 1, at * NODE);
                    return Err((at + 1) * NODE.pow(level as u32));
                }
            }
            level -= 1;
        }
        Ok(Some(at).filter(|&g| g < end))
    }

    /// The largest byte of the groups below `limit`.
    pub fn largest(&self, limit: u32) -> u8 {
        let mut largest = 0;
        let mut end = limit as usize;
        for level in &self.levels {
            // Examines the part of the last node that the level above does not cover exactly; at the top, all of it.
            let from = if level.0.len() > WORDS { end / NODE * NODE } else { 0 };
            largest = largest.max(level.largest_in(from..end));
            end = from / NODE;
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant_base::rng::Rng;
    use extant_base::sim::Options;
    use extant_base::task;

    use super::*;

    #[test]
    fn a_group_of_the_needed_class_has_enough_blocks() {
        for len in 1..300_000u32 {
            let (of, needed) = (class_of(len), class_for(len));
            assert!(of <= needed && needed <= of + 1, "{len}");
            assert!(class_of(len - 1) <= of, "{len}");
            // No shorter run has the needed class.
            assert!(len > 245_760 || class_of(len - 1) < needed, "{len}");
        }
        assert_eq!((class_of(512), class_for(512), class_for(513)), (class_for(512), 56, 57));
        assert_eq!((class_of(0), class_of(7), class_of(8), class_of(u32::MAX)), (0, 7, 8, 127));
    }

    #[test]
    fn the_tree_agrees_with_a_plain_array() {
        for (groups, seed) in [(1u32, 1), (64, 2), (65, 3), (4096, 4), (10_000, 5), (300_000, 6)] {
            let mut rng = Rng::new(seed);
            let maxima = Maxima::new(groups);
            let mut model = vec![0u8; groups as usize];
            for _ in 0..3000 {
                let near = rng.one_in(2);
                let g = rng.below(u64::from(if near { groups.min(70) } else { groups })) as u32;
                let byte = if rng.one_in(3) { 0 } else { rng.below(128) as u8 };
                maxima.set(g, byte);
                model[g as usize] = byte;
                let from = rng.below(u64::from(groups)) as u32;
                let to = from + rng.below(u64::from(groups - from)) as u32 + 1;
                let least = 1 + rng.below(127) as u8;
                let expected = (from..to).find(|&g| model[g as usize] >= least);
                assert_eq!(maxima.next(from, to, least), expected, "{from}..{to} {least}");
                if rng.one_in(20) {
                    assert_eq!(maxima.largest(to), model[..to as usize].iter().copied().max().unwrap_or(0), "..{to}");
                }
            }
            assert!(maxima.bytes() <= 64 * 4 + groups as usize * 102 / 100 + 64);
        }
    }

    /// Two threads change groups of one node while a third searches, in every schedule with few preemptions. Afterwards
    /// every node is the maximum of its children. Threads may switch at each `sim::point`.
    #[test]
    fn concurrent_changes_lose_no_maximum() {
        // The bytes of the two groups before and after.
        for (before, after) in [([30, 0], [0, 60]), ([60, 50], [0, 0]), ([30, 60], [50, 0]), ([0, 0], [60, 30])] {
            let runs = sim::search(
                &Options { steps_max: 10_000, processors: 2, ..Options::new(0) },
                2,
                move || {
                    let maxima = Arc::new(Maxima::new(9000));
                    // Far from the third thread's starting point, so that it reaches their node from above.
                    let changes = [0, 1].map(|i| (4207 + i as u32, before[i], after[i]));
                    changes.iter().for_each(|&(g, old, _)| maxima.set(g, old));
                    let start = |work: Box<dyn FnOnce(&Maxima) + Send>| {
                        let maxima = maxima.clone();
                        task::spawn("maxima", move || work(&maxima)).expect("thread")
                    };
                    let mut threads: Vec<_> =
                        changes.iter().map(|&(g, _, new)| start(Box::new(move |m| m.set(g, new)))).collect();
                    threads.push(start(Box::new(|m| {
                        m.next(0, 9000, 20);
                    })));
                    threads.into_iter().for_each(|t| t.join().expect("joined"));
                    let agree = maxima.levels.windows(2).all(|pair| {
                        (0..pair[0].0.len() / WORDS).all(|n| pair[1].byte(n) == pair[0].largest_of_node(n))
                    });
                    let first = changes.iter().find(|&&(_, _, new)| new > 0).map(|&(g, _, _)| g);
                    (agree, maxima.next(0, 9000, 1) == first, maxima.first_nonzero(9000) == first)
                },
                |outcome| {
                    let forks = outcome.forks;
                    let result = outcome.result.unwrap_or_else(|e| panic!("{before:?} {after:?} {forks:?}: {e}"));
                    assert_eq!(result, (true, true, true), "{before:?} {after:?} {forks:?}");
                },
            );
            assert!(runs > 100, "{runs} schedules");
        }
    }
}
