//! A number that identifies a tree.
//!
//! Main function: [`digest`].
//!
//! # Locking
//! None.

use sha2::{Digest, Sha256};

use crate::Result;
use crate::tree::{Body, Content, Id, Tree};

/// Bytes that are read at once.
const STEP: usize = 1 << 20;

/// SHA-256 of names, attributes, sizes, links and, with a content, the bytes of files: equal trees from different
/// sources have the same.
///
/// # Errors
/// A file cannot be read, or changed meanwhile.
pub fn digest(tree: &Tree, content: Option<&dyn Content>) -> Result<[u8; 32]> {
    let mut buf = Vec::new();
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
            Body::File { size, content: number, sparse } => {
                part(&size.to_le_bytes());
                let Some(content) = content.filter(|_| *size > 0) else { continue };
                let file = content.open(*number)?;
                let ranges = sparse.map_or_else(
                    || vec![(0, *size)],
                    |sparse| tree.data(sparse).iter().map(|r| (r.start, r.end)).collect(),
                );
                for (start, end) in ranges {
                    part(&start.to_le_bytes());
                    for at in (start..end).step_by(STEP) {
                        buf.resize((end - at).min(STEP as u64) as usize, 0);
                        file.read_at(at, &mut buf)?;
                        part(&buf);
                    }
                }
                file.finish()?;
            }
            Body::Symlink(target) => part(target),
            Body::Device { major, minor } => {
                part(&major.to_le_bytes());
                part(&minor.to_le_bytes());
            }
            Body::Special => {}
        }
    }
    Ok(hash.finalize().into())
}
