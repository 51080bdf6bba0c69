//! The blocks that ordinary callers may not have (Linux: `ext4_has_free_clusters`, fs/ext4/balloc.c).
//!
//! Main types: [`Caller`] (the user for whom a thread works), [`Reserve`] (how much is reserved, and for which users).
//!
//! The caller belongs to the thread, as Linux's `current_cred()` does: blocks are allocated many calls below an
//! operation (directories, attributes, map nodes), and nothing in between has a use for it. A thread without a caller
//! works for root: the library's own calls, writeback, evictions. So the space promised to a delayed write stays
//! promised whatever the reserve says; only the promise can be refused.
//!
//! What it does not do: count blocks. The allocator does; each request says whether it may use the reserve.
//!
//! # Locking
//! None: the caller is the thread's own, and the rest does not change during a mount.

use std::cell::Cell;

use extant_ondisk::superblock::SuperBlock;

use crate::options::MountOptions;

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::ROOT) };
}

/// The user who needs blocks (Linux: `current_fsuid`, `current_fsgid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user, who may be the one of the reserved blocks.
    pub uid: u32,
    /// The one group that FUSE passes on.
    pub gid: u32,
}

/// Restores the thread's former caller, also after a panic.
struct Restore(Caller);

impl Drop for Restore {
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

impl Caller {
    /// May take reserved blocks; whom a thread works for outside of [`Caller::run`].
    pub const ROOT: Caller = Caller { uid: 0, gid: 0 };

    /// Runs `f` on behalf of this caller.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _restore = Restore(CALLER.replace(self));
        f()
    }

    pub(crate) fn current() -> Caller {
        CALLER.get()
    }
}

/// Blocks that are kept back, and who may use them nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserve {
    /// For root and the two below (`s_r_blocks_count`).
    pub root_blocks: u64,
    /// For what must not fail once it was begun (Linux: `s_resv_clusters`).
    pub pool_blocks: u64,
    uid: u32,
    gid: u32,
}

impl Reserve {
    pub fn new(sb: &SuperBlock, options: &MountOptions) -> Reserve {
        let (uid, gid) = sb.reserved_owner();
        Reserve {
            root_blocks: sb.reserved_blocks(),
            pool_blocks: (sb.geometry().blocks_count / 50).min(4096),
            uid: options.resuid.unwrap_or(uid),
            gid: options.resgid.unwrap_or(gid),
        }
    }

    /// Whether `who` may use the root blocks. A reserve for group 0 is nobody's: else every member of root's group had
    /// it.
    pub(crate) fn open_to(&self, who: Caller) -> bool {
        who.uid == 0 || who.uid == self.uid || (self.gid != 0 && who.gid == self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_open_to_root_and_its_own_user_and_group() {
        let r = Reserve { root_blocks: 1, pool_blocks: 0, uid: 7, gid: 8 };
        for (uid, gid, may) in [(0, 5, true), (7, 5, true), (5, 8, true), (5, 5, false), (5, 0, false), (8, 7, false)] {
            assert_eq!(r.open_to(Caller { uid, gid }), may, "{uid}:{gid}");
        }
        let plain = Reserve { uid: 0, gid: 0, ..r };
        assert!(!plain.open_to(Caller { uid: 5, gid: 0 }), "group 0 stands for no group");
    }

    #[test]
    fn the_caller_is_the_threads_and_comes_back() {
        let user = Caller { uid: 5, gid: 6 };
        user.run(|| {
            assert_eq!(Caller::current(), user);
            Caller::ROOT.run(|| assert_eq!(Caller::current(), Caller::ROOT));
            assert_eq!(Caller::current(), user);
        });
        let panicked = std::panic::catch_unwind(|| user.run(|| panic!("as an operation may")));
        assert!(panicked.is_err());
        assert_eq!(Caller::current(), Caller::ROOT);
    }
}
