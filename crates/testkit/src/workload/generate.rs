//! The generator: chooses operations that mostly succeed, based on its own model of the tree.

use std::path::{Path, PathBuf};

use extant_base::rng::Rng;
use extant_ondisk::acl::{Acl, AclEntry, Tag, to_xattr};

use super::Mix;
use super::op::{Falloc, NodeType, Op, RenameMode};
use crate::tree::name_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    /// With the entries of [`Op::Fill`]: (count, name length). Such a directory is never considered empty.
    Dir(Option<(u32, usize)>),
    Symlink,
    Special,
}

#[derive(Clone, Debug)]
struct Node {
    path: PathBuf,
    kind: Kind,
    /// The inode number in the model, the same for hard links.
    inode: usize,
}

/// The maximum depth of a directory, in names: paths stay below PATH_MAX.
const DEPTH_MAX: usize = 7;
/// If there are more nodes, removals are more frequent than creations.
const NODES_MAX: usize = 500;

pub(super) struct Generator {
    rng: Rng,
    mix: Mix,
    /// The first node is the top itself.
    nodes: Vec<Node>,
    number: usize,
}

impl Generator {
    pub fn new(seed: u64, mix: Mix) -> Generator {
        let top = Node { path: PathBuf::new(), kind: Kind::Dir(None), inode: 0 };
        Generator { rng: Rng::new(seed), mix, nodes: vec![top], number: 0 }
    }

    /// The next operation, number `number`.
    pub fn next(&mut self, number: usize) -> Op {
        self.number = number;
        loop {
            let choice = self.rng.below(100);
            if let Some(op) = self.attempt(choice) {
                return op;
            }
        }
    }

    fn attempt(&mut self, choice: u64) -> Option<Op> {
        let crowded = self.nodes.len() > NODES_MAX;
        match choice {
            0..12 if !crowded => self.create(),
            0..12 => self.unlink(),
            12..30 => self.write(),
            30..36 => self.append(),
            36..42 => self.truncate(),
            42..47 if self.mix.fallocate => self.fallocate(),
            47..49 => Some(Op::Fsync { path: self.pick(|n| n.kind == Kind::File)?.path }),
            49..50 => self.unlink_open(),
            50..56 => self.unlink(),
            56..61 if !crowded => self.mkdir(),
            61..63 => self.rmdir(),
            63..71 => self.rename(),
            71..74 if !crowded => self.symlink(),
            74..77 if self.mix.hard_links && !crowded => self.link(),
            77..79 if self.mix.special_files && !crowded => self.mknod(),
            79..82 => self.chmod(),
            82..85 => self.chown(),
            85..87 => self.utimens(),
            87..93 if self.mix.xattrs => self.xattr(),
            93..96 if self.mix.acls => self.acl(),
            96..97 if self.mix.big_directories => self.bulk(),
            97..100 => self.mischief(),
            _ => None,
        }
    }

    fn pick(&mut self, mut fits: impl FnMut(&Node) -> bool) -> Option<Node> {
        let fitting: Vec<&Node> = self.nodes.iter().filter(|n| fits(n)).collect();
        let at = self.rng.below(fitting.len() as u64) as usize;
        fitting.get(at).map(|&n| n.clone())
    }

    fn pick_any(&mut self) -> Option<Node> {
        self.pick(|n| !n.path.as_os_str().is_empty())
    }

    /// An unused path: a directory at most `depth_max` deep, and a name that the number makes unique.
    fn fresh_path(&mut self, depth_max: usize) -> Option<PathBuf> {
        let is_open = |n: &Node| matches!(n.kind, Kind::Dir(_)) && n.path.components().count() < depth_max;
        let dir = self.pick(is_open)?;
        let mut name = format!("n{}", self.number).into_bytes();
        match self.rng.below(12) {
            0 => name.resize(255, b'L'),
            1 => name.extend((0..1 + self.rng.below(40)).map(|i| 0x80 + (i * 37 % 128) as u8)),
            2 => name.extend(b" \\\"'\n\x7f*?-"),
            3 => name.resize(4 + self.rng.below(60) as usize, b'm'),
            _ => {}
        }
        Some(dir.path.join(name_of(name)))
    }

    fn add(&mut self, path: &Path, kind: Kind) {
        self.nodes.push(Node { path: path.to_owned(), kind, inode: self.number + 1 });
    }

    fn forget(&mut self, path: &Path) {
        self.nodes.retain(|n| n.path != path);
    }

    fn has_children(&self, dir: &Path) -> bool {
        self.nodes.iter().any(|n| n.path != dir && n.path.starts_with(dir))
    }

    fn create(&mut self) -> Option<Op> {
        let path = self.fresh_path(DEPTH_MAX)?;
        let mode = [0o644, 0o600, 0o666, 0o755, 0o4755, 0o000][self.rng.below(6) as usize];
        self.add(&path, Kind::File);
        Some(Op::Create { path, mode })
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(40) {
            0 => self.rng.below(80 << 20),
            1 => self.rng.below(self.mix.far_offset_max),
            2..12 => self.rng.below(64) * 4096,
            12..20 => self.rng.below(2 << 20),
            _ => self.rng.below(64 << 10),
        }
    }

    fn len(&mut self) -> usize {
        let max = match self.rng.below(24) {
            0 => 1 << 20,
            1..5 => 64 << 10,
            5..12 => return 4096 * (1 + self.rng.below(4) as usize),
            _ => 5000,
        };
        1 + self.rng.below(max) as usize
    }

    fn write(&mut self) -> Option<Op> {
        let path = self.pick(|n| n.kind == Kind::File)?.path;
        Some(Op::Write { path, offset: self.offset(), len: self.len(), fill: self.rng.next_u64() })
    }

    fn append(&mut self) -> Option<Op> {
        let path = self.pick(|n| n.kind == Kind::File)?.path;
        Some(Op::Append { path, len: self.len(), fill: self.rng.next_u64() })
    }

    fn truncate(&mut self) -> Option<Op> {
        let path = self.pick(|n| n.kind == Kind::File)?.path;
        let size = if self.rng.one_in(4) { 0 } else { self.offset() };
        Some(Op::Truncate { path, size })
    }

    fn fallocate(&mut self) -> Option<Op> {
        let path = self.pick(|n| n.kind == Kind::File)?.path;
        let how = [Falloc::Allocate, Falloc::KeepSize, Falloc::PunchHole, Falloc::PunchHole, Falloc::ZeroRange]
            [self.rng.below(5) as usize];
        let (mut offset, mut len) = (self.rng.below(512 << 10), 1 + self.rng.below(512 << 10));
        if self.rng.one_in(2) {
            (offset, len) = (offset & !4095, len | 4095);
            len += 1;
        }
        Some(Op::Fallocate { path, how, offset, len })
    }

    fn unlink_open(&mut self) -> Option<Op> {
        let path = self.fresh_path(DEPTH_MAX)?;
        Some(Op::UnlinkOpen { path, len: self.len(), fill: self.rng.next_u64() })
    }

    fn unlink(&mut self) -> Option<Op> {
        let node = self.pick(|n| !matches!(n.kind, Kind::Dir(_)))?;
        self.forget(&node.path);
        Some(Op::Unlink { path: node.path })
    }

    fn mkdir(&mut self) -> Option<Op> {
        let path = self.fresh_path(DEPTH_MAX - 1)?;
        let mode = [0o755, 0o700, 0o2775, 0o1777][self.rng.below(4) as usize];
        self.add(&path, Kind::Dir(None));
        Some(Op::Mkdir { path, mode })
    }

    fn is_empty_dir(&self, n: &Node) -> bool {
        n.kind == Kind::Dir(None) && !n.path.as_os_str().is_empty() && !self.has_children(&n.path)
    }

    fn pick_empty_dir(&mut self) -> Option<Node> {
        let empty: Vec<Node> = self.nodes.iter().filter(|n| self.is_empty_dir(n)).cloned().collect();
        let at = self.rng.below(empty.len() as u64) as usize;
        empty.into_iter().nth(at)
    }

    fn rmdir(&mut self) -> Option<Op> {
        let path = self.pick_empty_dir()?.path;
        self.forget(&path);
        Some(Op::Rmdir { path })
    }

    /// How many names the deepest node below `top` is deeper than `top`.
    fn height(&self, top: &Path) -> usize {
        let below = self.nodes.iter().filter(|n| n.path.starts_with(top));
        below.map(|n| n.path.components().count()).max().unwrap_or(0).saturating_sub(top.components().count())
    }

    fn rename(&mut self) -> Option<Op> {
        let from = self.pick_any()?;
        let is_dir = matches!(from.kind, Kind::Dir(_));
        let over = self.rng.below(5);
        if over == 0 && self.mix.rename_flags {
            return self.exchange(&from);
        }
        let to = if over < 3 {
            let victim = if is_dir { self.pick_empty_dir()? } else { self.pick(|n| !matches!(n.kind, Kind::Dir(_)))? };
            if victim.path.starts_with(&from.path) || from.path.starts_with(&victim.path) {
                return None;
            }
            // Two names of one inode: rename does nothing.
            if victim.inode == from.inode {
                return Some(Op::Rename { from: from.path, to: victim.path, mode: RenameMode::Replace });
            }
            self.forget(&victim.path);
            victim.path
        } else {
            self.fresh_path(DEPTH_MAX)?
        };
        if to.starts_with(&from.path) || to.components().count() + self.height(&from.path) > DEPTH_MAX {
            return None;
        }
        let fresh = !self.nodes.iter().any(|n| n.path == to);
        self.reparent(&from.path, &to);
        let mode =
            if self.mix.rename_flags && fresh && over == 4 { RenameMode::NoReplace } else { RenameMode::Replace };
        // The generator has forgotten a victim above, so every target looks unused here. Only really unused targets may
        // get a mode that refuses to replace.
        let mode = if over < 3 { RenameMode::Replace } else { mode };
        Some(Op::Rename { from: from.path, to, mode })
    }

    fn exchange(&mut self, from: &Node) -> Option<Op> {
        let to = self.pick_any()?;
        if to.path.starts_with(&from.path) || from.path.starts_with(&to.path) {
            return None;
        }
        let depth = |a: &Path, b: &Path, g: &Generator| a.components().count() + g.height(b);
        if depth(&from.path, &to.path, self).max(depth(&to.path, &from.path, self)) > DEPTH_MAX {
            return None;
        }
        let aside = name_of(b"\xffaside".to_vec());
        self.reparent(&from.path, &aside);
        self.reparent(&to.path, &from.path);
        self.reparent(&aside, &to.path);
        Some(Op::Rename { from: from.path.clone(), to: to.path, mode: RenameMode::Exchange })
    }

    fn reparent(&mut self, from: &Path, to: &Path) {
        for n in &mut self.nodes {
            if let Ok(rest) = n.path.strip_prefix(from) {
                n.path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }

    fn symlink(&mut self) -> Option<Op> {
        let path = self.fresh_path(DEPTH_MAX)?;
        // Lengths on both sides of the limits of the inode (59 bytes) and of a 1 KiB block.
        let len = [1, 20, 58, 59, 60, 61, 200, 1000, 1023][self.rng.below(9) as usize];
        let target = (0..len).map(|i| if i % 17 == 16 { b'/' } else { b'a' + (i % 26) as u8 }).collect();
        self.add(&path, Kind::Symlink);
        Some(Op::Symlink { path, target: name_of(target) })
    }

    fn link(&mut self) -> Option<Op> {
        let from = self.pick(|n| !matches!(n.kind, Kind::Dir(_)))?;
        let to = self.fresh_path(DEPTH_MAX)?;
        self.nodes.push(Node { path: to.clone(), kind: from.kind, inode: from.inode });
        Some(Op::Link { from: from.path, to })
    }

    fn mknod(&mut self) -> Option<Op> {
        let path = self.fresh_path(DEPTH_MAX)?;
        // Numbers reserved for local use, so that no real device answers; the large ones need the new encoding.
        let node = match self.rng.below(6) {
            0 => NodeType::Fifo,
            1 => NodeType::Socket,
            2 => NodeType::CharDevice(240, 1),
            3 => NodeType::CharDevice(4000, 70_000),
            4 => NodeType::BlockDevice(241, 255),
            _ => NodeType::BlockDevice(3000, 1_000_000),
        };
        self.add(&path, Kind::Special);
        Some(Op::Mknod { path, node, mode: 0o640 })
    }

    fn chmod(&mut self) -> Option<Op> {
        let path = self.pick(|n| n.kind != Kind::Symlink)?.path;
        Some(Op::Chmod { path, mode: self.rng.below(0o10000) as u32 })
    }

    fn chown(&mut self) -> Option<Op> {
        let path = self.pick_any()?.path;
        let mut id = || {
            let ids = [None, Some(0), Some(1000), Some(65_534), Some(65_536), Some(0xFFFF_FFFE)];
            ids[self.rng.below(6) as usize]
        };
        Some(Op::Chown { path, uid: id(), gid: id() })
    }

    fn utimens(&mut self) -> Option<Op> {
        let path = self.pick_any()?.path;
        let (odd, rng) = (self.mix.odd_times, &mut self.rng);
        Some(Op::Utimens { path, atime: super::settle::time(rng, odd), mtime: super::settle::time(rng, odd) })
    }

    fn xattr(&mut self) -> Option<Op> {
        let Node { path, kind, .. } = self.pick_any()?;
        let prefix = ["user.", "trusted.", "security.", "user."][self.rng.below(4) as usize];
        let mut name = format!("{prefix}a{}", self.rng.below(5)).into_bytes();
        match self.rng.below(12) {
            0 => name.resize(255, b'x'),
            1 => name.extend(b"\xff\x80"),
            _ => {}
        }
        if self.rng.one_in(4) {
            return Some(Op::RemoveXattr { path, name });
        }
        let max = [0, 16, 16, 64, 64, 300, 900, 3900][self.rng.below(8) as usize];
        let flags = if self.rng.one_in(8) { 1 + self.rng.below(2) as u32 } else { 0 };
        // With such an attribute, e2fsck 1.47.0 mistakes the text of a symbolic link for a map, even in images made by
        // the kernel.
        if self.mix.large_values && kind != Kind::Symlink && self.rng.one_in(2) {
            let len = [5000, 9000, 20_000, 65_536][self.rng.below(4) as usize];
            return Some(Op::SetXattr { path, name, len, fill: self.rng.below(3), flags });
        }
        Some(Op::SetXattr { path, name, len: self.rng.below(max + 1) as usize, fill: self.rng.next_u64(), flags })
    }

    fn acl(&mut self) -> Option<Op> {
        let default = self.rng.one_in(2);
        let node = self.pick(|n| if default { matches!(n.kind, Kind::Dir(_)) } else { n.kind == Kind::File })?;
        if self.rng.one_in(5) {
            return Some(Op::RemoveAcl { path: node.path, default });
        }
        let mut perm = || self.rng.below(8) as u16;
        let mut entries = vec![AclEntry { tag: Tag::UserObj, perm: perm() }];
        let named = perm() % 4;
        entries.extend((0..named).map(|i| AclEntry { tag: Tag::User(1000 * u32::from(i)), perm: perm() }));
        entries.push(AclEntry { tag: Tag::GroupObj, perm: perm() });
        if named > 0 {
            entries.push(AclEntry { tag: Tag::Group(70_000), perm: perm() });
            entries.push(AclEntry { tag: Tag::Mask, perm: perm() });
        }
        entries.push(AclEntry { tag: Tag::Other, perm: perm() });
        Some(Op::SetAcl { path: node.path, default, blob: to_xattr(&Acl { entries }) })
    }

    fn bulk(&mut self) -> Option<Op> {
        let dir = self.pick(|n| matches!(n.kind, Kind::Dir(_)) && !n.path.as_os_str().is_empty())?;
        if let Kind::Dir(Some((count, name_len))) = dir.kind {
            return Some(match self.rng.below(4) {
                0 => Op::Fill { dir: dir.path, count, name_len },
                i => Op::Thin { dir: dir.path, count, name_len, every: i as u32 },
            });
        }
        let full = self.nodes.iter().filter(|n| matches!(n.kind, Kind::Dir(Some(_)))).count();
        if full >= 4 {
            return None;
        }
        let name_len = [10, 24, 60, 255][self.rng.below(4) as usize];
        let count = 100 + self.rng.below(if name_len == 255 { 600 } else { 2500 }) as u32;
        for n in &mut self.nodes {
            if n.path == dir.path {
                n.kind = Kind::Dir(Some((count, name_len)));
            }
        }
        Some(Op::Fill { dir: dir.path, count, name_len })
    }

    /// An operation that must fail.
    fn mischief(&mut self) -> Option<Op> {
        let any = self.pick_any()?;
        let dir = self.pick(|n| matches!(n.kind, Kind::Dir(_)) && !n.path.as_os_str().is_empty())?;
        let path = any.path.clone();
        Some(match self.rng.below(8) {
            0 => Op::Mkdir { path, mode: 0o755 },
            1 => Op::Symlink { path, target: PathBuf::from("x") },
            2 => Op::Unlink { path: dir.path },
            3 if self.has_children(&dir.path) => Op::Rmdir { path: dir.path },
            4 => Op::Rename { to: dir.path.join("inside"), from: dir.path, mode: RenameMode::Replace },
            5 => Op::Link { to: self.fresh_path(DEPTH_MAX)?, from: dir.path },
            6 => Op::Create { path: dir.path.join(name_of(vec![b'x'; 256])), mode: 0o644 },
            7 if !matches!(any.kind, Kind::Dir(_)) => Op::Rmdir { path },
            _ => return None,
        })
    }
}
