//! The operations of a client on its stripes of the file that all clients write to.
//!
//! # Locking
//! `schedule stripes` (0) for the list of changes, held for a moment.

use super::*;
use crate::sched::stripes::{ROWS, Stripe};

impl Client {
    /// Writes one of the client's stripes, makes it a hole, syncs the file or reads the stripe.
    pub(super) fn stripe(&mut self, rng: &mut Rng) {
        let Some(inode) = self.striped.clone() else { return };
        let row = rng.below(ROWS as u64) as usize;
        match rng.below(8) {
            0..5 => self.write_stripe(&inode, row, false),
            5 => self.write_stripe(&inode, row, true),
            6 => self.sync_stripes(&inode, rng.one_in(2)),
            _ => {}
        }
        self.check_stripe(row);
    }

    fn write_stripe(&mut self, inode: &InodeRef, row: usize, punches: bool) {
        let block = u64::from(self.shared.config.image.block_size);
        let (from, op) = (stripes::start(self.nr, row, block), self.op_nr());
        let version = if punches { 0 } else { op as u32 };
        let change = Stripe { client: self.nr, row, op, version, start: self.shared.device.write_log() };
        self.shared.stripes.changes(change);
        let bytes = stripes::content(self.nr, row, version, block);
        let text = format!("stripe {row}: {}", if punches { "punch" } else { "write" });
        let done = self.op(text, None, &[], |c| match punches {
            true => c.fs.fallocate(inode, FallocateMode::PunchHole, from, block).map(|()| block),
            false => c.fs.write(inode, from, &bytes, WriteFlags::default()).map(|n| n as u64),
        });
        match done {
            Some(n) if n == block => self.written[row] = version,
            // For lack of space, or after a failed request, a part of it may be there.
            _ => self.shared.stripes.forget(self.nr, row),
        }
    }

    fn sync_stripes(&mut self, inode: &InodeRef, data: bool) {
        let upto = self.shared.ended();
        match self.fs.fsync(inode, data) {
            Ok(()) => self.shared.stripes.acknowledge(self.shared.device.write_log(), upto),
            Err(e) => self.stripes_failed(&e),
        }
    }

    /// Handles a failed fsync of the file: any stripe may be lost.
    fn stripes_failed(&mut self, e: &Error) {
        self.sync_failed(e, None);
        self.shared.stripes.forget_all();
    }

    /// Checks that a stripe of the client has what it wrote last.
    pub(super) fn check_stripe(&self, row: usize) {
        let Some(inode) = &self.striped else { return };
        if self.shared.struck() || self.shared.stripes.is_forgotten(self.nr, row) {
            return;
        }
        let block = u64::from(self.shared.config.image.block_size);
        let mut found = vec![0; block as usize];
        let from = stripes::start(self.nr, row, block);
        self.fs.read(inode, from, &mut found).unwrap_or_else(|e| panic!("client {}: stripe {row}: {e}", self.nr));
        let expected = stripes::content(self.nr, row, self.written[row], block);
        let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differs, None, "client {}: stripe {row} at {from}, write {}", self.nr, self.written[row]);
    }
}
