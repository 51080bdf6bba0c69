//! The reads of a client: every byte is one that was written.
//!
//! # Locking
//! None.

use super::*;

impl Client {
    /// Makes memory scarce for a moment, so that the policy decides which frames to evict; or evicts everything that
    /// can be evicted.
    pub(super) fn reclaim(&self, rng: &mut Rng) {
        let budget = self.fs.budget();
        if rng.one_in(4) {
            let _ = budget.shrink_all();
        } else {
            budget.set_limit(budget.used() / 4 * (1 + rng.below(3)));
            budget.set_limit(CACHE_BYTES);
        }
    }

    /// Reads a piece of the file with a Merkle tree, at times after an eviction, and tries to change it.
    pub(super) fn read_protected(&mut self, rng: &mut Rng) {
        let file = self.fs.lookup(&self.root, PROTECTED.as_bytes()).expect("a file of the image");
        let content = protected_content();
        if rng.one_in(3) {
            self.reclaim(rng);
        }
        let from = rng.below(content.len() as u64) as usize;
        let end = content.len().min(from + 1 + rng.below(40_000) as usize);
        let mut found = vec![0; end - from];
        let n =
            self.fs.read(&file, from as u64, &mut found).unwrap_or_else(|e| panic!("client {}: verity: {e}", self.nr));
        let differs = found[..n].iter().zip(&content[from..end]).position(|(a, b)| a != b);
        assert_eq!((differs, n), (None, end - from), "client {}: {PROTECTED} from {from}", self.nr);
        let written = self.fs.write(&file, from as u64, b"x", WriteFlags::default());
        assert_eq!(written.err().map(|e| e.errno()), Some(1), "client {}: {PROTECTED} never changes", self.nr);
    }

    /// Reads a file from the start, up to `most` bytes or completely.
    pub(super) fn read(&mut self, rng: &mut Rng, most: Option<usize>) {
        if let Some(at) = self.some_file(rng) {
            self.check_start(at, most.unwrap_or(usize::MAX));
        }
    }

    /// Checks that the file has the bytes that were written to it.
    pub(super) fn check_read(&mut self, at: usize) {
        self.check_start(at, usize::MAX);
    }

    /// Checks that the first `most` bytes of the file are those that were written to it.
    pub(super) fn check_start(&mut self, at: usize, most: usize) {
        let f = &self.files[at];
        let content = &f.content[..f.content.len().min(most)];
        let beyond = if most < f.content.len() { 0 } else { 10 };
        let mut found = vec![0xEE; content.len() + beyond];
        let n = match self.fs.read(&f.inode, 0, &mut found) {
            Ok(n) => n,
            Err(e) => {
                assert!(self.shared.struck(), "client {}: read {}: {e}", self.nr, f.path);
                return;
            }
        };
        found.truncate(n);
        // Written data is never poison.
        if found == content {
            return;
        }
        if let Some(at) = (0..n).find(|i| pattern::is_poison(&found[*i..(*i + 8).min(n)], *i as u64) && n - i >= 8) {
            let place = self.record.was_preallocated(f.id, at as u64);
            let place = if place { "a preallocated block" } else { "a block that was not preallocated" };
            let who = format!("client {}: read {} (node {})", self.nr, f.path, f.id);
            panic!("{who}: never written, in {place}, at {at}\n{}", self.story(f.id));
        }
        if f.doubtful {
            return;
        }
        if self.shared.struck() {
            // Lost data may be missing, but nothing else may be in its place.
            return;
        }
        let differs = found.iter().zip(content).position(|(a, b)| a != b);
        let what = match differs {
            Some(i) => {
                let zeros = found[i..].iter().take_while(|b| **b == 0).count();
                let run = found[i..].iter().zip(&content[i..]).take_while(|(a, b)| a != b).count();
                format!("at {i} it reads {} for {}, {zeros} zeros, {run} bytes differ", found[i], content[i])
            }
            None => format!("{} bytes long, should be {}", found.len(), content.len()),
        };
        panic!("client {}: read {} (node {}): {what}\n{}", self.nr, f.path, f.id, self.story(f.id));
    }

    pub(super) fn story(&self, id: NodeId) -> String {
        let h = &self.record.history;
        let node = &h.nodes[id as usize];
        let mut out = String::new();
        for c in &node.changes {
            out.push_str(&format!("    op {} {:?} ({})\n", c.op, c.what, h.ops[c.op].text));
        }
        out
    }

    pub(super) fn read_everything(&mut self) {
        (0..self.files.len()).for_each(|at| self.check_read(at));
        (0..stripes::ROWS).for_each(|row| self.check_stripe(row));
    }
}
