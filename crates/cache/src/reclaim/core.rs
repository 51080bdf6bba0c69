//! The decisions of reclaim: which frames are freed, and what prevents it.
//!
//! Main types: [`Core`] (the frames of one budget, or of one zone of a modelled machine, with one policy),
//! [`Reclaimer`] (the state of the background reclaimer; Linux: kswapd), [`Host`] (frees and writes the chosen frames),
//! [`Next`] (the reclaimer's next action), [`Counts`].
//!
//! A core gets the time as an argument, does no I/O, takes no lock and never sleeps. So Extant and the lab's model of a
//! whole machine run the same code.
//!
//! # Locking
//! The lock of [`super::Reclaim`] protects everything here.

use std::sync::Arc;

use super::frame::{FrameId, Frames, ISOLATED, Key, OFF, OwnerId, State, Touches};
use super::policy::{Driver, Policy, ReclaimPolicy};

/// The kind of memory that a frame represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Data of a file.
    Data,
    /// A block of metadata.
    Metadata,
    /// An inode in memory.
    Inode,
    /// Memory of programs, which must be written to swap space before it can be freed. Only the model has such frames.
    Anonymous,
}

/// A frame that was chosen, and how its owner finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub id: FrameId,
    pub owner: OwnerId,
    pub key: Key,
    pub bytes: u64,
}

/// The host's answer to a request to free a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The frame is freed.
    Freed,
    /// [`Core::remove`] or [`Core::kept`] will be called.
    Later,
}

/// The owner's result for a chosen frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    Freed,
    /// Another thread has a lock that the owner needs. This does not say whether the frame is in use.
    Busy,
    /// The frame has changed since it was chosen; for example, it is now dirty.
    Changed,
    /// The frame's last user will put it back on a list.
    Parked,
    /// The frame is in use.
    InUse,
}

/// The host's answer to a request to write a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The frame is under writeback.
    Started,
    /// The frame is still dirty.
    NotNow,
}

/// Frees and writes frames on behalf of a core.
pub trait Host {
    /// Whether the device of `owner` has as many writes as it can take (Linux: `bdi_write_congested`).
    fn congested(&self, owner: OwnerId) -> bool;

    /// Frees the frame, which is clean.
    fn free(&mut self, victim: Victim) -> Answer;

    /// Writes the frame for reclaim, because the policy wants that (Linux: `pageout`).
    fn write(&mut self, victim: Victim) -> Wrote;
}

/// Free memory and the watermarks, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    pub free: u64,
    /// Reclaim begins below this (Linux: `WMARK_LOW`).
    pub low: u64,
    /// Reclaim ends at this (Linux: `WMARK_HIGH`).
    pub high: u64,
    /// The total memory.
    pub total: u64,
}

/// The reason why a reclaimer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Frames under writeback were met again, or all frames that were met are dirty: wait until some have been written.
    Writeback,
    /// All remaining frames are in use.
    InUse,
}

/// The reclaimer's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Do another step.
    More,
    /// Do nothing until less than [`Room::low`] is free.
    Enough,
    /// Do another step after this many nanoseconds, or when a write has completed.
    Wait { why: Why, at_most_ns: u64 },
    /// The flusher must write this many bytes first, and reclaim waits for them.
    Drive { bytes: u64 },
}

/// Exact counts of frames, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of frames examined by the background reclaimer, and by callers that need memory immediately.
    pub scanned: u64,
    pub scanned_direct: u64,
    pub freed: u64,
    pub freed_direct: u64,
    pub freed_bytes: u64,
    /// The numbers of examined frames that were dirty, dirty and not yet under writeback, under writeback, and in use.
    pub dirty: u64,
    pub unqueued: u64,
    pub writeback: u64,
    pub in_use: u64,
    /// The number of chosen frames that the owner could not lock, or that had changed in the meantime.
    pub busy: u64,
    /// The number of frames marked to be freed as soon as they are written.
    pub immediate: u64,
    /// The number of times that reclaim wanted a frame to be written: of a file, and of a program.
    pub wanted_data: u64,
    pub wanted_anonymous: u64,
    /// The number of inodes examined.
    pub slabs_scanned: u64,
    pub inodes_freed: u64,
    /// The number of frames that were inserted again soon after they had been freed.
    pub refaulted: u64,
    /// The number of times that the reclaimer had to wait.
    pub stalls: u64,
}

/// The bytes of frames that are on no list of a policy because they are not clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unclean {
    /// Dirty, under writeback, or not durable.
    pub data: u64,
    pub other: u64,
}

/// The state that a policy works on: everything in a core except the policy.
pub(super) struct Field {
    pub frames: Frames,
    pub classes: Vec<Class>,
    pub counts: Counts,
    pub unclean: Unclean,
    pub room: Room,
    /// Whether a caller that needs memory immediately reclaims, and not the background thread.
    pub direct: bool,
}

impl Field {
    pub fn class(&self, id: FrameId) -> Class {
        self.classes[usize::from(self.frames.owner(id).0)]
    }

    /// Counts one more frame as examined.
    pub fn scan(&mut self) {
        if self.direct {
            self.counts.scanned_direct += 1;
        } else {
            self.counts.scanned += 1;
        }
    }

    pub fn victim(&self, id: FrameId) -> Victim {
        Victim { id, owner: self.frames.owner(id), key: self.frames.key(id), bytes: self.frames.bytes(id) }
    }

    fn add_unclean(&mut self, id: FrameId, sign: i64) {
        if self.frames.state(id).told() == State::CLEAN {
            return;
        }
        let bytes = self.frames.bytes(id) as i64 * sign;
        let sum = if self.class(id) == Class::Data { &mut self.unclean.data } else { &mut self.unclean.other };
        *sum = sum.wrapping_add_signed(bytes);
    }
}

/// The frames of one budget or zone.
pub struct Core {
    field: Field,
    policy: Policy,
}

impl Core {
    pub fn new(kind: ReclaimPolicy) -> Core {
        let field = Field {
            frames: Frames::new(kind.uses_counted()),
            classes: Vec::new(),
            counts: Counts::default(),
            unclean: Unclean::default(),
            room: Room::default(),
            direct: false,
        };
        Core { field, policy: Policy::new(kind) }
    }

    /// Registers one more owner of frames.
    pub fn register(&mut self, class: Class) -> OwnerId {
        self.field.classes.push(class);
        OwnerId((self.field.classes.len() - 1) as u16)
    }

    pub fn touches(&self) -> &Arc<Touches> {
        self.field.frames.touches()
    }

    pub fn counts(&self) -> &Counts {
        &self.field.counts
    }

    pub fn room(&self) -> Room {
        self.field.room
    }

    pub fn set_room(&mut self, room: Room) {
        self.field.room = room;
    }

    /// The number of bytes of file data that are dirty, under writeback, or not durable.
    pub fn unclean_data(&self) -> u64 {
        self.field.unclean.data
    }

    /// The number of frames.
    pub fn frames(&self) -> u64 {
        u64::from(self.field.frames.live())
    }

    /// Adds a frame of `bytes`, which is used for the first time.
    pub fn insert(&mut self, owner: OwnerId, key: Key, bytes: u32, state: State) -> FrameId {
        let id = self.field.frames.add(owner, key, bytes, state.told());
        self.field.add_unclean(id, 1);
        self.policy.inserted(&mut self.field, id);
        id
    }

    /// Removes the frame, which its owner freed because reclaim had chosen it or for another reason.
    pub fn remove(&mut self, id: FrameId) {
        self.field.add_unclean(id, -1);
        if self.field.frames.list(id) == ISOLATED {
            let bytes = self.field.frames.bytes(id);
            let counts = &mut self.field.counts;
            if self.field.frames.state(id).has(State::DIRECT) {
                counts.freed_direct += 1;
            } else {
                counts.freed += 1;
            }
            counts.freed_bytes += bytes;
            if self.field.class(id) == Class::Inode {
                self.field.counts.inodes_freed += 1;
            }
            self.field.room.free += bytes;
            self.policy.freed(&mut self.field, id);
        }
        self.field.frames.remove(id);
    }

    /// Sets the frame's current state: [`State::DIRTY`], [`State::WRITEBACK`] and [`State::UNSTABLE`].
    pub fn set_state(&mut self, id: FrameId, state: State) {
        let before = self.field.frames.state(id);
        if before.told() == state.told() {
            return;
        }
        self.field.add_unclean(id, -1);
        self.field.frames.set_state(id, state.told().or(before.without(before.told())));
        self.field.add_unclean(id, 1);
        if self.field.frames.list(id) != ISOLATED && !self.touches().is_parked(id) {
            self.policy.changed(&mut self.field, id, before.told());
        }
    }

    pub fn state(&self, id: FrameId) -> State {
        self.field.frames.state(id).told()
    }

    /// Must be called if a chosen frame could not be freed, for the reason `why`.
    pub fn kept(&mut self, id: FrameId, why: Tried) {
        if self.field.frames.list(id) == ISOLATED {
            self.field.frames.unlink(id);
            self.field.frames.unmark(id, State::DIRECT);
            if why == Tried::InUse {
                self.field.counts.in_use += 1;
                // The frame is promoted, so that the policy examines it later than new frames.
                self.field.frames.mark(id, State::PROMOTED);
            } else {
                self.field.counts.busy += 1;
            }
            self.policy.kept(&mut self.field, id);
        }
    }

    /// Removes a frame in use from its list until [`Core::unpark`]. The caller then checks that the frame is still in
    /// use, and its last user checks whether it is parked. So one of the two puts it back.
    pub fn park(&mut self, id: FrameId) {
        if self.field.frames.list(id) == ISOLATED {
            self.field.counts.in_use += 1;
        }
        self.field.frames.unlink(id);
        self.touches().set_parked(id, true);
    }

    pub fn unpark(&mut self, id: FrameId) {
        if self.touches().is_parked(id) {
            self.touches().set_parked(id, false);
            if self.field.frames.list(id) == OFF {
                self.policy.kept(&mut self.field, id);
            }
        }
    }

    /// Chooses every clean frame that is on a list.
    pub(super) fn choose_all(&mut self, host: &mut dyn Host) {
        for id in self.field.frames.listed() {
            if self.field.frames.state(id).told() == State::CLEAN {
                free(self, id, host);
            }
        }
    }

    /// The numbers of frames that are chosen and not yet freed, on a list, and on no list, for tests.
    #[cfg(test)]
    pub fn census(&self) -> [usize; 3] {
        let mut census = [0; 3];
        for id in self.field.frames.ids() {
            census[match self.field.frames.list(id) {
                ISOLATED => 0,
                OFF => 2,
                _ => 1,
            }] += 1;
        }
        census
    }

    pub(super) fn field(&self) -> &Field {
        &self.field
    }

    pub(super) fn parts(&mut self) -> (&mut Field, &mut Policy) {
        (&mut self.field, &mut self.policy)
    }
}

/// The background reclaimer (Linux: kswapd).
pub struct Reclaimer {
    driver: Driver,
}

impl Reclaimer {
    pub fn new(kind: ReclaimPolicy) -> Reclaimer {
        Reclaimer { driver: Driver::new(kind) }
    }

    /// Starts a new round, after a wake-up.
    pub fn wake(&mut self) {
        self.driver.wake();
    }

    /// Does a step over all zones of one machine. It examines at most a few hundred frames, or 4,096 with `generations`
    /// (the limit of Linux).
    pub fn step(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        for zone in &mut *zones {
            zone.field.direct = false;
        }
        let next = self.driver.step(zones, host);
        if !matches!(next, Next::More | Next::Enough)
            && let Some(zone) = zones.first_mut()
        {
            zone.field.counts.stalls += 1;
        }
        next
    }

    /// For a caller that needs memory immediately: frees about 32 frames, if possible (Linux: `try_to_free_pages`).
    pub fn direct(&mut self, zones: &mut [Core], host: &mut dyn Host) -> Next {
        for zone in &mut *zones {
            zone.field.direct = true;
        }
        let next = self.driver.direct(zones, host);
        for zone in &mut *zones {
            zone.field.direct = false;
        }
        next
    }
}

/// Lets `host` free the frame.
pub(super) fn free(core: &mut Core, id: FrameId, host: &mut dyn Host) {
    core.field.frames.isolate(id);
    if core.field.direct {
        core.field.frames.mark(id, State::DIRECT);
    }
    match host.free(core.field.victim(id)) {
        Answer::Freed => core.remove(id),
        Answer::Later => {}
    }
}
