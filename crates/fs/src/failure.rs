//! Failure of an operation after its first change (Linux: `ext4_std_error`, `jbd2_journal_abort_handle`).
//!
//! An operation reads everything that it needs before its first change. An error then ends it without effect. A later
//! failure is one of two kinds. If the operation is refused (no space, for example), it undoes its own changes, and the
//! transaction is consistent. Any other failure leaves half an operation in the running transaction, which must never
//! become durable: [`Volume::whole`] aborts the journal, and the image keeps the state of the last commit.
//!
//! Main functions: [`Volume::whole`]; [`Volume::abort`], after which nothing more is written.
//!
//! What it does not do: write reports of errors ([`crate::reports`]), or end handles ([`crate::handles`]).
//!
//! # Locking
//! The caller holds the `inode` locks of its operation and an open handle, but no lock below those. This takes
//! `superblock` (75) and releases it before it writes to the device.

use extant_journal::Handle;
use extant_ondisk::BlockNr;

use crate::error::{Error, Result};
use crate::lifecycle::{Right, Transition};
use crate::volume::Volume;

impl Volume {
    /// Passes on the result of the part of an operation that follows its first change. After an error, nothing of the
    /// running transaction is committed: the handle is still open, and prevents a commit until the journal has been
    /// aborted.
    pub(crate) fn whole<T>(&self, _open: &Handle, r: Result<T>) -> Result<T> {
        if let Err(e) = &r
            && !self.journal.is_aborted()
        {
            self.record_error(e);
            self.abort(&format!("half an operation: {e}"));
        }
        r
    }

    /// Stops trusting the state in memory, for example after a panic in an operation. Nothing more reaches the log, the
    /// mount is read-only from here on, and the image stays marked as needing recovery. A read-only mount stays
    /// read-only and writes nothing. A frozen mount writes when it is thawed.
    pub fn abort(&self, cause: &str) {
        if self.lifecycle.go(Transition::StayReadOnly) {
            return;
        }
        let e = extant_journal::Error::Aborted { cause: cause.to_owned() };
        // This comes before the check, so that a thaw that ends before the check finds the error.
        self.note_aborted(e.clone());
        if self.lifecycle.allows(Right::Report) {
            self.journal.abort(&e);
        }
    }

    /// Called when the journal has aborted, for whatever reason: records it, and makes the mount read-only.
    pub(crate) fn note_aborted(&self, error: extant_journal::Error) {
        let e = Error::from(error);
        if self.fail(&e) {
            let block = e.device_offset().map(|at| BlockNr(at >> self.geo.block_bits));
            let _ = self.tell_superblock(&e, None, block); // `fail` has reported it
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant_ondisk::superblock::FsState;

    use super::*;
    use crate::error::Damage;
    use crate::filesystem::Filesystem;
    use crate::mount::super_block::read_super_at;
    use crate::{Cred, MountOptions, NewNode, OnError};

    /// Half an operation is never durable, regardless of `errors=`, and the image records the reason.
    #[test]
    fn half_an_operation_does_not_commit() {
        for (kind, logged) in [(&["-t", "ext4"][..], true), (&["-t", "ext2"], false)] {
            let dev = Arc::new(crate::tools::made(kind, "16M"));
            let options = MountOptions {
                threads: false,
                errors: Some(OnError::Continue),
                borrow_journal: crate::BorrowJournal::Never,
                ..MountOptions::default()
            };
            let fs = Filesystem::mount(dev.clone(), options.clone()).expect("mounted");
            let root = fs.root().expect("root");
            fs.create(&root, b"before", NewNode::file(0o644), Cred::default()).expect("create");
            fs.sync().expect("sync");
            let mut handle = fs.start(2).expect("handle");
            root.meta.write().desc.uid = 4711;
            fs.write_inode(&mut handle, &root).expect("written");
            let cause = Error::corrupt(Damage::Directory, "in the middle").of(root.ino).at(BlockNr(99));
            let r: Result<()> = fs.whole(&handle, Err(cause));
            drop(handle);
            assert!(r.is_err() && fs.is_read_only());
            let refused = fs.create(&root, b"after", NewNode::file(0o644), Cred::default());
            assert!(matches!(refused, Err(Error::ReadOnly | Error::Aborted { .. })), "{refused:?}");
            let crashed = Arc::new(dev.snapshot());
            drop(root);
            assert!(fs.unmount().is_err());
            for dev in [dev, crashed] {
                let sb = read_super_at(&*dev, 1024).expect("superblock");
                assert!(sb.state().contains(FsState::ERROR));
                let raw = sb.raw();
                assert_eq!((raw.s_first_error_ino.get(), raw.s_first_error_block.get()), (2, 99));
                assert!(raw.s_first_error_func.starts_with(b"check_directory\0"));
                let fs = Filesystem::mount(dev, options.clone()).expect("mounted");
                let root = fs.root().expect("root");
                assert_eq!(fs.getattr(&root).uid, 0);
                assert!(!logged || fs.lookup(&root, b"before").is_ok());
                drop(root);
                fs.unmount().expect("unmount");
            }
        }
    }

    /// A file owns more blocks than its inode can count. Its new blocks are not committed without the inode.
    #[test]
    fn a_failed_write_of_an_inode_aborts_the_journal() {
        let dev = crate::tools::made(&["-t", "ext4", "-O", "^huge_file"], "16M");
        let options = MountOptions { threads: false, ..MountOptions::default() };
        let dev = Arc::new(crate::tools::edited(&dev, &["write /dev/null f", "sif f blocks 0xFFFFFFFF"]));
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let f = fs.walk(b"f", true).expect("there");
        fs.write(&f, 0, &[1], crate::WriteFlags::default()).expect("delayed");
        let synced = fs.fsync(&f, false);
        assert!(synced.is_err() && fs.is_read_only(), "{synced:?}");
        drop(f);
        assert!(fs.unmount().is_err());
        let (_, said) = crate::tools::e2fsck(&dev, &["-fn"]);
        assert!(!said.contains("Block bitmap differences"), "{said}");
    }

    /// A directory owns as many blocks as its inode can count. It accepts names while it has room, and no further
    /// block.
    #[test]
    fn a_directory_with_a_full_block_count_does_not_grow() {
        let dev = crate::tools::made(&["-t", "ext4", "-b", "1024", "-O", "^huge_file"], "16M");
        let options = MountOptions { threads: false, ..MountOptions::default() };
        let dev = Arc::new(crate::tools::edited(&dev, &["mkdir d", "sif d blocks 0xFFFFFFFF"]));
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let d = fs.walk(b"d", true).expect("there");
        let create = |i: u32| fs.create(&d, format!("{i:0>100}").as_bytes(), NewNode::file(0o644), Cred::default());
        let made = (0..20).take_while(|i| create(*i).is_ok()).count() as u32;
        assert!((5..15).contains(&made), "{made} names");
        let refused = create(made);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        fs.sync().expect("sync");
        assert!(!fs.is_read_only() && d.size() == 1024);
        assert_eq!((0..20).filter(|i| fs.lookup(&d, format!("{i:0>100}").as_bytes()).is_ok()).count() as u32, made);
        drop(d);
        fs.unmount().expect("unmount");
        let (_, said) = crate::tools::e2fsck(&dev, &["-fn"]);
        assert!(!said.contains("bitmap differences"), "{said}");
    }
}
