//! S3-FIFO as published: a small queue of a tenth, a main queue, and ghosts of items that left the small queue (Yang,
//! Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1; an item's count
//! begins anew in the main queue, as in the authors' simulator).

use super::cache::Cache;
use super::queues::Queues;

const SMALL: usize = 1;
const MAIN: usize = 2;
const GHOST: usize = 3;
/// Uses that are counted.
const MOST: u8 = 3;
/// More uses than this in the small queue make an item stay.
const ONCE: u8 = 1;

pub struct S3Fifo {
    queues: Queues,
    room: usize,
    small: usize,
    uses: Vec<u8>,
}

impl S3Fifo {
    pub fn new(items: usize, room: usize) -> S3Fifo {
        S3Fifo { queues: Queues::new(items), room, small: (room / 10).max(1), uses: vec![0; items] }
    }

    fn evict(&mut self) {
        if self.queues.len(SMALL) < self.small && self.queues.len(MAIN) > 0 {
            return self.evict_main();
        }
        while let Some(item) = self.queues.oldest(SMALL) {
            if std::mem::take(&mut self.uses[item as usize]) <= ONCE {
                self.queues.push(GHOST, item);
                if self.queues.len(GHOST) > self.room - self.small {
                    self.queues.pop(GHOST);
                }
                return;
            }
            self.queues.push(MAIN, item);
            if self.queues.len(MAIN) > self.room - self.small {
                return self.evict_main();
            }
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(item) = self.queues.oldest(MAIN) {
            let uses = &mut self.uses[item as usize];
            if *uses == 0 {
                return self.queues.remove(item);
            }
            *uses -= 1;
            self.queues.push(MAIN, item);
        }
    }
}

impl Cache for S3Fifo {
    fn access(&mut self, item: u32) -> bool {
        let on = self.queues.on(item);
        if on == SMALL || on == MAIN {
            let uses = &mut self.uses[item as usize];
            *uses = (*uses + 1).min(MOST);
            return true;
        }
        while self.queues.len(SMALL) + self.queues.len(MAIN) >= self.room {
            self.evict();
        }
        self.uses[item as usize] = 0;
        // The eviction may have dropped the ghost meanwhile; the item had one when it came.
        self.queues.push(if on == GHOST { MAIN } else { SMALL }, item);
        false
    }
}
