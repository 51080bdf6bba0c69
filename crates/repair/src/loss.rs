//! Losses: content that could be read before a repair, and can no longer be read in the same way.
//!
//! Main types: [`Loss`], [`LossKind`]. Main function: [`losses`].
//!
//! The rule: every byte that could be read before can be read afterwards, at its path; there may be more. Only inodes
//! and directories that the repair has changed are compared: those whose bytes differ in a table, those whose blocks
//! were written, and the owners of every other written block that belonged to a file.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use extant_block::device::CowDevice;
use extant_check::InodeState;
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::xattr::inode_area::{area_of, scan_area};
use extant_ondisk::xattr::{XattrContext, scan_block};
use extant_ondisk::{BlockNr, InodeNr};

use crate::view::Image;
use crate::view::dir::Entry;
use crate::view::inode::Inode;

/// A kind of loss.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// The file itself.
    File {
        /// Its size.
        bytes: u64,
    },
    /// The name, to which another file belongs now.
    Name {
        /// The current name.
        now: Vec<u8>,
    },
    /// Bytes of the content.
    Bytes {
        /// The number of bytes.
        bytes: u64,
        /// The offset of the first byte that differs.
        from: u64,
    },
    /// The size. Every byte that could be read still can be. Either the bytes after the end were not part of the file
    /// before, or a hole at its end is gone.
    Size {
        /// The size before.
        was: u64,
        /// The size now.
        now: u64,
    },
    /// The target of a symlink, or the number of a device.
    Target,
    /// Attributes.
    Attributes {
        /// Their names.
        names: Vec<Vec<u8>>,
    },
}

impl LossKind {
    /// Whether something that could be read can no longer be read as before.
    pub fn is_content(&self) -> bool {
        !matches!(self, LossKind::Size { .. })
    }
}

/// A kind of loss, and the inode that it concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// The path from the root; empty if no name referred to the inode.
    pub path: Vec<u8>,
    /// The inode.
    pub ino: InodeNr,
    /// The loss.
    pub lost: LossKind,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &[u8]| String::from_utf8_lossy(name).escape_debug().to_string();
        match self.path.is_empty() {
            true => write!(f, "{}: ", self.ino)?,
            false => write!(f, "{} ({}): ", shown(&self.path), self.ino)?,
        }
        match &self.lost {
            LossKind::File { bytes } => write!(f, "the file and its {bytes} bytes"),
            LossKind::Name { now } if now.is_empty() => f.write_str("the name"),
            LossKind::Name { now } => write!(f, "the name; it is {} now", shown(now)),
            LossKind::Bytes { bytes, from } => write!(f, "{bytes} bytes, from byte {from} on"),
            LossKind::Size { was, now } => write!(f, "the size of {was} bytes; it is {now} now"),
            LossKind::Target => f.write_str("the target"),
            LossKind::Attributes { names } => {
                let names: Vec<String> = names.iter().map(|name| shown(name)).collect();
                write!(f, "the attributes {}", names.join(", "))
            }
        }
    }
}

/// A file system before and after a repair.
struct Comparison<'a> {
    before: &'a Image,
    after: &'a Image,
    /// The parts of the device that the repair has written, sorted.
    written: Vec<u64>,
    paths: BTreeMap<u32, Option<Vec<u8>>>,
}

/// All losses between two states. `touched` are the inodes whose blocks the steps have changed.
pub fn losses(before: &Image, after: &Image, touched: &BTreeSet<u32>) -> Vec<Loss> {
    let mut compared = Comparison { before, after, written: after.device.pieces(), paths: BTreeMap::new() };
    let affected = compared.affected(touched);
    let mut names: Vec<(InodeNr, Vec<u8>, u32)> = Vec::new();
    let mut contents: BTreeMap<u32, Vec<LossKind>> = BTreeMap::new();
    for ino in affected.iter().copied().map(InodeNr) {
        if !is_readable(before, ino) {
            continue;
        }
        let (Ok(old), Ok(new)) = (before.inode(ino), after.inode(ino)) else { continue };
        if old.is_dir() {
            names.extend(compared.names(&old).into_iter().map(|(name, target)| (ino, name, target)));
        }
        let lost = compared.content(&old, &new);
        if !lost.is_empty() && is_in_use(&new) {
            contents.insert(ino.0, lost);
        }
    }
    compared.report(names, contents)
}

fn is_in_use(inode: &Inode) -> bool {
    inode.links() > 0 && inode.kind().is_some()
}

/// Whether a path may lead to the inode.
fn is_readable(image: &Image, ino: InodeNr) -> bool {
    let plain = ino == InodeNr::ROOT || ino.0 >= image.geo.first_ino;
    plain && image.inode(ino).is_ok_and(|inode| is_in_use(&inode))
}

impl Comparison<'_> {
    /// Inodes whose content, names or attributes may differ.
    fn affected(&self, touched: &BTreeSet<u32>) -> BTreeSet<u32> {
        let (before, after) = (self.before, self.after);
        let mut all = touched.clone();
        let piece = CowDevice::PIECE_BYTES;
        let bits = before.geo.block_bits;
        let mut others: BTreeSet<u64> = BTreeSet::new();
        for block in self.written.iter().flat_map(|at| (at * piece) >> bits..((at + 1) * piece).div_ceil(1 << bits)) {
            let nr = BlockNr(block);
            if before.geo.contains(nr) && before.facts.is_metadata(nr) {
                all.extend(self.inodes_in(nr));
            } else if before.geo.contains(nr) && before.facts.is_claimed(before.facts.clusters(nr, 1)) {
                let (old, new) = (before.block(nr), after.block(nr));
                if old.ok() != new.ok() {
                    others.insert(block);
                }
            }
        }
        let moved = before.descs.iter().zip(&after.descs).any(|(old, new)| old.inode_table != new.inode_table);
        if moved || before.geo.inode_size != after.geo.inode_size || before.geo.inodes_count != after.geo.inodes_count {
            all.extend(
                (1..=before.geo.inodes_count).filter(|ino| before.facts.inode(InodeNr(*ino)).has(InodeState::USED)),
            );
        }
        for ino in all.iter().copied().collect::<Vec<_>>() {
            self.forget_own(ino, &mut others);
        }
        if !others.is_empty() {
            all.extend(self.owners(&others));
        }
        all
    }

    /// The inodes in a block of a table that differ in relevant fields.
    fn inodes_in(&self, block: BlockNr) -> Vec<u32> {
        let geo = &self.before.geo;
        let table = u64::from(geo.inode_table_blocks);
        let mut found = Vec::new();
        for (group, desc) in self.before.descs.iter().enumerate() {
            let start = desc.inode_table.0;
            if start == 0 || !(start..start + table).contains(&block.0) {
                continue;
            }
            let first = group as u32 * geo.inodes_per_group + 1 + (block.0 - start) as u32 * geo.inodes_per_block();
            found.extend((first..first + geo.inodes_per_block()).filter(|ino| self.differs(InodeNr(*ino))));
        }
        found
    }

    /// Whether an inode differs in more than counts, times and checksums.
    fn differs(&self, ino: InodeNr) -> bool {
        let (Ok(old), Ok(new)) = (self.before.inode(ino), self.after.inode(ino)) else { return true };
        let matter = |inode: &Inode| {
            let raw = &inode.raw;
            let head = (raw.i_mode, raw.i_block, raw.i_flags, inode.size(), inode.file_acl(self.before));
            (head.0.get(), head.1, head.2.get(), head.3, head.4, inode.links() > 0, attributes_of(&inode.bytes))
        };
        matter(&old) != matter(&new)
    }

    /// Removes the inode's own blocks from `blocks`.
    fn forget_own(&self, ino: u32, blocks: &mut BTreeSet<u64>) {
        if blocks.is_empty() {
            return;
        }
        let Ok(inode) = self.before.inode(InodeNr(ino)) else { return };
        for block in blocks_of(self.before, &inode, blocks) {
            blocks.remove(&block);
        }
    }

    /// The inodes that have any of these blocks, found by a search of all maps.
    fn owners(&self, blocks: &BTreeSet<u64>) -> Vec<u32> {
        let used = |ino: &u32| self.before.facts.inode(InodeNr(*ino)).has(InodeState::USED);
        let has = |ino: &u32| {
            let inode = self.before.inode(InodeNr(*ino));
            inode.is_ok_and(|inode| !blocks_of(self.before, &inode, blocks).is_empty())
        };
        (1..=self.before.geo.inodes_count).filter(|ino| used(ino) && has(ino)).collect()
    }

    /// The names of a directory that refer to another inode now, or to none, with their inodes.
    fn names(&self, old: &Inode) -> Vec<(Vec<u8>, u32)> {
        let mut lost = Vec::new();
        let now: BTreeMap<Vec<u8>, u32> = match self.after.inode(old.ino) {
            Ok(inode) if inode.is_dir() && inode.links() > 0 => {
                self.after.entries(&inode).into_iter().rev().map(|entry| (entry.name, entry.ino)).collect()
            }
            _ => BTreeMap::new(),
        };
        let mut seen = BTreeSet::new();
        for entry in self.before.entries(old) {
            if !self.counts(&entry, old.ino) || !seen.insert(entry.name.clone()) {
                continue;
            }
            if now.get(&entry.name) != Some(&entry.ino) {
                lost.push((entry.name, entry.ino));
            }
        }
        lost
    }

    /// Whether a reader could use an entry.
    fn counts(&self, entry: &Entry, dir: InodeNr) -> bool {
        let target = InodeNr(entry.ino);
        let circle = target == InodeNr::ROOT || target == dir;
        let named = !entry.is_dot() && !entry.is_found && !entry.name.iter().any(|byte| [b'/', 0].contains(byte));
        named && !circle && is_readable(self.before, target)
    }

    /// The losses of an inode.
    fn content(&self, old: &Inode, new: &Inode) -> Vec<LossKind> {
        let mut lost = Vec::new();
        match old.kind() {
            // No path can lead to a file in place of the root.
            _ if old.ino == InodeNr::ROOT => {}
            Some(FileType::Regular) => {
                lost.extend(self.bytes(old, new));
                let is_other = new.is_file() && new.size() != old.size();
                lost.extend(is_other.then_some(LossKind::Size { was: old.size(), now: new.size() }));
            }
            Some(FileType::Directory) | None => {}
            Some(FileType::Symlink) => {
                let (then, now) = (target(self.before, old), target(self.after, new));
                let kept = new.is_symlink() && now.starts_with(&then);
                lost.extend((!then.is_empty() && !kept).then_some(LossKind::Target));
            }
            Some(_) => {
                let kept = old.kind() == new.kind() && old.raw.i_block[..8] == new.raw.i_block[..8];
                lost.extend((!kept).then_some(LossKind::Target));
            }
        }
        let now = all_attributes(self.after, new);
        let then = all_attributes(self.before, old).into_iter();
        let names: Vec<Vec<u8>> =
            then.filter(|(name, value)| now.get(name) != Some(value)).map(|(name, _)| name).collect();
        if !names.is_empty() {
            lost.push(LossKind::Attributes { names });
        }
        lost
    }

    /// The bytes of a file that can no longer be read.
    fn bytes(&self, old: &Inode, new: &Inode) -> Option<LossKind> {
        if !new.is_file() {
            return Some(LossKind::Bytes { bytes: old.size(), from: 0 });
        }
        if old.has(InodeFlags::INLINE_DATA) {
            let (then, now) = (inline(self.before, old), inline(self.after, new));
            return (!now.starts_with(&then)).then_some(LossKind::Bytes { bytes: then.len() as u64, from: 0 });
        }
        let lacked_flag = !old.has(InodeFlags::EXTENTS) && new.has(InodeFlags::EXTENTS);
        if lacked_flag && old.raw.i_block == new.raw.i_block {
            // A tree that is read as pointers contains no byte of the file.
            return None;
        }
        let (then, now) = (self.before.map(old), self.after.map(new));
        let size = u64::from(self.before.geo.block_size);
        let (mut count, mut first) = (0, None);
        for run in then.runs.iter().filter(|run| !run.unwritten) {
            for step in 0..u64::from(run.len) {
                let (lblk, block) = (u64::from(run.lblk.0) + step, BlockNr(run.pblk.0 + step));
                let len = old.size().saturating_sub(lblk * size).min(size) as usize;
                let place = now.find(lblk).filter(|run| !run.unwritten);
                let place = place.map(|run| BlockNr(run.pblk.0 + lblk - u64::from(run.lblk.0)));
                let reach = new.size().saturating_sub(lblk * size).min(size) as usize;
                if len == 0 || (place == Some(block) && reach >= len && !self.is_written(block)) {
                    continue;
                }
                let Ok(was) = self.before.block(block) else { continue };
                let mut is =
                    place.and_then(|block| self.after.block(block).ok()).unwrap_or_else(|| vec![0; size as usize]);
                is[reach..].fill(0);
                let unlike = was[..len].iter().zip(&is).filter(|(was, is)| was != is).count() as u64;
                if unlike > 0 {
                    count += unlike;
                    first = first.or(Some(lblk * size));
                }
            }
        }
        first.map(|from| LossKind::Bytes { bytes: count, from })
    }

    fn is_written(&self, block: BlockNr) -> bool {
        let (piece, size) = (CowDevice::PIECE_BYTES, u64::from(self.before.geo.block_size));
        let from = self.written.partition_point(|at| (at + 1) * piece <= block.0 * size);
        self.written.get(from).is_some_and(|at| at * piece < (block.0 + 1) * size)
    }

    /// The path of a directory before the repair; `None` if no path led to it.
    fn path(&mut self, dir: InodeNr) -> Option<Vec<u8>> {
        if dir == InodeNr::ROOT {
            return Some(Vec::new());
        }
        if let Some(known) = self.paths.get(&dir.0) {
            return known.clone();
        }
        // A cycle has no path.
        self.paths.insert(dir.0, None);
        let parent = self.before.facts.directory(dir)?.parent;
        let base = if parent.0 == 0 { None } else { self.path(parent) }?;
        let inode = self.before.inode(parent).ok()?;
        let entry = self.before.entries(&inode).into_iter().find(|entry| entry.ino == dir.0 && !entry.is_dot())?;
        let path = [&base[..], b"/", &entry.name].concat();
        self.paths.insert(dir.0, Some(path.clone()));
        Some(path)
    }

    /// Losses with their paths.
    fn report(&mut self, names: Vec<(InodeNr, Vec<u8>, u32)>, contents: BTreeMap<u32, Vec<LossKind>>) -> Vec<Loss> {
        let mut all = Vec::new();
        let moved: BTreeSet<u32> = names.iter().map(|(_, _, ino)| *ino).collect();
        let mut now: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        if !moved.is_empty() {
            for (dir, entry) in self.after.names_of(|ino| moved.contains(&ino)) {
                let base = path_in(self.after, dir).unwrap_or_default();
                now.entry(entry.ino).or_insert_with(|| [&base[..], b"/", &entry.name].concat());
            }
        }
        for (dir, name, target) in names {
            let Some(base) = self.path(dir) else { continue };
            let (path, ino) = ([&base[..], b"/", &name].concat(), InodeNr(target));
            let bytes = self.before.inode(ino).map_or(0, |inode| if inode.is_dir() { 0 } else { inode.size() });
            let lost = match now.get(&target) {
                Some(now) if is_readable(self.after, ino) => LossKind::Name { now: now.clone() },
                _ => LossKind::File { bytes },
            };
            all.push(Loss { path, ino, lost });
        }
        if contents.is_empty() {
            return all;
        }
        let mut paths: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (dir, entry) in self.before.names_of(|ino| contents.contains_key(&ino)) {
            if let Some(base) = self.path(dir) {
                paths.entry(entry.ino).or_insert_with(|| [&base[..], b"/", &entry.name].concat());
            }
        }
        for (ino, lost) in contents {
            // Without a path, nothing could be read.
            let Some(path) = paths.get(&ino).cloned().or((ino == InodeNr::ROOT.0).then(|| b"/".to_vec())) else {
                continue;
            };
            all.extend(lost.into_iter().map(|lost| Loss { path: path.clone(), ino: InodeNr(ino), lost }));
        }
        all.sort();
        all
    }
}

/// The path of a directory according to the check before the last changes, or only its `..`.
fn path_in(image: &Image, mut dir: InodeNr) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    for _ in 0..64 {
        if dir == InodeNr::ROOT {
            return Some(path);
        }
        let parent = image.facts.directory(dir)?.parent;
        let inode = image.inode(parent).ok()?;
        let entry = image.entries(&inode).into_iter().find(|entry| entry.ino == dir.0 && !entry.is_dot())?;
        path = [b"/", &entry.name[..], &path].concat();
        dir = parent;
    }
    None
}

/// The blocks among `wanted` that an inode has.
fn blocks_of(image: &Image, inode: &Inode, wanted: &BTreeSet<u64>) -> Vec<u64> {
    let mapped = image.map(inode);
    let mut found: Vec<u64> = Vec::new();
    for run in &mapped.runs {
        found.extend(wanted.range(run.pblk.0..run.pblk.0 + u64::from(run.len)));
    }
    let single = mapped.nodes.iter().copied().chain(inode.file_acl(image));
    found.extend(single.map(|block| block.0).filter(|block| wanted.contains(block)));
    found
}

/// The bytes of attributes in an inode.
fn attributes_of(bytes: &[u8]) -> Option<Vec<u8>> {
    area_of(bytes).map(<[u8]>::to_vec)
}

/// All readable attributes of an inode: names with index, and values or the inodes that contain them.
fn all_attributes(image: &Image, inode: &Inode) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let context = XattrContext { seed: None, ea_inode: true, inodes: (1, image.geo.inodes_count) };
    let mut all = BTreeMap::new();
    let mut put = |step: Result<extant_ondisk::xattr::EntryRef<'_>, _>| {
        let Ok(entry) = step else { return };
        let name = entry.name.full().unwrap_or_else(|| [&[entry.name.index], entry.name.suffix].concat());
        let value = entry.outside.map_or_else(|| entry.value.to_vec(), |(ino, _)| ino.0.to_le_bytes().to_vec());
        // Inline data is content.
        if entry.name != extant_ondisk::inode::inline::DATA {
            all.entry(name).or_insert(value);
        }
    };
    if let Some(area) = area_of(&inode.bytes) {
        scan_area(area, &context, &mut put);
    }
    let block = inode.file_acl(image).filter(|block| image.can_have(*block, 1));
    if let Some((nr, bytes)) = block.and_then(|nr| Some((nr, image.block(nr).ok()?))) {
        scan_block(&bytes, nr, &context, &mut put);
    }
    all
}

/// The readable part of a symlink's target.
fn target(image: &Image, inode: &Inode) -> Vec<u8> {
    let mut bytes = if inode.has(InodeFlags::INLINE_DATA) {
        inline(image, inode)
    } else if inode.has_map(image) {
        image.map(inode).place(0).and_then(|block| image.block(block).ok()).unwrap_or_default()
    } else {
        inode.raw.i_block.to_vec()
    };
    bytes.truncate(inode.size().min(bytes.len() as u64) as usize);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Inline data, up to the size.
fn inline(image: &Image, inode: &Inode) -> Vec<u8> {
    let mut bytes = [&inode.raw.i_block[..], &image.inline_rest(inode).unwrap_or_default()].concat();
    bytes.truncate(inode.size().min(bytes.len() as u64) as usize);
    bytes
}
