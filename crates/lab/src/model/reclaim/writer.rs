//! `dd if=/dev/zero bs=1M conv=fdatasync`: writes its file from end to end, and is slowed down when too much is dirty.
//!
//! Main type: [`Writer`]. Linux 3.9: `balance_dirty_pages`. The dirty limit is a share of all reclaimable memory, that
//! of programs included (until 3.14): a fifth of it may be more than all pages of files.
//! # Locking
//! None.

use extant_cache::reclaim::State;

use super::machine::{Actor, Machine};
use super::memory::PAGE;

/// At most this part of memory, and of each zone, is dirty (Linux: `vm_dirty_ratio`).
pub const DIRTY_SHARE: u64 = 5;
/// Pages between two checks of the dirty pages.
const BATCH: u64 = 64;
/// The time to copy a page.
const COPY_NS: u64 = 1_200;
/// A writer that is slowed down gets this share of the device's rate at least.
const RATE_LEAST: f64 = 1.0 / 32.0;
/// At the limit the writer looks again after this.
const PAUSE_NS: u64 = 20_000_000;

pub struct Writer {
    next: u32,
    pages: u32,
    /// All is written; fdatasync(2) has begun.
    pub done: bool,
}

impl Writer {
    pub fn new(pages: usize) -> Writer {
        Writer { next: 0, pages: pages as u32, done: pages == 0 }
    }

    pub fn has_begun(&self) -> bool {
        self.next > 0
    }
}

impl Machine {
    /// The number of dirty pages from which the flusher works, and their limit (Linux: `global_dirty_limits`; 10 and 20
    /// of a hundred).
    pub fn dirty_limits(&self) -> (u64, u64) {
        let pages = self.settings.pages as u64;
        (pages / 10, pages / DIRTY_SHARE)
    }

    /// Pages of the file that are not durable.
    pub fn dirty(&self) -> u64 {
        let pages = &self.world.pages;
        pages.dirty + pages.writeback + pages.unstable
    }

    pub fn writer(&mut self) {
        if self.writer.done {
            return;
        }
        let (background, limit) = self.dirty_limits();
        let half = (background + limit) / 2;
        let mut pause = 0;
        if self.dirty() > half {
            if self.dirty() >= limit {
                return self.at(self.world.now + PAUSE_NS, Actor::Writer);
            }
            // The device's rate at the setpoint, twice that at the end of the free run, and none at the limit (Linux:
            // `bdi_position_ratio`).
            let setpoint = (half + limit) as f64 / 2.0;
            let off = (setpoint - self.dirty() as f64) / (limit as f64 - setpoint);
            let rate = self.world.file_bytes_per_s * (1.0 + off.powi(3)).max(RATE_LEAST);
            pause = ((BATCH * PAGE) as f64 * 1e9 / rate) as u64;
        }
        let mut cost = 0;
        for _ in 0..BATCH {
            if self.writer.next == self.writer.pages {
                break;
            }
            let Some(zone) = self.allocate(true) else { return self.reclaim_directly(Actor::Writer) };
            let page = self.writer.next;
            let place = self.insert_page(zone, self.world.owners.file, page, State::DIRTY);
            self.world.file[page as usize].place = Some(place);
            self.world.file[page as usize].state = State::DIRTY;
            self.world.pages.add(State::DIRTY, 1);
            self.writer.next += 1;
            cost += COPY_NS;
        }
        if self.writer.next == self.writer.pages {
            self.writer.done = true;
            self.at(self.world.now + cost, Actor::Flusher);
        } else {
            self.at(self.world.now + cost + pause, Actor::Writer);
        }
    }
}
