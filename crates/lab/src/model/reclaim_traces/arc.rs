//! ARC: items used once and items used more often share the cache in proportion to their misses (Megiddo, Modha: "ARC:
//! a self-tuning, low overhead replacement cache", FAST 2003, figure 4).

use super::cache::Cache;
use super::queues::Queues;

/// Used once, and more often.
const ONCE: usize = 1;
const OFTEN: usize = 2;
/// The ghosts of both.
const LEFT_ONCE: usize = 3;
const LEFT_OFTEN: usize = 4;

pub struct Arc {
    queues: Queues,
    room: usize,
    /// The part of the room for items used once (the paper's p).
    once: usize,
}

impl Arc {
    pub fn new(items: usize, room: usize) -> Arc {
        Arc { queues: Queues::new(items), room, once: 0 }
    }

    fn replace(&mut self, left_often: bool) {
        let once = self.queues.len(ONCE);
        let from_once = once > 0 && (once > self.once || left_often && once == self.once);
        let (from, to) = if from_once || self.queues.len(OFTEN) == 0 { (ONCE, LEFT_ONCE) } else { (OFTEN, LEFT_OFTEN) };
        if let Some(item) = self.queues.oldest(from) {
            self.queues.push(to, item);
        }
    }

    fn make_room(&mut self) {
        let [once, often, left_once, left_often] =
            [ONCE, OFTEN, LEFT_ONCE, LEFT_OFTEN].map(|queue| self.queues.len(queue));
        if once + left_once == self.room {
            if left_once > 0 {
                self.queues.pop(LEFT_ONCE);
                self.replace(false);
            } else {
                self.queues.pop(ONCE);
            }
        } else if once + often + left_once + left_often >= self.room {
            if once + often + left_once + left_often == 2 * self.room {
                self.queues.pop(LEFT_OFTEN);
            }
            self.replace(false);
        }
    }
}

impl Cache for Arc {
    fn access(&mut self, item: u32) -> bool {
        let (left_once, left_often) = (self.queues.len(LEFT_ONCE), self.queues.len(LEFT_OFTEN));
        let to = match self.queues.on(item) {
            ONCE | OFTEN => {
                self.queues.push(OFTEN, item);
                return true;
            }
            LEFT_ONCE => {
                self.once = (self.once + (left_often / left_once).max(1)).min(self.room);
                self.replace(false);
                OFTEN
            }
            LEFT_OFTEN => {
                self.once = self.once.saturating_sub((left_once / left_often).max(1));
                self.replace(true);
                OFTEN
            }
            _ => {
                self.make_room();
                ONCE
            }
        };
        self.queues.push(to, item);
        false
    }
}
