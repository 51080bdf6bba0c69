//! `sure-fit`: the nearest group that surely has a run of the wanted length; where none has, the group with the
//! longest.
//!
//! Each group publishes the length of a run that it surely has ([`GroupInfo::run`]), a byte (`class_of`) under a tree
//! of maxima. A change touches one byte and seldom a node above; a search touches one or two nodes a level. A second
//! tree has what could be in groups whose bitmap was not read yet.
//!
//! How many groups a request locks, when bitmaps are known: the nearest that surely fits, from the goal group on; the
//! search takes a run there, unless another thread was faster. If none fits, the nearest of those with the longest run,
//! and it takes that. So one, and one more for each race lost (a group that is locked, or was changed since).
//!
//! When bitmaps are not known: first the nearest that could fit, the goal group as a rule, if it is nearer than any
//! that does; reading one reads those of its flex group ([`crate::GroupStore::read_ahead`]). Then as above, where what
//! is surely there (of few used blocks, few runs are cut) may have to be read. So two reads and two groups. A request
//! of 256 blocks or more that would be cut into four or more pieces guesses at groups that may have four times the
//! longest known run.
//!
//! A request never ends while something is free: a group with a free block has a byte of 1 at least, known or not, and
//! before it ends it looks at the bytes themselves.
//!
//! What is not quite sure: a group that is BLOCK_UNINIT is taken for one run, as mke2fs leaves it; from 245,760 blocks
//! on (64 KiB blocks) runs are all of one class. Where that is wrong it costs a group more.
//!
//! Where chunks for small files come from: each flex group has its own, in which no more than one request's remnant is
//! kept. What an fsync waits for has another home, the same for the whole disk, which moves on when it is full: its
//! blocks are soon written and often soon freed, and one bitmap is journaled for all instead of one for each directory.
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

/// The home of what an fsync waits for.
const SYNCED: u32 = u32::MAX;
/// No chunk was made there yet.
const NONE: u32 = u32::MAX;
/// Groups that a request names because they could have a run, before it is content with what is surely there. That may
/// have to be read as well.
const GUESSES: u32 = 1;
/// After so many guesses in vain in a row only one request in [`GUESS_EVERY`] makes one.
const MISSES_MAX: u32 = 8;
const GUESS_EVERY: u32 = 64;
/// A run of so many blocks takes longer than a seek or two.
const LONG: u32 = 256;
/// From the class of a run to that of one four times as long.
const QUARTER: u8 = 16;
/// [`Pass::step`]: the last group named was a guess.
const GUESSED: u32 = 1;
/// From this many groups per flex group on, the first one is left to directories.
const FLEX_SIZE_DIR_SCHEME: u32 = 4;

/// See the page.
pub struct SureFit {
    /// Runs that are surely there, of groups for all.
    sure: Maxima,
    /// The same of the first groups of flex groups, by flex group: they are left to directories while files have others
    /// (Linux: `EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`). Not used where flex groups are small.
    firsts: Maxima,
    /// Free blocks of groups whose runs are not known.
    unknown: Maxima,
    /// Blocks of a group, but for the last.
    blocks: u32,
    flex: u32,
    /// Guesses that were in vain, more or less: see [`SureFit::may_guess`].
    misses: AtomicU32,
    requests: AtomicU32,
    /// The group with the last chunk for what is synced.
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

    /// The nearest group whose byte is at least `class`, once around from the group so far behind the goal on: how far
    /// behind it lies. `next`: the first such group of a range.
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

    /// Where guesses were in vain of late, as on a disk that is worn everywhere alike, only some requests guess.
    fn may_guess(&self) -> bool {
        self.misses.load(Ordering::Relaxed) < MISSES_MAX
            || self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(GUESS_EVERY)
    }

    fn note_guess(&self, change: impl Fn(u32) -> u32) {
        let _ = self.misses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |m| Some(change(m).min(MISSES_MAX)));
    }

    /// Of the groups that fit, surely or perhaps, the next. `pass.at`: how far behind the goal to look from; what lies
    /// nearer was named, or it does not fit.
    fn fitting(&self, pass: &mut Pass) -> Option<u32> {
        let class = class_for(pass.len);
        if pass.step == GUESSED {
            // It was in vain: three points, of which a guess costs two beforehand.
            self.note_guess(|misses| misses + 3);
            pass.step = 0;
        }
        let all = !pass.data || pass.criterion == Criterion::FreeFits;
        let sure = self.nearest_sure(pass, pass.at, class, all);
        // A long run would be cut into many of what is surely there. Reading bitmaps costs less than the seeks, even if
        // the best of what they show is but a part of it.
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

    /// The nearest group with the longest run. While others take from it, the next best: `pass.tries` is the class of
    /// the last one named, and one, `pass.at` how far it lies.
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
        // The trees may have said too little while others changed them; the bytes themselves do not.
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
            // Used blocks cut the free ones into one piece more than they are. And what was there before still is:
            // blocks are only taken where runs are known.
            let used = self.blocks.saturating_sub(info.free);
            class_of(info.free.div_ceil(used + 1)).max(self.class(group))
        };
        if self.is_first(group) {
            self.firsts.set(group / self.flex, run)
        } else {
            self.sure.set(group, run)
        }
        // A first group is read with its flex group, and not on a guess.
        self.unknown.set(group, if known || self.is_first(group) { 0 } else { class_of(info.free) });
    }

    fn next(&self, pass: &mut Pass, good: Good<'_>) -> Option<u32> {
        loop {
            let found = match pass.criterion {
                // Files go to the first groups of flex groups when no other fits.
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
        // Side by side they lie in any case. The shorter, the sooner all files of a chunk are gone and it is used
        // again.
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
