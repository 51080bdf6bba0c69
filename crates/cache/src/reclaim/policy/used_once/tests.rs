//! Tests the guarantees of the policy, each on a cache of 1,024 frames of 4 KiB.

use super::super::super::{Answer, Key, OwnerId, ReclaimPolicy, Reclaimer, Room, Victim, Wrote};
use super::*;

const FRAMES: u64 = 1024;
const FRAME: u32 = 4096;

/// One owner's cache, which immediately frees the frames that the policy chooses.
struct Cache {
    zones: [Core; 1],
    reclaimer: Reclaimer,
    owner: OwnerId,
    /// The frame of each item that is in the cache.
    items: Items,
}

#[derive(Default)]
struct Items(std::collections::HashMap<u64, FrameId>);

impl Host for Items {
    fn congested(&self, _: OwnerId) -> bool {
        false
    }

    fn free(&mut self, victim: Victim) -> Answer {
        assert_eq!(self.0.remove(&victim.key.object), Some(victim.id));
        Answer::Freed
    }

    fn write(&mut self, victim: Victim) -> Wrote {
        panic!("{victim:?}: this policy writes no data");
    }
}

impl Cache {
    fn new() -> Cache {
        let mut core = Core::new(ReclaimPolicy::UsedOnce);
        let owner = core.register(Class::Data);
        Cache { zones: [core], reclaimer: Reclaimer::new(ReclaimPolicy::UsedOnce), owner, items: Items::default() }
    }

    /// Reclaims until one more frame fits, or the policy waits for something.
    fn make_room(&mut self) -> Next {
        let frame = u64::from(FRAME);
        loop {
            let free = FRAMES.saturating_sub(self.zones[0].frames()) * frame;
            self.zones[0].set_room(Room { free, low: frame, high: frame, total: FRAMES * frame });
            match self.reclaimer.step(&mut self.zones, &mut self.items) {
                Next::More => {}
                next => return next,
            }
        }
    }

    fn insert(&mut self, item: u64, state: State) {
        let id = self.zones[0].insert(self.owner, Key { object: item, page: 0 }, FRAME, state);
        self.items.0.insert(item, id);
    }

    /// Uses the item. Returns whether it was in the cache.
    fn access(&mut self, item: u64) -> bool {
        if let Some(id) = self.items.0.get(&item) {
            self.zones[0].touches().touch(*id);
            return true;
        }
        assert_eq!(self.make_room(), Next::Enough);
        self.insert(item, State::CLEAN);
        false
    }

    /// Reads items that are never used again.
    fn stream(&mut self, items: std::ops::Range<u64>) {
        for item in items {
            assert!(!self.access(item), "{item}");
        }
    }

    /// Fills the main queue with these items.
    fn warm(&mut self, items: std::ops::Range<u64>) {
        for _ in 0..=PROMOTE {
            for item in items.clone() {
                self.access(item);
            }
        }
        let start = 1 << 40;
        self.stream(start..start + 2 * FRAMES);
        for item in items {
            assert_eq!(self.queue(item), Some(MAIN), "{item}");
        }
    }

    fn queue(&mut self, item: u64) -> Option<u8> {
        let id = *self.items.0.get(&item)?;
        Some(self.zones[0].parts().0.frames.list(id))
    }

    /// The number of the items that are in the cache.
    fn present(&self, items: std::ops::Range<u64>) -> u64 {
        items.filter(|item| self.items.0.contains_key(item)).count() as u64
    }
}

#[test]
fn a_copy_of_any_length_leaves_frames_that_were_used_again() {
    let mut cache = Cache::new();
    let hot = 0..FRAMES * 9 / 10;
    for _ in 0..=PROMOTE {
        for item in hot.clone() {
            cache.access(item);
        }
    }
    // The hot items are not used while the copy runs, but all of them are kept.
    cache.stream(10_000..10_000 + 50 * FRAMES);
    assert_eq!(cache.present(hot.clone()), hot.end);
}

#[test]
fn frames_used_once_leave_in_the_order_of_arrival() {
    let mut cache = Cache::new();
    cache.stream(0..3 * FRAMES);
    assert_eq!((cache.present(0..2 * FRAMES), cache.present(2 * FRAMES..3 * FRAMES)), (0, FRAMES));
}

#[test]
fn frames_that_come_back_while_their_ghosts_are_known_join_the_main_queue() {
    let mut cache = Cache::new();
    cache.warm(0..FRAMES / 2);
    let refaulted = cache.zones[0].counts().refaulted;
    cache.stream(10_000..10_000 + FRAMES);
    // The last half of the stream is in the small queue. Ghosts remember the items before it, up to the length of the
    // main queue.
    for item in [10_000 + FRAMES / 4, 10_000 + FRAMES / 2 - 10] {
        assert!(!cache.access(item));
        assert_eq!(cache.queue(item), Some(MAIN), "{item}");
    }
    assert_eq!(cache.zones[0].counts().refaulted - refaulted, 2);
    // Items that were evicted longer ago start again in the small queue.
    cache.stream(20_000..20_000 + 2 * FRAMES);
    assert!(!cache.access(20_000));
    assert_eq!(cache.queue(20_000), Some(SMALL));
    assert_eq!(cache.zones[0].counts().refaulted - refaulted, 2);
}

#[test]
fn frames_that_come_back_take_the_place_of_frames_out_of_use() {
    let mut cache = Cache::new();
    cache.warm(0..FRAMES * 9 / 10);
    // Other items become popular: they fit together, but not in the small queue.
    for _ in 0..6 {
        for item in 10_000..10_000 + FRAMES / 2 {
            cache.access(item);
        }
    }
    assert_eq!(cache.present(10_000..10_000 + FRAMES / 2), FRAMES / 2);
    assert!(cache.present(0..FRAMES * 9 / 10) <= FRAMES / 2);
}

#[test]
fn dirty_data_drives_the_flusher_and_spares_frames_in_use() {
    let mut cache = Cache::new();
    let hot = 0..FRAMES / 2;
    cache.warm(hot.clone());
    let mut driven = 0;
    for item in 10_000..10_000 + 4 * FRAMES {
        for item in hot.clone() {
            cache.access(item);
        }
        match cache.make_room() {
            Next::Enough => cache.insert(item, State::DIRTY),
            next => {
                assert_eq!(next, Next::Drive { bytes: u64::from(FRAME) });
                driven += 1;
                // The flusher writes the oldest dirty item.
                let oldest = (10_000..item).find_map(|item| {
                    let id = *cache.items.0.get(&item)?;
                    (cache.zones[0].state(id) == State::DIRTY).then_some(id)
                });
                cache.zones[0].set_state(oldest.expect("a dirty frame"), State::CLEAN);
            }
        }
    }
    assert!(driven > FRAMES, "{driven}");
    assert_eq!(cache.present(hot.clone()), hot.end, "no frame in use has left");
}

#[test]
fn the_main_queue_ages_while_everything_new_is_dirty() {
    let mut cache = Cache::new();
    let used = 0..FRAMES / 4;
    let unused = FRAMES / 4..FRAMES * 3 / 4;
    cache.warm(0..FRAMES * 3 / 4);
    let frames = 96 * FRAMES;
    let mut oldest = 10_000;
    for item in 10_000..10_000 + frames {
        for item in used.clone().filter(|_| item % 64 == 0) {
            cache.access(item);
        }
        // One frame is written and removed, in addition to those that reclaim frees.
        while matches!(cache.make_room(), Next::Drive { .. }) {
            // Items that reclaim has freed are no longer in the map.
            if let Some(id) = cache.items.0.remove(&oldest) {
                cache.zones[0].remove(id);
            }
            oldest += 1;
        }
        cache.insert(item, State::DIRTY);
    }
    let freed = unused.end - unused.start - cache.present(unused.clone());
    assert_eq!(cache.present(used.clone()), used.end, "frames in use stay");
    // The policy examines frames in use, too, so it frees fewer than one in AGING.
    assert!(freed > frames / AGING / 16 && freed <= frames / AGING, "{freed}");
}

#[test]
fn loops_that_almost_fit_cost_no_more_than_four_looks_a_frame() {
    let mut cache = Cache::new();
    let mut hits = 0;
    let accesses = 100 * FRAMES;
    for n in 0..accesses {
        hits += u64::from(cache.access(n % (FRAMES * 105 / 100)));
    }
    let counts = *cache.zones[0].counts();
    assert!(counts.scanned <= counts.freed * (SPARED + 1), "{counts:?}");
    assert!(hits * 100 > accesses * 85, "{hits} of {accesses}: most of a loop is hit");
}
