//! The queue of inodes that have lost their last name and their last user.
//!
//! Main types: [`Evictions`] (the queue, the evictions in progress and their counts), [`Evictee`] (an inode as the
//! queue sees it). A caller frees inodes in [`Evictions::run`]; the mount's state decides whether it may:
//!
//! | state | queued inodes | [`Evictions::wait_for_work`] |
//! |---|---|---|
//! | allows `Evict` and `Work` | are freed, oldest first | returns at once if there are any |
//! | frozen: `Work` without `Evict` | stay queued | waits |
//! | ending: `Evict` without `Work` | are freed by the thread that ends the mount | the eviction thread ends |
//! | neither | stay queued | the eviction thread ends |
//!
//! What it does not do: free an inode (`ops/evict.rs`), or know the file system. Operations report each inode that
//! loses its last name ([`Evictions::lost_last_name`]), because such an inode may be queued soon. The server hears of
//! it in the same call.
//!
//! # Locking
//! `evictions` (98) guards the queue; it is not held while an inode is freed.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};

use crate::lifecycle::{Lifecycle, Right, Transition};

static CLASS: LockClass = LockClass::new("evictions", 98);

/// An inode that can be queued.
pub(crate) trait Evictee {
    /// A reference that a user of the inode holds.
    type Reference;

    /// Whether only the eviction thread frees it, because that takes long.
    fn is_large(&self) -> bool;
}

/// See [`Evictions::when_nameless`].
type Nameless<R> = Box<dyn Fn(&R) + Send + Sync>;

/// The queued inodes, and the counts by which others wait for them.
pub(crate) struct Evictions<T: Evictee> {
    queue: Mutex<VecDeque<T>>,
    /// Signalled when the eviction thread should look at the queue.
    work: Condvar,
    /// Signalled when an inode is queued, and when the last one has left the queue and is finished.
    idle: Condvar,
    in_progress: AtomicU32,
    ended: AtomicU64,
    /// Called with each inode that loses its last name.
    nameless: OnceLock<Nameless<T::Reference>>,
    /// The time when an inode last lost its last name; 0 if none has.
    unlinked_ns: AtomicU64,
}

impl<T: Evictee> Evictions<T> {
    pub(crate) fn new() -> Evictions<T> {
        Evictions {
            queue: Mutex::new(&CLASS, VecDeque::new()),
            work: Condvar::new(),
            idle: Condvar::new(),
            in_progress: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            nameless: OnceLock::new(),
            unlinked_ns: AtomicU64::new(0),
        }
    }

    /// From now on `tell` is called with each inode that loses its last name. Only the first call has an effect.
    pub(crate) fn when_nameless(&self, tell: Nameless<T::Reference>) {
        let _ = self.nameless.set(tell);
    }

    /// Called when an inode has lost its last name. Its user may drop it soon.
    pub(crate) fn lost_last_name(&self, inode: &T::Reference, now_ns: u64) {
        self.unlinked_ns.store(now_ns.max(1), Ordering::Relaxed);
        if let Some(tell) = self.nameless.get() {
            tell(inode);
        }
    }

    /// The time since an inode last lost its last name; `None` if none has.
    pub(crate) fn since_unlinked_ns(&self, now_ns: u64) -> Option<u64> {
        let unlinked_ns = self.unlinked_ns.load(Ordering::Relaxed);
        (unlinked_ns > 0).then(|| now_ns.saturating_sub(unlinked_ns))
    }

    /// Queues an inode after its last user is gone.
    pub(crate) fn push(&self, inode: T) {
        let large = inode.is_large();
        self.queue.lock().push_back(inode);
        self.idle.notify_all();
        if large {
            self.work.notify_one();
        }
    }

    /// Frees up to `max` inodes from the head of the queue with `evict`; with `small`, only up to the first large one,
    /// which is left to the eviction thread. The queue is locked once for each inode, and once more at the end.
    pub(crate) fn run(&self, lifecycle: &Lifecycle, max: u32, small: bool, mut evict: impl FnMut(&T)) {
        for round in 0.. {
            let next = {
                let mut q = self.queue.lock();
                if round > 0 {
                    // The counts change together under the lock. A thread that counts the eviction neither as in
                    // progress nor as ended has seen the space that it freed.
                    self.ended.fetch_add(1, Ordering::AcqRel);
                    if self.in_progress.fetch_sub(1, Ordering::AcqRel) == 1 && q.is_empty() {
                        self.idle.notify_all();
                    }
                }
                match q.front().filter(|_| lifecycle.allows(Right::Evict)) {
                    Some(inode) if round < max && small && inode.is_large() => {
                        self.work.notify_one();
                        None
                    }
                    Some(_) if round < max => {
                        self.in_progress.fetch_add(1, Ordering::AcqRel);
                        q.pop_front()
                    }
                    _ => None,
                }
            };
            let Some(inode) = next else { return };
            evict(&inode);
        }
    }

    /// Waits for the evictions that other threads have in progress.
    pub(crate) fn wait_until_idle(&self, lifecycle: &Lifecycle) {
        let mut q = self.queue.lock();
        // A failed thread may have left an eviction unfinished, so do not wait for it.
        while self.in_progress.load(Ordering::Acquire) > 0 && !lifecycle.has_failed() {
            self.idle.wait_for(&mut q, Duration::from_millis(50));
        }
    }

    /// Waits, at most for the time `wait`, until the eviction thread has work. Returns false if the thread must end.
    pub(crate) fn wait_for_work(&self, lifecycle: &Lifecycle, wait: Duration) -> bool {
        let mut q = self.queue.lock();
        let state = lifecycle.now();
        if !state.allows(Right::Work) {
            return false;
        }
        if q.is_empty() || !state.allows(Right::Evict) {
            self.work.wait_for(&mut q, wait);
        }
        true
    }

    /// Freezes the mount. No eviction begins when this has returned, because [`Evictions::run`] looks at the state
    /// under the same lock.
    pub(crate) fn freeze(&self, lifecycle: &Lifecycle) {
        let _q = self.queue.lock();
        lifecycle.go(Transition::Freeze);
    }

    /// Wakes the eviction thread after a thaw.
    pub(crate) fn resume(&self) {
        self.work.notify_one();
    }

    /// Wakes the eviction thread when the mount ends, so that it ends as well.
    pub(crate) fn stop(&self) {
        self.work.notify_all();
    }

    /// The number of evictions that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// The number of evictions that have ended since their count was `ended`, are in progress, or are queued. The
    /// queue's lock covers all three, because an inode moves from one state to the next under it.
    pub(crate) fn since(&self, ended: u64) -> u64 {
        self.count_since(&self.queue.lock(), ended)
    }

    fn count_since(&self, q: &VecDeque<T>, ended: u64) -> u64 {
        let under_way = u64::from(self.in_progress.load(Ordering::Acquire));
        self.ended() - ended + under_way + q.len() as u64
    }

    /// Waits until [`Evictions::since`] exceeds `own`, which means that another inode has lost its last user. Returns
    /// false if that does not happen for the time `longest`.
    pub(crate) fn wait_for_another(&self, clock: &Clock, ended: u64, own: u64, longest: Duration) -> bool {
        let mut q = self.queue.lock();
        while self.count_since(&q, ended) <= own {
            if self.idle.wait_for(&mut q, longest) {
                // A virtual clock does not advance during the wait, so the eviction would seem imminent forever.
                clock.advance(longest);
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant_base::sync::atomic::AtomicBool;

    use super::*;

    /// An inode that is large from 100 on.
    impl Evictee for u32 {
        type Reference = u32;

        fn is_large(&self) -> bool {
            *self >= 100
        }
    }

    fn queued(inodes: &[u32]) -> (Evictions<u32>, Lifecycle) {
        let evictions = Evictions::new();
        inodes.iter().for_each(|inode| evictions.push(*inode));
        (evictions, Lifecycle::new(false))
    }

    fn freed(evictions: &Evictions<u32>, lifecycle: &Lifecycle, max: u32, small: bool) -> Vec<u32> {
        let mut freed = Vec::new();
        evictions.run(lifecycle, max, small, |inode| freed.push(*inode));
        freed
    }

    #[test]
    fn inodes_are_freed_in_order_up_to_a_number_and_up_to_a_large_one() {
        let (evictions, lifecycle) = queued(&[1, 2, 3, 100, 4]);
        assert_eq!(freed(&evictions, &lifecycle, 2, true), [1, 2]);
        assert_eq!(freed(&evictions, &lifecycle, 8, true), [3], "the large one is left to the thread");
        assert_eq!(freed(&evictions, &lifecycle, u32::MAX, false), [100, 4]);
        assert_eq!((evictions.ended(), evictions.since(0), evictions.since(5)), (5, 5, 0));
    }

    #[test]
    fn an_inode_that_is_queued_in_progress_or_freed_counts_once() {
        let (evictions, lifecycle) = queued(&[1, 2]);
        evictions.run(&lifecycle, u32::MAX, false, |_| assert_eq!(evictions.since(0), 2));
        assert_eq!(evictions.since(0), 2);
        // An inode that is queued again while it is freed counts again.
        let (evictions, lifecycle) = queued(&[1]);
        evictions.run(&lifecycle, 1, false, |inode| evictions.push(*inode));
        assert_eq!((evictions.since(0), evictions.ended()), (2, 1));
    }

    #[test]
    fn a_frozen_mount_frees_nothing_and_an_ending_one_everything() {
        let (evictions, lifecycle) = queued(&[1]);
        lifecycle.go(Transition::Shut);
        evictions.freeze(&lifecycle);
        assert!(freed(&evictions, &lifecycle, u32::MAX, false).is_empty());
        assert!(evictions.wait_for_work(&lifecycle, Duration::ZERO), "the thread stays");
        lifecycle.go(Transition::Resume);
        lifecycle.go(Transition::BeginEnd);
        assert!(!evictions.wait_for_work(&lifecycle, Duration::from_secs(60)), "the thread ends, and does not wait");
        assert_eq!(freed(&evictions, &lifecycle, u32::MAX, false), [1]);
        evictions.push(2);
        lifecycle.go(Transition::Close);
        assert!(freed(&evictions, &lifecycle, u32::MAX, false).is_empty());
    }

    /// The thread that waits returns only after the other one has finished its eviction.
    #[test]
    fn waiting_until_idle_covers_evictions_of_other_threads() {
        let (evictions, lifecycle) = queued(&[1]);
        let shared = Arc::new((evictions, lifecycle, AtomicBool::new(false), AtomicBool::new(false)));
        let other = shared.clone();
        let thread = extant_base::task::spawn("evicts", move || {
            let (evictions, lifecycle, begun, ended) = &*other;
            evictions.run(lifecycle, 1, false, |_| {
                begun.store(true, Ordering::Release);
                Clock::real().sleep(Duration::from_millis(20));
                ended.store(true, Ordering::Release);
            });
        })
        .expect("a thread");
        let (evictions, lifecycle, begun, ended) = &*shared;
        while !begun.load(Ordering::Acquire) {
            extant_base::task::yield_now();
        }
        evictions.wait_until_idle(lifecycle);
        assert!(ended.load(Ordering::Acquire));
        thread.join().expect("evicts");
        // After a failure, no thread waits for an eviction that may never end.
        let (evictions, lifecycle) = queued(&[1]);
        evictions.run(&lifecycle, 1, false, |_| {
            lifecycle.go_because(Transition::Fail, &crate::Error::NoSpace);
            evictions.wait_until_idle(&lifecycle);
        });
    }

    #[test]
    fn a_wait_for_another_eviction_ends_with_one_or_with_its_time() {
        let clock = Clock::virtual_at(0);
        let (evictions, lifecycle) = queued(&[1]);
        assert!(evictions.wait_for_another(&clock, 0, 0, Duration::from_secs(60)));
        let longest = Duration::from_millis(1);
        assert!(!evictions.wait_for_another(&clock, 0, 1, longest), "the caller's own does not count");
        assert_eq!(clock.now_ns(), 1_000_000);
        freed(&evictions, &lifecycle, 1, false);
        assert!(evictions.wait_for_another(&clock, 0, 0, longest), "one that has ended meanwhile counts");
    }

    #[test]
    fn an_inode_that_loses_its_last_name_is_passed_on_and_leaves_a_time() {
        let (evictions, _) = queued(&[]);
        assert_eq!(evictions.since_unlinked_ns(7), None);
        let told = Arc::new(AtomicU32::new(0));
        let tells = told.clone();
        evictions.when_nameless(Box::new(move |inode| tells.store(*inode, Ordering::Relaxed)));
        evictions.when_nameless(Box::new(|_| panic!("only the first counts")));
        evictions.lost_last_name(&5, 0);
        assert_eq!((told.load(Ordering::Relaxed), evictions.since_unlinked_ns(7)), (5, Some(6)));
    }
}
