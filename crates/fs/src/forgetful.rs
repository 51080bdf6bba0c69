//! A device for tests that takes the memory of a change away in its middle: when a certain block is read, everything
//! leaves the memory that nobody holds, and from then on no block of a file, a directory or a map can be read.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_block::device::{IoStats, Limits, MemDevice, submit_inline};
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, Error, Result};
use extant_ondisk::GroupNr;

use crate::{Filesystem, MountOptions, Mounted};

pub(crate) struct Forgetful {
    inner: Arc<MemDevice>,
    fs: OnceLock<Weak<Filesystem>>,
    /// The block bitmap, and where the files begin.
    places: OnceLock<(Range<u64>, u64)>,
    armed: AtomicBool,
    unreadable: AtomicBool,
}

impl Forgetful {
    /// A mount of an image with one group, whose block bitmap is the block that counts.
    pub(crate) fn mount(inner: Arc<MemDevice>) -> (Arc<Forgetful>, Mounted) {
        let (armed, unreadable) = (AtomicBool::new(false), AtomicBool::new(false));
        let (fs, places) = (OnceLock::new(), OnceLock::new());
        let dev = Arc::new(Forgetful { inner, fs, places, armed, unreadable });
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let mounted = Filesystem::mount(dev.clone() as Arc<dyn BlockDevice>, options).expect("mounted");
        let (bits, block) = (mounted.geo.block_bits, u64::from(mounted.geo.block_size));
        let (bitmap, table) =
            mounted.groups.with(GroupNr(0), |d| (d.block_bitmap.0 << bits, d.inode_table.0)).expect("group");
        let files = (table + u64::from(mounted.geo.inode_table_blocks)) << bits;
        dev.places.set((bitmap..bitmap + block, files)).expect("once");
        dev.fs.set(Arc::downgrade(&mounted.arc())).expect("once");
        (dev, mounted)
    }

    /// Runs `change` with an empty memory, and whether it has read the bitmap; from there on it could read nothing of
    /// files.
    pub(crate) fn run<T>(&self, fs: &Filesystem, change: impl FnOnce() -> T) -> (T, bool) {
        assert!(fs.freeze().expect("everything is home") && fs.thaw());
        fs.cache.drop_clean();
        self.armed.store(true, Ordering::SeqCst);
        let r = change();
        self.armed.store(false, Ordering::SeqCst);
        (r, self.unreadable.swap(false, Ordering::SeqCst))
    }
}

impl BlockDevice for Forgetful {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn stats(&self) -> IoStats {
        self.inner.stats()
    }

    fn submit(&self, bio: Bio) {
        submit_inline(self, bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        let Some((bitmap, files)) = self.places.get() else { return self.inner.read_at(offset, buf, flags) };
        if self.unreadable.load(Ordering::SeqCst) && offset >= *files {
            return Err(Error::io(self.name(), BioOp::Read, offset, len, std::io::Error::other("forgotten")));
        }
        self.inner.read_at(offset, buf, flags)?;
        if self.armed.load(Ordering::SeqCst) && offset < bitmap.end && bitmap.start < offset + len {
            self.fs.get().and_then(Weak::upgrade).expect("mounted").cache.drop_clean();
            self.unreadable.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.inner.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
}
