//! [`Plug`]: delays bios briefly, so that adjacent ones can be merged (Linux: `struct blk_plug`).
//!
//! # Locking
//! None. A thread must unplug before it waits for anything that may depend on a bio in its plug; otherwise it waits
//! for ever.

use crate::bio::{Bio, BioFlags, BioOp};
use crate::device::BlockDevice;

/// The limits of a plug: enough for several of a device's largest transfers, but so few that the device soon has work.
/// Linux: 32 requests (`BLK_MAX_REQUEST_COUNT`), into which its bios are merged immediately.
const BIOS_MAX: usize = 1024;
const BYTES_MAX: u64 = 4 << 20;

/// Collects bios until dropped, then submits them together ([`BlockDevice::submit_all`]): a queue sorts them by offset
/// and merges adjacent ones up to the device's largest transfer. A request that flushes is never delayed, and the plug
/// is emptied before it.
pub struct Plug<'d> {
    dev: &'d dyn BlockDevice,
    bios: Vec<Bio>,
    bytes: u64,
}

impl<'d> Plug<'d> {
    /// A plug in front of `dev`.
    pub fn new(dev: &'d dyn BlockDevice) -> Plug<'d> {
        Plug { dev, bios: Vec::new(), bytes: 0 }
    }

    /// Adds the bio, or submits it with the earlier ones if it flushes or the plug is full.
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

    /// Submits the collected bios.
    pub fn unplug(&mut self) {
        self.bytes = 0;
        if !self.bios.is_empty() {
            self.dev.submit_all(std::mem::take(&mut self.bios));
        }
    }

    /// The same as [`Plug::unplug`], for a thread that then waits for them ([`BlockDevice::submit_all_and_wait`]).
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
