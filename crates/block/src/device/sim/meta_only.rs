//! [`MetaOnlyDevice`]: keeps metadata and drops data, so that there is room for a file system of any size.
//!
//! Writes with META reach the device below, including those of the journal. Of other writes, only the count and the
//! ranges are recorded, and a read without META returns zeros there. A read of such a range with META is an error,
//! because the bytes were needed but are lost: either a writer did not mark metadata as such, or a reader marks data as
//! metadata. A readahead (RAHEAD) may include data next to its target, and returns zeros for it.
//!
//! What it does not do: return the old contents of the device below after data was written over metadata.
//!
//! # Locking
//! One leaf lock (`block dropped`) protects the ranges; it is released before the device below is called. A read and a
//! write of the same bytes at the same time may disagree about the bytes, as on any device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use extant_base::sync::Mutex;

use super::super::wrapper::Wrapper;
use super::super::{BlockDevice, check_range, total_len};
use crate::bio::{BioFlags, BioOp};
use crate::error::{Error, Result};
use crate::ranks::DROPPED;

/// Counts of data writes, which are all dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedWrites {
    /// The number of dropped writes.
    pub requests: u64,
    /// The number of bytes in the dropped writes.
    pub bytes: u64,
}

#[derive(Default)]
struct State {
    data: Ranges,
    dropped: DroppedWrites,
}

/// See the module.
pub struct MetaOnlyDevice {
    below: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

impl MetaOnlyDevice {
    /// Keeps the metadata on `below`, which should be a sparse device.
    pub fn new(below: Arc<dyn BlockDevice>) -> MetaOnlyDevice {
        MetaOnlyDevice { below, state: Mutex::new(&DROPPED, State::default()) }
    }

    /// The writes dropped so far.
    pub fn dropped(&self) -> DroppedWrites {
        self.state.lock().dropped
    }

    /// The number of separate ranges that are known to contain data.
    pub fn ranges(&self) -> usize {
        self.state.lock().data.0.len()
    }

    /// Records a write. Returns whether the device below receives it.
    fn is_kept(&self, offset: u64, len: u64, flags: BioFlags) -> bool {
        let mut state = self.state.lock();
        let meta = flags.contains(BioFlags::META);
        if meta {
            state.data.remove(offset..offset + len);
        } else if len > 0 {
            state.data.insert(offset..offset + len);
            state.dropped.requests += 1;
            state.dropped.bytes += len;
        }
        meta
    }

    /// A dropped write flushes like any other, because its flags also apply to earlier writes.
    fn flush_as_asked(&self, flags: BioFlags) -> Result<()> {
        if flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) { self.below.flush() } else { Ok(()) }
    }

    fn data_in(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        self.state.lock().data.within(offset..offset + len)
    }
}

impl Wrapper for MetaOnlyDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        let len = buf.len() as u64;
        check_range(self, BioOp::Read, offset, len)?;
        let data = self.data_in(offset, len);
        if let (Some(first), true) = (data.first(), flags & (BioFlags::META | BioFlags::RAHEAD) == BioFlags::META) {
            let why = format!(
                "metadata, but bytes {} to {} were written as data, which this device drops",
                first.start, first.end
            );
            return Err(Error::io(self.below.name(), BioOp::Read, offset, len, std::io::Error::other(why)));
        }
        if !data.first().is_some_and(|first| first.start == offset && first.end == offset + len) {
            self.below.read_at(offset, buf, flags)?;
        }
        for range in data {
            buf[(range.start - offset) as usize..(range.end - offset) as usize].fill(0);
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.below.next_data(offset)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = total_len(pieces);
        check_range(self, BioOp::Write, offset, len)?;
        if self.is_kept(offset, len, flags) {
            return self.below.write_at(offset, pieces, flags);
        }
        self.flush_as_asked(flags)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, BioOp::Discard, offset, len)?;
        self.below.discard(offset, len)?;
        self.state.lock().data.remove(offset..offset + len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        check_range(self, BioOp::WriteZeroes, offset, len)?;
        if self.is_kept(offset, len, flags) {
            return self.below.write_zeroes(offset, len, flags);
        }
        self.flush_as_asked(flags)
    }
}

/// A set of bytes, as ranges that are not adjacent: the beginning and the end of each.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // The last range that begins at or before the end may overlap or touch this one; so may those before it.
        while let Some((&other, &other_end)) = self.0.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.0.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.0.insert(start, end);
    }

    fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&other, &other_end)) = self.0.range(..range.end).next_back() {
            if other_end <= range.start {
                break;
            }
            self.0.remove(&other);
            if other_end > range.end {
                self.0.insert(range.end, other_end);
            }
            if other < range.start {
                self.0.insert(other, range.start);
                break;
            }
        }
    }

    /// The parts of `range` that are in the set, in order.
    fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        for (&start, &end) in self.0.range(..range.end).rev() {
            if end <= range.start {
                break;
            }
            parts.push(start.max(range.start)..end.min(range.end));
        }
        parts.reverse();
        parts
    }
}
