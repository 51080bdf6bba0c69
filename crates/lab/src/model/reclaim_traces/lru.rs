//! LRU: the item whose last use is longest ago leaves (Denning, "The working set model for program behavior", CACM
//! 1968, describes it as the usual one).

use super::cache::Cache;
use super::queues::{OUT, Queues};

const KEPT: usize = 1;

pub struct Lru {
    queues: Queues,
    room: usize,
}

impl Lru {
    pub fn new(items: usize, room: usize) -> Lru {
        Lru { queues: Queues::new(items), room }
    }
}

impl Cache for Lru {
    fn access(&mut self, item: u32) -> bool {
        let hit = self.queues.on(item) != OUT;
        if !hit && self.queues.len(KEPT) == self.room {
            self.queues.pop(KEPT);
        }
        self.queues.push(KEPT, item);
        hit
    }
}
