//! The path of a request to its device: adjacent requests are merged, and each request is sent with a tag.
//!
//! Main types: [`Queue`] (a device in front of a device, with a limited number of requests in flight), [`Plug`] (delays
//! bios briefly so that adjacent ones can be merged), [`tags`] (the order in which requests get tags), [`BioWait`] and
//! [`submit_and_wait`] (waiting for bios). A flush is not sent if nothing was written since the last one began.
//!
//! What it does not do: ensure fairness between users of the device by reordering, or merge reads.
//!
//! # Locking
//! Only those of [`tags`] and [`wait`]. The thread that releases a tag sends the bio that waited for it, with no lock
//! held.

mod flushed;
mod merge;
mod plug;
pub mod tags;
pub mod wait;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use extant_base::counter::Counter;

use self::flushed::FlushTracker;
pub use self::plug::Plug;
pub use self::tags::{TagConfig, TagGuard, TagPolicyKind, TagSet, TagStats};
pub use self::wait::{BioWait, submit_and_wait};
use crate::bio::{Bio, BioFlags, BioOp, Completion, EndIo};
use crate::device::{BlockDevice, IoCounters, IoStats, check_range, check_shape, submit_inline, total_len};
use crate::error::Result;

/// The largest depth of a queue.
pub const QUEUE_DEPTH_MAX: u32 = 4096;

/// Counts of a queue in addition to its [`IoStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// The number of bios that were sent as parts of another bio's request.
    pub merged: u64,
    /// Statistics of the tags, which may be shared with other queues.
    pub tags: TagStats,
}

/// A request queue in front of a device (Linux: `struct request_queue`). Every bio in flight holds a tag. If none is
/// free, the bio or its submitter waits, depending on the policy; a completion that submits never waits.
///
/// A waiting call (`read_at`, `flush` …) takes no tag. Its thread does the I/O, so there is at most one per thread. It
/// must not depend on completions, either, because its caller may hold locks that a completion needs. Also, a read for
/// which a thread waits must not be queued after writes for which no thread waits.
pub struct Queue {
    path: Arc<Path>,
    merged: Counter,
}

/// The part of the queue that requests pass through; a completion that sends more requests has a reference.
struct Path {
    inner: Arc<dyn BlockDevice>,
    tags: Arc<TagSet>,
    /// The number that identifies this queue among those that share the tags.
    user: u32,
    counters: IoCounters,
    flushed: FlushTracker,
}

impl Queue {
    /// A queue in front of `inner` with its own tags.
    pub fn new(inner: Arc<dyn BlockDevice>, config: TagConfig) -> Queue {
        Queue::sharing(inner, Arc::new(TagSet::new(config)))
    }

    /// A queue in front of `inner`, with tags that it shares with other queues.
    pub fn sharing(inner: Arc<dyn BlockDevice>, tags: Arc<TagSet>) -> Queue {
        let user = tags.join();
        let (counters, flushed) = (IoCounters::default(), FlushTracker::default());
        Queue { path: Arc::new(Path { inner, tags, user, counters, flushed }), merged: Counter::new() }
    }

    /// The counts of the queue itself so far.
    pub fn queue_stats(&self) -> QueueStats {
        QueueStats { merged: self.merged.get(), tags: self.path.tags.stats() }
    }

    fn check(&self, bio: &Bio) -> Result<()> {
        check_shape(self, bio)?;
        if bio.op == BioOp::Flush { Ok(()) } else { check_range(self, bio.op, bio.offset, bio.len) }
    }

    /// Merges the bios that pass the checks into requests.
    fn merge(&self, bios: Vec<Bio>) -> Vec<Bio> {
        let mut good = Vec::with_capacity(bios.len());
        for bio in bios {
            match self.check(&bio) {
                Ok(()) => good.push(bio),
                Err(e) => bio.complete(Err(e)),
            }
        }
        let before = good.len();
        let requests = merge::sort_and_merge(good, self.limits().max_transfer, &self.path);
        if requests.len() < before {
            self.merged.add((before - requests.len()) as u64);
        }
        requests
    }

    fn send(&self, requests: Vec<Bio>) {
        let mut batch = Vec::with_capacity(requests.len());
        for bio in requests {
            // Before this thread waits for a tag, it sends the requests for which it has tags. Otherwise two such
            // threads could wait for each other.
            let send = || self.path.inner.submit_all(std::mem::take(&mut batch));
            if let Some(bio) = self.path.admit(bio, send) {
                batch.push(bio);
            }
        }
        if !batch.is_empty() {
            self.path.inner.submit_all(batch);
        }
    }

    /// Sends a write, or a request that acts like one, and waits.
    fn write_with(&self, flags: BioFlags, send: impl FnOnce(&dyn BlockDevice) -> Result<()>) -> Result<()> {
        let mark = self.path.flushed.begin(flags.contains(BioFlags::PREFLUSH));
        let result = send(&*self.path.inner);
        self.path.flushed.end(mark, flags.contains(BioFlags::FUA), result.is_ok());
        result
    }
}

impl Path {
    /// The flags of a write, without PREFLUSH if that flush would have no effect.
    fn needed(&self, flags: BioFlags) -> BioFlags {
        if self.flushed.is_so() { flags.difference(BioFlags::PREFLUSH) } else { flags }
    }

    fn count(&self, bio: &Bio) {
        match bio.op {
            BioOp::Read => self.counters.read(bio.len),
            BioOp::Write => self.counters.write(bio.len, bio.flags),
            BioOp::Flush => self.counters.flush(),
            BioOp::Discard => self.counters.discard(),
            BioOp::WriteZeroes => self.counters.write_zeroes(bio.flags),
        }
    }

    /// A bio that passed the checks, with its tag; `None` if it waits, because then the thread that releases a tag
    /// sends it. Calls `first` before the bio or the thread waits.
    fn admit(self: &Arc<Self>, bio: Bio, first: impl FnOnce()) -> Option<Bio> {
        self.count(&bio);
        if let Some(tag) = TagSet::try_get(&self.tags) {
            return Some(self.tagged(bio, tag));
        }
        first();
        if self.waits_by_itself(&bio) {
            self.start(bio);
            return None;
        }
        let tag = TagSet::get(&self.tags, self.user);
        Some(self.tagged(bio, tag))
    }

    /// Sends the bio as soon as it has a tag.
    fn start(self: &Arc<Self>, bio: Bio) {
        let (path, bytes) = (self.clone(), bio.len);
        let start = move |tag| path.inner.submit(path.tagged(bio, tag));
        TagSet::start(&self.tags, self.user, bytes, Box::new(start));
    }

    /// Whether the bio waits instead of its thread. On a device that completes inline, the thread that starts the bio
    /// of another thread also carries it out. Its own work would wait for that I/O, and a completion of another thread
    /// would run under its locks. So the submitter waits there, unless it is a completion, which must not.
    fn waits_by_itself(&self, bio: &Bio) -> bool {
        let block = u64::from(self.inner.limits().logical_block);
        let whole = bio.offset.is_multiple_of(block) && bio.len.is_multiple_of(block);
        let plain = matches!(bio.op, BioOp::Read | BioOp::Write | BioOp::Flush) && whole;
        let later = plain && self.inner.completes_later();
        (later && self.tags.bios_wait()) || tags::completing()
    }

    /// The bio with an `end_io` that releases the tag.
    fn tagged(self: &Arc<Self>, mut bio: Bio, tag: TagGuard) -> Bio {
        let flushes = bio.op == BioOp::Flush || bio.flags.contains(BioFlags::PREFLUSH);
        let mark = (bio.op != BioOp::Read).then(|| self.flushed.begin(flushes));
        let durable = bio.op == BioOp::Flush || bio.flags.contains(BioFlags::FUA);
        bio.end_io = Box::new(Tagged { path: self.clone(), tag, mark, durable, end_io: bio.end_io });
        bio
    }
}

/// Releases the tag first and then completes the bio, so that the device is busy while the completion runs.
struct Tagged {
    path: Arc<Path>,
    tag: TagGuard,
    /// `None` for a read.
    mark: Option<flushed::Mark>,
    durable: bool,
    end_io: Box<dyn EndIo>,
}

impl EndIo for Tagged {
    fn end_io(self: Box<Self>, done: Completion) {
        let Tagged { path, tag, mark, durable, end_io } = *self;
        if let Some(mark) = mark {
            path.flushed.end(mark, durable, done.result.is_ok());
        }
        tags::while_completing(|| {
            drop(tag);
            end_io.end_io(done);
        });
    }
}

impl crate::device::wrapper::Wrapper for Queue {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.path.inner
    }

    fn measure(&self) -> Result<u64> {
        self.path.inner.measure()
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        self.path.inner.grow(bytes)
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.path.inner.next_data(offset)
    }

    fn completes_later(&self) -> bool {
        self.path.inner.completes_later()
    }

    fn is_flushed(&self) -> bool {
        self.path.flushed.is_so()
    }

    fn submit(&self, mut bio: Bio) {
        if let Err(e) = self.check(&bio) {
            return bio.complete(Err(e));
        }
        bio.flags = self.path.needed(bio.flags);
        if bio.op == BioOp::Flush && self.path.flushed.is_so() {
            return bio.complete(Ok(()));
        }
        if let Some(bio) = self.path.admit(bio, || {}) {
            self.path.inner.submit(bio);
        }
    }

    /// Sorts the bios, merges neighbouring writes, and sends the requests in as few batches as the tags allow.
    fn submit_all(&self, bios: Vec<Bio>) {
        let requests = self.merge(bios);
        self.send(requests);
    }

    /// If only one request is left after merging, it is carried out as a waiting call.
    fn submit_all_and_wait(&self, bios: Vec<Bio>) {
        let mut requests = self.merge(bios);
        if let [bio] = requests.as_slice()
            && bio.op == BioOp::Write
        {
            return requests.drain(..).for_each(|bio| submit_inline(self, bio));
        }
        self.send(requests);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::Read, offset, buf.len() as u64)?;
        self.path.counters.read(buf.len() as u64);
        self.path.inner.read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        let flags = self.path.needed(flags);
        self.path.counters.write(len, flags);
        self.write_with(flags, |inner| inner.write_at(offset, pieces, flags))
    }

    fn flush(&self) -> Result<()> {
        if self.path.flushed.is_so() {
            return Ok(());
        }
        self.path.counters.flush();
        let mark = self.path.flushed.begin(true);
        let result = self.path.inner.flush();
        self.path.flushed.end(mark, true, result.is_ok());
        result
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.path.counters.discard();
        self.write_with(BioFlags::empty(), |inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        let flags = self.path.needed(flags);
        self.path.counters.write_zeroes(flags);
        self.write_with(flags, |inner| inner.write_zeroes(offset, len, flags))
    }

    /// Counts the requests that were sent down, after merging.
    fn stats(&self) -> IoStats {
        self.path.counters.get()
    }
}
