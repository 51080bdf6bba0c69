//! Frames used once leave first; dirty frames stand on no list.
//!
//! Main types: [`UsedOnce`], [`step`], [`direct`]. After S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all
//! you need for cache eviction, SOSP 2023). Every new frame passes through a small queue. A frame that was used again
//! there moves to the main queue. Ghosts remember frames that left the small queue: one that comes back while it is
//! remembered goes to the main queue at once. A use only counts; nothing moves, so a hit takes no lock.
//!
//! Additions to S3-FIFO:
//! - Sizes are bytes, because frames of 1 to 64 KiB share the queues.
//! - A frame is on a queue only while it is clean and unused. So the policy looks at no frame that cannot go. Dirty
//!   frames that were not used again count with the small queue: a copy takes the frames of the copy, and the lack of
//!   clean ones drives the flusher ([`Next::Drive`]) instead of the main queue.
//! - While all new frames are dirty, the main queue ages: for [`AGING`] bytes of new frames, the policy looks at one
//!   byte of the main queue. Without that, a writer could not use the room of frames that have fallen out of use.
//!   Clean new frames need no such rule: those that come back go to the main queue and push unused frames out of it.
//! - Of [`SPARED`] + 1 frames that the policy looks at, it frees one in the long run. If nearly all frames are used
//!   again, the choice among them matters little, and a longer search for an unused one costs more than it saves.
//! - Memory of programs has a queue of its own. The policy looks at it for as many bytes as data came back too soon,
//!   and when no zone has any data left.
//!
//! # Locking
//! Under the lock of [`super::super::Reclaim`].

use super::super::core::{self, Class, Core, Field, Host, Next, Why, Wrote};
use super::super::frame::{FrameId, OFF, State};
use super::super::ghost::Ghosts;

const SMALL: u8 = 1;
const MAIN: u8 = 2;
/// Memory of programs.
const PROGRAMS: u8 = 3;

/// The main queue gives frames only after the small queue and dirty new data take one in this many bytes. With a
/// tenth, as published, a copy takes more of a hot set that just fits. With a thirtieth, frames leave a small cache
/// before their second use (experiment 020).
const SMALL_SHARE: u64 = 16;
/// Uses in the small queue that make a frame stay. With one, data that is used twice in a row fills the main queue,
/// and loops miss more (experiment 020).
const PROMOTE: u8 = 2;
/// How many used frames of the main queue may be spared for each new frame, and so for each that is freed.
const SPARED: u64 = 3;
/// The main queue ages by one byte for this many bytes of new frames.
const AGING: u64 = 32;
/// The largest frame, in bytes.
const FRAME_MAX: u64 = 64 << 10;
/// Frames that a step looks at: in the background, and for a caller that needs memory at once.
const STEP: u32 = 128;
const DIRECT: u64 = 32;
/// How many frames of programs go to swap space before the reclaimer waits for them.
const WRITES: u32 = 32;
/// How long the reclaimer waits if all frames are in use.
const IN_USE_NS: u64 = 10_000_000;
/// Ghosts count time in units of this many bytes that left the small queue: 32 bits of it are 4 TiB.
const UNIT_BITS: u32 = 10;

#[derive(Default)]
pub(in crate::reclaim) struct UsedOnce {
    ghosts: Ghosts,
    /// Bytes that have left the small queue for good.
    left: u64,
    /// Bytes of the main queue that the policy may look at because of their age.
    aging: u64,
    /// Used frames that may be spared now: [`SPARED`] for each new frame, and no more than there are frames.
    spare: u64,
    /// Bytes of programs' memory that may go, because as many bytes of data came back.
    refaulted: u64,
}

/// Where the next frame comes from.
enum Choice {
    Free(FrameId),
    /// The main queue could free memory of programs, which has to be written first.
    Write(FrameId),
    /// No frame can go before something is written.
    Dirty,
    Nothing,
}

impl UsedOnce {
    fn now(&self) -> u32 {
        (self.left >> UNIT_BITS) as u32
    }

    pub fn inserted(&mut self, field: &mut Field, id: FrameId) {
        let bytes = field.frames.bytes(id);
        // No more is saved up than one lap of the queue uses: otherwise the policy would look at frames again before
        // any caller has had the time to use them.
        self.aging = (self.aging + bytes / AGING).min((field.frames.list_bytes(MAIN) / AGING).max(FRAME_MAX));
        self.spare = (self.spare + SPARED).min(u64::from(field.frames.live()));
        self.ghosts.reserve(u64::from(field.frames.live()));
        let away = self.ghosts.take(field.frames.owner(id), field.frames.key(id), self.now());
        if away.is_some_and(|units| u64::from(units) << UNIT_BITS <= self.span(field)) {
            field.counts.refaulted += 1;
            field.frames.mark(id, State::PROMOTED);
            self.refaulted = (self.refaulted + bytes).min(self.span(field) / 8);
        }
        self.place(field, id);
    }

    /// How many bytes may leave the small queue before a frame that left it counts as not missed: the size of the
    /// main queue.
    fn span(&self, field: &Field) -> u64 {
        field.frames.list_bytes(MAIN).max(field.frames.list_bytes(SMALL))
    }

    /// Puts a frame on the queue where it belongs.
    fn place(&mut self, field: &mut Field, id: FrameId) {
        let state = field.frames.state(id);
        if field.class(id) == Class::Anonymous {
            if state.has(State::WRITEBACK) {
                field.frames.unlink(id);
            } else if field.frames.unmark(id, State::IMMEDIATE) {
                // Reclaim requested its write, in order to free it now.
                field.frames.push_tail(PROGRAMS, id);
            } else {
                field.frames.push(PROGRAMS, id);
            }
        } else if state.told() != State::CLEAN {
            field.frames.unlink(id);
        } else {
            field.frames.push(if state.has(State::PROMOTED) { MAIN } else { SMALL }, id);
        }
    }

    pub fn changed(&mut self, field: &mut Field, id: FrameId) {
        let state = field.frames.state(id);
        let gives = match field.class(id) {
            Class::Anonymous => !state.has(State::WRITEBACK),
            _ => state.told() == State::CLEAN,
        };
        if gives == (field.frames.list(id) == OFF) {
            self.place(field, id);
        }
    }

    pub fn kept(&mut self, field: &mut Field, id: FrameId) {
        self.place(field, id);
    }

    pub fn freed(&mut self, field: &mut Field, id: FrameId) {
        if !field.frames.state(id).has(State::PROMOTED) {
            self.left += field.frames.bytes(id);
            self.ghosts.add(field.frames.owner(id), field.frames.key(id), self.now());
        }
    }

    /// The next frame to go, after a look at no more than `looks` frames.
    fn choose(&mut self, field: &mut Field, looks: &mut u32) -> Choice {
        while *looks > 0 {
            let [small, main] = [SMALL, MAIN].map(|list| field.frames.list_bytes(list));
            let new = small + field.unclean.data;
            if let Some(id) = field.frames.tail(PROGRAMS).filter(|_| self.refaulted > 0 || new + main == 0) {
                *looks -= 1;
                field.scan();
                self.refaulted = self.refaulted.saturating_sub(field.frames.bytes(id));
                if field.frames.touches().take(id) > 0 {
                    field.frames.push(PROGRAMS, id);
                    continue;
                }
                return if field.frames.state(id).has(State::DIRTY) { Choice::Write(id) } else { Choice::Free(id) };
            }
            let from_small = main == 0 || new * SMALL_SHARE > new + main;
            if let Some(id) = field.frames.tail(SMALL).filter(|_| from_small || main == 0) {
                *looks -= 1;
                look(field, id);
                if field.frames.touches().count(id) >= PROMOTE {
                    // It has at least one use left: a young main queue comes round to it sooner than its next use
                    // does.
                    field.frames.touches().take_one(id);
                    self.spare = self.spare.saturating_sub(1);
                    field.frames.mark(id, State::PROMOTED);
                    field.frames.push(MAIN, id);
                    continue;
                }
                return Choice::Free(id);
            }
            let Some(id) = field.frames.tail(MAIN) else {
                return if field.unclean.data + field.unclean.other > 0 { Choice::Dirty } else { Choice::Nothing };
            };
            let bytes = field.frames.bytes(id);
            if from_small {
                // All new frames are dirty: the main queue gives the bytes that its age allows, and no more.
                if self.aging < bytes {
                    return Choice::Dirty;
                }
                self.aging -= bytes;
            }
            *looks -= 1;
            look(field, id);
            if self.spare > 0 && field.frames.touches().take_one(id) {
                self.spare -= 1;
                field.frames.push(MAIN, id);
                continue;
            }
            return Choice::Free(id);
        }
        Choice::Nothing
    }
}

/// Counts one more frame as looked at.
fn look(field: &mut Field, id: FrameId) {
    field.scan();
    if field.class(id) == Class::Inode {
        field.counts.slabs_scanned += 1;
    }
}

/// Frees in one core until `bytes` are chosen, or it has looked at enough frames. Returns how many bytes were chosen,
/// and what stopped it.
fn run(core: &mut Core, mut bytes: u64, host: &mut dyn Host) -> (u64, Option<Next>) {
    let mut looks = STEP;
    let mut written = 0;
    let mut chosen = 0;
    while bytes > 0 && looks > 0 {
        let (field, policy) = core.parts();
        let super::Policy::UsedOnce(policy) = policy else { return (chosen, Some(Next::Enough)) };
        match policy.choose(field, &mut looks) {
            Choice::Free(id) => {
                let size = field.frames.bytes(id);
                core::free(core, id, host);
                chosen += size;
                bytes = bytes.saturating_sub(size);
            }
            Choice::Write(id) => {
                field.counts.wanted_anonymous += 1;
                let victim = field.victim(id);
                if host.write(victim) == Wrote::NotNow {
                    field.frames.push(PROGRAMS, id);
                    return (chosen, Some(Next::Wait { why: Why::Writeback, at_most_ns: IN_USE_NS }));
                }
                field.frames.mark(id, State::IMMEDIATE);
                let state = field.frames.state(id).without(State::DIRTY).or(State::WRITEBACK);
                core.set_state(id, state);
                written += 1;
                if written == WRITES {
                    return (chosen, Some(Next::Wait { why: Why::Writeback, at_most_ns: IN_USE_NS }));
                }
            }
            Choice::Dirty => return (chosen, Some(Next::Drive { bytes })),
            Choice::Nothing if looks > 0 => {
                return (chosen, Some(Next::Wait { why: Why::InUse, at_most_ns: IN_USE_NS }));
            }
            Choice::Nothing => {}
        }
    }
    (chosen, None)
}

/// Which zones give frames: those with data used once, else those with any data, else all. Any zone's memory serves
/// all, so no zone gives memory of programs while there is data.
fn givers(zones: &mut [Core]) -> impl Iterator<Item = &mut Core> {
    let rank = |zone: &Core| {
        let field = zone.field();
        match (field.frames.list_bytes(SMALL), field.frames.list_bytes(MAIN) + field.unclean.data) {
            (0, 0) => 0,
            (0, _) => 1,
            _ => 2,
        }
    };
    let best = zones.iter().map(rank).max();
    zones.iter_mut().filter(move |zone| Some(rank(zone)) == best)
}

/// A step in the background.
pub(super) fn step(zones: &mut [Core], host: &mut dyn Host) -> Next {
    let sum = |of: fn(&Core) -> u64| zones.iter().map(of).sum::<u64>();
    let missing = sum(|zone| zone.room().high).saturating_sub(sum(|zone| zone.room().free));
    if missing == 0 {
        return Next::Enough;
    }
    let mut stopped = Next::More;
    for zone in givers(zones) {
        let (chosen, next) = run(zone, missing, host);
        if chosen > 0 || next.is_none() {
            return Next::More;
        }
        stopped = next.unwrap_or(stopped);
    }
    stopped
}

/// For a caller that needs memory at once.
pub(super) fn direct(zones: &mut [Core], host: &mut dyn Host) -> Next {
    let mut stopped = Next::Enough;
    for zone in givers(zones) {
        let bytes = zone.room().low.saturating_sub(zone.room().free).clamp(1, DIRECT << 12);
        let (chosen, next) = run(zone, bytes, host);
        if chosen > 0 {
            return Next::More;
        }
        stopped = next.unwrap_or(Next::More);
    }
    stopped
}

#[cfg(test)]
mod tests;
