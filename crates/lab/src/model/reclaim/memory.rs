//! The contents of the machine's frames, and the fate of a frame that reclaim has chosen.
//!
//! Main types: [`World`] (the [`Host`] of reclaim), [`Anon`] and [`FilePage`] (pages of the program and of the file),
//! [`Backing`] (the storage under the file).
//!
//! # Locking
//! None.

use extant_cache::reclaim::{Answer, FrameId, Host, OwnerId, ReclaimPolicy, State, Victim, Wrote};

use super::disk::{Disk, Page, Request};
use super::server::Server;
use super::settings::Settings;
use super::swap::{NONE, Swap};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The object of pages of files that no program uses any more.
pub const CACHED: u64 = 1;

/// The processor's time for a write that the file system rejects by dirtying the page again.
const REDIRTY_NS: u64 = 1_000;

/// The storage under the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Blocks are allocated late: a page that reclaim wants written is dirtied again (Linux: `ext4_writepage`).
    Ext4,
    /// A commit every five seconds writes all dirty data, and neither marks pages as under writeback nor as clean.
    Ext3,
    /// Another machine: written data is durable only after a commit.
    Nfs,
}

/// A frame's zone and number.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub zone: u8,
    pub id: FrameId,
}

/// A page of a program's memory.
#[derive(Clone, Copy, Debug)]
pub struct Anon {
    pub place: Option<Place>,
    /// The place of its copy in swap space, or [`NONE`].
    pub slot: u32,
    /// It is in the program's page table.
    pub mapped: bool,
}

/// The state of a page's blocks, which may differ from the page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    Dirty,
    /// Being written by the journal's commit.
    Locked,
    Clean,
}

/// A page of the file.
#[derive(Clone, Copy, Debug)]
pub struct FilePage {
    pub place: Option<Place>,
    /// The state as reclaim sees it.
    pub state: State,
    /// Differs from `state` only with [`Backing::Ext3`].
    pub buffers: Buffers,
}

/// Pages of the file by their states.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilePages {
    pub dirty: u64,
    pub writeback: u64,
    pub unstable: u64,
    /// Not durable yet, those that the writer has still to write included.
    pub unwritten: u64,
}

impl FilePages {
    pub fn add(&mut self, state: State, n: i64) {
        let count = match state {
            s if s.has(State::DIRTY) => &mut self.dirty,
            s if s.has(State::WRITEBACK) => &mut self.writeback,
            s if s.has(State::UNSTABLE) => &mut self.unstable,
            _ => return,
        };
        *count = count.wrapping_add_signed(n);
    }
}

/// The owner of a frame: the owners are registered in this order in each zone.
#[derive(Clone, Copy, Debug)]
pub struct Owners {
    pub anon: OwnerId,
    pub file: OwnerId,
    pub inode: OwnerId,
}

/// Everything but the zones.
pub struct World {
    pub now: u64,
    pub backing: Backing,
    pub policy: ReclaimPolicy,
    pub owners: Owners,
    pub anon: Vec<Anon>,
    pub file: Vec<FilePage>,
    pub pages: FilePages,
    pub swap: Option<Swap>,
    pub disk: Disk,
    pub server: Server,
    /// The rate of the storage under the file.
    pub file_bytes_per_s: f64,
    /// Sleeps of reclaim inside writes, since this was last taken.
    pub blocked_ns: u64,
    /// Pages that reclaim's write found written already.
    pub cleaned: Vec<u32>,
    pub swapped_out: u64,
}

impl World {
    pub fn new(settings: &Settings, policy: ReclaimPolicy, owners: Owners, file_pages: usize) -> World {
        let file = FilePage { place: None, state: State::CLEAN, buffers: Buffers::Dirty };
        World {
            now: 0,
            backing: settings.backing,
            policy,
            owners,
            anon: vec![Anon { place: None, slot: NONE, mapped: true }; settings.touched + settings.idle],
            file: vec![file; file_pages],
            pages: FilePages { unwritten: file_pages as u64, ..FilePages::default() },
            swap: settings.swap.then(|| Swap::new(settings.pages)),
            disk: Disk::new(settings),
            server: Server::new(settings),
            file_bytes_per_s: match settings.backing {
                Backing::Nfs => settings.network_bytes_per_s,
                _ => settings.disk_bytes_per_s,
            },
            blocked_ns: 0,
            cleaned: Vec::new(),
            swapped_out: 0,
        }
    }

    /// Whether reclaim sees the state of a page's blocks (Linux since 3.11: `is_dirty_writeback`).
    pub fn tells_buffers(&self) -> bool {
        !matches!(self.policy, ReclaimPolicy::Vanilla | ReclaimPolicy::Proportional)
    }

    /// The file's queue takes no more pages.
    pub fn file_queue_full(&self) -> bool {
        if self.backing == Backing::Nfs { self.server.congested() } else { self.disk.full() }
    }

    /// Sends pages of the file, one after the other from `first`, to the storage under it.
    pub fn write_file(&mut self, first: u32, carries: Vec<Page>) {
        let pages = carries.len() as u64;
        let request = Request { write: true, at: u64::from(first), pages, carries, submitted_ns: self.now };
        if self.backing == Backing::Nfs {
            self.server.submit(request);
        } else {
            self.disk.submit(request);
        }
    }

    fn write_anon(&mut self, page: u32) -> Wrote {
        let anon = &mut self.anon[page as usize];
        if anon.slot == NONE {
            let Some(slot) = self.swap.as_mut().and_then(|swap| swap.take(page)) else { return Wrote::NotNow };
            anon.slot = slot;
        }
        anon.mapped = false;
        let at = Swap::place(anon.slot);
        self.swapped_out += 1;
        self.blocked_ns += self.disk.write_page(at, Page::Anon(page), self.now);
        Wrote::Started
    }

    fn write_file_page(&mut self, page: u32) -> Wrote {
        match (self.backing, self.file[page as usize].buffers) {
            (Backing::Ext3, Buffers::Clean) => {
                self.cleaned.push(page);
                return Wrote::NotNow;
            }
            (Backing::Ext4, _) | (_, Buffers::Locked) => {
                self.blocked_ns += REDIRTY_NS;
                return Wrote::NotNow;
            }
            _ => {}
        }
        let file = &mut self.file[page as usize];
        self.pages.add(file.state, -1);
        file.state = State::WRITEBACK;
        self.pages.add(file.state, 1);
        if self.backing == Backing::Nfs {
            self.write_file(page, vec![Page::File(page)]);
        } else {
            self.blocked_ns += self.disk.write_page(u64::from(page), Page::File(page), self.now);
        }
        Wrote::Started
    }
}

impl Host for World {
    fn congested(&self, owner: OwnerId) -> bool {
        match self.backing {
            // Swap space has a queue in name only (Linux: `swap_backing_dev_info`).
            _ if owner == self.owners.anon => false,
            Backing::Nfs => self.server.congested(),
            _ => self.disk.congested(),
        }
    }

    fn free(&mut self, victim: Victim) -> Answer {
        let page = victim.key.page as usize;
        if victim.owner == self.owners.anon {
            self.anon[page].place = None;
            self.anon[page].mapped = false;
        } else if victim.owner == self.owners.file && victim.key.object != CACHED {
            self.file[page].place = None;
        }
        Answer::Freed
    }

    fn write(&mut self, victim: Victim) -> Wrote {
        let page = victim.key.page as u32;
        if victim.owner == self.owners.anon { self.write_anon(page) } else { self.write_file_page(page) }
    }
}
