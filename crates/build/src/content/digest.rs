//! A number for what a tree is.
//!
//! Main function: [`digest`].
//!
//! # Locking
//! None.

use sha2::{Digest, Sha256};

use crate::tree::{Body, Id, Tree};

/// SHA-256 of names, attributes, sizes and links: equal trees have the same, whatever they were read from. The bytes of
/// files are not read, so a change that keeps size and time keeps the digest.
pub fn digest(tree: &Tree) -> [u8; 32] {
    let mut hash = Sha256::new();
    // Each part has a length in front, so that no two lists of parts look alike.
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for id in (0..tree.len() as u32).map(Id) {
        let node = tree.node(id);
        part(&node.mode.to_le_bytes());
        for number in [node.uid, node.gid, node.links, node.mtime.nanos] {
            part(&number.to_le_bytes());
        }
        part(&node.mtime.seconds.to_le_bytes());
        for (name, value) in node.xattrs.map_or(&[][..], |set| tree.xattrs(set)) {
            part(name);
            part(value);
        }
        match &node.body {
            Body::Directory { .. } => {
                for (name, target) in tree.entries(id) {
                    part(name);
                    part(&target.0.to_le_bytes());
                }
            }
            Body::File { size, .. } => part(&size.to_le_bytes()),
            Body::Symlink(target) => part(target),
            Body::Device { major, minor } => {
                part(&major.to_le_bytes());
                part(&minor.to_le_bytes());
            }
            Body::Special => {}
        }
    }
    hash.finalize().into()
}
