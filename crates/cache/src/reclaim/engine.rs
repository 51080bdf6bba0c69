//! Reclaim at work: owners, locks and the thread in the background.
//!
//! Main types: [`Reclaim`] (one for each [`crate::Budget`]), [`FrameOwner`] (who has what frames stand for).
//!
//! A step chooses frames under the lock, and has their owners free them without it. Owners only try locks: a frame
//! whose owner is busy is kept, and comes round again.
//!
//! What it does not do: it writes nothing. A lack of clean frames is told to owners, who have a flusher.
//!
//! # Locking
//! `reclaim` (213) guards the core. It is a leaf: owners take it while they hold the locks of what their frames stand
//! for, and nothing is called under it. `frame owners` (94) is held only to look one up.

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

/// How long the thread waits then.
const IN_USE_NS: u64 = 1_000_000;

/// Has what frames stand for.
pub trait FrameOwner: Send + Sync {
    /// Frees what the frame stands for, unless somebody uses it or it is not clean. Must not block: it tries locks.
    /// Whoever frees it calls [`Core::remove`].
    fn try_free(&self, key: Key, id: FrameId) -> Tried;

    /// The device behind it has as many writes as it takes.
    fn is_congested(&self) -> bool {
        false
    }

    /// Reclaim lacks clean frames: about so many bytes should be written soon. Must not block.
    fn want_written(&self, _bytes: u64) {}
}

struct Inner {
    /// One: the engine's memory has no zones.
    cores: [Core; 1],
    reclaimer: Reclaimer,
    /// The thread in the background has work.
    awake: bool,
}

/// What has been chosen, for their owners.
struct Chosen<'a> {
    free: Vec<Victim>,
    write: u64,
    owners: &'a [Option<Arc<dyn FrameOwner>>],
}

impl Host for Chosen<'_> {
    fn congested(&self, owner: OwnerId) -> bool {
        self.owners.get(usize::from(owner.0)).is_some_and(|o| o.as_ref().is_some_and(|o| o.is_congested()))
    }

    fn free(&mut self, victim: Victim) -> Answer {
        self.free.push(victim);
        Answer::Later
    }

    /// A policy's "write this page" is a hint: the flusher writes in its own order, neighbours together.
    fn write(&mut self, _: Victim) -> Wrote {
        self.write += 1 << 12;
        Wrote::NotNow
    }
}

/// Chooses and frees frames.
pub struct Reclaim {
    kind: ReclaimPolicy,
    inner: Mutex<Inner>,
    touches: Arc<Touches>,
    owners: RwLock<Vec<(Class, Weak<dyn FrameOwner>)>>,
    /// Somebody has work for the thread, or memory was written while it waited for that.
    wake: Condvar,
    /// Read without the lock: there is a thread, it is awake, so many wait for writes.
    threads: AtomicU32,
    awake: AtomicBool,
    waits: AtomicU32,
    /// Times that somebody had to free memory himself.
    pub direct: Counter,
}

impl Reclaim {
    pub(crate) fn new(kind: ReclaimPolicy) -> Reclaim {
        let core = Core::new(kind);
        let touches = core.touches().clone();
        Reclaim {
            kind,
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

    pub fn policy(&self) -> ReclaimPolicy {
        self.kind
    }

    /// One more who has frames of `class`.
    pub fn register(&self, class: Class, owner: Weak<dyn FrameOwner>) -> OwnerId {
        let mut owners = self.owners.write();
        // Mounts that share a budget come and go.
        let gone = owners.iter().position(|(c, o)| *c == class && o.strong_count() == 0);
        if let Some(at) = gone {
            owners[at].1 = owner;
            return OwnerId(at as u16);
        }
        owners.push((class, owner));
        self.with(|core| core.register(class))
    }

    /// Does something with the frames. Nothing is called from `f`.
    pub fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        f(&mut self.inner.lock().cores[0])
    }

    /// Where uses are noted.
    pub fn touches(&self) -> &Touches {
        &self.touches
    }

    /// Exact counts since the budget was made.
    pub fn counts(&self) -> Counts {
        *self.inner.lock().cores[0].counts()
    }

    fn owners(&self) -> Vec<Option<Arc<dyn FrameOwner>>> {
        self.owners.read().iter().map(|(_, o)| o.upgrade()).collect()
    }

    /// One step, in the background or for somebody who needs memory at once; how many bytes it freed.
    pub(crate) fn step(&self, room: Room, direct: bool) -> (Next, u64) {
        let owners = self.owners();
        let mut chosen = Chosen { free: Vec::new(), write: 0, owners: &owners };
        let (next, before) = {
            let mut inner = self.inner.lock();
            let Inner { cores, reclaimer, .. } = &mut *inner;
            cores[0].set_room(room);
            let before = cores[0].counts().freed_bytes;
            let next = if direct { reclaimer.direct(cores, &mut chosen) } else { reclaimer.step(cores, &mut chosen) };
            (next, before)
        };
        let (kept, after) = self.have_freed(&chosen.free, &owners);
        // All that was chosen is in use, or its locks are taken: the next will be, too.
        let in_vain = kept > 0 && after == before && next == Next::More;
        let next = if in_vain { Next::Wait { why: Why::InUse, at_most_ns: IN_USE_NS } } else { next };
        let wanted = chosen.write + if let Next::Drive { bytes } = next { bytes } else { 0 };
        if wanted > 0 {
            for owner in owners.iter().flatten() {
                owner.want_written(wanted);
            }
        }
        (next, after - before)
    }

    /// Has what was chosen freed by its owners; how many frames they kept, and all the bytes freed since the start.
    fn have_freed(&self, chosen: &[Victim], owners: &[Option<Arc<dyn FrameOwner>>]) -> (usize, u64) {
        let mut kept = Vec::new();
        // Its lock is taken: that will hold for its other frames, too.
        let mut busy = None;
        for victim in chosen {
            let object = (victim.owner, victim.key.object);
            let owner = owners.get(usize::from(victim.owner.0)).and_then(Option::as_ref);
            let tried = match owner {
                Some(owner) if busy != Some(object) => owner.try_free(victim.key, victim.id),
                _ => Tried::Busy,
            };
            if tried == Tried::Busy {
                busy = Some(object);
            }
            if tried != Tried::Freed {
                kept.push((victim.id, tried));
            }
        }
        self.with(|core| {
            for (id, why) in &kept {
                core.kept(*id, *why);
            }
            (kept.len(), core.counts().freed_bytes)
        })
    }

    /// Frees all that can be freed, however lately it was used; how many bytes that were.
    pub(crate) fn drain(&self) -> u64 {
        let owners = self.owners();
        let mut chosen = Chosen { free: Vec::new(), write: 0, owners: &owners };
        let before = self.with(|core| {
            core.choose_all(&mut chosen);
            core.counts().freed_bytes
        });
        self.have_freed(&chosen.free, &owners).1 - before
    }

    /// Whether a thread reclaims in the background.
    pub(crate) fn has_thread(&self) -> bool {
        self.threads.load(Ordering::Acquire) > 0
    }

    /// There is work for the thread.
    pub(crate) fn wake(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            let mut inner = self.inner.lock();
            inner.awake = true;
            inner.reclaimer.wake();
            drop(inner);
            self.wake.notify_all();
        }
    }

    /// Something has been written, and is clean now.
    pub fn written(&self) {
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

    /// Sleeps until there is work, at most so long; whether there is.
    pub(crate) fn sleep(&self, at_most: Duration) -> bool {
        let mut inner = self.inner.lock();
        if !inner.awake {
            self.wake.wait_for(&mut inner, at_most);
        }
        inner.awake
    }

    /// Work has been found done.
    pub(crate) fn rest(&self) {
        let mut inner = self.inner.lock();
        inner.awake = false;
        self.awake.store(false, Ordering::Release);
    }

    /// Sleeps until something has been written, at most so long.
    pub(crate) fn wait_for_writes(&self, at_most: Duration) {
        let mut inner = self.inner.lock();
        self.waits.fetch_add(1, Ordering::AcqRel);
        self.wake.wait_for(&mut inner, at_most);
        self.waits.fetch_sub(1, Ordering::AcqRel);
    }
}
