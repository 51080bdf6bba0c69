//! Tags: numbers that limit how many requests are in flight.
//!
//! Main types: [`TagSet`] (Linux: `struct blk_mq_tags`), which returns a [`TagGuard`], blocks a thread until there is
//! one, or queues a bio; [`TagStats`]. A [`policy`] decides which request gets the next tag, and how requests wait.
//!
//! What it does not do: I/O. A waiting bio is a closure here.
//!
//! # Locking
//! Those of the policy, none of which is held while a bio is started, and `block tag postponed` for bios that were
//! submitted where sleeping is not allowed.

mod ledger;
pub mod policy;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use extant_base::task;

pub use ledger::TagStats;
pub use policy::TagPolicyKind;

use self::policy::Tags;
use crate::ranks::TAG_POSTPONED;

/// Called with a tag when there is one. Must not sleep, because it runs on the thread that releases another request's
/// tag.
pub type Start = Box<dyn FnOnce(TagGuard) + Send>;

/// The parameters of a set of tags.
#[derive(Clone, Copy, Debug)]
pub struct TagConfig {
    /// The number of tags; at least one.
    pub depth: u32,
    /// Which request gets the next tag.
    pub policy: TagPolicyKind,
    /// The number of wait queues, for policies that have them (Linux: `SBQ_WAIT_QUEUES`).
    pub wait_queues: u32,
}

impl Default for TagConfig {
    /// As many tags as Linux uses for a disk without hardware queues (`BLKDEV_DEFAULT_RQ`).
    fn default() -> TagConfig {
        TagConfig { depth: 128, policy: TagPolicyKind::default(), wait_queues: 8 }
    }
}

/// A set of tags `0..depth`.
pub struct TagSet {
    tags: Tags,
    /// Bios that a completion submitted when no tag was free, with a policy whose bios do not wait. They get tags
    /// before sleeping threads do.
    postponed: Mutex<VecDeque<Start>>,
    postponed_len: AtomicUsize,
    users: AtomicU32,
}

impl TagSet {
    /// Creates a set in which all tags are free.
    pub fn new(config: TagConfig) -> TagSet {
        TagSet {
            tags: Tags::new(config.policy, config.depth.max(1), config.wait_queues),
            postponed: Mutex::new(&TAG_POSTPONED, VecDeque::new()),
            postponed_len: AtomicUsize::new(0),
            users: AtomicU32::new(0),
        }
    }

    /// Registers one more queue that takes tags from the set. Returns its number, which is the `user` below.
    pub fn join(&self) -> u32 {
        self.users.fetch_add(1, Ordering::Relaxed)
    }

    /// A tag, if one is free.
    pub fn try_get(set: &Arc<TagSet>) -> Option<TagGuard> {
        let hint = task::shard_index();
        let tag = set.tags.try_get(hint)?;
        Some(TagGuard { set: set.clone(), tag, hint })
    }

    /// Returns a tag; the thread waits until one is free.
    pub fn get(set: &Arc<TagSet>, user: u32) -> TagGuard {
        if let Some(tag) = TagSet::try_get(set) {
            return tag;
        }
        let hint = task::shard_index();
        TagGuard { set: set.clone(), tag: set.tags.get(hint, user), hint }
    }

    /// Whether [`TagSet::start`] usually returns before there is a tag.
    pub fn bios_wait(&self) -> bool {
        self.tags.bios_wait()
    }

    /// Calls `start`, which represents a bio of `bytes`, with a tag: now, after this thread has slept, or later on a
    /// thread that releases a tag. Never sleeps on a thread that runs completions.
    pub fn start(set: &Arc<TagSet>, user: u32, bytes: u64, start: Start) {
        if let Some(tag) = TagSet::try_get(set) {
            return run(tag, start);
        }
        let (hint, may_sleep) = (task::shard_index(), !completing());
        if !may_sleep && !set.bios_wait() {
            return TagSet::postpone(set, start);
        }
        if let Some((tag, start)) = set.tags.start(hint, user, bytes, may_sleep, start) {
            run(TagGuard { set: set.clone(), tag, hint }, start);
        }
    }

    /// The statistics of the waits so far.
    pub fn stats(&self) -> TagStats {
        self.tags.ledger().stats()
    }

    fn postpone(set: &Arc<TagSet>, start: Start) {
        {
            let mut postponed = set.postponed.lock();
            postponed.push_back(start);
            set.postponed_len.store(postponed.len(), Ordering::SeqCst);
        }
        TagSet::serve_postponed(set);
    }

    /// A tag may have been released between the attempt and the entry in the list.
    fn serve_postponed(set: &Arc<TagSet>) {
        while set.postponed_len.load(Ordering::SeqCst) > 0
            && let Some(tag) = TagSet::try_get(set)
        {
            match set.pop_postponed() {
                Some(start) => run(tag, start),
                // Dropping the tag checks the list again.
                None => return,
            }
        }
    }

    fn pop_postponed(&self) -> Option<Start> {
        let mut postponed = self.postponed.lock();
        let start = postponed.pop_front();
        self.postponed_len.store(postponed.len(), Ordering::SeqCst);
        start
    }

    fn put(set: &Arc<TagSet>, tag: u32, hint: usize) {
        if set.postponed_len.load(Ordering::SeqCst) > 0
            && let Some(start) = set.pop_postponed()
        {
            return run(TagGuard { set: set.clone(), tag, hint }, start);
        }
        match set.tags.put(tag, hint) {
            Some((tag, start)) => run(TagGuard { set: set.clone(), tag, hint }, start),
            None => TagSet::serve_postponed(set),
        }
    }
}

/// A tag, released on drop.
pub struct TagGuard {
    set: Arc<TagSet>,
    tag: u32,
    /// The hint of the thread that took it, which will probably take the next one, too; a completion runs elsewhere.
    hint: usize,
}

impl TagGuard {
    /// The number, below the set's depth.
    pub fn tag(&self) -> u32 {
        self.tag
    }
}

impl Drop for TagGuard {
    fn drop(&mut self) {
        TagSet::put(&self.set, self.tag, self.hint);
    }
}

thread_local! {
    /// The bios that this thread still has to start: `Some` while it starts one.
    static STARTING: RefCell<Option<VecDeque<(TagGuard, Start)>>> = const { RefCell::new(None) };
    static COMPLETING: Cell<bool> = const { Cell::new(false) };
}

/// Starts a bio. If it completes inside `start`, its tag is passed to the next bio, which starts after this call has
/// returned. Otherwise the stack would grow with the number of waiting bios.
fn run(tag: TagGuard, start: Start) {
    let nested = STARTING.with(|s| match &mut *s.borrow_mut() {
        Some(later) => {
            later.push_back((tag, start));
            None
        }
        none => {
            *none = Some(VecDeque::new());
            Some((tag, start))
        }
    });
    // If a start panics, the bios queued after it release their tags, and the next call starts with an empty queue.
    struct QueueReset;
    impl Drop for QueueReset {
        fn drop(&mut self) {
            let queued = STARTING.with(|s| s.borrow_mut().take());
            drop(queued);
        }
    }
    let Some(first) = nested else { return };
    let _reset = QueueReset;
    let mut next = Some(first);
    while let Some((tag, start)) = next {
        while_completing(|| start(tag));
        next = STARTING.with(|s| s.borrow_mut().as_mut().and_then(VecDeque::pop_front));
    }
}

/// Whether this thread runs a completion, so that it must not sleep for a tag.
pub(super) fn completing() -> bool {
    COMPLETING.with(Cell::get)
}

/// Runs `f` as a part of a completion.
pub(super) fn while_completing<T>(f: impl FnOnce() -> T) -> T {
    /// Restores the flag, even if `f` panics.
    struct FlagGuard(bool);
    impl Drop for FlagGuard {
        fn drop(&mut self) {
            COMPLETING.with(|c| c.set(self.0));
        }
    }
    let _guard = FlagGuard(COMPLETING.with(|c| c.replace(true)));
    f()
}
