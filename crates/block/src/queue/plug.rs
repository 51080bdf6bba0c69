//! [`Plug`]: bios held back for a moment, so that neighbours meet (Linux: `struct blk_plug`).
//!
//! # Locking
//! None. Who waits for something that may depend on a bio that a plug holds, waits for ever: it is unplugged before.

use crate::bio::{Bio, BioFlags, BioOp};
use crate::device::BlockDevice;

/// What a plug holds at most: enough for a device's largest transfer several times over, little enough that the device
/// has something to do soon. Linux: 32 requests (`BLK_MAX_REQUEST_COUNT`), which its bios are merged into at once.
const BIOS_MAX: usize = 1024;
const BYTES_MAX: u64 = 4 << 20;

/// Holds bios back until dropped, then submits them together ([`BlockDevice::submit_all`]): a queue sorts them by
/// offset and merges neighbours up to the device's largest transfer. What flushes is never held back: the plug is
/// emptied first.
pub struct Plug<'d> {
    dev: &'d dyn BlockDevice,
    bios: Vec<Bio>,
    bytes: u64,
}

impl<'d> Plug<'d> {
    /// In front of `dev`.
    pub fn new(dev: &'d dyn BlockDevice) -> Plug<'d> {
        Plug { dev, bios: Vec::new(), bytes: 0 }
    }

    /// Holds the bio back, or submits it with those before it when it flushes or the plug is full.
    pub fn submit(&mut self, bio: Bio) {
        if bio.op == BioOp::Flush || bio.flags.contains(BioFlags::PREFLUSH) {
            self.unplug();
            return self.dev.submit(bio);
        }
        self.bytes += bio.len;
        self.bios.push(bio);
        if self.is_full() {
            self.unplug();
        }
    }

    fn is_full(&self) -> bool {
        self.bios.len() >= BIOS_MAX || self.bytes >= BYTES_MAX
    }

    /// Submits what is held back.
    pub fn unplug(&mut self) {
        self.bytes = 0;
        if !self.bios.is_empty() {
            self.dev.submit_all(std::mem::take(&mut self.bios));
        }
    }

    /// The same by a thread that waits for it next ([`BlockDevice::submit_all_and_wait`]).
    pub fn unplug_and_wait(&mut self) {
        self.bytes = 0;
        if !self.bios.is_empty() {
            self.dev.submit_all_and_wait(std::mem::take(&mut self.bios));
        }
    }
}

impl Drop for Plug<'_> {
    fn drop(&mut self) {
        self.unplug();
    }
}
