//! Names for files and directories that have none, and the root.
//!
//! # Locking
//! None.

use extant_check::{InodeState, Kind};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::{FileType, InodeFlags};

use super::directories::TakenNames;
use super::{directories, inodes, search};
use crate::error::{Refusal, StepResult};
use crate::view::Image;

/// The directory for files whose names are lost.
const LOST_FOUND: &[u8] = b"lost+found";

/// Adds a name in `/lost+found` for an inode. A directory in a cycle loses its name there.
pub fn attach(image: &mut Image, ino: InodeNr) -> StepResult {
    let inode = image.inode(ino)?;
    let home = lost_found(image)?;
    let place = image.facts.directory(ino).filter(|_| inode.is_dir());
    if let Some(parent) = place.map(|place| place.parent).filter(|parent| parent.0 != 0) {
        let dir = image.inode(parent)?;
        for entry in image.entries(&dir).into_iter().filter(|entry| entry.ino == ino.0 && !entry.is_dot()) {
            directories::drop_entry(image, parent, entry.lblk, entry.offset, ino)?;
        }
    }
    let dir = image.inode(home)?;
    let mut taken = TakenNames::of(&dir);
    image.entries(&dir).iter().for_each(|entry| taken.insert(&entry.name));
    let name = directories::free_name(format!("#{}", ino.0).into_bytes(), &taken);
    directories::insert(image, home, &name, ino, 0)?;
    if inode.is_dir() { directories::set_parent(image, ino, home) } else { Ok(()) }
}

/// Returns `/lost+found`, which is created if it does not exist.
fn lost_found(image: &mut Image) -> StepResult<InodeNr> {
    let root = image.inode(InodeNr::ROOT)?;
    let entries = image.entries(&root);
    let is_usable = |ino: InodeNr| {
        let plain = |inode: crate::view::inode::Inode| {
            inode.is_dir() && inode.links() > 0 && !inode.has(InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA)
        };
        image.inode(ino).is_ok_and(plain)
    };
    let found = entries.iter().find(|entry| entry.name.starts_with(LOST_FOUND) && is_usable(InodeNr(entry.ino)));
    if let Some(entry) = found {
        return Ok(InodeNr(entry.ino));
    }
    let ino = image.take_inode()?;
    inodes::fresh(image, ino, FileType::Directory, 0o700, 2)?;
    directories::make(image, ino, InodeNr::ROOT, &[])?;
    let mut taken = TakenNames::of(&root);
    entries.iter().for_each(|entry| taken.insert(&entry.name));
    let name = directories::free_name(LOST_FOUND.to_vec(), &taken);
    directories::insert(image, InodeNr::ROOT, &name, ino, 0)?;
    Ok(ino)
}

/// Restores the root: marks its inode as in use again, or recreates it from the blocks that can be found.
pub fn root(image: &mut Image) -> StepResult {
    let ino = InodeNr::ROOT;
    let inode = image.inode(ino)?;
    image.touch(ino);
    if inode.is_dir() && !image.map(&inode).runs.is_empty() {
        return inodes::revive(image, ino);
    }
    let generation = inode.generation();
    let blocks = search::directory_blocks(image, ino, generation);
    inodes::fresh(image, ino, FileType::Directory, 0o755, 2)?;
    image.change_inode(ino, |raw| raw.i_generation.set(generation))?;
    if blocks.is_empty() {
        return directories::make(image, ino, ino, &[]);
    }
    // `rebuild` finds the blocks.
    directories::rebuild(image, ino, &[])
}

/// Removes all names of a directory except one: the one that its `..` confirms, or otherwise the first.
pub fn one_name(image: &mut Image, ino: InodeNr) -> StepResult {
    let place = image.facts.directory(ino).ok_or(Refusal::Lost("it is no directory"))?;
    let names = image.names_of(|named| named == ino.0);
    let is_dir = |dir: InodeNr| {
        let state = image.facts.inode(dir);
        state.has(InodeState::USED) && state.kind() == Kind::Directory
    };
    let confirmed = names.iter().position(|(dir, _)| *dir == place.dotdot && is_dir(*dir));
    let first = names.iter().position(|(dir, _)| *dir == place.parent);
    let keep = confirmed.or(first).unwrap_or(0);
    for (at, (dir, entry)) in names.iter().enumerate() {
        if at != keep {
            directories::drop_entry(image, *dir, entry.lblk, entry.offset, ino)?;
        }
    }
    Ok(())
}
