//! A device that replaces some ranges of an underlying device, without writing to it.
//!
//! Main type: [`PatchedDevice`], on which copies of metadata replace their damaged primaries. A range that a patch
//! covers completely is not read from the underlying device, which may be unable to read it.
//!
//! # Locking
//! None: nothing changes after construction.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::{BioFlags, BioOp, BlockDevice, Error, Result};

/// Replacement bytes by their offset. No two ranges overlap.
pub(crate) type Patches = BTreeMap<u64, Vec<u8>>;

/// A read-only view of a device.
pub(crate) struct PatchedDevice {
    home: Arc<dyn BlockDevice>,
    patches: Patches,
}

impl PatchedDevice {
    pub(crate) fn new(home: Arc<dyn BlockDevice>, patches: Patches) -> PatchedDevice {
        PatchedDevice { home, patches }
    }

    /// The patches that overlap the range, from the last to the first.
    fn touching(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let before_end = self.patches.range(..end).rev().map(|(at, bytes)| (*at, bytes.as_slice()));
        before_end.take_while(move |(at, bytes)| at + bytes.len() as u64 > offset)
    }

    fn covers(&self, offset: u64, end: u64) -> bool {
        let mut left = end;
        for (at, bytes) in self.touching(offset, end) {
            if at + (bytes.len() as u64) < left {
                return false;
            }
            left = at;
        }
        left <= offset
    }

    fn refuse(&self, op: BioOp) -> Error {
        Error::ReadOnly { device: self.home.name().to_owned(), op }
    }
}

impl extant_block::Wrapper for PatchedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.home
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if buf.is_empty() || !self.covers(offset, end) {
            self.home.read_at(offset, buf, flags)?;
        }
        for (at, bytes) in self.touching(offset, end) {
            let (from, to) = (at.max(offset), (at + bytes.len() as u64).min(end));
            let piece = &bytes[(from - at) as usize..(to - at) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(piece);
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _pieces: &[&[u8]], _flags: BioFlags) -> Result<()> {
        Err(self.refuse(BioOp::Write))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(self.refuse(BioOp::Discard))
    }
}

#[cfg(test)]
mod tests {
    use extant_block::device::{Fault, FaultyDevice, MemDevice};

    use super::*;

    #[test]
    fn patched_ranges_are_read_without_the_device_and_others_from_it() {
        let home = Arc::new(MemDevice::new(16384));
        home.write_at(0, &[&[7; 16384]], BioFlags::empty()).expect("written");
        let faulty = Arc::new(FaultyDevice::new(home));
        faulty.inject(Fault::eio().range(4096..8192));
        let patches = Patches::from([(1024, vec![1; 1024]), (4096, vec![2; 2048]), (6144, vec![3; 2048])]);
        let dev = PatchedDevice::new(faulty, patches);
        let read = |at: u64, len: usize| {
            let mut buf = vec![0; len];
            dev.read_at(at, &mut buf, BioFlags::empty()).map(|()| buf)
        };
        assert_eq!(read(4096, 4096).expect("patched"), [[2; 2048], [3; 2048]].concat());
        assert_eq!(read(5000, 2000).expect("patched"), [vec![2; 1144], vec![3; 856]].concat());
        assert_eq!(read(0, 4096).expect("read"), [[7; 1024], [1; 1024], [7; 1024], [7; 1024]].concat());
        assert!(read(4000, 200).is_err(), "unpatched ranges come from the device");
        assert_eq!(read(12288, 10).expect("read"), [7; 10]);
    }
}
