//! Runs reclaim: the owners, the locks and the background thread.
//!
//! Main types: [`Reclaim`] (one for each [`crate::Budget`]), [`FrameOwner`] (a cache whose memory is counted as
//! frames).
//!
//! A step chooses frames under the lock, and then calls their owners without it. Owners only try to take locks: if the
//! owner of a frame is busy, the frame is kept and will be met again.
//!
//! What it does not do: it writes nothing. It reports a lack of clean frames to the owners, which have a flusher.
//!
//! # Locking
//! `reclaim` (213) protects the core. It is a leaf: owners take it under the locks that protect the frames' contents,
//! and nothing is called under it. `frame owners` (94) protects the table of owners: a step takes it to look one up,
//! and a registration takes `reclaim` under it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, RwLock};

use super::core::{Answer, Class, Core, Counts, Host, Next, Reclaimer, Room, Tried, Victim, Why, Wrote};
use super::frame::{FrameId, Key, OwnerId, Touches};
use super::policy::ReclaimPolicy;

static CLASS: LockClass = LockClass::new("reclaim", 213);
static OWNERS_CLASS: LockClass = LockClass::new("frame owners", 94);

/// The time for which the thread waits if the owners freed none of the chosen frames.
const IN_USE_NS: u64 = 1_000_000;

/// A cache whose memory is counted as frames.
pub trait FrameOwner: Send + Sync {
    /// Frees the frame's contents, unless they are in use or not clean. Must not block, so it only tries to take locks.
    /// If it frees them, it calls [`Core::remove`].
    fn try_free(&self, key: Key, id: FrameId) -> Tried;

    /// Called if reclaim lacks clean frames: the owner should write about this many bytes soon. Must not block.
    fn want_written(&self, _bytes: u64) {}

    /// The number of bytes that are not on the device yet. When they are, their frames can be freed.
    fn unwritten(&self) -> u64 {
        0
    }
}

struct Inner {
    /// There is one core, because Extant's memory has no zones.
    cores: [Core; 1],
    reclaimer: Reclaimer,
    /// Whether the background thread has work.
    awake: bool,
}

/// The frames chosen to be freed, and the number of bytes that the policy wants to be written.
#[derive(Default)]
struct Chosen {
    free: Vec<Victim>,
    write: u64,
}

impl Host for Chosen {
    /// Never congested here: bulk data waits in a separate window, and there is room for other writes.
    fn congested(&self, _: OwnerId) -> bool {
        false
    }

    fn free(&mut self, victim: Victim) -> Answer {
        self.free.push(victim);
        Answer::Later
    }

    /// A policy's request to write a page is only a hint: the flusher writes in its own order, with adjacent blocks
    /// together.
    fn write(&mut self, _: Victim) -> Wrote {
        self.write += 1 << 12;
        Wrote::NotNow
    }
}

/// Chooses and frees frames.
pub struct Reclaim {
    inner: Mutex<Inner>,
    touches: Arc<Touches>,
    owners: RwLock<Vec<(Class, Weak<dyn FrameOwner>)>>,
    /// Signalled when the thread gets work or must end, and when dirty memory has become clean.
    wake: Condvar,
    /// Readable without the lock: the number of threads that reclaim, whether one is awake, and the number of callers
    /// that wait for frames.
    threads: AtomicU32,
    awake: AtomicBool,
    waits: AtomicU32,
    /// The number of times that a caller freed memory in its own thread.
    pub direct: Counter,
}

impl Reclaim {
    pub(crate) fn new(kind: ReclaimPolicy) -> Reclaim {
        let core = Core::new(kind);
        let touches = core.touches().clone();
        Reclaim {
            inner: Mutex::new(&CLASS, Inner { cores: [core], reclaimer: Reclaimer::new(kind), awake: false }),
            touches,
            owners: RwLock::new(&OWNERS_CLASS, Vec::new()),
            wake: Condvar::new(),
            threads: AtomicU32::new(0),
            awake: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            direct: Counter::new(),
        }
    }

    /// Registers a cache with frames of `class`.
    pub fn register(&self, class: Class, owner: Weak<dyn FrameOwner>) -> OwnerId {
        let mut owners = self.owners.write();
        // If a mount that shared the budget has ended, its place in the table is reused.
        let gone = owners.iter().position(|(c, o)| *c == class && o.strong_count() == 0);
        if let Some(at) = gone {
            owners[at].1 = owner;
            return OwnerId(at as u16);
        }
        owners.push((class, owner));
        self.with(|core| core.register(class))
    }

    /// Runs `f` on the frames. `f` must not take other locks, because this lock is a leaf.
    pub fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        f(&mut self.inner.lock().cores[0])
    }

    /// The table in which owners count uses.
    pub fn touches(&self) -> &Touches {
        &self.touches
    }

    /// Exact counts since the budget was created.
    pub fn counts(&self) -> Counts {
        *self.inner.lock().cores[0].counts()
    }

    fn owner(&self, id: OwnerId) -> Option<Arc<dyn FrameOwner>> {
        self.owners.read().get(usize::from(id.0)).and_then(|(_, owner)| owner.upgrade())
    }

    /// Does one step, in the background or for a caller that needs memory immediately. Returns how many bytes it freed.
    pub(crate) fn step(&self, room: Room, direct: bool) -> (Next, u64) {
        let mut chosen = Chosen::default();
        let next = {
            let mut inner = self.inner.lock();
            let Inner { cores, reclaimer, .. } = &mut *inner;
            cores[0].set_room(room);
            if direct { reclaimer.direct(cores, &mut chosen) } else { reclaimer.step(cores, &mut chosen) }
        };
        let (kept, freed) = self.have_freed(&chosen.free);
        if freed > 0 {
            self.wake_waiters();
        }
        // If all chosen frames are in use or locked, the next ones probably are, too.
        let in_vain = kept > 0 && freed == 0 && next == Next::More;
        let next = if in_vain { Next::Wait { why: Why::InUse, at_most_ns: IN_USE_NS } } else { next };
        let wanted = chosen.write + if let Next::Drive { bytes } = next { bytes } else { 0 };
        if wanted > 0 {
            self.want_written(wanted);
        }
        (next, freed)
    }

    fn all_owners(&self) -> Vec<Arc<dyn FrameOwner>> {
        self.owners.read().iter().filter_map(|(_, owner)| owner.upgrade()).collect()
    }

    /// Requests that every owner write about this many bytes soon.
    pub(crate) fn want_written(&self, bytes: u64) {
        self.all_owners().iter().for_each(|owner| owner.want_written(bytes));
    }

    /// The sum of all owners' bytes that are not on the device yet.
    pub(crate) fn unwritten(&self) -> u64 {
        self.all_owners().iter().map(|owner| owner.unwritten()).sum()
    }

    /// Calls the owners to free the chosen frames. Returns how many were kept, and the bytes of those that were freed.
    fn have_freed(&self, chosen: &[Victim]) -> (usize, u64) {
        let (mut kept, mut freed) = (Vec::new(), 0);
        // The owner whose lock was taken; its other frames need the same lock.
        let mut busy = None;
        let mut last = None;
        for victim in chosen {
            let object = (victim.owner, victim.key.object);
            let owner = match last.take().filter(|(id, _)| *id == victim.owner) {
                Some((_, owner)) => owner,
                None => self.owner(victim.owner),
            };
            let tried = match &owner {
                Some(owner) if busy != Some(object) => owner.try_free(victim.key, victim.id),
                _ => Tried::Busy,
            };
            last = Some((victim.owner, owner));
            match tried {
                Tried::Freed => freed += victim.bytes,
                Tried::Parked => {}
                Tried::Busy | Tried::Changed | Tried::InUse => kept.push((victim.id, tried)),
            }
            if tried == Tried::Busy {
                busy = Some(object);
            }
        }
        if !kept.is_empty() {
            self.with(|core| kept.iter().for_each(|(id, why)| core.kept(*id, *why)));
        }
        (kept.len(), freed)
    }

    /// Frees everything that can be freed, regardless of how recently it was used. Returns how many bytes it freed.
    pub(crate) fn drain(&self) -> u64 {
        let mut chosen = Chosen::default();
        self.with(|core| core.choose_all(&mut chosen));
        self.have_freed(&chosen.free).1
    }

    /// Whether a background thread reclaims.
    pub(crate) fn has_thread(&self) -> bool {
        self.threads.load(Ordering::Acquire) > 0
    }

    /// Wakes the thread because there is work.
    pub(crate) fn wake(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            let mut inner = self.inner.lock();
            inner.awake = true;
            inner.reclaimer.wake();
            drop(inner);
            self.wake.notify_all();
        }
    }

    /// Wakes callers that wait for frames, because something has been written and is clean now.
    pub fn written(&self) {
        self.wake_waiters();
    }

    fn wake_waiters(&self) {
        if self.waits.load(Ordering::Acquire) > 0 {
            let _inner = self.inner.lock();
            self.wake.notify_all();
        }
    }

    pub(crate) fn begin_thread(&self) {
        self.threads.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end_thread(&self) {
        self.threads.fetch_sub(1, Ordering::AcqRel);
        let _inner = self.inner.lock();
        self.wake.notify_all();
    }

    pub(crate) fn wake_to_end(&self) {
        let _inner = self.inner.lock();
        self.wake.notify_all();
    }

    /// Sleeps until there is work, or for `at_most`. Returns whether there is work.
    pub(crate) fn sleep(&self, at_most: Duration) -> bool {
        let mut inner = self.inner.lock();
        if !inner.awake {
            self.wake.wait_for(&mut inner, at_most);
        }
        inner.awake
    }

    /// Marks the thread's work as done.
    pub(crate) fn rest(&self) {
        let mut inner = self.inner.lock();
        inner.awake = false;
        self.awake.store(false, Ordering::Release);
    }

    /// Sleeps until something has been written or freed, or for `at_most`.
    pub(crate) fn wait_for_frames(&self, at_most: Duration) {
        let mut inner = self.inner.lock();
        self.waits.fetch_add(1, Ordering::AcqRel);
        self.wake.wait_for(&mut inner, at_most);
        self.waits.fetch_sub(1, Ordering::AcqRel);
    }
}
