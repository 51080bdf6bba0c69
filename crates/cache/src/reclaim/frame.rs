//! The bookkeeping of reclaim for one piece of memory that can be freed.
//!
//! Main types: [`Frames`] (all frames, and their lists), [`FrameId`], [`Touches`] (the use counts, which need no lock).
//! Linux: `struct page` and its `lru` field, as mm/vmscan.c uses them.
//!
//! A frame takes 32 bytes, plus one for its count. Lists are doubly linked through the frames, so that a frame can be
//! removed from the middle of its list. Each list knows its length and its bytes.
//!
//! What it does not do: decide anything. Only the policy knows the meaning of a list.
//!
//! # Locking
//! The lock of [`super::Reclaim`] protects [`Frames`]. [`Touches`] is shared and has no lock.

use std::sync::{Arc, OnceLock};

use extant_base::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// The number that stands for no frame.
const NONE: u32 = u32::MAX;
/// The number of lists of a policy, including [`OFF`].
const LISTS: usize = 7;
/// The frame is on no list.
pub(super) const OFF: ListId = 0;
/// The frame was chosen and its owner frees it. It is on no list, and is put back by [`super::Core::kept`].
pub(super) const ISOLATED: ListId = LISTS as ListId;

/// Identifies a list. The policies number their lists from 1 on.
pub(super) type ListId = u8;

/// Identifies a frame until it is removed. Numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(u32);

/// The frame of an object that may have none, readable without a lock. Changes, and reads that must be correct, happen
/// under the lock of [`super::Reclaim`]. Without it the value is a hint, which is sufficient for [`Touches`].
#[derive(Debug)]
pub struct FrameCell(AtomicU32);

impl Default for FrameCell {
    fn default() -> FrameCell {
        FrameCell(AtomicU32::new(NONE))
    }
}

impl FrameCell {
    pub fn get(&self) -> Option<FrameId> {
        let id = self.0.load(Ordering::Relaxed);
        (id != NONE).then_some(FrameId(id))
    }

    pub fn set(&self, id: FrameId) {
        self.0.store(id.0, Ordering::Relaxed);
    }

    /// Takes the frame out of the cell and returns it.
    pub fn take(&self) -> Option<FrameId> {
        let id = self.0.swap(NONE, Ordering::Relaxed);
        (id != NONE).then_some(FrameId(id))
    }
}

/// Identifies an owner of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId(pub(super) u16);

/// How an owner finds the contents of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The number of an inode or of a block.
    pub object: u64,
    /// For an inode's data: the first page.
    pub page: u64,
}

/// The flags of a frame. The upper ones belong to the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(u8);

impl State {
    /// Neither dirty nor under writeback.
    pub const CLEAN: State = State(0);
    /// Newer than the device.
    pub const DIRTY: State = State(1);
    /// Under writeback (Linux: `PG_writeback`).
    pub const WRITEBACK: State = State(2);
    /// Written, but not durable yet (NFS: unstable pages).
    pub const UNSTABLE: State = State(4);
    /// The flags that owners set.
    const TOLD: State = State(7);
    /// Chosen by a caller that needs memory immediately.
    pub(super) const DIRECT: State = State(8);
    /// To be freed as soon as it is written (Linux: `PG_reclaim`).
    pub(super) const IMMEDIATE: State = State(16);
    /// Used since reclaim last met it (Linux: `PG_referenced`).
    pub(super) const REFERENCED: State = State(32);
    /// Used again (Linux: `PG_active`).
    pub(super) const PROMOTED: State = State(64);

    pub const fn or(self, other: State) -> State {
        State(self.0 | other.0)
    }

    pub const fn without(self, other: State) -> State {
        State(self.0 & !other.0)
    }

    /// Whether any of `other` is set.
    pub const fn has(self, other: State) -> bool {
        self.0 & other.0 != 0
    }

    /// The flags of the owners, without those of the policy.
    pub const fn told(self) -> State {
        State(self.0 & State::TOLD.0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    key: Key,
    prev: u32,
    /// In a free frame, this is the next free frame.
    next: u32,
    bytes: u32,
    owner: u16,
    list: ListId,
    state: State,
}

const _: () = assert!(size_of::<Frame>() == 32);

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
    bytes: u64,
}

/// All frames of one [`super::Core`].
pub(super) struct Frames {
    slots: Vec<Frame>,
    first_free: u32,
    lists: [List; LISTS],
    live: u32,
    touches: Arc<Touches>,
}

impl Frames {
    /// Creates an empty set. `uses` is the maximum number of uses of a frame that are counted.
    pub fn new(uses: u8) -> Frames {
        Frames {
            slots: Vec::new(),
            first_free: NONE,
            lists: [List { head: NONE, tail: NONE, len: 0, bytes: 0 }; LISTS],
            live: 0,
            touches: Arc::new(Touches::new(uses)),
        }
    }

    pub fn touches(&self) -> &Arc<Touches> {
        &self.touches
    }

    /// The number of frames that exist.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Adds a frame, which is on no list.
    pub fn add(&mut self, owner: OwnerId, key: Key, bytes: u32, state: State) -> FrameId {
        let frame = Frame { key, prev: NONE, next: NONE, bytes, owner: owner.0, list: OFF, state };
        let id = match self.first_free {
            NONE => {
                let id = self.slots.len() as u32;
                assert!(id < NONE, "fewer than 2^32 frames");
                self.slots.push(frame);
                id
            }
            id => {
                self.first_free = self.slots[id as usize].next;
                self.slots[id as usize] = frame;
                id
            }
        };
        self.live += 1;
        self.touches.set(FrameId(id), 0);
        self.touches.added.fetch_add(1, Ordering::Relaxed);
        FrameId(id)
    }

    /// Removes the frame. Its number may be reused.
    pub fn remove(&mut self, id: FrameId) {
        self.unlink(id);
        let slot = &mut self.slots[id.0 as usize];
        slot.next = self.first_free;
        slot.owner = u16::MAX;
        self.first_free = id.0;
        self.live -= 1;
    }

    pub fn key(&self, id: FrameId) -> Key {
        self.slots[id.0 as usize].key
    }

    pub fn owner(&self, id: FrameId) -> OwnerId {
        OwnerId(self.slots[id.0 as usize].owner)
    }

    pub fn bytes(&self, id: FrameId) -> u64 {
        u64::from(self.slots[id.0 as usize].bytes)
    }

    pub fn state(&self, id: FrameId) -> State {
        self.slots[id.0 as usize].state
    }

    pub fn set_state(&mut self, id: FrameId, state: State) {
        self.slots[id.0 as usize].state = state;
    }

    /// Sets flags.
    pub fn mark(&mut self, id: FrameId, marks: State) {
        let slot = &mut self.slots[id.0 as usize];
        slot.state = slot.state.or(marks);
    }

    /// Clears flags. Returns whether one was set.
    pub fn unmark(&mut self, id: FrameId, marks: State) -> bool {
        let slot = &mut self.slots[id.0 as usize];
        let had = slot.state.has(marks);
        slot.state = slot.state.without(marks);
        had
    }

    pub fn list(&self, id: FrameId) -> ListId {
        self.slots[id.0 as usize].list
    }

    pub fn len(&self, list: ListId) -> u64 {
        u64::from(self.lists[usize::from(list)].len)
    }

    /// The number of bytes of the frames on a list.
    pub fn list_bytes(&self, list: ListId) -> u64 {
        self.lists[usize::from(list)].bytes
    }

    /// The frame that has been on the list for the longest time.
    pub fn tail(&self, list: ListId) -> Option<FrameId> {
        let tail = self.lists[usize::from(list)].tail;
        (tail != NONE).then_some(FrameId(tail))
    }

    /// Removes the frame from its list.
    pub fn unlink(&mut self, id: FrameId) {
        let Frame { prev, next, bytes, list, .. } = self.slots[id.0 as usize];
        self.slots[id.0 as usize].list = OFF;
        if list == OFF || list == ISOLATED {
            return;
        }
        match prev {
            NONE => self.lists[usize::from(list)].head = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NONE => self.lists[usize::from(list)].tail = prev,
            next => self.slots[next as usize].prev = prev,
        }
        let l = &mut self.lists[usize::from(list)];
        l.len -= 1;
        l.bytes -= u64::from(bytes);
    }

    /// Removes the frame from its list while its owner frees it.
    pub fn isolate(&mut self, id: FrameId) {
        self.unlink(id);
        self.slots[id.0 as usize].list = ISOLATED;
    }

    /// Moves the frame to the newest end of `list`.
    pub fn push(&mut self, list: ListId, id: FrameId) {
        self.unlink(id);
        let head = self.lists[usize::from(list)].head;
        match head {
            NONE => self.lists[usize::from(list)].tail = id.0,
            head => self.slots[head as usize].prev = id.0,
        }
        self.slots[id.0 as usize].next = head;
        self.slots[id.0 as usize].prev = NONE;
        self.lists[usize::from(list)].head = id.0;
        self.joined(list, id);
    }

    /// Moves the frame to the end of `list` from which reclaim takes first.
    pub fn push_tail(&mut self, list: ListId, id: FrameId) {
        self.unlink(id);
        let tail = self.lists[usize::from(list)].tail;
        match tail {
            NONE => self.lists[usize::from(list)].head = id.0,
            tail => self.slots[tail as usize].next = id.0,
        }
        self.slots[id.0 as usize].prev = tail;
        self.slots[id.0 as usize].next = NONE;
        self.lists[usize::from(list)].tail = id.0;
        self.joined(list, id);
    }

    fn joined(&mut self, list: ListId, id: FrameId) {
        let slot = &mut self.slots[id.0 as usize];
        slot.list = list;
        let l = &mut self.lists[usize::from(list)];
        l.len += 1;
        l.bytes += u64::from(slot.bytes);
    }

    /// Every frame on a list.
    pub fn listed(&self) -> Vec<FrameId> {
        let mut all = Vec::new();
        for list in &self.lists {
            let mut at = list.tail;
            while at != NONE {
                all.push(FrameId(at));
                at = self.slots[at as usize].prev;
            }
        }
        all
    }

    /// Every frame that exists, for tests.
    #[cfg(test)]
    pub fn ids(&self) -> impl Iterator<Item = FrameId> + '_ {
        (0..self.slots.len() as u32).filter(|i| self.slots[*i as usize].owner != u16::MAX).map(FrameId)
    }
}

/// log2 of the number of frames in the first chunk. Each following chunk has twice as many.
const FIRST_CHUNK_BITS: u32 = 10;
const CHUNKS: usize = 22;

/// log2 of the number of new frames during which the uses of a frame count only once.
const EPOCH_BITS: u32 = 6;

/// How often each frame was used since a policy last looked, up to a limit of the policy. A use needs no lock, because
/// the table grows by chunks that never move.
pub struct Touches {
    chunks: [OnceLock<Box<[AtomicU8]>>; CHUNKS],
    /// The number of frames that were ever added.
    added: AtomicU32,
    /// The maximum count.
    most: u8,
}

impl Touches {
    /// A limit that is suitable for most policies. Reclaim has to skip a frame once per count, so old popularity must
    /// not accumulate.
    pub const USUAL: u8 = 3;
    const COUNT: u8 = 0x0F;
    const PARKED: u8 = 0x80;

    /// Creates a table without uses. The maximum of a count is `most`, which is at most 15.
    pub(super) fn new(most: u8) -> Touches {
        Touches { chunks: Default::default(), added: AtomicU32::new(0), most: most.min(Self::COUNT) }
    }

    fn cell(&self, id: FrameId) -> &AtomicU8 {
        let n = u64::from(id.0) + (1 << FIRST_CHUNK_BITS);
        let bits = n.ilog2();
        let chunk = &self.chunks[(bits - FIRST_CHUNK_BITS) as usize];
        let cells = chunk.get_or_init(|| (0..1u64 << bits).map(|_| AtomicU8::new(0)).collect());
        &cells[(n - (1 << bits)) as usize]
    }

    /// Counts a use of the frame.
    #[inline]
    pub fn touch(&self, id: FrameId) {
        let cell = self.cell(id);
        let was = cell.load(Ordering::Relaxed);
        // If two threads count a use at the same time, one may be lost.
        if was & Self::COUNT < self.most {
            let _ = cell.compare_exchange(was, was + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Counts a use of the frame, unless its last use, which `last` records, was very recent. If sixteen inodes are
    /// read from one block, one after the other, this does not make the block popular.
    #[inline]
    pub fn touch_apart(&self, id: FrameId, last: &AtomicU32) {
        let now = self.added.load(Ordering::Relaxed) >> EPOCH_BITS;
        if last.load(Ordering::Relaxed) != now {
            last.store(now, Ordering::Relaxed);
            self.touch(id);
        }
    }

    /// The current epoch, for [`Touches::touch_apart`].
    pub fn now(&self) -> u32 {
        self.added.load(Ordering::Relaxed) >> EPOCH_BITS
    }

    /// The number of uses of the frame.
    pub fn count(&self, id: FrameId) -> u8 {
        self.cell(id).load(Ordering::Relaxed) & Self::COUNT
    }

    /// Returns the number of uses of the frame, and resets it to 0.
    pub fn take(&self, id: FrameId) -> u8 {
        self.cell(id).fetch_and(!Self::COUNT, Ordering::Relaxed) & Self::COUNT
    }

    /// Decrements the count. Returns whether it was above 0.
    pub fn take_one(&self, id: FrameId) -> bool {
        let cell = self.cell(id);
        let mut was = cell.load(Ordering::Relaxed);
        while was & Self::COUNT > 0 {
            match cell.compare_exchange_weak(was, was - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        false
    }

    /// Sets the count, and marks the frame as not parked.
    pub(super) fn set(&self, id: FrameId, to: u8) {
        self.cell(id).store(to, Ordering::Relaxed);
    }

    /// Whether the frame is on no list until its last user is done.
    pub fn is_parked(&self, id: FrameId) -> bool {
        self.cell(id).load(Ordering::SeqCst) & Self::PARKED != 0
    }

    pub(super) fn set_parked(&self, id: FrameId, parked: bool) {
        if parked {
            self.cell(id).fetch_or(Self::PARKED, Ordering::SeqCst);
        } else {
            self.cell(id).fetch_and(!Self::PARKED, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_order_length_and_bytes() {
        let mut f = Frames::new(Touches::USUAL);
        let ids: Vec<_> =
            (0..5).map(|n| f.add(OwnerId(0), Key { object: n, page: 0 }, 10 + n as u32, State::CLEAN)).collect();
        for id in &ids {
            f.push(1, *id);
        }
        assert_eq!((f.len(1), f.list_bytes(1)), (5, 60));
        f.push(2, ids[2]);
        f.isolate(ids[0]);
        f.push_tail(1, ids[4]);
        let mut order = Vec::new();
        while let Some(id) = f.tail(1) {
            order.push(f.key(id).object);
            f.remove(id);
        }
        assert_eq!(order, [4, 1, 3]);
        assert_eq!((f.len(1), f.list_bytes(1), f.len(2), f.live()), (0, 0, 1, 2));
        assert_eq!(f.list(ids[0]), ISOLATED);
        let again = f.add(OwnerId(0), Key::default(), 1, State::CLEAN);
        assert!(ids.contains(&again), "numbers are used again");
    }

    #[test]
    fn touches_are_counted_up_to_a_bound_in_every_chunk() {
        let t = Touches::new(Touches::USUAL);
        for id in [0, 1, 1023, 1024, 1 << 20].map(FrameId) {
            assert_eq!(t.count(id), 0);
            for _ in 0..10 {
                t.touch(id);
            }
            t.set_parked(id, true);
            assert_eq!(t.count(id), Touches::USUAL);
            assert!(t.take_one(id));
            assert_eq!((t.take(id), t.take(id)), (Touches::USUAL - 1, 0));
            assert!(!t.take_one(id) && t.is_parked(id));
        }
    }
}
