//! `sure-fit`: the nearest group that definitely has a run of the wanted length; if no group has, the one with the
//! longest run.
//!
//! Each group publishes the length of a run that definitely exists ([`GroupInfo::run`]), as a byte (`class_of`) below a
//! tree of maxima. A change affects one byte and rarely a node above; a search reads one or two nodes per level. A
//! second tree has the possible runs of groups whose bitmap has not been read yet.
//!
//! If bitmaps are known, a request locks the nearest group that definitely fits, from the goal group on. The search
//! takes a run there, unless another thread was faster. If no group fits, it takes the longest run of the nearest group
//! that has such a run. So a request locks one group, and one more for each lost race (a group that is locked, or has
//! changed since).
//!
//! If bitmaps are unknown, the request first tries the nearest group that could fit, unless one that definitely fits is
//! nearer. This is usually the goal group. Reading its bitmap reads those of its flex group
//! ([`crate::GroupStore::read_ahead`]). It then continues as above, but even a group that definitely fits may have to
//! be read. (Few used blocks split the free ones into few runs, so a run is known without the bitmap.) So a request
//! makes at most two reads and locks two groups. A request of 256 blocks or more may have to be cut into four or more
//! pieces. It then tries groups that may have four times the longest known run.
//!
//! A request never fails while a block is free. A group with a free block has a byte of at least 1, known or not, and a
//! request reads the bytes themselves before it fails.
//!
//! Two estimates may be wrong. A group that is BLOCK_UNINIT counts as one run, as mke2fs leaves it. All runs of at
//! least 245,760 blocks (64 KiB blocks) have the same class. A wrong estimate costs one more group.
//!
//! Small files get their chunks from their flex group, which keeps no more than one request's remnant. Files for which
//! an fsync waits have a separate home, one for the whole disk, which moves when it is full. Their blocks are soon
//! written and often soon freed. So one bitmap is journaled for all of them instead of one per directory.
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU32, Ordering};

use super::{Criterion, GroupChoice, GroupInfo, GroupSearch, GroupTest, Growth, Pass, Rules, Streams};
use crate::Geometry;
use crate::group_choice::maxima::{Maxima, class_for, class_of};

static RULES: Rules = Rules {
    streams: Streams::None,
    growth: Growth::Times(32),
    closed_files_apart: false,
    orlov_unscaled: false,
    skips_busy: true,
    trim_orders: 0,
    keeps_remnants: false,
    together: true,
    within: GroupSearch::Direct,
};

/// The home of files for which an fsync waits.
const SYNCED: u32 = u32::MAX;
/// No chunk has been made there yet.
const NONE: u32 = u32::MAX;
/// How many groups a request may try because they could have a run, before it falls back to runs that definitely exist.
/// Those groups may have to be read as well.
const GUESSES: u32 = 1;
/// After this many unsuccessful guesses in a row, only one request in [`GUESS_EVERY`] guesses.
const MISSES_MAX: u32 = 8;
const GUESS_EVERY: u32 = 64;
/// Transferring a run of this many blocks takes longer than a seek or two.
const LONG: u32 = 256;
/// The difference between the class of a run and the class of one four times as long.
const QUARTER: u8 = 16;
/// [`Pass::step`]: the last group named was a guess.
const GUESSED: u32 = 1;
/// From this many groups per flex group on, the first one is reserved for directories.
const FLEX_SIZE_DIR_SCHEME: u32 = 4;

/// The state of `sure-fit`; see the module.
pub struct SureFit {
    /// Runs that definitely exist, of groups that any request may use.
    sure: Maxima,
    /// As `sure`, for the first groups of flex groups, by flex group. They are reserved for directories while files
    /// have others (Linux: `EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`). Not used if flex groups are small.
    firsts: Maxima,
    /// Free blocks of groups whose runs are not known.
    unknown: Maxima,
    /// Blocks per group, except the last.
    blocks: u32,
    flex: u32,
    /// An approximate count of unsuccessful guesses: see [`SureFit::may_guess`].
    misses: AtomicU32,
    requests: AtomicU32,
    /// The group with the last chunk for synced files.
    synced_group: AtomicU32,
}

impl SureFit {
    pub fn new(geometry: &Geometry) -> SureFit {
        SureFit {
            sure: Maxima::new(geometry.groups),
            firsts: Maxima::new(geometry.groups.div_ceil(geometry.flex_bg_size.max(1))),
            unknown: Maxima::new(geometry.groups),
            blocks: geometry.blocks_per_group,
            flex: geometry.flex_bg_size.max(1),
            misses: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            synced_group: AtomicU32::new(NONE),
        }
    }

    fn is_first(&self, group: u32) -> bool {
        self.flex >= FLEX_SIZE_DIR_SCHEME && group.is_multiple_of(self.flex)
    }

    /// The class of the run that definitely exists in a group.
    fn class(&self, group: u32) -> u8 {
        if self.is_first(group) { self.firsts.get(group / self.flex) } else { self.sure.get(group) }
    }

    /// The distance behind the goal of the nearest group whose byte is at least `class`, searched once around from
    /// distance `from` on. `next`: the first such group of a range.
    fn nearest(pass: &Pass, from: u64, next: impl Fn(u32, u32) -> Option<u32>) -> Option<u32> {
        let (from, to_end) = (from as u32, pass.limit - pass.goal);
        let behind = next(pass.goal + from.min(to_end), pass.limit).map(|group| group - pass.goal);
        behind.or_else(|| next(from.saturating_sub(to_end), pass.goal).map(|group| group + to_end))
    }

    /// The nearest group that definitely has a run of the class. `firsts`: whether the first groups of flex groups
    /// count.
    fn nearest_sure(&self, pass: &Pass, from: u64, class: u8, firsts: bool) -> Option<u32> {
        let other = SureFit::nearest(pass, from, |from, to| self.sure.next(from, to, class));
        if !firsts {
            return other;
        }
        let first = SureFit::nearest(pass, from, |from, to| {
            let flex = self.firsts.next(from.div_ceil(self.flex), to.div_ceil(self.flex), class)?;
            Some(flex * self.flex)
        });
        first.into_iter().chain(other).min()
    }

    /// If guesses have failed recently, as on a disk that is equally fragmented everywhere, only some requests guess.
    fn may_guess(&self) -> bool {
        self.misses.load(Ordering::Relaxed) < MISSES_MAX
            || self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(GUESS_EVERY)
    }

    fn note_guess(&self, change: impl Fn(u32) -> u32) {
        let _ = self.misses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |m| Some(change(m).min(MISSES_MAX)));
    }

    /// The next group that fits, definitely or perhaps. `pass.at`: the distance behind the goal from which to search;
    /// nearer groups were named, or do not fit.
    fn fitting(&self, pass: &mut Pass) -> Option<u32> {
        let class = class_for(pass.len);
        if pass.step == GUESSED {
            // The guess failed: adds three points, two of which it had subtracted in advance.
            self.note_guess(|misses| misses + 3);
            pass.step = 0;
        }
        let all = !pass.data || pass.criterion == Criterion::FreeFits;
        let sure = self.nearest_sure(pass, pass.at, class, all);
        // The runs that definitely exist would split a long request into many pieces. Reading bitmaps costs less than
        // the seeks, even if the best run that they reveal covers only a part of it.
        let better = self.sure.largest(pass.limit).max(self.firsts.largest(pass.limit.div_ceil(self.flex))) + QUARTER;
        let cut = pass.len >= LONG && better <= class;
        let least = if cut { better } else { class };
        let perhaps = SureFit::nearest(pass, pass.at, |from, to| self.unknown.next(from, to, least));
        let nearer = perhaps.filter(|&far| pass.guesses < GUESSES && sure.is_none_or(|sure| far < sure));
        let guess = nearer.filter(|_| cut || self.may_guess());
        if guess.is_some() {
            pass.guesses += 1;
            pass.step = GUESSED;
            self.note_guess(|misses| misses.saturating_sub(2));
        }
        let far = guess.or(sure)?;
        pass.at = u64::from(far) + 1;
        Some(pass.group_behind(far))
    }

    /// The nearest group with the longest run; while other threads take blocks from it, the next best group.
    /// `pass.tries` is the class of the last one named plus one, `pass.at` its distance.
    fn longest(&self, pass: &mut Pass) -> Option<u32> {
        if pass.tries == 0 {
            let firsts = self.firsts.largest(pass.limit.div_ceil(self.flex));
            pass.tries = u32::from(self.sure.largest(pass.limit).max(firsts)) + 1;
        }
        while pass.tries > 1 {
            if let Some(far) = self.nearest_sure(pass, pass.at, pass.tries as u8 - 1, true) {
                pass.at = u64::from(far) + 1;
                return Some(pass.group_behind(far));
            }
            (pass.tries, pass.at) = (pass.tries - 1, 0);
        }
        // The trees may have been too small while other threads changed them, but the bytes themselves are exact.
        if std::mem::replace(&mut pass.step, 1) == 1 {
            return None;
        }
        let first = || self.firsts.first_nonzero(pass.limit.div_ceil(self.flex)).map(|flex| flex * self.flex);
        self.sure.first_nonzero(pass.limit).or_else(first)
    }
}

impl GroupChoice for SureFit {
    fn rules(&self) -> &'static Rules {
        &RULES
    }

    fn changed(&self, group: u32, info: GroupInfo) {
        let known = info.fragments > 0 || info.free == 0;
        let run = if known {
            class_of(info.run)
        } else {
            // Used blocks split the free ones into at most one piece more than there are used blocks. An earlier run
            // also still exists, because blocks are only taken from groups whose runs are known.
            let used = self.blocks.saturating_sub(info.free);
            class_of(info.free.div_ceil(used + 1)).max(self.class(group))
        };
        if self.is_first(group) {
            self.firsts.set(group / self.flex, run)
        } else {
            self.sure.set(group, run)
        }
        // A first group is read with its flex group, not because of a guess.
        self.unknown.set(group, if known || self.is_first(group) { 0 } else { class_of(info.free) });
    }

    fn next(&self, pass: &mut Pass, good: GroupTest<'_>) -> Option<u32> {
        loop {
            let found = match pass.criterion {
                // Files use the first groups of flex groups only if no other group fits.
                Criterion::FreeFits if !pass.data => None,
                Criterion::Power2 | Criterion::AverageFits | Criterion::FreeFits => self.fitting(pass),
                Criterion::Any => self.longest(pass),
            };
            match found {
                Some(group) if good(pass, group) => return found,
                Some(_) => {}
                None if pass.relax() => {}
                None => return None,
            }
        }
    }

    fn home(&self, goal: u32, synced: bool) -> u32 {
        if synced { SYNCED } else { goal / self.flex }
    }

    fn chunk_len(&self, home: u32, usual: u32) -> u32 {
        // Chunks of synced files are adjacent anyway. The shorter a chunk is, the sooner all of its files are deleted
        // and it is used again.
        if home == SYNCED { usual / 4 } else { usual }
    }

    fn chunk_goal(&self, home: u32) -> Option<u32> {
        let group = self.synced_group.load(Ordering::Relaxed);
        (home == SYNCED && group != NONE).then_some(group)
    }

    fn chunk_placed(&self, home: u32, group: u32) {
        if home == SYNCED {
            self.synced_group.store(group, Ordering::Relaxed);
        }
    }

    fn bytes(&self) -> usize {
        self.sure.bytes() + self.firsts.bytes() + self.unknown.bytes()
    }
}
