//! W-TinyLFU: an item that leaves a small window stays only if it was used more often than the item that would leave
//! for it (Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy", ACM TOS 2017). Uses are
//! counted exactly, where the paper has a sketch; the window is a hundredth and fixed.

use super::cache::Cache;
use super::queues::Queues;

const WINDOW: usize = 1;
const PROBATION: usize = 2;
const PROTECTED: usize = 3;
/// Uses that are counted.
const MOST: u8 = 15;
/// After so many uses for each item that the cache has room for, all counts are halved.
const SAMPLE: usize = 10;

pub struct TinyLfu {
    queues: Queues,
    window: usize,
    protected: usize,
    room: usize,
    uses: Vec<u8>,
    counted: usize,
}

impl TinyLfu {
    pub fn new(items: usize, room: usize) -> TinyLfu {
        let window = (room / 100).max(1);
        let protected = (room - window) * 8 / 10;
        TinyLfu { queues: Queues::new(items), window, protected, room, uses: vec![0; items], counted: 0 }
    }

    fn count(&mut self, item: u32) {
        let uses = &mut self.uses[item as usize];
        *uses = (*uses + 1).min(MOST);
        self.counted += 1;
        if self.counted == SAMPLE * self.room {
            self.counted = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// The window is too long: its oldest item stays in the cache, or leaves.
    fn admit(&mut self) {
        let Some(candidate) = self.queues.pop(WINDOW) else { return };
        if self.queues.len(PROBATION) + self.queues.len(PROTECTED) < self.room - self.window {
            return self.queues.push(PROBATION, candidate);
        }
        let victim = self.queues.oldest(PROBATION).or_else(|| self.queues.oldest(PROTECTED));
        if let Some(victim) = victim.filter(|v| self.uses[candidate as usize] > self.uses[*v as usize]) {
            self.queues.remove(victim);
            self.queues.push(PROBATION, candidate);
        }
    }
}

impl Cache for TinyLfu {
    fn access(&mut self, item: u32) -> bool {
        self.count(item);
        match self.queues.on(item) {
            WINDOW => self.queues.push(WINDOW, item),
            PROBATION | PROTECTED => {
                self.queues.push(PROTECTED, item);
                if self.queues.len(PROTECTED) > self.protected
                    && let Some(oldest) = self.queues.oldest(PROTECTED)
                {
                    self.queues.push(PROBATION, oldest);
                }
            }
            _ => {
                self.queues.push(WINDOW, item);
                if self.queues.len(WINDOW) > self.window {
                    self.admit();
                }
                return false;
            }
        }
        true
    }
}
