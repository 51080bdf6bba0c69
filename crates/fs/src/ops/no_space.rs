//! Retries for lack of space: whether space may become free soon, and what to do first (Linux:
//! `ext4_should_retry_alloc`, fs/ext4/balloc.c).
//!
//! Freed blocks can be allocated once the transaction that freed them is durable. An unlinked inode frees its blocks at
//! its eviction. The server may not know yet that the last user has closed the inode, because the kernel replies to
//! unlink(2) before it notifies a FUSE server. So an operation that finds no space forces a commit or the evictions, or
//! waits for that user, and tries again, a bounded number of times. [`remedy`] alone decides this for all callers:
//! operations use [`Operation::retry_no_space`], and writeback of data with reserved space uses
//! [`Volume::bring_space`].
//!
//! What it does not do: find space. An operation that can write less instead (write(2)) does that itself. No caller of
//! the library waits for space on its own.
//!
//! # Locking
//! The caller holds no handle, or passes it in, and holds no lock that a commit or an eviction takes. An operation
//! holds none; writeback holds `inode writeback` (25).

use std::time::Duration;

use extant_journal::Handle;

use crate::error::{Error, Result};
use crate::handles::finish_open;
use crate::operation::Operation;
use crate::volume::Volume;

/// How often an operation without space is tried while some may become free. A try can fail because another thread took
/// the space first, so one eviction and one commit may not be enough.
const OPERATION_TRIES: u32 = 8;
/// How often writeback without space waits for a commit to free some.
const WRITEBACK_TRIES: u32 = 3;
/// The same if blocks become free with that commit. Space was reserved for the data, so only other threads that free
/// and allocate at the same time can take the blocks repeatedly. Linux tries forever (`ext4_writepages`).
const WRITEBACK_TRIES_PENDING: u32 = 1000;

/// For this time after an inode lost its last name, its last user may be about to release it. That is the thread of a
/// FUSE server that has received the kernel's FORGET and waits for a processor.
const LEAVING_NS: u64 = 500_000_000;
/// The maximum time that an operation waits for that user. That user may also be a program that has the file open.
const RELEASE_WAIT: Duration = Duration::from_millis(100);

/// The caller that found no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// An operation, which in the end reports the error. `evicting`: other inodes are being freed or are queued for it.
    /// `leaving`: some may be queued soon.
    Operation { evicting: bool, leaving: bool },
    /// Writeback, which in the end loses its data.
    Writeback,
}

/// An event that may free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    Commit,
    Evictions,
    Release,
}

/// The step before the next try, after `tries` tries; `None` if another try is useless.
fn remedy(e: &Error, who: Who, tries: u32) -> Option<Remedy> {
    let (found, tries_max) = match (who, e) {
        (Who::Operation { .. }, Error::NoSpaceUntilCommit) => (Remedy::Commit, OPERATION_TRIES),
        (Who::Operation { evicting: true, .. }, Error::NoSpace | Error::NoInodes | Error::QuotaExceeded) => {
            (Remedy::Evictions, OPERATION_TRIES)
        }
        (Who::Operation { leaving: true, .. }, Error::NoSpace | Error::NoInodes | Error::QuotaExceeded) => {
            (Remedy::Release, OPERATION_TRIES)
        }
        (Who::Writeback, Error::NoSpaceUntilCommit) => (Remedy::Commit, WRITEBACK_TRIES_PENDING),
        (Who::Writeback, Error::NoSpace) => (Remedy::Commit, WRITEBACK_TRIES),
        _ => return None,
    };
    (tries < tries_max).then_some(found)
}

/// Whether writeback may still get the space if it waits.
pub(crate) fn may_come(e: &Error) -> bool {
    remedy(e, Who::Writeback, 0).is_some()
}

impl Operation<'_> {
    /// Runs `op`. While space may become free, tries again, a bounded number of times. Space becomes free with the next
    /// commit, or when an inode without users is freed (but not one that `op` itself took back). This forces or awaits
    /// that event. The caller holds no lock and no handle.
    pub(crate) fn retry_no_space<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let (mut tries, mut hope) = (0, true);
        loop {
            // Read before the try, so that inodes freed between its failure and the check are not missed.
            let (evicted, before) = (self.fs.evictions.ended(), self.taken_back.get());
            let e = match op() {
                Err(e) if e.is_no_space() || matches!(e, Error::NoInodes) => e,
                other => return self.fs.watch(other),
            };
            // An inode that this try took back frees only the space that the try itself had allocated.
            let own = self.taken_back.get() - before;
            let evicting = self.fs.evictions.since(evicted) > own;
            let leaving = hope && self.is_leaving();
            match remedy(&e, Who::Operation { evicting, leaving }, tries) {
                Some(Remedy::Commit) => {
                    if own > 0 {
                        // Its blocks become free with the same commit. If it were evicted later, the next try would
                        // find them unavailable.
                        self.fs.evictor().drain();
                    }
                    self.fs.journal.commit_running()?;
                }
                Some(Remedy::Evictions) => self.fs.evictor().drain(),
                Some(Remedy::Release) => {
                    hope = self.fs.evictions.wait_for_another(&self.fs.options.clock, evicted, own, RELEASE_WAIT);
                }
                None if matches!(e, Error::NoSpaceUntilCommit) => break,
                None => return Err(e),
            }
            tries += 1;
        }
        Err(Error::NoSpace)
    }

    /// Whether an inode without a name may be about to lose its last user.
    fn is_leaving(&self) -> bool {
        let since = self.fs.evictions.since_unlinked_ns(self.fs.options.clock.now_ns());
        since.is_some_and(|since| since < LEAVING_NS) && self.fs.orphans.len() > 0
    }
}

impl Volume {
    /// Called if writeback finds no space for its reserved blocks, after `tries` earlier failures. Frees as many blocks
    /// as possible (preallocations, then with a commit), so that the caller can try again. `open` is the caller's
    /// handle, which is finished first.
    ///
    /// # Errors
    /// `e`, if another try is useless.
    pub(crate) fn bring_space(&self, e: Error, tries: &mut u32, open: &mut Option<Handle>) -> Result<()> {
        if remedy(&e, Who::Writeback, *tries).is_none() {
            return Err(e);
        }
        *tries += 1;
        if let Some(handle) = open {
            // It failed within a change.
            handle.set_opaque();
        }
        finish_open(open);
        self.placement.alloc.discard_all_under_pressure();
        Ok(self.journal.commit_running()?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use extant_mballoc::{Request, RequestFlags};
    use extant_ondisk::BlockNr;

    use super::*;
    use crate::filesystem::Filesystem;

    /// Takes every free block, the reserves included.
    pub(crate) fn take_all(fs: &Filesystem) -> Vec<(BlockNr, u32)> {
        let mut taken = Vec::new();
        loop {
            let mut handle = fs.start(8).expect("handle");
            let request = Request { flags: RequestFlags::USE_RESERVED, ..Request::metadata(None, 4096) };
            match fs.placement.alloc.allocate(&mut handle, &request) {
                Ok(got) => {
                    taken.push((got.start, got.len));
                    handle.finish();
                }
                Err(Error::NoSpaceUntilCommit) => {
                    drop(handle);
                    fs.journal.commit_running().expect("commit");
                }
                Err(e) => {
                    assert!(e.is_no_space(), "{e}");
                    return taken;
                }
            }
        }
    }

    const IDLE: Who = Who::Operation { evicting: false, leaving: false };
    const BUSY: Who = Who::Operation { evicting: true, leaving: true };
    const LEAVING: Who = Who::Operation { evicting: false, leaving: true };

    /// The number of tries after `e`, and the first remedy.
    fn worth(e: Error, who: Who) -> (u32, Option<Remedy>) {
        let tries = (0..2000).take_while(|tries| remedy(&e, who, *tries).is_some()).count() as u32;
        (tries, remedy(&e, who, 0))
    }

    #[test]
    fn each_error_has_its_remedy_and_its_number_of_tries() {
        use Remedy::{Commit, Evictions, Release};
        for (e, who, expected) in [
            (Error::NoSpaceUntilCommit, IDLE, (OPERATION_TRIES, Some(Commit))),
            (Error::NoSpaceUntilCommit, BUSY, (OPERATION_TRIES, Some(Commit))),
            (Error::NoSpace, IDLE, (0, None)),
            (Error::NoInodes, IDLE, (0, None)),
            (Error::NoSpace, BUSY, (OPERATION_TRIES, Some(Evictions))),
            (Error::NoInodes, BUSY, (OPERATION_TRIES, Some(Evictions))),
            (Error::NoSpaceUntilCommit, LEAVING, (OPERATION_TRIES, Some(Commit))),
            (Error::NoSpace, LEAVING, (OPERATION_TRIES, Some(Release))),
            (Error::NoInodes, LEAVING, (OPERATION_TRIES, Some(Release))),
            (Error::NoSpace, Who::Writeback, (WRITEBACK_TRIES, Some(Commit))),
            (Error::NoSpaceUntilCommit, Who::Writeback, (WRITEBACK_TRIES_PENDING, Some(Commit))),
            (Error::NoInodes, Who::Writeback, (0, None)),
            (Error::ReadOnly, BUSY, (0, None)),
            (Error::ReadOnly, Who::Writeback, (0, None)),
        ] {
            assert_eq!(worth(e.clone(), who), expected, "{e:?} {who:?}");
        }
    }
}
