//! `sure-fit`: the nearest group that surely has a run of the wanted length; where none has, the group with the
//! longest.
//!
//! Each group publishes the length of a run that it surely has ([`GroupInfo::run`]), a byte ([`class_of`]) under a tree
//! of maxima. A change touches one byte and seldom a node above; a search touches one or two nodes a level. A second
//! tree has what could be in groups whose bitmap was not read yet.
//!
//! How many groups a request locks, when bitmaps are known: the nearest that surely fits, from the goal group on; the
//! search takes a run there, unless another thread was faster. If none fits, the nearest of those with the longest run,
//! and it takes that. So one, and one more for each race lost; no group twice, because what was named is remembered.
//! When bitmaps are not known: first the nearest that could fit, the goal group as a rule, if it is nearer than any
//! that does; reading one reads those of its flex group ([`crate::GroupStore::read_ahead`]). Then as above, where what
//! is surely there (of few used blocks, few runs are cut) may have to be read. So two reads and two groups. A request
//! never ends while something is free: a group with a free block has a byte of 1 at least, known or not.
//!
//! Where chunks for small files come from: each flex group has its own, in which no more than one request's remnant is
//! kept. What an fsync waits for has another home, the same for the whole disk, which moves on when it is full: its
//! blocks are soon written and often soon freed, and one bitmap is journaled for all instead of one for each directory.
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU32, Ordering};

use super::{Criterion, Good, GroupChoice, GroupInfo, Pass, Rules, Within};
use crate::Geometry;
use crate::group_choice::maxima::{Maxima, class_for, class_of};

static RULES: Rules = Rules {
    one_stream_goal: false,
    closed_files_apart: false,
    orlov_unscaled: false,
    skips_busy: true,
    trim_orders: 0,
    keeps_remnants: false,
    within: Within::Direct,
};

/// The home of what an fsync waits for.
const SYNCED: u32 = u32::MAX;
/// No chunk was made there yet.
const NONE: u32 = u32::MAX;
/// Groups that a request names because they could have a run, before it is content with what is surely there. That may
/// have to be read as well.
const GUESSES: u32 = 1;

/// See the page.
pub struct SureFit {
    /// Runs that are surely there.
    sure: Maxima,
    /// Free blocks of groups whose runs are not known.
    unknown: Maxima,
    /// Blocks of a group, but for the last.
    blocks: u32,
    flex: u32,
    /// The group with the last chunk for what is synced.
    synced_group: AtomicU32,
}

impl SureFit {
    pub fn new(geometry: &Geometry) -> SureFit {
        SureFit {
            sure: Maxima::new(geometry.groups),
            unknown: Maxima::new(geometry.groups),
            blocks: geometry.blocks_per_group,
            flex: geometry.flex_bg_size.max(1),
            synced_group: AtomicU32::new(NONE),
        }
    }

    /// The nearest group whose byte is at least `class`, once around from the group so far behind the goal on: how far
    /// behind it lies.
    fn nearest(tree: &Maxima, pass: &Pass, from: u32, class: u8) -> Option<u32> {
        let to_end = pass.limit - pass.goal;
        let behind = tree.next(pass.goal + from.min(to_end), pass.limit, class).map(|group| group - pass.goal);
        behind.or_else(|| tree.next(from.saturating_sub(to_end), pass.goal, class).map(|group| group + to_end))
    }

    /// Of the groups that fit, surely or perhaps, the next. `pass.at`: how far behind the goal to look from; what lies
    /// nearer was named, or it does not fit.
    fn fitting(&self, pass: &mut Pass) -> Option<u32> {
        let class = class_for(pass.len);
        let sure = SureFit::nearest(&self.sure, pass, pass.at as u32, class);
        let unknown = SureFit::nearest(&self.unknown, pass, pass.at as u32, class).filter(|_| pass.guesses < GUESSES);
        let guess = unknown.filter(|&far| sure.is_none_or(|sure| far < sure));
        pass.guesses += u32::from(guess.is_some());
        let far = guess.or(sure)?;
        pass.at = u64::from(far) + 1;
        Some(pass.group_behind(far))
    }

    /// The nearest group with the longest run. While others take from it, the next best: `pass.tries` is the class of
    /// the last one named, and one, `pass.at` how far it lies.
    fn longest(&self, pass: &mut Pass) -> Option<u32> {
        if pass.tries == 0 {
            pass.tries = u32::from(self.sure.largest(pass.limit)) + 1;
        }
        while pass.tries > 1 {
            if let Some(far) = SureFit::nearest(&self.sure, pass, pass.at as u32, pass.tries as u8 - 1) {
                pass.at = u64::from(far) + 1;
                return Some(pass.group_behind(far));
            }
            (pass.tries, pass.at) = (pass.tries - 1, 0);
        }
        None
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
            class_of(info.free.div_ceil(used + 1)).max(self.sure.get(group))
        };
        self.sure.set(group, run);
        self.unknown.set(group, if known { 0 } else { class_of(info.free) });
    }

    fn next(&self, pass: &mut Pass, good: Good<'_>) -> Option<u32> {
        loop {
            let found = match pass.criterion {
                Criterion::Power2 | Criterion::AverageFits => self.fitting(pass),
                Criterion::FreeFits => None,
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
        self.sure.bytes() + self.unknown.bytes()
    }
}
