//! memcached, and memcachetest, which sends it one request after the other.
//!
//! Main type: [`Client`]. An operation reads or, one in three, writes an item at random. A page that is in swap space
//! is a major fault: a read of the cluster around it, for which the client waits.
//!
//! # Locking
//! None.

use extant_base::rng::Rng;
use extant_cache::reclaim::State;

use super::disk::Request;
use super::machine::{Actor, Machine};
use super::memory::Place;
use super::settings::ITEM_PAGES;
use super::swap::{CLUSTER, NONE, Swap};

/// An operation in which every page is in memory: 23,116 a second, as on the thread's machine.
const OPERATION_NS: u64 = 43_260;
/// One operation in so many writes.
const SETS: u64 = 3;
/// The other actors act at least this often.
const SLICE_NS: u64 = 1_000_000;
/// A fault of a page that is in memory and not in the page table.
const MINOR_NS: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Operation {
    first: u32,
    /// Pages of it that are done.
    done: u32,
    set: bool,
}

pub struct Client {
    rng: Rng,
    /// The operation that waits for a page.
    open: Option<Operation>,
    /// The page that it waits for was read.
    pub read_done: bool,
    reading: bool,
}

impl Client {
    pub fn new(rng: Rng) -> Client {
        Client { rng, open: None, read_done: false, reading: false }
    }

    fn next(&mut self, items: u64) -> Operation {
        let first = self.rng.below(items) as u32 * ITEM_PAGES as u32;
        Operation { first, done: 0, set: self.rng.one_in(SETS) }
    }
}

impl Machine {
    pub fn client(&mut self) {
        if self.client.reading && !std::mem::take(&mut self.client.read_done) {
            return;
        }
        self.client.reading = false;
        let items = (self.settings.touched / ITEM_PAGES) as u64;
        let mut now = self.world.now;
        let end = now + SLICE_NS;
        while now < end {
            let mut operation = match self.client.open.take() {
                Some(operation) => operation,
                None => {
                    now += OPERATION_NS;
                    self.client.next(items)
                }
            };
            while (operation.done as usize) < ITEM_PAGES {
                let page = operation.first + operation.done;
                let Some(place) = self.world.anon[page as usize].place else {
                    self.client.open = Some(operation);
                    // The fault happens at its own time.
                    return if now > self.world.now { self.at(now, Actor::Client) } else { self.fault(page) };
                };
                now += self.touch(page, place, operation.set);
                operation.done += 1;
            }
            self.rows.ops += 1;
        }
        self.at(now, Actor::Client);
    }

    /// The program uses a page that is in memory; returns the time that this takes beside the operation.
    fn touch(&mut self, page: u32, place: Place, set: bool) -> u64 {
        self.zones[usize::from(place.zone)].touches().touch(place.id);
        let anon = &mut self.world.anon[page as usize];
        let mapped = std::mem::replace(&mut anon.mapped, true);
        if !mapped {
            self.rows.minor_faults += 1;
        }
        if set && anon.slot != NONE {
            let slot = anon.slot;
            let state = self.anon_state(place);
            if state.has(State::WRITEBACK) {
                self.set_anon(page, State::WRITEBACK.or(State::DIRTY));
            } else {
                // The copy is stale now (Linux: `reuse_swap_page`).
                self.world.anon[page as usize].slot = NONE;
                if let Some(swap) = &mut self.world.swap {
                    swap.give_back(slot);
                }
                self.set_anon(page, State::DIRTY);
            }
        }
        if mapped { 0 } else { MINOR_NS }
    }

    /// Reads the page from swap space, and its neighbours there, as far as there is room.
    fn fault(&mut self, page: u32) {
        let Some(zone) = self.allocate(false) else { return self.reclaim_directly(Actor::Client) };
        let slot = self.world.anon[page as usize].slot;
        self.swap_in(zone, page);
        self.world.anon[page as usize].mapped = true;
        self.rows.major_faults += 1;
        let Some(swap) = &self.world.swap else { return };
        for neighbour in swap.cluster(slot).collect::<Vec<_>>() {
            if self.world.anon[neighbour as usize].place.is_none()
                && let Some(zone) = self.allocate(false)
            {
                self.swap_in(zone, neighbour);
            }
        }
        self.client.reading = true;
        let at = Swap::place(slot - slot % CLUSTER);
        let pages = u64::from(CLUSTER);
        self.world.disk.submit(Request { write: false, at, pages, carries: Vec::new(), submitted_ns: self.world.now });
        self.start_devices();
    }

    fn swap_in(&mut self, zone: usize, page: u32) {
        let place = self.insert_page(zone, self.world.owners.anon, page, State::CLEAN);
        self.world.anon[page as usize].place = Some(place);
        self.rows.swapped_in += 1;
    }
}
