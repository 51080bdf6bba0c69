//! A cache of one owner whose frames are freed as soon as they are chosen, for the tests of single policies.
//!
//! Main type: [`Cache`]. Frames have 4 KiB, and one is freed when one is needed.
//!
//! # Locking
//! None.

use std::collections::HashMap;

use super::super::core::{Answer, Class, Core, Host, Next, Reclaimer, Room, Victim, Wrote};
use super::super::frame::{FrameId, Key, ListId, OwnerId, State};
use super::ReclaimPolicy;

const FRAME: u32 = 4096;
/// If a reclaimer has not freed a frame after this many steps, it never will.
const STEPS: u32 = 10_000;

pub(super) struct Cache {
    pub zones: [Core; 1],
    reclaimer: Reclaimer,
    owner: OwnerId,
    items: Items,
    room: u64,
}

#[derive(Default)]
struct Items(HashMap<u64, FrameId>);

impl Host for Items {
    fn congested(&self, _: OwnerId) -> bool {
        false
    }

    fn free(&mut self, victim: Victim) -> Answer {
        assert_eq!(self.0.remove(&victim.key.object), Some(victim.id));
        Answer::Freed
    }

    fn write(&mut self, _: Victim) -> Wrote {
        Wrote::NotNow
    }
}

impl Cache {
    pub fn new(policy: ReclaimPolicy, room: u64) -> Cache {
        let mut core = Core::new(policy);
        let owner = core.register(Class::Data);
        Cache { zones: [core], reclaimer: Reclaimer::new(policy), owner, items: Items::default(), room }
    }

    /// Reclaims until one more frame fits, or the policy waits for something.
    pub fn make_room(&mut self) -> Next {
        let frame = u64::from(FRAME);
        self.reclaimer.wake();
        for _ in 0..STEPS {
            let free = self.room.saturating_sub(self.zones[0].frames()) * frame;
            if free >= frame {
                return Next::Enough;
            }
            self.zones[0].set_room(Room { free, low: frame, high: frame, total: self.room * frame });
            match self.reclaimer.step(&mut self.zones, &mut self.items) {
                Next::More => {}
                Next::Enough => self.reclaimer.wake(),
                next => return next,
            }
        }
        panic!("no frame was freed");
    }

    pub fn insert(&mut self, item: u64, state: State) -> FrameId {
        let id = self.zones[0].insert(self.owner, Key { object: item, page: 0 }, FRAME, state);
        self.items.0.insert(item, id);
        id
    }

    /// Uses the item. Returns whether it was in the cache.
    pub fn access(&mut self, item: u64) -> bool {
        if let Some(id) = self.frame(item) {
            self.zones[0].touches().touch(id);
            return true;
        }
        assert_eq!(self.make_room(), Next::Enough);
        self.insert(item, State::CLEAN);
        false
    }

    /// Uses the items. Returns how many of them had to be read.
    pub fn read(&mut self, items: impl Iterator<Item = u64>) -> u64 {
        items.map(|item| u64::from(!self.access(item))).sum()
    }

    pub fn frame(&self, item: u64) -> Option<FrameId> {
        self.items.0.get(&item).copied()
    }

    /// The list that the item is on.
    pub fn list(&self, item: u64) -> Option<ListId> {
        self.frame(item).map(|id| self.zones[0].field().frames.list(id))
    }
}
