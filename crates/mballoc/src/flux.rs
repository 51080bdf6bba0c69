//! [`Flux`]: are blocks on their way somewhere?
//!
//! A thread that finds nothing free must not report "no space" while another thread holds more than it will keep: an
//! extent that is about to become a preallocation, or a preallocation that is being given back. This counts both.
//!
//! # Locking
//! None.

use extant_base::counter::Counter;

#[derive(Default)]
pub struct Flux {
    begun: Counter,
    ended: Counter,
    turns: Counter,
}

impl Flux {
    /// Blocks left the buddy or a preallocation and are in one thread's hands.
    pub fn begin(&self, blocks: u64) {
        self.begun.add(blocks);
    }

    /// They are where others can see them again.
    pub fn end(&self, blocks: u64) {
        self.ended.add(blocks);
    }

    /// A preallocation appeared, or blocks became free.
    pub fn turned(&self) {
        self.turns.inc();
    }

    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    pub fn in_flight(&self) -> bool {
        let ended = self.ended.get();
        self.begun.get() != ended
    }
}
