//! Writing committed blocks home, so that the log can be used again (Linux: fs/jbd2/checkpoint.c).
//!
//! The bytes that go home are the frozen ones, so a block that the running transaction is changing meanwhile needs no
//! waiting and nothing uncommitted reaches its home.

use std::sync::Arc;

use extant_base::trace_point;
use extant_block::queue::Plug;
use extant_block::{AlignedBuf, Bio, BioFlags, BioVec, Completion};
use extant_cache::IoWait;
use extant_ondisk::BlockNr;

use crate::error::Result;
use crate::log::Log;
use crate::state::Journal;

impl Journal {
    /// Writes home every committed block, in block order, flushes, and then moves the tail of the log to its head.
    pub(crate) fn checkpoint(&self, log: &mut Log) -> Result<()> {
        let next_tid = log.next_tid();
        if !log.logged.is_empty() {
            let blocks: Vec<_> = log.logged.iter().map(|(b, l)| (*b, l.data.clone())).collect();
            let n = blocks.len();
            self.write_blocks(blocks)?;
            self.dev.flush()?;
            for logged in std::mem::take(&mut log.logged).into_values() {
                let mut inner = logged.buffer.lock();
                // A newer transaction may be committing the block: then it stays logged.
                if inner.state.logged == Some(logged.tid.0) {
                    inner.state.logged = None;
                }
            }
            self.stats.checkpoints.inc();
            self.stats.checkpoint_blocks.add(n as u64);
            trace_point!(jbd2_checkpoint, blocks = n, next_tid = next_tid.0);
        }
        let Some(disk) = &mut log.disk else { return Ok(()) };
        if disk.used > 0 {
            // Home is durable; only now may the log space be used again, and the superblock must say so first.
            disk.superblock.start = disk.head;
            disk.superblock.sequence = next_tid;
            disk.write_superblock(&*self.dev, BioFlags::FUA)?;
            disk.used = 0;
        }
        Ok(())
    }

    /// Writes blocks to their homes and waits.
    pub(crate) fn write_blocks(&self, blocks: Vec<(BlockNr, Arc<AlignedBuf>)>) -> Result<()> {
        let bs = u64::from(self.cache.block_size());
        self.write_all(blocks.into_iter().map(|(block, data)| (block.0 * bs, data)).collect(), BioFlags::META)
    }

    /// Writes whole blocks, each to its byte offset, plugged, so that neighbours share a request, and waits.
    pub(crate) fn write_all(&self, blocks: Vec<(u64, Arc<AlignedBuf>)>, flags: BioFlags) -> Result<()> {
        let wait = IoWait::new();
        let mut plug = Plug::new(&*self.dev);
        for (offset, buf) in blocks {
            let token = wait.begin();
            let done = Box::new(move |c: Completion| token.done(c.result));
            let len = buf.len();
            plug.submit(Bio::write(offset, vec![BioVec { buf, offset: 0, len }], flags, done));
        }
        plug.unplug_and_wait();
        Ok(wait.wait()?)
    }
}
