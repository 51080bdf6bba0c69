//! Tests of the contract of every policy, run over [`ReclaimPolicy::ALL`].

use std::collections::HashMap;

use extant_base::rng::Rng;

use super::super::{
    Answer, Class, Core, FrameId, Host, Key, Next, OwnerId, Reclaimer, Room, State, Tried, Victim, Wrote,
};
use super::ReclaimPolicy;

/// A cache of one owner in which frames may be dirty, under writeback, or in use.
struct Cache {
    core: Vec<Core>,
    reclaimer: Reclaimer,
    owners: Vec<(OwnerId, Class)>,
    world: World,
    room: Room,
}

/// The knowledge of the owners, with which the core is compared.
#[derive(Default)]
struct World {
    live: HashMap<FrameId, (Victim, State, bool)>,
    rng: Option<Rng>,
    /// Whether the owner answers immediately or after the step.
    at_once: bool,
    later: Vec<Victim>,
    congested: bool,
    writes: u64,
    freed: u64,
}

impl Host for World {
    fn congested(&self, _: OwnerId) -> bool {
        self.congested
    }

    fn free(&mut self, victim: Victim) -> Answer {
        let (known, state, _) = self.live[&victim.id];
        assert_eq!(known, victim, "the frame that its owner knows by this number");
        assert_eq!(state, State::CLEAN, "{victim:?}: a frame that is dirty or under writeback is never freed");
        assert!(!self.later.contains(&victim), "{victim:?}: chosen twice");
        if self.at_once && !self.live[&victim.id].2 {
            self.live.remove(&victim.id);
            self.freed += 1;
            return Answer::Freed;
        }
        self.later.push(victim);
        Answer::Later
    }

    fn write(&mut self, victim: Victim) -> Wrote {
        let (known, state, _) = self.live.get_mut(&victim.id).expect("a frame of this cache");
        assert_eq!((*known, *state), (victim, State::DIRTY));
        self.writes += 1;
        if self.rng.as_mut().expect("random numbers").one_in(2) {
            *state = State::WRITEBACK;
            return Wrote::Started;
        }
        Wrote::NotNow
    }
}

const MIB: u64 = 1 << 20;

impl Cache {
    fn new(kind: ReclaimPolicy, total: u64, seed: u64) -> Cache {
        let mut core = Core::new(kind);
        let owners = [Class::Data, Class::Metadata, Class::Inode].map(|class| (core.register(class), class));
        let room = Room { free: total, low: total / 32, high: total / 16, total };
        let world = World { rng: Some(Rng::new(seed)), ..World::default() };
        Cache { core: vec![core], reclaimer: Reclaimer::new(kind), owners: owners.into(), world, room }
    }

    fn core(&mut self) -> &mut Core {
        &mut self.core[0]
    }

    fn insert(&mut self, owner: usize, key: Key, bytes: u32, state: State) -> FrameId {
        let owner = self.owners[owner].0;
        let id = self.core().insert(owner, key, bytes, state);
        self.world.live.insert(id, (Victim { id, owner, key, bytes: bytes.into() }, state, false));
        self.room.free = self.room.free.saturating_sub(u64::from(bytes));
        id
    }

    /// Does one step, followed by the answers that are still due from the owner.
    fn step(&mut self, direct: bool) -> Next {
        let (room, freed) = (self.room, self.core[0].counts().freed_bytes);
        self.core().set_room(room);
        let next = if direct {
            self.reclaimer.direct(&mut self.core, &mut self.world)
        } else {
            self.reclaimer.step(&mut self.core, &mut self.world)
        };
        for victim in std::mem::take(&mut self.world.later) {
            if self.world.live[&victim.id].2 {
                self.core().kept(victim.id, Tried::InUse);
            } else {
                self.world.live.remove(&victim.id);
                self.world.freed += 1;
                self.core().remove(victim.id);
            }
        }
        self.room.free += self.core[0].counts().freed_bytes - freed;
        next
    }

    fn set(&mut self, id: FrameId, state: State) {
        self.core().set_state(id, state);
        self.world.live.get_mut(&id).expect("live").1 = state;
    }

    fn check(&mut self) {
        let live = self.world.live.len();
        assert_eq!(self.core[0].frames() as usize, live, "no frame is lost");
        assert_eq!(self.core[0].census()[0], 0, "no chosen frame is left over");
        let ids: Vec<_> = self.world.live.iter().map(|(id, (_, state, _))| (*id, *state)).collect();
        for (id, state) in ids {
            assert_eq!(self.core[0].state(id), state);
        }
    }
}

#[test]
fn names_are_found_and_in_the_table() {
    for kind in ReclaimPolicy::ALL {
        assert_eq!(ReclaimPolicy::from_name(kind.name()), Ok(kind));
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", kind.name())), "{}", kind.name());
    }
}

/// While frames change state at random, each is freed once, when it is clean, and by its owner, and none is lost.
#[test]
fn frames_are_freed_once_and_clean_and_none_is_lost() {
    for kind in ReclaimPolicy::ALL {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut cache = Cache::new(kind, 4 * MIB, seed);
            cache.world.at_once = seed % 2 == 0;
            let mut parked = Vec::new();
            for round in 0..4000u64 {
                let ids: Vec<_> = cache.world.live.keys().copied().collect();
                let any = |rng: &mut Rng| (!ids.is_empty()).then(|| ids[rng.below(ids.len() as u64) as usize]);
                match rng.below(12) {
                    0..4 => {
                        let state = if rng.one_in(3) { State::DIRTY } else { State::CLEAN };
                        let bytes = 1024 << rng.below(6);
                        let key = Key { object: rng.below(4000), page: round };
                        cache.insert(rng.below(3) as usize, key, bytes, state);
                    }
                    4 => {
                        if let Some(id) = any(&mut rng) {
                            let to = [State::CLEAN, State::DIRTY, State::WRITEBACK, State::UNSTABLE];
                            cache.set(id, to[rng.below(4) as usize]);
                        }
                    }
                    5 => {
                        if let Some(id) = any(&mut rng)
                            && !parked.contains(&id)
                        {
                            cache.core().remove(id);
                            cache.world.live.remove(&id);
                        }
                    }
                    6 => {
                        if let Some(id) = any(&mut rng) {
                            let held = &mut cache.world.live.get_mut(&id).expect("live").2;
                            *held = !*held;
                        }
                    }
                    7 => match any(&mut rng) {
                        Some(id) if !parked.contains(&id) => {
                            cache.core().park(id);
                            parked.push(id);
                        }
                        _ => {}
                    },
                    8 => {
                        for id in parked.drain(..) {
                            cache.core().unpark(id);
                        }
                    }
                    9 => {
                        cache.world.congested = rng.one_in(2);
                        cache.reclaimer.wake();
                    }
                    _ => {
                        cache.step(rng.one_in(4));
                        assert!(parked.iter().all(|id| cache.world.live.contains_key(id)), "parked frames stay");
                    }
                }
                for _ in 0..3 {
                    if let Some(id) = any(&mut rng).filter(|id| cache.world.live.contains_key(id)) {
                        cache.core().touches().touch(id);
                    }
                }
                if round % 64 == 0 {
                    cache.check();
                }
            }
            cache.check();
            assert!(cache.world.freed > 0, "{}", kind.name());
        }
    }
}

/// A clean and unused frame is freed, regardless of how often it was used before.
#[test]
fn memory_is_freed_as_long_as_there_is_any() {
    for kind in ReclaimPolicy::ALL {
        for owner in 0..3 {
            let mut cache = Cache::new(kind, 16 * MIB, 1);
            for n in 0..4096 {
                let id = cache.insert(owner, Key { object: n, page: 0 }, 4096, State::CLEAN);
                for _ in 0..n % 7 {
                    cache.core().touches().touch(id);
                }
            }
            assert_eq!(cache.room.free, 0);
            let mut steps = 0;
            cache.reclaimer.wake();
            while cache.step(false) != Next::Enough {
                steps += 1;
                assert!(steps < 20_000, "{}: a pass ends", kind.name());
            }
            assert!(cache.room.free >= cache.room.high, "{}, owner {owner}: {} bytes", kind.name(), cache.room.free);
            assert!(cache.room.free < cache.room.high + 2 * MIB, "{}: no more than that", kind.name());
        }
    }
}

/// Linux compares its lists in pages, so the frames of hot pages may be more than those of a copy with large ones.
#[test]
fn hot_pages_stay_beside_a_copy_in_larger_frames() {
    for kind in ReclaimPolicy::ALL {
        let mut cache = Cache::new(kind, 16 * MIB, 1);
        let hot: Vec<FrameId> =
            (0..768).map(|n| cache.insert(0, Key { object: 1, page: n }, 4096, State::CLEAN)).collect();
        for n in 0..2048 {
            for id in &hot {
                if cache.world.live.contains_key(id) {
                    cache.core().touches().touch(*id);
                }
            }
            cache.insert(0, Key { object: 2, page: 16 * n }, 16 * 4096, State::CLEAN);
            if cache.room.free < cache.room.low {
                cache.reclaimer.wake();
                while cache.step(false) == Next::More {}
            }
        }
        let left = hot.iter().filter(|id| matches!(cache.world.live.get(id), Some((of, ..)) if of.key.object == 1));
        assert_eq!(left.count(), hot.len(), "{}", kind.name());
    }
}

/// If all frames are dirty or in use, a reclaimer reports the reason for waiting, and does not spin.
#[test]
fn reclaimers_wait_where_nothing_can_go() {
    for kind in ReclaimPolicy::ALL {
        for state in [State::DIRTY, State::WRITEBACK, State::UNSTABLE] {
            let mut cache = Cache::new(kind, 4 * MIB, 1);
            for n in 0..1024 {
                cache.insert(0, Key { object: 1, page: n }, 4096, state);
            }
            cache.world.rng = Some(Rng::new(0));
            cache.reclaimer.wake();
            let stalls =
                (0..2000).filter(|_| matches!(cache.step(false), Next::Wait { .. } | Next::Drive { .. })).count();
            assert!(stalls > 0, "{} {state:?}", kind.name());
            cache.check();
        }
    }
}

/// The default policy examines no frame that cannot be freed, and only a few for each frame that it frees.
#[test]
fn used_once_looks_at_no_more_than_four_frames_for_one_that_it_frees() {
    let mut cache = Cache::new(ReclaimPolicy::UsedOnce, 64 * MIB, 1);
    let mut rng = Rng::new(3);
    let mut clean = Vec::new();
    for n in 0..200_000u64 {
        let state = if rng.one_in(4) { State::DIRTY } else { State::CLEAN };
        if cache.room.free < cache.room.low {
            while cache.step(false) == Next::More {}
        }
        if cache.room.free < 1 << 16 {
            let dirty: Vec<_> = cache.world.live.iter().filter(|l| l.1.1 == State::DIRTY).map(|l| *l.0).collect();
            for id in dirty {
                cache.set(id, State::CLEAN);
            }
            continue;
        }
        clean.push(cache.insert((n % 3) as usize, Key { object: n, page: 0 }, 4096, state));
        for _ in 0..4 {
            let id = clean[rng.below(clean.len() as u64) as usize];
            if cache.world.live.contains_key(&id) {
                cache.core().touches().touch(id);
            }
        }
    }
    let counts = *cache.core().counts();
    assert_eq!((counts.dirty, counts.writeback, counts.wanted_data), (0, 0, 0));
    assert!(counts.freed > 50_000 && counts.scanned <= counts.freed * 4, "{counts:?}");
}
