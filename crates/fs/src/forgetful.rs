//! A device for tests that evicts memory in the middle of a change. Each read of a block bitmap evicts all unreferenced
//! blocks. After a chosen read, no block bitmap, no inode and no block of a file, a directory or a map is readable.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BioOp, BlockDevice, Error, Result, Wrapper};
use extant_ondisk::GroupNr;

use crate::{Filesystem, MountOptions, Mounted};

pub(crate) struct Forgetful {
    inner: Arc<MemDevice>,
    fs: OnceLock<Weak<Filesystem>>,
    /// The block bitmaps, and the start of the inodes, which the files follow.
    places: OnceLock<(Vec<Range<u64>>, u64)>,
    /// The number of further reads of bitmaps that succeed; 0 for no limit.
    reads_left: AtomicU32,
    unreadable: AtomicBool,
}

impl Forgetful {
    /// A mount of an image whose bitmaps lie before the first group's inodes.
    pub(crate) fn mount(inner: Arc<MemDevice>) -> (Arc<Forgetful>, Mounted) {
        let (reads_left, unreadable) = (AtomicU32::new(0), AtomicBool::new(false));
        let (fs, places) = (OnceLock::new(), OnceLock::new());
        let dev = Arc::new(Forgetful { inner, fs, places, reads_left, unreadable });
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let mounted = Filesystem::mount(dev.clone() as Arc<dyn BlockDevice>, options).expect("mounted");
        let (bits, block) = (mounted.geo.block_bits, u64::from(mounted.geo.block_size));
        let bitmaps: Vec<Range<u64>> = mounted
            .geo
            .groups()
            .map(|g| mounted.placement.groups.with(g, |d| d.block_bitmap.0 << bits).expect("group"))
            .map(|at| at..at + block)
            .collect();
        let table = mounted.placement.groups.with(GroupNr(0), |d| d.inode_table.0).expect("group");
        dev.places.set((bitmaps, table << bits)).expect("once");
        dev.fs.set(Arc::downgrade(&mounted.arc())).expect("once");
        (dev, mounted)
    }

    /// Runs `change` with an empty cache. Also returns whether it read a bitmap; after that read, no file was readable.
    pub(crate) fn run<T>(&self, fs: &Filesystem, change: impl FnOnce() -> T) -> (T, bool) {
        self.run_until(fs, 1, change)
    }

    /// As [`Forgetful::run`], with this number of readable bitmaps.
    pub(crate) fn run_until<T>(&self, fs: &Filesystem, reads: u32, change: impl FnOnce() -> T) -> (T, bool) {
        assert!(fs.freeze().expect("everything is home") && fs.thaw());
        fs.cache.drop_clean();
        self.reads_left.store(reads, Ordering::SeqCst);
        let r = change();
        self.reads_left.store(0, Ordering::SeqCst);
        (r, self.unreadable.swap(false, Ordering::SeqCst))
    }
}

impl Wrapper for Forgetful {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        let Some((bitmaps, inodes)) = self.places.get() else { return self.inner.read_at(offset, buf, flags) };
        let of_bitmaps = bitmaps.iter().any(|bitmap| offset < bitmap.end && bitmap.start < offset + len);
        if self.unreadable.load(Ordering::SeqCst) && (of_bitmaps || offset >= *inodes) {
            return Err(Error::io(self.inner.name(), BioOp::Read, offset, len, std::io::Error::other("forgotten")));
        }
        self.inner.read_at(offset, buf, flags)?;
        let left = self.reads_left.load(Ordering::SeqCst);
        if left > 0 && of_bitmaps {
            self.fs.get().and_then(Weak::upgrade).expect("mounted").cache.drop_clean();
            self.reads_left.store(left - 1, Ordering::SeqCst);
            self.unreadable.store(left == 1, Ordering::SeqCst);
        }
        Ok(())
    }
}
