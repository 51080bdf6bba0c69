//! A device in memory that counts, records the order of writes and flushes, and can lose power at any write.

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_block::{Bio, BioData, BioFlags, BioOp, BlockDevice, Error, IoStats, Limits, Result};

static DISK: LockClass = LockClass::new("test_disk", 0);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Write { offset: u64, len: usize, fua: bool },
    Flush,
}

struct State {
    bytes: Vec<u8>,
    events: Vec<Event>,
    /// Writes that will still succeed; then the power fails.
    writes_left: usize,
}

pub struct MemDisk {
    limits: Limits,
    state: Mutex<State>,
}

impl MemDisk {
    pub fn new(bytes: Vec<u8>) -> Arc<MemDisk> {
        Self::with_sector(bytes, 512)
    }

    pub fn with_sector(bytes: Vec<u8>, logical_block: u32) -> Arc<MemDisk> {
        let limits = Limits {
            logical_block,
            physical_block: logical_block,
            max_transfer: 1 << 20,
            discard: false,
            volatile_cache: true,
        };
        let state = State { bytes, events: Vec::new(), writes_left: usize::MAX };
        Arc::new(MemDisk { limits, state: Mutex::new(&DISK, state) })
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state.lock().bytes.clone()
    }

    pub fn events(&self) -> Vec<Event> {
        self.state.lock().events.clone()
    }

    /// Lets `n` more writes succeed.
    pub fn cut_after(&self, n: usize) {
        self.state.lock().writes_left = n;
    }

    fn error(&self, op: BioOp, offset: u64, len: usize) -> Error {
        let source = Arc::new(std::io::Error::other("test"));
        Error::Io { device: "mem".into(), op, offset, len: len as u64, source }
    }
}

impl BlockDevice for MemDisk {
    fn name(&self) -> &str {
        "mem"
    }

    fn size_bytes(&self) -> u64 {
        self.state.lock().bytes.len() as u64
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn read_only(&self) -> bool {
        false
    }

    fn submit(&self, mut bio: Bio) {
        let result = match &mut bio.data {
            BioData::Read(buf) => self.read_at(bio.offset, buf, bio.flags),
            BioData::None | BioData::Write(_) => Err(self.error(bio.op, bio.offset, 0)),
        };
        bio.complete(result);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], _flags: BioFlags) -> Result<()> {
        let state = self.state.lock();
        let end = (offset as usize).checked_add(buf.len());
        let bytes = end.and_then(|end| state.bytes.get(offset as usize..end));
        buf.copy_from_slice(bytes.ok_or_else(|| self.error(BioOp::Read, offset, buf.len()))?);
        Ok(())
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let data = pieces.concat();
        let sector = u64::from(self.limits.logical_block);
        assert!(offset.is_multiple_of(sector) && (data.len() as u64).is_multiple_of(sector), "unaligned write");
        let mut state = self.state.lock();
        if state.writes_left == 0 {
            return Err(self.error(BioOp::Write, offset, data.len()));
        }
        state.writes_left -= 1;
        state.events.push(Event::Write { offset, len: data.len(), fua: flags.contains(BioFlags::FUA) });
        let end = offset as usize + data.len();
        state.bytes[offset as usize..end].copy_from_slice(&data);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.state.lock().events.push(Event::Flush);
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}
