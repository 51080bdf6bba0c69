//! The engine's policies, through the engine's own [`Core`].
//!
//! Main type: [`Engine`]. Items are clean frames of 4 KiB. When the cache is full, the reclaimer works until there is
//! room for one frame.

use extant_cache::reclaim::{
    Answer, Class, Core, FrameId, Host, Key, Next, OwnerId, ReclaimPolicy, Reclaimer, Room, State, Victim, Wrote,
};

use super::cache::Cache;

const FRAME: u32 = 4096;
/// A reclaimer that has not freed a frame after this many steps never will.
const STEPS_MAX: u32 = 100_000;

pub struct Engine {
    zones: [Core; 1],
    reclaimer: Reclaimer,
    owner: OwnerId,
    items: Items,
    room: u64,
}

/// The frame of each item in the cache.
struct Items(Vec<Option<FrameId>>);

impl Host for Items {
    fn congested(&self, _: OwnerId) -> bool {
        false
    }

    fn free(&mut self, victim: Victim) -> Answer {
        self.0[victim.key.object as usize] = None;
        Answer::Freed
    }

    fn write(&mut self, _: Victim) -> Wrote {
        Wrote::NotNow
    }
}

impl Engine {
    pub fn new(policy: ReclaimPolicy, items: usize, room: usize) -> Engine {
        let mut core = Core::new(policy);
        let owner = core.register(Class::Data);
        let items = Items(vec![None; items]);
        Engine { zones: [core], reclaimer: Reclaimer::new(policy), owner, items, room: room as u64 }
    }

    fn make_room(&mut self) {
        let frame = u64::from(FRAME);
        self.reclaimer.wake();
        for _ in 0..STEPS_MAX {
            let free = self.room.saturating_sub(self.zones[0].frames()) * frame;
            if free >= frame {
                return;
            }
            self.zones[0].set_room(Room { free, low: frame, high: frame, total: self.room * frame });
            if self.reclaimer.step(&mut self.zones, &mut self.items) == Next::Enough {
                self.reclaimer.wake();
            }
        }
    }
}

impl Cache for Engine {
    fn access(&mut self, item: u32) -> bool {
        if let Some(id) = self.items.0[item as usize] {
            self.zones[0].touches().touch(id);
            return true;
        }
        self.make_room();
        let key = Key { object: u64::from(item), page: 0 };
        self.items.0[item as usize] = Some(self.zones[0].insert(self.owner, key, FRAME, State::CLEAN));
        false
    }

    fn core(&self) -> Option<&Core> {
        Some(&self.zones[0])
    }
}
