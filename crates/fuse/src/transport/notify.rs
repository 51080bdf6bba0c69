//! Unsolicited messages to the kernel: an entry of its cache is stale.
//!
//! Main type: [`Notifier`].
//!
//! # Locking
//! None here. But the kernel may first have to finish requests on the same inode. So never notify while holding a lock
//! that such a request needs, or from within an operation on the same directory.

use std::io::IoSlice;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::channel::Channel;
use crate::abi::{
    EXPIRE_ONLY, NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyRetrieveOut,
};

/// Sends the messages. Cheap to clone; may outlive the mount (then every call fails with ENODEV).
///
/// ENOENT means that the kernel had no such entry cached.
#[derive(Clone, Default)]
pub struct Notifier {
    channel: Weak<Channel>,
}

impl Notifier {
    pub(crate) fn new(channel: &Arc<Channel>) -> Notifier {
        Notifier { channel: Arc::downgrade(channel) }
    }

    fn send<T: IntoBytes + Immutable>(&self, code: NotifyCode, head: &T, name: Option<&[u8]>) -> Result<(), Errno> {
        let channel = self.channel.upgrade().ok_or(Errno::NODEV)?;
        let head = IoSlice::new(head.as_bytes());
        match name {
            None => channel.send(0, code as i32, &[head]),
            Some(n) => channel.send(0, code as i32, &[head, IoSlice::new(n), IoSlice::new(b"\0")]),
        }
    }

    /// Drops the cached attributes of `ino`, and its cached data from `offset` on for `len` bytes (`len` 0: to the end;
    /// negative `offset`: attributes only).
    pub fn inval_inode(&self, ino: u64, offset: i64, len: i64) -> Result<(), Errno> {
        self.send(NotifyCode::InvalInode, &NotifyInvalInodeOut { ino, off: offset, len }, None)
    }

    /// Drops the cached name. With `expire_only`, the kernel looks the name up again, but keeps the entries below it.
    pub fn inval_entry(&self, parent: u64, name: &[u8], expire_only: bool) -> Result<(), Errno> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let flags = if expire_only { EXPIRE_ONLY } else { 0 };
        self.send(NotifyCode::InvalEntry, &NotifyInvalEntryOut { parent, namelen, flags }, Some(name))
    }

    /// Reports that `name` was removed from `parent` (it referred to `child`).
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), Errno> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        self.send(NotifyCode::Delete, &NotifyDeleteOut { parent, child, namelen, padding: 0 }, Some(name))
    }

    /// Makes the kernel send a NOTIFY_REPLY without data through the queue of this thread's processor (Linux:
    /// `fuse_retrieve`, fs/fuse/dev.c). `file`: a regular file that the kernel knows.
    pub(crate) fn wake_queue(&self, file: u64) {
        /// The kernel's own numbers count up from 1 and never reach this.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
        // Even: the lowest bit marks an INTERRUPT.
        let notify_unique = NEXT.fetch_add(2, Ordering::Relaxed);
        let out = NotifyRetrieveOut { notify_unique, nodeid: file, ..NotifyRetrieveOut::default() };
        let _ = self.send(NotifyCode::Retrieve, &out, None);
    }

    /// Makes the kernel look up every cached name again. Linux 6.16.
    pub fn inc_epoch(&self) -> Result<(), Errno> {
        let channel = self.channel.upgrade().ok_or(Errno::NODEV)?;
        channel.send(0, NotifyCode::IncEpoch as i32, &[])
    }
}
