//! Frames that were used only once are freed first. Dirty frames are on no list.
//!
//! Main types: [`UsedOnce`], [`step`], [`direct`]. After S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all
//! you need for cache eviction, SOSP 2023). Every new frame passes through a small queue. A frame that was used again
//! there is moved to the main queue. Ghosts remember frames that were evicted from the small queue: if such a frame is
//! needed again, it is put on the main queue immediately. A use is only counted and moves nothing, so a hit takes no
//! lock.
//!
//! Additions to S3-FIFO:
//! - Sizes are in bytes, because frames of 1 to 64 KiB share the queues.
//! - A frame is on a queue only while it is clean and unused. So the policy examines no frame that cannot be freed.
//!   Dirty frames that were not used again count with the small queue: a copy evicts the frames of the copy, and the
//!   lack of clean ones drives the flusher ([`Next::Drive`]) instead of using up the main queue.
//! - While all new frames are dirty, the main queue ages: for [`AGING`] bytes of new frames, the policy examines one
//!   byte of the main queue. Without this, a writer could not use the space of frames that are no longer used. Clean
//!   new frames need no such rule: those that are needed again are put on the main queue and push unused frames out of
//!   it.
//! - Of [`SPARED`] + 1 frames that the policy examines, it frees one in the long run. If nearly all frames are used
//!   again, the choice among them matters little, and a longer search for an unused one costs more than it saves.
//! - Memory of programs has its own queue. The policy examines as many bytes of it as there were bytes of data that
//!   were needed again too soon, and also examines it when no zone has any data left.
//!
//! # Locking
//! The lock of [`super::super::Reclaim`] protects everything here.

use super::super::core::{self, Class, Core, Field, Host, Next, Why, Wrote};
use super::super::frame::{FrameId, OFF, State};
use super::super::ghost::Ghosts;

const SMALL: u8 = 1;
const MAIN: u8 = 2;
/// The queue of the memory of programs.
const PROGRAMS: u8 = 3;

/// Frames of the main queue are freed only if the small queue and dirty new data take more than one in this many bytes.
/// With a tenth, as published, a copy evicts more of a hot set that just fits. With a thirtieth, frames are evicted
/// from a small cache before their second use (experiment 020).
const SMALL_SHARE: u64 = 16;
/// The number of uses in the small queue after which a frame is kept. With one, data that is used twice in a row fills
/// the main queue, and loops have more misses (experiment 020).
const PROMOTE: u8 = 2;
/// The number of used frames of the main queue that may be spared for each new frame, and so for each that is freed.
const SPARED: u64 = 3;
/// The main queue ages by one byte for this many bytes of new frames.
const AGING: u64 = 32;
/// The largest frame, in bytes.
const FRAME_MAX: u64 = 64 << 10;
/// The number of frames that a step examines: in the background, and for a caller that needs memory immediately.
const STEP: u32 = 128;
const DIRECT: u64 = 32;
/// The number of frames of programs that are written to swap space before the reclaimer waits for them.
const WRITES: u32 = 32;
/// The time for which the reclaimer waits if all frames are in use.
const IN_USE_NS: u64 = 10_000_000;
/// Ghosts count time in units of this many bytes that were evicted from the small queue; 32 bits are 4 TiB.
const UNIT_BITS: u32 = 10;

#[derive(Default)]
pub(in crate::reclaim) struct UsedOnce {
    ghosts: Ghosts,
    /// The number of bytes that were evicted from the small queue.
    left: u64,
    /// The number of bytes of the main queue that the policy may examine because of their age.
    aging: u64,
    /// The number of used frames that may be spared now: [`SPARED`] for each new frame, and at most the number of
    /// frames.
    spare: u64,
    /// The number of bytes of programs' memory that may be freed, because as many bytes of data were needed again.
    refaulted: u64,
}

/// The source of the next frame.
enum Choice {
    Free(FrameId),
    /// A frame of a program's memory, which has to be written before it can be freed.
    Write(FrameId),
    /// No frame can be freed before something is written.
    Dirty,
    Nothing,
}

impl UsedOnce {
    fn now(&self) -> u32 {
        (self.left >> UNIT_BITS) as u32
    }

    pub fn inserted(&mut self, field: &mut Field, id: FrameId) {
        let bytes = field.frames.bytes(id);
        // The amount is limited to one round of the queue. Otherwise the policy would examine frames again before any
        // caller has had the time to use them.
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

    /// The maximum number of bytes that may be evicted from the small queue before an evicted frame counts as not
    /// missed: the size of the main queue.
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
                // Reclaim requested its write in order to free it, so it is freed next.
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

    /// The next frame to free, after examining at most `looks` frames.
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
                    // It keeps at least one use, because a young main queue examines it again before its next use.
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
                // All new frames are dirty, so only as many bytes of the main queue are freed as its age allows.
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

/// Counts one more frame as examined.
fn look(field: &mut Field, id: FrameId) {
    field.scan();
    if field.class(id) == Class::Inode {
        field.counts.slabs_scanned += 1;
    }
}

/// Frees frames of one core until `bytes` are chosen, or it has examined enough frames. Returns how many bytes were
/// chosen, and the reason why it stopped.
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

/// The zones from which frames are freed: those with data used once, otherwise those with any data, otherwise all. The
/// memory of any zone can serve all requests, so no zone's memory of programs is freed while there is data.
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

/// Frees memory for a caller that needs it immediately.
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
