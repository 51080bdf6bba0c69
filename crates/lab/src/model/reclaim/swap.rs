//! Swap space: the place of each copy of the program's pages.
//!
//! Main type: [`Swap`]. Slots are allocated in ascending order, so that pages that are written out at the same time lie
//! next to each other (Linux: `scan_swap_map`).
//!
//! # Locking
//! None.

/// No slot, no page.
pub const NONE: u32 = u32::MAX;
/// Slots that are read in one request (Linux: `page_cluster`, 2^3).
pub const CLUSTER: u32 = 8;
/// Where swap space begins, in pages of the disk: far behind the file.
const START: u64 = 60_000_000;

#[derive(Debug)]
pub struct Swap {
    /// The page that each slot holds.
    owners: Vec<u32>,
    cursor: usize,
}

impl Swap {
    pub fn new(slots: usize) -> Swap {
        Swap { owners: vec![NONE; slots], cursor: 0 }
    }

    /// A slot for the page; `None` if all are in use.
    pub fn take(&mut self, page: u32) -> Option<u32> {
        let n = self.owners.len();
        let slot = (self.cursor..n).chain(0..self.cursor).find(|slot| self.owners[*slot] == NONE)?;
        self.owners[slot] = page;
        self.cursor = (slot + 1) % n;
        Some(slot as u32)
    }

    pub fn give_back(&mut self, slot: u32) {
        self.owners[slot as usize] = NONE;
    }

    /// The pages whose copies lie in the cluster of `slot`.
    pub fn cluster(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let first = (slot - slot % CLUSTER) as usize;
        let last = (first + CLUSTER as usize).min(self.owners.len());
        self.owners[first..last].iter().copied().filter(|owner| *owner != NONE)
    }

    /// The slot's place on the disk.
    pub fn place(slot: u32) -> u64 {
        START + u64::from(slot)
    }
}
