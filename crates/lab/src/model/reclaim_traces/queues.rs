//! Queues of items, for the yardsticks.
//!
//! Main type: [`Queues`]. Items are numbers; each stands on one queue or on none.

/// No item.
const NONE: u32 = u32::MAX;
/// The queue of the items that stand on none.
pub const OUT: usize = 0;
/// As many queues as the policy with the most of them has, and [`OUT`].
const QUEUES: usize = 5;

/// Doubly linked lists through all items.
pub struct Queues {
    older: Vec<u32>,
    newer: Vec<u32>,
    on: Vec<u8>,
    newest: [u32; QUEUES],
    oldest: [u32; QUEUES],
    len: [usize; QUEUES],
}

impl Queues {
    pub fn new(items: usize) -> Queues {
        let (older, newer, on) = (vec![NONE; items], vec![NONE; items], vec![OUT as u8; items]);
        Queues { older, newer, on, newest: [NONE; QUEUES], oldest: [NONE; QUEUES], len: [0; QUEUES] }
    }

    pub fn on(&self, item: u32) -> usize {
        usize::from(self.on[item as usize])
    }

    pub fn len(&self, queue: usize) -> usize {
        self.len[queue]
    }

    pub fn oldest(&self, queue: usize) -> Option<u32> {
        Some(self.oldest[queue]).filter(|item| *item != NONE)
    }

    /// The item that joined the queue just after this one.
    pub fn newer(&self, item: u32) -> Option<u32> {
        Some(self.newer[item as usize]).filter(|item| *item != NONE)
    }

    /// Makes the item the newest of `queue`; it leaves the queue that it stands on.
    pub fn push(&mut self, queue: usize, item: u32) {
        self.remove(item);
        let newest = std::mem::replace(&mut self.newest[queue], item);
        match newest {
            NONE => self.oldest[queue] = item,
            newest => self.newer[newest as usize] = item,
        }
        self.older[item as usize] = newest;
        self.newer[item as usize] = NONE;
        self.on[item as usize] = queue as u8;
        self.len[queue] += 1;
    }

    pub fn remove(&mut self, item: u32) {
        let queue = self.on(item);
        if queue == OUT {
            return;
        }
        let (older, newer) = (self.older[item as usize], self.newer[item as usize]);
        match older {
            NONE => self.oldest[queue] = newer,
            older => self.newer[older as usize] = newer,
        }
        match newer {
            NONE => self.newest[queue] = older,
            newer => self.older[newer as usize] = older,
        }
        self.on[item as usize] = OUT as u8;
        self.len[queue] -= 1;
    }

    /// Takes the oldest item off `queue`.
    pub fn pop(&mut self, queue: usize) -> Option<u32> {
        let item = self.oldest(queue)?;
        self.remove(item);
        Some(item)
    }
}
