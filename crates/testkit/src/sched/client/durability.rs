//! The fsyncs, syncs and freezes of a client, and their acknowledgements.
//!
//! # Locking
//! That of the client: `schedule shared`.

use extant_base::sync::Waiter;
use extant_block::BlockDevice;
use extant_fs::{CannotGrow, GrowTo, LossCursor, NoGrowth};

use super::*;

/// The most signs of life for other hosts, one every five seconds, that a mount gives while it is frozen.
const SIGNS_MAX: u64 = 2;

/// An fsync whose reply is pending, and the client and node of its file.
pub(super) type PendingFsync = (Waiter<Result<(), Error>>, usize, NodeId);

impl Client {
    pub(super) fn fsync(&mut self, rng: &mut Rng, data: bool) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        if rng.one_in(3) {
            return self.fsync_async(self.nr, id, &inode, data);
        }
        let mut upto = self.shared.ended();
        let call = if data { "fdatasync" } else { "fsync" };
        let op = self.op_nr();
        let start = self.shared.device.write_log();
        let names = self.names.clone();
        let text = format!("{call} {} (node {id})", self.files[at].path);
        self.record.history.ops.push(Op { text, start, end: usize::MAX, names });
        let result = self.fs.fsync(&inode, data);
        match result {
            Ok(()) => {
                upto[self.nr] = op;
                self.shared.acknowledge(upto, Coverage::File { client: self.nr, node: id, data }, call);
                if !data {
                    self.look(id, true);
                }
            }
            Err(e) => self.sync_failed(&e, Some((self.nr, id))),
        }
        self.record.history.ops[op].end = self.shared.device.write_log();
        self.shared.ended[self.nr].store(op, Ordering::Relaxed);
    }

    /// Handles a failed sync. A sync may fail after a request has failed, or if space has run out.
    pub(super) fn sync_failed(&mut self, e: &Error, of: Option<(usize, NodeId)>) {
        let excused = self.shared.struck() || self.shared.config.free_blocks.is_some();
        assert!(excused, "client {}: sync: {e}", self.nr);
        if let Some((client, node)) = of {
            self.shared.tell(client, node);
            if client == self.nr {
                self.files.iter_mut().filter(|f| f.id == node).for_each(|f| f.doubtful = true);
            }
        }
    }

    /// As [`Client::sync_failed`], for a sync of all files that began after `given` answers.
    fn sync_of_all_failed(&mut self, e: &Error, given: usize) {
        self.sync_failed(e, None);
        self.shared.tell_of_any(given);
    }

    pub(super) fn fsync_other(&mut self, rng: &mut Rng) {
        let found = {
            let s = self.shared.state.lock();
            let mut others: Vec<_> = s.files.iter().filter(|(c, _, _)| *c != self.nr).collect();
            if rng.below(10) < self.focus {
                // Every client's third file is the preallocated one.
                others.retain(|(_, node, _)| *node == 2);
            }
            others.get(rng.below(others.len() as u64) as usize).map(|o| (*o).clone())
        };
        let Some((client, node, inode)) = found else { return self.fsync(rng, false) };
        let data = rng.one_in(2);
        if rng.one_in(3) {
            return self.fsync_async(client, node, &inode, data);
        }
        let upto = self.shared.ended();
        match self.fs.fsync(&inode, data) {
            Ok(()) => {
                let call = if data { "fdatasync by another" } else { "fsync by another" };
                self.shared.acknowledge(upto, Coverage::File { client, node, data }, call);
            }
            Err(e) => self.sync_failed(&e, Some((client, node))),
        }
    }

    /// Starts an fsync and continues, as a server does. The reply counts when it arrives.
    pub(super) fn fsync_async(&mut self, client: usize, node: NodeId, inode: &InodeRef, data: bool) {
        let (upto, answer) = (self.shared.ended(), Waiter::new());
        let (shared, tell) = (self.shared.clone(), answer.clone());
        let covers = Coverage::File { client, node, data };
        if self.shared.trick == Trick::AnswerOneEarly {
            self.shared.acknowledge(upto.clone(), covers, "early");
        }
        let done = move |r: Result<(), Error>| {
            if r.is_ok() {
                shared.acknowledge(upto, covers, "fsync_async");
            }
            tell.set(r);
        };
        // With a separate cursor, which reports every loss and takes none from the client's thread.
        let cursor = LossCursor::process((self.nr as u32 + 1) << 16 | self.asked.len() as u32);
        self.fs.serving().fsync_async(inode, cursor, data, Box::new(done));
        self.asked.push((answer, client, node));
    }

    /// fsyncs own files and those of others, in any order, one of them twice.
    pub(super) fn fsync_many(&mut self, rng: &mut Rng) {
        let mut asked = self.shared.state.lock().files.clone();
        asked.retain(|(client, ..)| rng.below(3) < if *client == self.nr { 2 } else { 1 });
        let Some(twice) = asked.first().cloned() else { return self.fsync(rng, false) };
        asked.push(twice);
        let data = rng.one_in(2);
        let mut upto = self.shared.ended();
        let op = self.op_nr();
        let (start, names) = (self.shared.device.write_log(), self.names.clone());
        self.record.history.ops.push(Op { text: format!("fsync of {}", asked.len()), start, end: usize::MAX, names });
        upto[self.nr] = op;
        let (inodes, left): (Vec<InodeRef>, _) = (asked.iter().map(|f| f.2.clone()).collect(), asked.len());
        let answers = Arc::new(Mutex::new(&CLASS, (vec![Vec::new(); left], left)));
        let all = Waiter::new();
        let covers: Vec<_> = asked.iter().map(|&(client, node, _)| Coverage::File { client, node, data }).collect();
        if self.shared.trick == Trick::AnswerManyEarly {
            covers.iter().for_each(|&covers| self.shared.acknowledge(upto.clone(), covers, "early"));
        }
        let (tell, mine, shared) = (all.clone(), answers.clone(), self.shared.clone());
        let done = move |at: usize, r: Result<(), Error>| {
            // Each reply counts from its arrival.
            if r.is_ok() {
                shared.acknowledge(upto.clone(), covers[at], "fsync_many");
            }
            let mut answers = mine.lock();
            answers.0[at].push(r);
            answers.1 -= 1;
            if answers.1 == 0 {
                tell.set(());
            }
        };
        self.fs.serving().fsync_many(&inodes, LossCursor::thread(), data, Arc::new(done));
        all.wait();
        let answers = std::mem::take(&mut answers.lock().0);
        for ((client, node, _), mut answer) in asked.into_iter().zip(answers) {
            assert_eq!(answer.len(), 1, "client {}: fsync_many: {answer:?}", self.nr);
            if let Err(e) = answer.remove(0) {
                self.sync_failed(&e, Some((client, node)));
            }
        }
        self.record.history.ops[op].end = self.shared.device.write_log();
        self.shared.ended[self.nr].store(op, Ordering::Relaxed);
    }

    pub(super) fn sync(&mut self, without_waiting: bool) {
        let (upto, given) = (self.shared.ended(), self.shared.given());
        let result = if without_waiting {
            let waiter = Waiter::new();
            let tell = waiter.clone();
            self.fs.sync_async(Box::new(move |r| tell.set(r)));
            waiter.wait()
        } else {
            self.fs.sync()
        };
        match result {
            Ok(()) => {
                let call = if without_waiting { "sync_async" } else { "sync" };
                self.shared.acknowledge(upto, Coverage::Everything, call);
            }
            Err(e) => self.sync_of_all_failed(&e, given),
        }
    }

    /// Freezes and thaws. Until the thaw nothing is written, even by other clients and threads.
    pub(super) fn freeze(&mut self, rng: &mut Rng) {
        let (upto, given) = (self.shared.ended(), self.shared.given());
        match self.fs.freeze() {
            Ok(true) => {
                self.shared.acknowledge(upto, Coverage::Everything, "freeze");
                let written = self.shared.device.stats().writes;
                self.clock.sleep(Duration::from_millis(rng.below(2) * 6000 + rng.below(40)));
                let now = self.shared.device.stats().writes;
                let signs = if self.shared.config.image.features.contains("mmp") { SIGNS_MAX } else { 0 };
                assert!(now - written <= signs, "client {}: written to while frozen", self.nr);
                assert!(self.fs.thaw(), "client {}: frozen until it thaws", self.nr);
            }
            // Another client has frozen it.
            Ok(false) => {}
            Err(e) => self.sync_of_all_failed(&e, given),
        }
    }

    /// Grows the file system by a part of a group or some groups, while the device has space.
    pub(super) fn grow(&mut self, rng: &mut Rng) {
        let (image, geo) = (self.shared.config.image, self.fs.geometry());
        let group = u64::from(geo.blocks_per_group);
        let more = if rng.one_in(3) { 1 + rng.below(group) } else { group * (1 + rng.below(3)) };
        let bytes = ((geo.blocks_count + more) << geo.block_bits).min(image.size + image.room);
        match self.fs.grow(GrowTo::Bytes(bytes)) {
            // Another client may already have made it larger.
            Ok(_) | Err(Error::CannotGrow(CannotGrow::Layout(NoGrowth::Smaller { .. }))) => {}
            Err(e) => assert!(self.shared.struck(), "client {}: a growth to {bytes} bytes: {e}", self.nr),
        }
    }
}
