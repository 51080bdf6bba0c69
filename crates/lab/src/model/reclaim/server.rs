//! An NFS server at the other end of a network: writes are answered before they are durable, and a commit makes them
//! so.
//!
//! Main type: [`Server`]. Linux: fs/nfs/write.c. The thread does not describe its server; its 100 s for 4055 MB give
//! the network's rate.
//!
//! # Locking
//! None.

use std::collections::VecDeque;

use super::disk::{Page, Request};
use super::memory::PAGE;
use super::settings::Settings;

/// The cost of a request beside its bytes.
const ROUND_TRIP_NS: u64 = 200_000;
/// A commit, and the server's time for a byte that it has not written out meanwhile: it writes while it receives.
const COMMIT_NS: u64 = 20_000_000;
const COMMIT_SHARE: f64 = 0.25;
/// Pages under way at which the client stops sending, 16 × √(pages of memory) (Linux: `nfs_congestion_kb`).
const CONGESTION: f64 = 16.0;

#[derive(Debug)]
pub struct Server {
    waiting: VecDeque<Request>,
    current: Option<Request>,
    pages: u64,
    congestion: u64,
    page_ns: f64,
    /// Written, and not committed.
    unstable: Vec<u32>,
    /// In the commit that is under way.
    committing: Vec<u32>,
}

impl Server {
    pub fn new(settings: &Settings) -> Server {
        let pages = settings.pages as u64 * settings.scale;
        let congestion = (CONGESTION * (pages as f64).sqrt()) as u64 / settings.scale;
        let page_ns = PAGE as f64 * 1e9 / settings.network_bytes_per_s;
        let (waiting, current) = (VecDeque::new(), None);
        Server { waiting, current, pages: 0, congestion, page_ns, unstable: Vec::new(), committing: Vec::new() }
    }

    pub fn congested(&self) -> bool {
        self.pages > self.congestion
    }

    pub fn submit(&mut self, request: Request) {
        self.pages += request.pages;
        self.waiting.push_back(request);
    }

    /// Begins the next request if none is under way; returns when it will be done.
    pub fn start(&mut self, now: u64) -> Option<u64> {
        if self.current.is_some() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let done = now + ROUND_TRIP_NS + (request.pages as f64 * self.page_ns) as u64;
        self.current = Some(request);
        Some(done)
    }

    pub fn complete(&mut self) -> Vec<Page> {
        let Some(request) = self.current.take() else { return Vec::new() };
        self.pages -= request.pages;
        for page in &request.carries {
            if let Page::File(page) = page {
                self.unstable.push(*page);
            }
        }
        request.carries
    }

    pub fn is_committing(&self) -> bool {
        !self.committing.is_empty()
    }

    /// Begins a commit of all written pages; returns when it will be done.
    pub fn commit(&mut self, now: u64) -> Option<u64> {
        if self.is_committing() || self.unstable.is_empty() {
            return None;
        }
        self.committing = std::mem::take(&mut self.unstable);
        let bytes = self.committing.len() as f64 * self.page_ns * COMMIT_SHARE;
        Some(now + COMMIT_NS + bytes as u64)
    }

    /// The pages that are durable now.
    pub fn committed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.committing)
    }
}
