//! The calls of a server, which has clients of its own and waits for none of their requests.
//!
//! Main type: [`Serving`].
//!
//! What it does not do: speak a protocol, or keep the inodes that clients know.
//!
//! # Locking
//! None of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::Ordering;
use extant_cache::LossCursor;
use extant_ondisk::InodeNr;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::ops::WriteFlags;
use crate::ops::sync::{Barrier, Done, DoneEach};

/// The calls of a server, beside those of [`Filesystem`]. They start work without waiting for it, or concern inodes
/// that clients continue to use.
#[derive(Clone, Copy)]
pub struct Serving<'fs> {
    fs: &'fs Filesystem,
}

impl Filesystem {
    /// The calls that only a server needs.
    pub fn serving(&self) -> Serving<'_> {
        Serving { fs: self }
    }
}

impl Serving<'_> {
    /// From now on `tell` is called with each inode that loses its last name, while the operation still holds the inode
    /// and its locks. A server may take a reference for clients that continue to use the inode. Only the first call of
    /// this function has an effect.
    pub fn when_nameless(&self, tell: impl Fn(&InodeRef) + Send + Sync + 'static) {
        self.fs.evictions.when_nameless(Box::new(tell));
    }

    /// As [`Filesystem::iget`], for a caller that has seen the inode before: `generation` distinguishes it from other
    /// inodes with its number.
    ///
    /// # Errors
    /// [`Error::Stale`], also if the number now belongs to another inode.
    pub fn iget_again(&self, ino: InodeNr, generation: u32) -> Result<InodeRef> {
        let inode = self.fs.watch(self.fs.iget(ino))?;
        if inode.generation == generation { Ok(inode) } else { Err(Error::Stale(ino)) }
    }

    /// Reports the reason of an error that the caller of a read cannot see. Under rescue, a message names it, once for
    /// each file. Damage has already been reported.
    pub fn report_hurt(&self, inode: &InodeRef, e: &Error) {
        let unread = matches!(e, Error::Device(_)) && self.fs.options.rescue;
        if unread && !inode.hurt.swap(true, Ordering::Relaxed) {
            self.fs.options.messages.say(format_args!("{}: {}: {e}", self.fs.image(), inode.ino));
        }
    }

    /// As [`Filesystem::write`], for a server with few threads: it does not wait, but also returns how long to delay
    /// the reply to the writer. See [`Serving::is_full_of_dirty`].
    ///
    /// # Errors
    /// As [`Filesystem::write`].
    pub fn write_unpaced(
        &self,
        inode: &InodeRef,
        pos: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<(usize, Duration)> {
        if !self.fs.options.threads {
            return Ok((self.fs.write(inode, pos, data, flags)?, Duration::ZERO));
        }
        let (done, dirtied) = self.fs.content(inode).write(pos, data, flags)?;
        Ok((done, self.fs.writeback.pause_of(inode, dirtied)))
    }

    /// Whether so much data is dirty that a writer must wait, regardless of how long it has already waited.
    pub fn is_full_of_dirty(&self) -> bool {
        self.fs.writeback.flusher.is_full()
    }

    /// A cursor for a file that is being opened. An fsync with it does not consume the errors of another open file
    /// (Linux: `f_wb_err`).
    pub fn open_cursor(&self, inode: &InodeRef) -> LossCursor {
        inode.losses.open()
    }

    /// Starts fsync(2) or fdatasync(2). The result also reports the file's lost writes that `cursor` has not reported
    /// yet. For `done` see [`Done`].
    pub fn fsync_async(&self, inode: &InodeRef, cursor: LossCursor, datasync: bool, done: Done) {
        let synced: Arc<Inode> = Arc::clone(inode);
        let report = move |r| done(synced.losses.check(&cursor).map_err(Error::from).and(r));
        Barrier::of(inode, datasync).begin(self.fs, Box::new(report));
    }

    /// fsync(2) or fdatasync(2) of several files. They are written together, in the order of their inode numbers, and
    /// share a commit. Calls `done` once for each, with its index in `inodes` and the result that a separate fsync
    /// would have; an error concerns either one file or all of them. `done` may run on other threads, and before this
    /// returns. `cursor` serves all files; the cursor of an open file is refused for more than one.
    pub fn fsync_many(&self, inodes: &[InodeRef], cursor: LossCursor, datasync: bool, done: DoneEach) {
        let mut asked: BTreeMap<InodeNr, (Arc<Inode>, Vec<usize>)> = BTreeMap::new();
        for (at, inode) in inodes.iter().enumerate() {
            if !std::ptr::addr_eq(inode.owner.as_ptr(), self.fs) {
                done(at, Err(Error::Invalid("an inode of another mount")));
                continue;
            }
            let entry = asked.entry(inode.ino).or_insert_with(|| (Arc::clone(inode), Vec::new()));
            entry.1.push(at);
        }
        let (unique, places): (Vec<_>, Vec<_>) = asked.into_values().unzip();
        if unique.is_empty() {
            return;
        }
        if unique.len() > 1 && matches!(cursor, LossCursor::Open(_)) {
            let refused = Error::Invalid("an open file asks for others");
            return places.iter().flatten().for_each(|&at| done(at, Err(refused.clone())));
        }
        let all = unique.clone();
        let report = move |r: Result<()>| {
            for (inode, places) in all.iter().zip(&places) {
                let r = inode.losses.check(&cursor).map_err(Error::from).and_then(|()| r.clone());
                places.iter().for_each(|&at| done(at, r.clone()));
            }
        };
        Barrier::of_all(&unique, datasync).begin(self.fs, Box::new(report));
    }

    /// As [`Filesystem::sync_async`], for a caller whose result may reach no program. A loss does not count as seen, so
    /// a freeze and the end of the mount report it as well.
    pub fn sync_async(&self, cursor: LossCursor, done: Done) {
        let fs = self.fs.arc();
        let report = move |r| done(fs.writeback.losses.hint(&cursor).map_err(Error::from).and(r));
        Barrier::ALL.begin(self.fs, Box::new(report));
    }

    /// Frees a few small inodes that have neither names nor users any more, on the caller's thread, which holds no
    /// lock. The rest is left to the eviction thread.
    pub fn reap(&self) {
        self.fs.evictor().reap();
    }
}
