//! One machine, one thread, a heap of events: the next action of each actor, and its time.
//!
//! Main types: [`Machine`], [`Actor`]. [`extant_cache::reclaim`] decides which pages are freed, written and waited for;
//! the machine has the memory, the time and the disk. Actors: `client.rs` (memcached and its client), `writer.rs` (dd),
//! `flusher.rs` (with the journal's and the server's commits), and kswapd and the devices here.
//!
//! # Locking
//! None.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use extant_base::rng::Rng;
use extant_cache::reclaim::{Class, Core, Counts, Key, Next, OwnerId, ReclaimPolicy, Reclaimer, Room, State};

use super::client::Client;
use super::disk::Page;
use super::flusher::{Flusher, Journal};
use super::memory::{Backing, Buffers, CACHED, Owners, PAGE, Place, World};
use super::rows::{Rows, Samples};
use super::settings::{DMA32, NORMAL, Settings};
use super::writer::{DIRTY_SHARE, Writer};

/// The processor's time for a step of reclaim, and for each page that it looks at.
const STEP_NS: u64 = 1_000;
const SCAN_NS: u64 = 400;
/// kswapd begins so long after it was woken.
const WAKE_NS: u64 = 2_000;
/// A direct reclaimer that waits looks again after this time at the latest while the disk works.
const DIRECT_WAIT_NS: u64 = 5_000_000;
/// memcached runs for so long before the writer begins.
const WARM_NS: u64 = 10_000_000_000;
/// Between two samples of iostat(1).
const SAMPLE_NS: u64 = 10_000_000_000;
/// A writer that takes longer than this many times the test is given up.
const PATIENCE: u64 = 10;
/// An inode in memory.
const INODE_BYTES: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    Client,
    Writer,
    Kswapd,
    Flusher,
    /// The disk's request is done.
    Disk,
    /// The server has answered.
    Network,
    /// The server's commit is done.
    Commit,
    /// The journal's next commit (ext3).
    Journal,
    Sample,
    /// The warm-up is over.
    Begin,
    /// The test is over; the writer may not be.
    End,
}

const ACTORS: usize = Actor::End as usize + 1;
const NEVER: u64 = u64::MAX;

pub struct Machine {
    pub settings: Settings,
    pub zones: Vec<Core>,
    reclaimer: Reclaimer,
    pub world: World,
    /// In each zone, the pages reserved for callers that may not wait (Linux: `WMARK_MIN`).
    min: [u64; 2],
    events: BinaryHeap<Reverse<(u64, u64, Actor)>>,
    sequence: u64,
    /// The time of each actor's next action; its other events are stale.
    due: [u64; ACTORS],
    /// It waits for a write to be completed.
    stalled: [bool; ACTORS],
    kswapd_awake: bool,
    pub client: Client,
    pub writer: Writer,
    pub flusher: Flusher,
    pub journal: Journal,
    pub rows: Rows,
    samples: Samples,
    /// The cores' counts when the warm-up ended.
    before: [Counts; 2],
}

impl Machine {
    pub fn new(settings: Settings, policy: ReclaimPolicy, file_pages: usize, rng: Rng) -> Machine {
        let mut zones: Vec<Core> = (0..2).map(|_| Core::new(policy)).collect();
        let mut register = |class| -> OwnerId {
            let [dma32, normal] = &mut zones[..] else { unreachable!("two zones") };
            let (owner, same) = (dma32.register(class), normal.register(class));
            assert_eq!(owner, same, "an owner has one number in both zones");
            owner
        };
        let owners =
            Owners { anon: register(Class::Anonymous), file: register(Class::Data), inode: register(Class::Inode) };
        let mut min = [0; 2];
        for (zone, core) in zones.iter_mut().enumerate() {
            min[zone] = settings.min_free(zone) * PAGE;
            let (free, low, high) = (settings.zone_pages(zone) * PAGE, min[zone] * 5 / 4, min[zone] * 3 / 2);
            core.set_room(Room { free, low, high, total: free });
        }
        let world = World::new(&settings, policy, owners, file_pages);
        let mut machine = Machine {
            zones,
            reclaimer: Reclaimer::new(policy),
            world,
            min,
            events: BinaryHeap::new(),
            sequence: 0,
            due: [NEVER; ACTORS],
            stalled: [false; ACTORS],
            kswapd_awake: false,
            client: Client::new(rng),
            writer: Writer::new(file_pages),
            flusher: Flusher::default(),
            journal: Journal::default(),
            rows: Rows::default(),
            samples: Samples::default(),
            before: [Counts::default(); 2],
            settings,
        };
        machine.populate();
        machine
    }

    /// Fills memory: files were read, from the boot on; then memcached took the Normal zone first, then DMA32. Some of
    /// it is idle from then on.
    fn populate(&mut self) {
        for page in 0..self.settings.cached {
            let key = Key { object: CACHED, page };
            self.insert(NORMAL, self.world.owners.file, key, PAGE as u32, State::CLEAN);
        }
        for inode in 0..self.settings.inodes {
            let owner = self.world.owners.inode;
            self.insert(NORMAL, owner, Key { object: inode, page: 0 }, INODE_BYTES, State::CLEAN);
        }
        for page in 0..self.world.anon.len() {
            let zone = if self.free(NORMAL) > self.zones[NORMAL].room().low { NORMAL } else { DMA32 };
            let place = self.insert_page(zone, self.world.owners.anon, page as u32, State::DIRTY);
            self.world.anon[page].place = Some(place);
            if page < self.settings.touched {
                self.zones[zone].touches().touch(place.id);
            }
            self.rows.minor_faults += 1;
        }
    }

    pub fn free(&self, zone: usize) -> u64 {
        self.zones[zone].room().free
    }

    fn insert(&mut self, zone: usize, owner: OwnerId, key: Key, bytes: u32, state: State) -> Place {
        let core = &mut self.zones[zone];
        let id = core.insert(owner, key, bytes, state);
        let room = core.room();
        core.set_room(Room { free: room.free.saturating_sub(u64::from(bytes)), ..room });
        Place { zone: zone as u8, id }
    }

    pub fn insert_page(&mut self, zone: usize, owner: OwnerId, page: u32, state: State) -> Place {
        self.insert(zone, owner, Key { object: 0, page: u64::from(page) }, PAGE as u32, state)
    }

    /// A zone with a free page: Normal first, down to the low watermark; then, with kswapd awake, to the minimum. None:
    /// the caller has to reclaim itself. `for_write`: the page will be dirty.
    pub fn allocate(&mut self, for_write: bool) -> Option<usize> {
        let order = [NORMAL, DMA32].into_iter();
        let fits = |zone: &usize| {
            self.free(*zone) > self.zones[*zone].room().low && (!for_write || self.has_room_for_dirty(*zone))
        };
        if let Some(zone) = order.clone().find(fits) {
            return Some(zone);
        }
        self.wake_kswapd();
        order.clone().find(|zone| self.free(*zone) > self.min[*zone])
    }

    /// Whether a zone has less than its share of the dirty pages (Linux since 3.3: `zone_dirty_ok`).
    fn has_room_for_dirty(&self, zone: usize) -> bool {
        self.zones[zone].unclean_data() <= self.settings.zone_pages(zone) * PAGE / DIRTY_SHARE
    }

    pub fn at(&mut self, time: u64, actor: Actor) {
        self.sequence += 1;
        self.due[actor as usize] = time;
        self.events.push(Reverse((time, self.sequence, actor)));
    }

    /// The actor acts again at `time`, or as soon as a write has been completed.
    pub fn stall(&mut self, time: u64, actor: Actor) {
        self.stalled[actor as usize] = true;
        self.at(time, actor);
    }

    fn wake_kswapd(&mut self) {
        if !self.kswapd_awake {
            self.kswapd_awake = true;
            self.reclaimer.wake();
            self.at(self.world.now + WAKE_NS, Actor::Kswapd);
        }
    }

    fn counts(&self) -> [Counts; 2] {
        [DMA32, NORMAL].map(|zone| *self.zones[zone].counts())
    }

    /// The processor's time, and the sleeps inside writes, since the counts were `before`.
    fn cost(&mut self, before: [Counts; 2]) -> u64 {
        let looked = |c: &[Counts; 2]| c.iter().map(|c| c.scanned + c.scanned_direct).sum::<u64>();
        let looks = looked(&self.counts()) - looked(&before);
        for page in std::mem::take(&mut self.world.cleaned) {
            self.set_file(page, State::CLEAN);
        }
        self.start_devices();
        STEP_NS + SCAN_NS * looks + std::mem::take(&mut self.world.blocked_ns)
    }

    fn kswapd(&mut self) {
        let before = self.counts();
        let next = self.reclaimer.step(&mut self.zones, &mut self.world);
        let now = self.world.now + self.cost(before);
        match next {
            Next::More => self.at(now, Actor::Kswapd),
            Next::Enough => self.kswapd_awake = false,
            Next::Wait { at_most_ns, .. } => self.stall(now + at_most_ns, Actor::Kswapd),
            Next::Drive { bytes } => {
                self.drive(bytes);
                self.stall(now + DIRECT_WAIT_NS, Actor::Kswapd);
            }
        }
    }

    fn drive(&mut self, bytes: u64) {
        self.flusher.wanted = self.flusher.wanted.max(bytes.div_ceil(PAGE));
        self.at(self.world.now, Actor::Flusher);
    }

    /// `actor` needs a page at once; it acts again after the attempt.
    pub fn reclaim_directly(&mut self, actor: Actor) {
        let before = self.counts();
        let next = self.reclaimer.direct(&mut self.zones, &mut self.world);
        for (before, after) in before.iter().zip(self.counts()) {
            self.rows.direct_slabs_scanned += after.slabs_scanned - before.slabs_scanned;
            self.rows.direct_inode_steals += after.inodes_freed - before.inodes_freed;
        }
        self.flusher.woken = true;
        let now = self.world.now + self.cost(before);
        match next {
            Next::More | Next::Enough => self.at(now, actor),
            Next::Wait { at_most_ns, .. } => {
                let at_most = if self.world.disk.is_busy() { at_most_ns.min(DIRECT_WAIT_NS) } else { at_most_ns };
                self.stall(now + at_most, actor);
            }
            Next::Drive { bytes } => {
                self.drive(bytes);
                self.stall(now + DIRECT_WAIT_NS, actor);
            }
        }
    }

    /// Sets the state of a page of the file.
    pub fn set_file(&mut self, page: u32, state: State) {
        let file = &mut self.world.file[page as usize];
        self.world.pages.add(file.state, -1);
        self.world.pages.add(state, 1);
        file.state = state;
        if let Some(Place { zone, id }) = file.place {
            self.zones[usize::from(zone)].set_state(id, state);
        }
    }

    /// Sets the state of a page of the program, if it is in memory.
    pub fn set_anon(&mut self, page: u32, state: State) {
        if let Some(Place { zone, id }) = self.world.anon[page as usize].place {
            self.zones[usize::from(zone)].set_state(id, state);
        }
    }

    pub fn anon_state(&self, place: Place) -> State {
        self.zones[usize::from(place.zone)].state(place.id)
    }

    /// Starts the devices on their pending requests.
    pub fn start_devices(&mut self) {
        if let Some(done) = self.world.disk.start(self.world.now) {
            self.at(done, Actor::Disk);
        }
        if let Some(done) = self.world.server.start(self.world.now) {
            self.at(done, Actor::Network);
        }
    }

    fn disk_done(&mut self) {
        let Some(request) = self.world.disk.complete(self.world.now) else { return };
        for page in request.carries {
            self.written(page);
        }
        if !request.write {
            self.client.read_done = true;
            self.at(self.world.now, Actor::Client);
        }
        self.start_devices();
        if request.write {
            self.after_write(self.world.disk.uncongested());
        }
    }

    fn network_done(&mut self) {
        for page in self.world.server.complete() {
            self.written(page);
        }
        self.start_devices();
        self.after_write(!self.world.server.congested());
    }

    fn written(&mut self, page: Page) {
        match page {
            Page::Anon(page) => {
                let Some(place) = self.world.anon[page as usize].place else { return };
                // If it was written meanwhile, the copy is stale.
                let state = self.anon_state(place).without(State::WRITEBACK);
                self.set_anon(page, state);
            }
            Page::File(page) => {
                let file = &mut self.world.file[page as usize];
                let locked = std::mem::replace(&mut file.buffers, Buffers::Clean) == Buffers::Locked;
                if self.world.backing == Backing::Nfs {
                    return self.set_file(page, State::UNSTABLE);
                }
                self.world.pages.unwritten -= 1;
                if !locked || self.world.tells_buffers() {
                    self.set_file(page, State::CLEAN);
                }
            }
        }
    }

    fn after_write(&mut self, uncongested: bool) {
        if uncongested {
            for actor in [Actor::Kswapd, Actor::Client, Actor::Writer] {
                if std::mem::take(&mut self.stalled[actor as usize]) {
                    self.at(self.world.now, actor);
                }
            }
        }
        self.flusher_has_room();
        self.end_of_file();
    }

    fn committed(&mut self) {
        for page in self.world.server.committed() {
            self.world.pages.unwritten -= 1;
            if self.world.file[page as usize].state == State::UNSTABLE {
                self.set_file(page, State::CLEAN);
            }
        }
        self.after_write(true);
    }

    /// fdatasync(2) of the file is done, if all of it is durable.
    fn end_of_file(&mut self) {
        if self.writer.done && self.world.pages.unwritten == 0 && self.rows.io_ns == 0 {
            self.rows.io_ns = self.world.now - self.settings.scaled(WARM_NS);
        }
    }

    fn sample(&mut self) {
        self.world.disk.observe(self.world.now);
        self.samples.take(self.world.disk.traffic, self.settings.scaled(SAMPLE_NS));
        self.at(self.world.now + self.settings.scaled(SAMPLE_NS), Actor::Sample);
    }

    fn begin(&mut self) {
        self.world.disk.observe(self.world.now);
        self.samples = Samples::from(self.world.disk.traffic);
        self.before = self.counts();
        self.rows = Rows { minor_faults: self.rows.minor_faults, ..Rows::default() };
        self.world.swapped_out = 0;
        self.at(self.world.now + self.settings.scaled(SAMPLE_NS), Actor::Sample);
    }

    /// The test's rows; from now on the machine only waits for the writer.
    fn end(&mut self) -> Rows {
        let mut rows = self.rows;
        rows.count(self.before, self.counts(), self.world.swapped_out);
        rows.traffic(self.samples.start(), self.world.disk.traffic);
        rows.waits = self.samples.summary();
        rows.elapsed_ns = self.settings.test_ns;
        rows
    }

    /// Runs the test, and calls `stop` now and then.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Option<Rows> {
        let warm = self.settings.scaled(WARM_NS);
        let end = warm + self.settings.test_ns;
        self.at(0, Actor::Client);
        self.at(0, Actor::Flusher);
        self.at(warm, Actor::Begin);
        self.at(end, Actor::End);
        if !self.world.file.is_empty() {
            self.at(warm, Actor::Writer);
            if self.world.backing == Backing::Ext3 {
                self.at(warm, Actor::Journal);
            }
        }
        let mut rows = None;
        while let Some(Reverse((time, sequence, actor))) = self.events.pop() {
            if self.due[actor as usize] != time {
                continue;
            }
            if sequence % 65536 == 0 && stop() {
                return None;
            }
            (self.due[actor as usize], self.stalled[actor as usize]) = (NEVER, false);
            self.world.now = time;
            match actor {
                Actor::Client => self.client(),
                Actor::Writer => self.writer(),
                Actor::Kswapd => self.kswapd(),
                Actor::Flusher => self.flusher(),
                Actor::Disk => self.disk_done(),
                Actor::Network => self.network_done(),
                Actor::Commit => self.committed(),
                Actor::Journal => self.journal(),
                Actor::Sample => self.sample(),
                Actor::Begin => self.begin(),
                Actor::End => rows = Some(self.end()),
            }
            if rows.is_some() && (self.world.file.is_empty() || self.rows.io_ns > 0 || time > end * PATIENCE) {
                break;
            }
        }
        // A writer that was given up has taken at least as long as the machine waited for it.
        let io_ns = match self.rows.io_ns {
            _ if self.world.file.is_empty() => 0,
            0 => self.world.now - warm,
            ns => ns,
        };
        rows.map(|rows| Rows { io_ns, ..rows })
    }
}
