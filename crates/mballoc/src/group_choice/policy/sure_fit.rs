//! `sure-fit`: the nearest group that surely has a run of the wanted length; if none has, the group with the longest
//! run.
//!
//! Each group publishes the length of a run that it surely has ([`GroupInfo::run`]), as a byte (`class_of`) under a
//! tree of maxima. A change touches one byte and seldom a node above; a search touches one or two nodes per level. A
//! second tree has the possible runs of groups whose bitmap was not read yet.
//!
//! How many groups a request locks when bitmaps are known: the nearest one that surely fits, from the goal group on.
//! The search takes a run there, unless another thread was faster. If none fits, it takes the longest run of the
//! nearest group that has such a run. So one group, and one more for each lost race (a group that is locked, or has
//! changed since).
//!
//! When bitmaps are unknown: first the nearest group that could fit, usually the goal group, if it is nearer than any
//! that surely fits. Reading its bitmap reads those of its flex group ([`crate::GroupStore::read_ahead`]). Then as
//! above, but even a sure group may have to be read: few used blocks cut the free ones into few runs, so its run is
//! known without its bitmap. So two reads and two groups. A request of 256 blocks or more may have to be cut into
//! four or more pieces. It then guesses at groups that may have four times the longest known run.
//!
//! A request never fails while a block is free: a group with a free block has a byte of at least 1, known or not, and
//! before the request fails it looks at the bytes themselves.
//!
//! Two estimates may be wrong. A group that is BLOCK_UNINIT counts as one run, as mke2fs leaves it. All runs from
//! 245,760 blocks on (64 KiB blocks) have one class. A wrong estimate costs one more group.
//!
//! Where chunks for small files come from: each flex group has its own, and keeps no more than one request's remnant.
//! Files for which an fsync waits have another home, one for the whole disk, which moves on when it is full. Their
//! blocks are soon written and often soon freed, and one bitmap is journaled for all of them instead of one for each
//! directory.
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU32, Ordering};

use super::{Criterion, Good, GroupChoice, GroupInfo, Growth, Pass, Rules, Streams, Within};
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
    within: Within::Direct,
};

/// The home of files for which an fsync waits.
const SYNCED: u32 = u32::MAX;
/// No chunk has been made there yet.
const NONE: u32 = u32::MAX;
/// Groups that a request names because they could have a run, before it falls back to sure runs. Those groups may
/// have to be read as well.
const GUESSES: u32 = 1;
/// After this many unsuccessful guesses in a row only one request in [`GUESS_EVERY`] guesses.
const MISSES_MAX: u32 = 8;
const GUESS_EVERY: u32 = 64;
/// Transferring a run of this many blocks takes longer than a seek or two.
const LONG: u32 = 256;
/// From the class of a run to that of one four times as long.
const QUARTER: u8 = 16;
/// [`Pass::step`]: the last group named was a guess.
const GUESSED: u32 = 1;
/// From this many groups per flex group on, the first one is reserved for directories.
const FLEX_SIZE_DIR_SCHEME: u32 = 4;

/// See the module.
pub struct SureFit {
    /// Sure runs, of groups that any request may use.
    sure: Maxima,
    /// The same of the first groups of flex groups, by flex group. They are reserved for directories while files have
    /// others (Linux: `EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`). Not used where flex groups are small.
    firsts: Maxima,
    /// Free blocks of groups whose runs are not known.
    unknown: Maxima,
    /// Blocks per group, except the last.
    blocks: u32,
    flex: u32,
    /// Unsuccessful guesses, more or less: see [`SureFit::may_guess`].
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

    /// The class of the run that a group surely has.
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

    /// The nearest group that surely has a run of the class; `firsts`: the first groups of flex groups count.
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

    /// If guesses failed lately, as on a disk that is equally worn everywhere, only some requests guess.
    fn may_guess(&self) -> bool {
        self.misses.load(Ordering::Relaxed) < MISSES_MAX
            || self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(GUESS_EVERY)
    }

    fn note_guess(&self, change: impl Fn(u32) -> u32) {
        let _ = self.misses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |m| Some(change(m).min(MISSES_MAX)));
    }

    /// The next group that fits, surely or perhaps. `pass.at`: the distance behind the goal from which to search;
    /// nearer groups were named, or do not fit.
    fn fitting(&self, pass: &mut Pass) -> Option<u32> {
        let class = class_for(pass.len);
        if pass.step == GUESSED {
            // The guess failed: three points, two of which it had subtracted in advance.
            self.note_guess(|misses| misses + 3);
            pass.step = 0;
        }
        let all = !pass.data || pass.criterion == Criterion::FreeFits;
        let sure = self.nearest_sure(pass, pass.at, class, all);
        // The sure runs would cut a long request into many pieces. Reading bitmaps costs less than the seeks, even if
        // the best run that they show covers only a part of it.
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

    /// The nearest group with the longest run. While other threads take from it, the next best: `pass.tries` is the
    /// class of the last one named plus one, `pass.at` its distance.
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
        // The trees may have been too small while other threads changed them; the bytes themselves are exact.
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
            // Used blocks cut the free ones into at most one piece more than there are used blocks. And an earlier
            // run still exists: blocks are only taken from groups whose runs are known.
            let used = self.blocks.saturating_sub(info.free);
            class_of(info.free.div_ceil(used + 1)).max(self.class(group))
        };
        if self.is_first(group) {
            self.firsts.set(group / self.flex, run)
        } else {
            self.sure.set(group, run)
        }
        // A first group is read with its flex group, and not because of a guess.
        self.unknown.set(group, if known || self.is_first(group) { 0 } else { class_of(info.free) });
    }

    fn next(&self, pass: &mut Pass, good: Good<'_>) -> Option<u32> {
        loop {
            let found = match pass.criterion {
                // Files go to the first groups of flex groups only if no other fits.
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
        // Chunks of synced files are adjacent in any case. The shorter a chunk, the sooner all of its files are gone
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
