//! The flusher, and the commits that make data durable: of an ext3 journal, and of an NFS server.
//!
//! Main types: [`Flusher`], [`Journal`]. Linux 3.9: `wb_writeback`, as far as one file is concerned; ext3's ordered
//! mode (`journal_submit_data_buffers`); `nfs_commit_inode`.
//!
//! # Locking
//! None.

use extant_cache::reclaim::State;

use super::disk::{Page, REQUEST_PAGES};
use super::machine::{Actor, Machine};
use super::memory::{Backing, Buffers};

/// Requests that are sent in one batch.
const PLUG: usize = 8;
/// Between two rounds of a flusher that has work, and that looks for some.
const ROUND_NS: u64 = 100_000;
const POLL_NS: u64 = 100_000_000;
/// Data is written when it is so old (Linux: `dirty_expire_interval`).
const EXPIRE_NS: u64 = 30_000_000_000;
/// Between two commits (Linux: `commit=5`).
const COMMIT_NS: u64 = 5_000_000_000;

#[derive(Default)]
pub struct Flusher {
    /// The page after the last one that it wrote.
    at: usize,
    /// The queue is full.
    blocked: bool,
    /// A thread has reclaimed directly (Linux: `wakeup_flusher_threads`).
    pub woken: bool,
    /// Pages that reclaim wants to have clean.
    pub wanted: u64,
    /// When the first page was dirtied.
    since: Option<u64>,
}

#[derive(Default)]
pub struct Journal {
    at: usize,
    /// A commit is being written.
    busy: bool,
    blocked: bool,
}

impl Machine {
    pub fn flusher(&mut self) {
        self.commit_if_due();
        if self.writer.has_begun() && self.flusher.since.is_none() {
            self.flusher.since = Some(self.world.now);
        }
        let (background, _) = self.dirty_limits();
        let expired = self.flusher.since.is_some_and(|t| self.world.now > t + self.settings.scaled(EXPIRE_NS));
        let woken = std::mem::take(&mut self.flusher.woken);
        let pages = &self.world.pages;
        let due = pages.dirty + pages.unstable > background || self.writer.done || woken || expired;
        if self.world.pages.dirty == 0 || !(due || self.flusher.wanted > 0) {
            self.flusher.wanted = 0;
            return self.at(self.world.now + self.settings.scaled(POLL_NS).max(ROUND_NS), Actor::Flusher);
        }
        for _ in 0..PLUG {
            if self.world.file_queue_full() {
                self.flusher.blocked = true;
                break;
            }
            let run = self.next_run();
            if run.is_empty() {
                break;
            }
            self.flusher.wanted = self.flusher.wanted.saturating_sub(run.len() as u64);
            for page in &run {
                self.set_file(*page, State::WRITEBACK);
            }
            self.send(&run);
        }
        if !self.flusher.blocked {
            self.at(self.world.now + ROUND_NS, Actor::Flusher);
        }
    }

    fn send(&mut self, run: &[u32]) {
        if let Some(first) = run.first() {
            self.world.write_file(*first, run.iter().map(|page| Page::File(*page)).collect());
            self.start_devices();
        }
    }

    /// Dirty pages one after the other, from where the last run ended.
    fn next_run(&mut self) -> Vec<u32> {
        let n = self.world.file.len();
        let mut run: Vec<u32> = Vec::new();
        for step in 0..n {
            let page = (self.flusher.at + step) % n;
            let file = self.world.file[page];
            let writable = file.state.has(State::DIRTY) && file.buffers != Buffers::Locked;
            let ends = run.last().is_some_and(|last| *last as usize + 1 != page) || run.len() as u64 == REQUEST_PAGES;
            if ends || !run.is_empty() && !writable {
                break;
            }
            if writable && file.buffers == Buffers::Clean {
                // A commit has written it already, and only the page is still marked.
                self.set_file(page as u32, State::CLEAN);
            } else if writable {
                run.push(page as u32);
            }
        }
        if let Some(last) = run.last() {
            self.flusher.at = (*last as usize + 1) % n;
        }
        run
    }

    /// The device has taken something: waiters for room continue.
    pub fn flusher_has_room(&mut self) {
        if std::mem::take(&mut self.flusher.blocked) {
            self.at(self.world.now, Actor::Flusher);
        }
        if std::mem::take(&mut self.journal.blocked) {
            self.at(self.world.now, Actor::Journal);
        }
        if self.world.backing == Backing::Nfs {
            self.commit_if_due();
        }
    }

    /// Linux: `nfs_commit_unstable_pages`: when half of the file's pages wait for it, or a thread waits for all.
    fn commit_if_due(&mut self) {
        if self.world.backing != Backing::Nfs {
            return;
        }
        let pages = self.world.pages;
        let sync = self.writer.done && pages.dirty + pages.writeback == 0;
        let due = sync || self.flusher.wanted > 0 || pages.unstable > pages.dirty + pages.writeback;
        if due && let Some(done) = self.world.server.commit(self.world.now) {
            self.at(done, Actor::Commit);
        }
    }

    /// ext3's journal commits: it writes all dirty data, and marks no page.
    pub fn journal(&mut self) {
        if !self.journal.busy {
            (self.journal.busy, self.journal.at) = (true, 0);
        }
        for _ in 0..PLUG {
            if self.world.disk.full() {
                self.journal.blocked = true;
                return;
            }
            let rest = self.world.file.iter().enumerate().skip(self.journal.at);
            let takes = |file: &super::memory::FilePage| file.state == State::DIRTY && file.buffers == Buffers::Dirty;
            let Some(first) = rest.clone().find(|(_, file)| takes(file)).map(|(page, _)| page) else {
                self.journal.busy = false;
                return self.at(self.world.now + self.settings.scaled(COMMIT_NS), Actor::Journal);
            };
            let run =
                self.world.file[first..].iter().take(REQUEST_PAGES as usize).take_while(|file| takes(file)).count();
            let run: Vec<u32> = (first..first + run).map(|page| page as u32).collect();
            self.journal.at = first + run.len();
            for page in &run {
                self.world.file[*page as usize].buffers = Buffers::Locked;
                if self.world.tells_buffers() {
                    self.set_file(*page, State::WRITEBACK);
                }
            }
            self.send(&run);
        }
        self.at(self.world.now + ROUND_NS, Actor::Journal);
    }
}
