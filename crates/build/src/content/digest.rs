//! Computes a number that identifies a tree.
//!
//! Main function: [`digest`].
//!
//! # Locking
//! None.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::numbers::LOST_FOUND;
use crate::Result;
use crate::tree::{Body, Content, Id, ReadAt, Tree};

/// The number of bytes that are read at once.
const STEP: u64 = 1 << 20;

/// SHA-256 of names, attributes, sizes, links and, with a content, the bytes of files. Equal trees from different
/// sources have the same digest. An empty lost+found does not count, because mkfs creates it, and an archive of the
/// image then contains it. Holes do not count, either, because each format rounds them to its own blocks.
///
/// # Errors
/// A file cannot be read, or was changed in the meantime.
pub fn digest(tree: &Tree, content: Option<&dyn Content>) -> Result<[u8; 32]> {
    let mut parts = Parts(Sha256::new());
    let unseen = empty_lost_found(tree);
    // The numbers that the inodes have without it.
    let number = |id: Id| id.0 - u32::from(unseen.is_some_and(|unseen| unseen.0 < id.0));
    for id in (0..tree.len() as u32).map(Id).filter(|id| Some(*id) != unseen) {
        let node = tree.node(id);
        parts.add(&node.mode.to_le_bytes());
        let links = node.links - u32::from(id == Id(0) && unseen.is_some());
        for number in [node.uid, node.gid, links, node.mtime.nanos] {
            parts.add(&number.to_le_bytes());
        }
        parts.add(&node.mtime.seconds.to_le_bytes());
        if !node.flags.is_empty() {
            parts.add(b"flags");
            parts.add(&node.flags.bits().to_le_bytes());
        }
        for (name, value) in node.xattrs.map_or(&[][..], |set| tree.xattrs(set)) {
            parts.add(name);
            parts.add(value);
        }
        match &node.body {
            Body::Directory { .. } => {
                for (name, target) in tree.entries(id).filter(|(_, target)| Some(*target) != unseen) {
                    parts.add(name);
                    parts.add(&number(target).to_le_bytes());
                }
            }
            Body::File { size, content: number, sparse } => {
                parts.add(&size.to_le_bytes());
                let Some(content) = content.filter(|_| *size > 0) else { continue };
                let whole = 0..*size;
                let data = sparse.map_or(std::slice::from_ref(&whole), |sparse| tree.data(sparse));
                parts.add_file(*size, data, &*content.open(*number)?)?;
            }
            Body::Symlink(target) => parts.add(target),
            Body::Device { major, minor } => {
                parts.add(&major.to_le_bytes());
                parts.add(&minor.to_le_bytes());
            }
            Body::Special => {}
        }
    }
    Ok(parts.0.finalize().into())
}

/// Hashed bytes. Each part is preceded by its length, so that different lists of parts have different bytes.
struct Parts(Sha256);

impl Parts {
    fn add(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Adds the steps of a file that are not all zeros, with their places. `data` are the ranges outside of holes.
    fn add_file(&mut self, size: u64, data: &[Range<u64>], file: &dyn ReadAt) -> Result<()> {
        let mut buf = vec![0; size.min(STEP) as usize];
        let mut done = 0;
        for range in data {
            let mut at = (range.start / STEP * STEP).max(done);
            while at < range.end {
                let step = &mut buf[..(size - at).min(STEP) as usize];
                file.read_at(at, step)?;
                if step.iter().any(|byte| *byte != 0) {
                    self.add(&at.to_le_bytes());
                    self.add(step);
                }
                at += STEP;
            }
            done = done.max(at);
        }
        file.finish()
    }
}

/// The lost+found of the root, if it is empty.
fn empty_lost_found(tree: &Tree) -> Option<Id> {
    let (_, id) = tree.entries(Id(0)).find(|(name, _)| *name == LOST_FOUND)?;
    matches!(&tree.node(id).body, Body::Directory { entries, .. } if entries.is_empty()).then_some(id)
}
