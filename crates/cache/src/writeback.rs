//! Background writeback of file data (Linux: fs/fs-writeback.c, mm/page-writeback.c).
//!
//! Main types: [`Flusher`] (which inodes are dirty, since when, and how many bytes in total), [`AddressSpaceOps`]
//! (writes their dirty data to the device; implemented by `fs`), [`Listed`] (the reason why an inode is listed).
//!
//! Rules: data older than `expire` is written. If more than `background_bytes` wait for writeback, the oldest inodes
//! are written until half of that is left. As the amount approaches `limit_bytes`, which counts data under writeback,
//! too, writers pause for the bytes that they dirty ([`Flusher::throttle`], [`crate::pace`]). Within an inode, blocks
//! are written in file order.
//!
//! An inode is listed while any of its data is dirty, taken or under writeback. So [`Flusher::listed`] includes the
//! writes that the flusher has begun. An inode whose data is all under writeback costs nothing in a round: the first
//! scan that meets it moves it to a separate list, and it is moved back when it is dirtied again.
//!
//! What it does not do: block mapping or transactions.
//!
//! # Locking
//! `dirty inodes` (38) protects the table and is not held while an inode is written. An inode that is already listed
//! can be dirtied without it ([`AddressSpaceOps::listed`]). `room for dirty data` (209) is a leaf; completions take it
//! only while a writer waits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use extant_base::sync::{Condvar, LockClass, Mutex};

use crate::pace::{Levels, Lightness, pause_ns};

static CLASS: LockClass = LockClass::new("dirty inodes", 38);
static ROOM_CLASS: LockClass = LockClass::new("room for dirty data", 209);

/// An inode, from the view of the flusher.
pub trait AddressSpaceOps: Send + Sync + Sized + 'static {
    /// Writes the dirty data of these inodes of one mount, with adjacent data on the device together and large files in
    /// turns, and the lazily written times. Returns when everything is in flight. Errors are recorded with each inode,
    /// for its fsync.
    fn write_pages(inodes: &[Arc<Self>]);

    /// The number of bytes that are dirty and not yet taken for writeback.
    fn dirty_bytes(&self) -> u64;

    /// Whether lazily written times are dirty.
    fn has_times(&self) -> bool;

    /// Whether no data of the inode is taken or under writeback.
    fn is_idle(&self) -> bool;

    /// The flusher's note about the inode, which can be read without a lock.
    fn listed(&self) -> &Listed;
}

/// The reason why an inode is listed. The reason is at least as strong as the inode's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum For {
    Nothing,
    /// Some of the data is under writeback, and nothing else is known.
    Completion,
    Times,
    Data,
}

const LISTS: [For; 3] = [For::Completion, For::Times, For::Data];

/// The reason why the flusher lists an inode, and how much its writers have dirtied recently.
#[derive(Debug, Default)]
pub struct Listed {
    why: AtomicU8,
    lightness: Lightness,
}

impl Listed {
    fn get(&self) -> For {
        let v = self.why.load(Ordering::SeqCst);
        LISTS.into_iter().find(|list| *list as u8 == v).unwrap_or(For::Nothing)
    }

    fn set(&self, to: For) {
        self.why.store(to as u8, Ordering::SeqCst);
    }
}

/// The thresholds, in bytes and nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct FlusherOptions {
    pub background_bytes: u64,
    pub limit_bytes: u64,
    pub expire_ns: u64,
}

impl FlusherOptions {
    /// The levels between which writers pause. The flusher starts well below the first one.
    fn levels(&self) -> Levels {
        Levels { begin: self.limit_bytes - self.limit_bytes / 4, limit: self.limit_bytes }
    }

    /// Above this, no writer continues, because limited pauses were not enough.
    fn ceiling(&self) -> u64 {
        self.limit_bytes + self.limit_bytes / 8
    }
}

struct Dirty<I> {
    inode: Arc<I>,
    since_ns: u64,
}

/// The inodes by number: writing in that order follows the inode tables and, with Orlov, the data.
type List<I> = BTreeMap<u64, Dirty<I>>;

struct Table<I> {
    /// One list for each of [`LISTS`]; every inode is in one of them.
    lists: [List<I>; 3],
    /// No inode with data or times has been listed since before this time.
    oldest_ns: u64,
    stop: bool,
}

impl<I: AddressSpaceOps> Table<I> {
    fn list(&mut self, of: For) -> Option<&mut List<I>> {
        self.lists.get_mut((of as usize).checked_sub(1)?)
    }

    /// Moves the inode to the list that matches its state, under the table's lock. Returns that list.
    ///
    /// A thread that makes the inode dirty reads the note afterwards, without the lock. Either it sees the new note, or
    /// this function sees that the inode is dirty.
    fn review(&mut self, ino: u64) -> For {
        let Some((from, inode)) = LISTS.iter().find_map(|list| {
            let dirty = self.lists[*list as usize - 1].get(&ino)?;
            Some((*list, dirty.inode.clone()))
        }) else {
            return For::Nothing;
        };
        inode.listed().set(For::Nothing);
        fence(Ordering::SeqCst);
        let to = match () {
            () if inode.dirty_bytes() > 0 => For::Data,
            () if inode.has_times() => For::Times,
            () if !inode.is_idle() => For::Completion,
            () => For::Nothing,
        };
        inode.listed().set(to);
        if to != from
            && let Some(dirty) = self.list(from).and_then(|list| list.remove(&ino))
            && let Some(list) = self.list(to)
        {
            let since = dirty.since_ns;
            list.insert(ino, dirty);
            // A thread that has just made it dirty finds it listed, and does not change `oldest_ns`.
            if to != For::Completion {
                self.oldest_ns = self.oldest_ns.min(since);
            }
        }
        to
    }
}

/// The dirty inodes of one mount.
pub struct Flusher<I> {
    clock: Clock,
    options: FlusherOptions,
    table: Mutex<Table<I>>,
    wake: Condvar,
    /// The number of bytes that are not on the device yet, and of those that are taken for writeback.
    dirty_bytes: AtomicI64,
    taken_bytes: AtomicI64,
    kicked: AtomicBool,
    /// The number of bytes that reclaim wants to be written.
    demand: AtomicU64,
    room: Mutex<()>,
    more_room: Condvar,
    /// The number of writers that wait until the flusher is no longer full.
    stopped: AtomicU32,
    /// Whether the flusher has ended, so that nothing frees memory any more.
    ended: AtomicBool,
    /// The number of inodes written by background writeback.
    pub inodes_written: Counter,
    /// The number of inodes examined to find those, and their neighbours.
    pub inodes_looked_at: Counter,
}

impl<I: AddressSpaceOps> Flusher<I> {
    pub fn new(clock: Clock, options: FlusherOptions) -> Arc<Flusher<I>> {
        let lists = LISTS.map(|_| BTreeMap::new());
        Arc::new(Flusher {
            clock,
            options,
            table: Mutex::new(&CLASS, Table { lists, oldest_ns: u64::MAX, stop: false }),
            wake: Condvar::new(),
            dirty_bytes: AtomicI64::new(0),
            taken_bytes: AtomicI64::new(0),
            kicked: AtomicBool::new(false),
            demand: AtomicU64::new(0),
            room: Mutex::new(&ROOM_CLASS, ()),
            more_room: Condvar::new(),
            stopped: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            inodes_written: Counter::new(),
            inodes_looked_at: Counter::new(),
        })
    }

    /// Records that inode `ino` is dirty; `bytes` became dirty now (0 for times only). Must be called after the change.
    pub fn dirtied(&self, ino: u64, bytes: u64, inode: &Arc<I>) {
        self.list(ino, if bytes > 0 { For::Data } else { For::Times }, inode);
        self.add_bytes(bytes);
    }

    fn list(&self, ino: u64, why: For, inode: &Arc<I>) {
        // Pairs with `review`.
        fence(Ordering::SeqCst);
        if inode.listed().get() >= why {
            return;
        }
        let now = self.clock.now_ns();
        let mut t = self.table.lock();
        let from = inode.listed().get();
        if from >= why {
            return;
        }
        t.oldest_ns = t.oldest_ns.min(now);
        let mut dirty = t.list(from).and_then(|list| list.remove(&ino));
        if let Some(dirty) = dirty.as_mut().filter(|_| from == For::Completion) {
            dirty.since_ns = now;
        }
        let dirty = dirty.unwrap_or_else(|| Dirty { inode: inode.clone(), since_ns: now });
        if let Some(list) = t.list(why) {
            list.insert(ino, dirty);
        }
        // This is last, because a thread that sees the note relies on the table.
        inode.listed().set(why);
    }

    /// Removes the inode from its list if it is clean, after some of its data has reached the device or was lost.
    pub fn settled(&self, ino: u64, inode: &I) {
        if inode.is_idle() && inode.dirty_bytes() == 0 && !inode.has_times() {
            self.table.lock().review(ino);
        }
    }

    /// Records that more bytes are dirty, in an inode that is already listed.
    fn add_bytes(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes as i64, Ordering::SeqCst);
        self.kick_if_over();
    }

    fn kick_if_over(&self) {
        if self.waiting_bytes() > self.options.background_bytes && !self.kicked.swap(true, Ordering::AcqRel) {
            let _table = self.table.lock();
            self.wake.notify_all();
        }
    }

    /// Called if reclaim lacks clean memory: the next round writes about `bytes`, regardless of which other data is
    /// due.
    pub fn demand(&self, bytes: u64) {
        let bytes = bytes.min(self.waiting_bytes());
        self.demand.fetch_max(bytes, Ordering::AcqRel);
        if bytes > 0 && !self.kicked.swap(true, Ordering::AcqRel) {
            let _table = self.table.lock();
            self.wake.notify_all();
        }
    }

    /// Counts dirty bytes as taken. The caller will call [`Flusher::written`] or [`Flusher::put_back`].
    pub fn taken(&self, bytes: u64) {
        self.taken_bytes.fetch_add(bytes as i64, Ordering::SeqCst);
    }

    /// Records that taken bytes are on the device or lost.
    pub fn written(&self, bytes: u64) {
        self.taken_bytes.fetch_sub(bytes as i64, Ordering::SeqCst);
        self.dropped(bytes);
    }

    /// Records that `dirty` of the `bytes` taken for writeback are dirty again. The rest has been dirtied by other
    /// writes in the meantime, and is already counted.
    pub fn put_back(&self, ino: u64, bytes: u64, dirty: u64, inode: &Arc<I>) {
        self.list(ino, For::Data, inode);
        self.taken_bytes.fetch_sub(bytes as i64, Ordering::SeqCst);
        self.dropped(bytes - dirty);
        self.kick_if_over();
    }

    /// Records that dirty bytes no longer are; for example, they were truncated.
    pub fn dropped(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes as i64, Ordering::SeqCst);
        if self.stopped.load(Ordering::SeqCst) > 0 && !self.is_full() {
            let _room = self.room.lock();
            self.more_room.notify_all();
        }
    }

    /// The number of bytes that are not on the device yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::SeqCst).max(0) as u64
    }

    /// The number of dirty bytes that are not taken for writeback.
    fn waiting_bytes(&self) -> u64 {
        self.dirty_bytes().saturating_sub(self.taken_bytes.load(Ordering::SeqCst).max(0) as u64)
    }

    /// The pause of a writer that has dirtied `bytes` of an inode with this note, on a device that takes `rate` bytes
    /// per second, in nanoseconds; 0 for no pause (Linux: `balance_dirty_pages`).
    pub fn pause_ns(&self, note: &Listed, bytes: u64, rate: u64) -> u64 {
        let (levels, dirty) = (self.options.levels(), self.dirty_bytes());
        if dirty <= levels.begin {
            return 0;
        }
        let light = note.lightness.is_light(self.clock.now_ns(), bytes, rate);
        pause_ns(levels, dirty, bytes, rate, light)
    }

    /// Whether so much is dirty that no writer may continue, even after its pause.
    pub fn is_full(&self) -> bool {
        self.dirty_bytes() > self.options.ceiling() && !self.ended.load(Ordering::SeqCst)
    }

    /// Pauses a writer for [`Flusher::pause_ns`], and for as long as the flusher [is full](Flusher::is_full). Must be
    /// called without locks and handles.
    ///
    /// The writer does not write back itself: the flusher takes the files of all writers in the order of their numbers,
    /// and requests of the size of one file would break that order.
    pub fn throttle(&self, note: &Listed, bytes: u64, rate: u64) {
        let pause = self.pause_ns(note, bytes, rate);
        if pause == 0 {
            return;
        }
        let until = self.clock.now_ns() + pause;
        let mut room = self.room.lock();
        while !self.ended.load(Ordering::SeqCst)
            && let Some(left) = until.checked_sub(self.clock.now_ns()).filter(|left| *left > 0)
            && !self.more_room.wait_for(&mut room, Duration::from_nanos(left))
        {}
        self.stopped.fetch_add(1, Ordering::SeqCst);
        while self.is_full() {
            self.more_room.wait(&mut room);
        }
        self.stopped.fetch_sub(1, Ordering::SeqCst);
    }

    /// For a mount without a thread that runs [`Flusher::run`]: a writer that finds too much dirty data writes it.
    pub fn throttle_alone(&self) {
        if self.dirty_bytes() > self.options.limit_bytes {
            self.step();
        }
    }

    /// Removes an inode that no longer exists, with its dirty data.
    pub fn forget(&self, ino: u64) {
        let mut t = self.table.lock();
        for list in &mut t.lists {
            if let Some(dirty) = list.remove(&ino) {
                dirty.inode.listed().set(For::Nothing);
            }
        }
    }

    pub fn dirty_inodes(&self) -> usize {
        self.table.lock().lists.iter().map(BTreeMap::len).sum()
    }

    /// Does one round of the flusher's work. Returns how many inodes it wrote.
    pub fn step(&self) -> usize {
        self.kicked.store(false, Ordering::Release);
        let demand = self.demand.swap(0, Ordering::AcqRel);
        let over = self.waiting_bytes() > self.options.background_bytes || demand > 0;
        let now = self.clock.now_ns();
        let due = self.take_due(now);
        let mut written = due.len();
        I::write_pages(&due);
        if over {
            let most = self.take_oldest(now, demand);
            written += most.len();
            I::write_pages(&most);
        }
        self.inodes_written.add(written as u64);
        written
    }

    /// The inodes that have been dirty for the longest time, as many as free enough memory when they are written, in
    /// inode order.
    ///
    /// It examines all inodes with data. There are at most as many as dirty blocks, of which it takes a quarter.
    fn take_oldest(&self, now: u64, demand: u64) -> Vec<Arc<I>> {
        let mut t = self.table.lock();
        let mut left = self.waiting_bytes().saturating_sub(self.options.background_bytes / 2).max(demand);
        let (mut order, mut done) = (Vec::new(), Vec::new());
        let Some(data) = t.list(For::Data) else { return Vec::new() };
        self.inodes_looked_at.add(data.len() as u64);
        for (ino, d) in &*data {
            match d.inode.dirty_bytes() {
                0 => done.push(*ino),
                dirty => order.push((d.since_ns, *ino, dirty)),
            }
        }
        order.sort_unstable();
        let mut taken = BTreeMap::new();
        for (_, ino, dirty) in order {
            let Some(d) = data.get_mut(&ino).filter(|_| left > 0) else { break };
            left = left.saturating_sub(dirty);
            d.since_ns = now;
            taken.insert(ino, d.inode.clone());
        }
        for ino in done {
            t.review(ino);
        }
        taken.into_values().collect()
    }

    /// Every inode with data that is dirty or under writeback, in inode order.
    pub fn listed(&self) -> Vec<Arc<I>> {
        let t = self.table.lock();
        let mut all: Vec<_> = t.lists.iter().flatten().map(|(ino, d)| (*ino, d.inode.clone())).collect();
        all.sort_unstable_by_key(|(ino, _)| *ino);
        all.into_iter().map(|(_, inode)| inode).collect()
    }

    /// At most `max` inodes with dirty data that is not taken and with numbers in `range`, from the one after `ino` on
    /// and then from the start.
    pub fn dirty_after(&self, ino: u64, range: Range<u64>, max: usize) -> Vec<Arc<I>> {
        let mut t = self.table.lock();
        let Some(data) = t.list(For::Data) else { return Vec::new() };
        let after = data.range((ino + 1).clamp(range.start, range.end)..range.end);
        let before = data.range(range.start..ino.clamp(range.start, range.end));
        let (mut found, mut done) = (Vec::new(), Vec::new());
        for (ino, d) in after.chain(before) {
            if found.len() >= max {
                break;
            }
            match d.inode.dirty_bytes() {
                0 => done.push(*ino),
                _ => found.push(d.inode.clone()),
            }
        }
        self.inodes_looked_at.add((found.len() + done.len()) as u64);
        for ino in done {
            t.review(ino);
        }
        found
    }

    /// The inodes that are due. They stay listed, and are due again one period later if they are not clean by then.
    fn take_due(&self, now: u64) -> Vec<Arc<I>> {
        let mut t = self.table.lock();
        if now.saturating_sub(t.oldest_ns) < self.options.expire_ns {
            return Vec::new();
        }
        let (mut taken, mut oldest) = (BTreeMap::new(), u64::MAX);
        for of in [For::Times, For::Data] {
            let Some(list) = t.list(of) else { continue };
            self.inodes_looked_at.add(list.len() as u64);
            for (ino, d) in list {
                if now.saturating_sub(d.since_ns) >= self.options.expire_ns {
                    d.since_ns = now;
                    taken.insert(*ino, d.inode.clone());
                }
                oldest = oldest.min(d.since_ns);
            }
        }
        t.oldest_ns = oldest;
        taken.into_values().collect()
    }

    /// Runs `step` until [`Flusher::stop`]. This is the body of the flusher thread.
    pub fn run(&self) {
        let _ended = EndOnDrop(self);
        let mut more = false;
        loop {
            {
                let mut t = self.table.lock();
                if !t.stop && !more && !self.kicked.load(Ordering::Acquire) {
                    self.wake.wait_for(&mut t, Duration::from_millis(500));
                }
                if t.stop {
                    return;
                }
            }
            // Writers that pause dirty nothing in the meantime, and so do not wake the flusher.
            more = self.step() > 0 && self.waiting_bytes() > self.options.background_bytes;
        }
    }

    /// Ends [`Flusher::run`] after its current round.
    pub fn stop(&self) {
        self.table.lock().stop = true;
        self.wake.notify_all();
        self.end();
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let _room = self.room.lock();
        self.more_room.notify_all();
    }
}

/// Releases the waiting writers, regardless of how the thread ends.
struct EndOnDrop<'f, I: AddressSpaceOps>(&'f Flusher<I>);

impl<I: AddressSpaceOps> Drop for EndOnDrop<'_, I> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
#[path = "writeback_tests.rs"]
mod tests;
