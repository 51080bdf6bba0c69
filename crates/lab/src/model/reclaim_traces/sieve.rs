//! SIEVE: one queue and a hand that moves from old to new; an item that was used since the hand's last visit is spared
//! and stays where it is (Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is simpler than LRU", NSDI 2024).

use super::cache::Cache;
use super::queues::{OUT, Queues};

const KEPT: usize = 1;

pub struct Sieve {
    queues: Queues,
    room: usize,
    used: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub fn new(items: usize, room: usize) -> Sieve {
        Sieve { queues: Queues::new(items), room, used: vec![false; items], hand: None }
    }

    fn evict(&mut self) {
        let mut at = self.hand.or_else(|| self.queues.oldest(KEPT));
        while let Some(item) = at {
            let newer = self.queues.newer(item);
            if !std::mem::take(&mut self.used[item as usize]) {
                self.queues.remove(item);
                self.hand = newer;
                return;
            }
            at = newer.or_else(|| self.queues.oldest(KEPT));
        }
    }
}

impl Cache for Sieve {
    fn access(&mut self, item: u32) -> bool {
        if self.queues.on(item) != OUT {
            self.used[item as usize] = true;
            return true;
        }
        if self.queues.len(KEPT) == self.room {
            self.evict();
        }
        self.queues.push(KEPT, item);
        false
    }
}
