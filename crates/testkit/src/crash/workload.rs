//! The workload: operations drawn from a seed, executed in process, and recorded in a [`History`].
//!
//! It has the operations that crashes often break: appends, overwrites and sparse writes at odd offsets; truncation,
//! extension, and growth behind a truncation; holes, preallocation and zeroed ranges; renames over existing files with
//! and without an fsync before, and with a whiteout; files that are unlinked while open; files without a name;
//! attributes in the inode, in a block of their own and in a shared one; directories that grow over many blocks and
//! shrink again, so that their blocks become data; remounts; every kind of sync; and the work of background threads in
//! between.
//!
//! # Locking
//! None: one thread, virtual time.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CrashDevice, MemDevice};
use extant_fs::{
    BorrowJournal, Cred, Error, FallocateMode, Filesystem, GrowTo, InodeRef, JournalDevice, MountOptions, Mounted,
    NewNode, RenameFlags, SetAttr, SetMode, WriteFlags,
};
use extant_ondisk::growth::{Backups, step as growth_step, target};

use crate::crash::history::{Change, ContentChange, Floor, Growth, History, Names, Node, NodeId, NodeKind, Op, split};
use crate::crash::image::{CrashImage, ENCRYPTED_TOP, declare_atomic};
use crate::crash::pattern;

/// The time at which every workload begins, in seconds since 1970.
pub const EPOCH_S: i64 = 1_700_000_000;
/// The maximum size of a file.
const FILE_MAX: u64 = 400 << 10;
/// The total size of all files; the image has several times as much free space.
const TOTAL_MAX: u64 = 3 << 20;

/// The number of operations between growths, on images that grow.
const GROWS_EVERY: u64 = 12;

/// Inserts a layer between the file system and the crash device.
pub type Wrap<'a> = &'a dyn Fn(Arc<CrashDevice>) -> Arc<dyn BlockDevice>;

/// The result of a run.
pub struct Recording {
    pub image: CrashImage,
    pub seed: u64,
    pub device: Arc<CrashDevice>,
    pub history: History,
    /// Events of the first mount.
    pub mounted: usize,
    /// Blocks written to the log, commits, and checkpoints.
    pub logged: u64,
    pub commits: u64,
    pub checkpoints: u64,
    /// How often a file joined a shared attribute block, or an attribute a shared value.
    pub joined: u64,
    pub fast_commits: u64,
}

/// How Extant is mounted in crash tests, with the smallest memory budget that it accepts.
pub fn mount_options(clock: Clock) -> MountOptions {
    MountOptions { threads: false, seed: Some(7), cache_bytes: 8 << 20, clock, ..MountOptions::default() }
}

/// As [`mount_options`], for `image`.
pub fn options_for(image: &CrashImage, clock: Clock) -> MountOptions {
    let borrow_journal = if image.borrows { BorrowJournal::IfClean } else { BorrowJournal::Never };
    let fast_commits = image.has_fast_commits();
    MountOptions { borrow_journal, keys: image.keys(), fast_commits, ..mount_options(clock) }
}

/// Runs about `ops` operations on a copy of `base`.
///
/// # Errors
/// An operation failed that should not have.
pub fn record(
    image: &CrashImage,
    base: &MemDevice,
    seed: u64,
    ops: usize,
    options: MountOptions,
    wrap: Wrap<'_>,
) -> Result<Recording, String> {
    let device = Arc::new(CrashDevice::from_image(base));
    declare_atomic(&device, image);
    let (disk, journal) = disks(&device, image);
    let top = wrap(disk);
    let options = MountOptions { journal_device: journal.map(JournalDevice), ..options };
    let mut w = Workload::mount(*image, top, device.clone(), seed, options)?;
    let mounted = device.write_log();
    if w.fs.has_borrowed_journal() != image.borrows {
        return Err(format!("borrowed journal: {}", w.fs.has_borrowed_journal()));
    }
    while w.history.ops.len() < ops {
        w.step().map_err(|e| format!("{e}\n{}", w.history.around(w.history.ops.len(), 20)))?;
    }
    w.end()?;
    Ok(Recording {
        image: *image,
        seed,
        device,
        history: w.history,
        mounted,
        logged: w.logged,
        commits: w.commits,
        checkpoints: w.checkpoints,
        joined: w.joined,
        fast_commits: w.fast_commits,
    })
}

/// The disks of a device whose log has both.
pub fn disks(device: &Arc<CrashDevice>, image: &CrashImage) -> (Arc<CrashDevice>, Option<Arc<dyn BlockDevice>>) {
    if !image.external {
        return (device.clone(), None);
    }
    let (disk, journal) = device.split(image.size);
    (Arc::new(disk), Some(Arc::new(journal)))
}

/// A running workload, also driven by the fault tests.
pub struct Workload {
    image: CrashImage,
    top: Arc<dyn BlockDevice>,
    device: Arc<CrashDevice>,
    options: MountOptions,
    pub fs: Mounted,
    clock: Clock,
    rng: Rng,
    pub history: History,
    names: Arc<Names>,
    /// Open files, some of which have no name.
    open: Vec<(NodeId, InodeRef)>,
    serial: u32,
    pub logged: u64,
    pub commits: u64,
    pub checkpoints: u64,
    pub joined: u64,
    pub fast_commits: u64,
}

type Done = Result<(), String>;

impl Workload {
    /// Mounts `top`, whose lowest layer is `device`.
    pub fn mount(
        image: CrashImage,
        top: Arc<dyn BlockDevice>,
        device: Arc<CrashDevice>,
        seed: u64,
        options: MountOptions,
    ) -> Result<Workload, String> {
        let fs = Filesystem::mount(top.clone(), options.clone()).map_err(|e| format!("mount: {e}"))?;
        Ok(Workload {
            image,
            top,
            device,
            clock: options.clock.clone(),
            options,
            fs,
            rng: Rng::new(seed),
            history: History::default(),
            names: Arc::default(),
            open: Vec::new(),
            serial: 0,
            logged: 0,
            commits: 0,
            checkpoints: 0,
            joined: 0,
            fast_commits: 0,
        })
    }

    /// After a failed operation, whose effect is unknown: the oracle no longer checks the nodes that it names. Open
    /// files are closed.
    pub fn give_up(&mut self) {
        self.open.clear();
        let text = self.history.ops.last().map(|o| o.text.clone()).unwrap_or_default();
        let start = self.device.write_log();
        let mut names = (*self.names).clone();
        names.paths.retain(|path, _| !text.contains(path.as_str()));
        self.history.ops.push(Op { text: "given up".into(), start, end: usize::MAX, names: Arc::new(names) });
    }

    /// The last unmount.
    pub fn end(&mut self) -> Done {
        self.unmount()
    }

    /// Runs one operation, or a small group.
    pub fn step(&mut self) -> Done {
        self.clock.advance(Duration::from_millis(self.rng.below(60)));
        if self.image.room > 0 && self.rng.one_in(GROWS_EVERY) {
            return self.grow();
        }
        if self.image.has_fast_commits() && !self.rng.one_in(10) {
            return self.step_of_fast_commits();
        }
        match self.rng.below(100) {
            0..10 => self.create(),
            10..20 => self.append(),
            20..22 => self.cut_and_grow(),
            22..31 => self.overwrite(),
            31..35 => self.write_beyond(),
            35..41 => self.truncate(),
            41..46 => self.punch(),
            46..50 => self.preallocate(),
            50..54 => self.rename(),
            54..60 => self.replace(),
            60..63 => self.link(),
            63..69 => self.unlink(),
            69..71 => self.mkdir(),
            71..72 => self.rmdir(),
            72..73 => self.rename_dir(),
            73..75 => self.symlink(),
            75..78 => self.tmpfile(),
            78..80 => self.attribute(),
            80..81 => self.label(),
            81..90 => self.fsync(),
            90..92 => self.sync(),
            92..93 => self.fsync_dir(),
            93..97 => self.background(),
            97..98 => self.let_go(),
            98..99 => self.many_names(),
            _ if self.rng.one_in(6) => self.remount(),
            _ => self.background(),
        }
    }

    /// An operation that a fast commit describes, or an fsync.
    fn step_of_fast_commits(&mut self) -> Done {
        match self.rng.below(12) {
            0..2 => self.create(),
            2..6 => self.append(),
            6 => self.link(),
            7 => self.rename(),
            _ => self.fsync(),
        }
    }

    // ---- choosing ----

    fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.rng.below(all.len() as u64) as usize).cloned()
    }

    fn of_kind(&self, kind: NodeKind) -> Vec<(String, NodeId)> {
        let is = |id: &NodeId| self.history.nodes[*id as usize].kind == kind;
        self.names.paths.iter().filter(|(_, id)| is(id)).map(|(p, id)| (p.clone(), *id)).collect()
    }

    fn some_file(&mut self) -> Option<(String, NodeId)> {
        let all: Vec<_> = self.of_kind(NodeKind::File).into_iter().filter(|(p, _)| !p.contains("/many-")).collect();
        self.pick(&all)
    }

    /// The path of a directory; empty for the root.
    fn some_dir(&mut self) -> String {
        let mut all: Vec<String> = self.of_kind(NodeKind::Directory).into_iter().map(|(p, _)| p).collect();
        all.retain(|p| !p.starts_with("burst"));
        all.push(String::new());
        self.pick(&all).unwrap_or_default()
    }

    fn fresh_path(&mut self, what: &str) -> String {
        let dir = self.some_dir();
        self.serial += 1;
        let long = if self.rng.one_in(4) { "-with-a-long-name-so-that-directory-blocks-fill-up" } else { "" };
        let name = format!("{what}{}{long}", self.serial);
        if dir.is_empty() { name } else { format!("{dir}/{name}") }
    }

    fn total(&self) -> u64 {
        let mut ids: Vec<NodeId> = self.names.paths.values().copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.iter().map(|id| self.history.nodes[*id as usize].size).sum()
    }

    fn inode(&self, path: &str) -> Result<InodeRef, String> {
        let top = if self.image.is_encrypted() { ENCRYPTED_TOP } else { "" };
        let path = format!("{top}/{}", self.spelled(path));
        self.fs.walk(path.as_bytes(), false).map_err(|e| format!("walk {path}: {e}"))
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(InodeRef, &'p str), String> {
        let (dir, name) = split(path);
        Ok((self.inode(dir)?, name))
    }

    /// Another spelling of an existing path, where directories ignore case.
    fn spelled(&self, path: &str) -> String {
        match (self.op_nr() + path.len()) % 3 {
            0 if self.image.ignores_case() => path.to_uppercase(),
            1 if self.image.ignores_case() => path.to_lowercase(),
            _ => path.to_owned(),
        }
    }

    // ---- recording ----

    fn op_nr(&self) -> usize {
        self.history.ops.len()
    }

    /// Runs `f`. The operation is recorded before its result is known, so that a failed operation counts as possible.
    fn run<T>(&mut self, text: String, f: impl FnOnce(&mut Workload) -> Result<T, Error>) -> Result<T, String> {
        let start = self.device.write_log();
        let op = self.op_nr();
        let end = usize::MAX;
        self.history.ops.push(Op { text: text.clone(), start, end, names: self.names.clone() });
        let r = f(self);
        self.history.ops[op].end = self.device.write_log();
        r.map_err(|e| format!("op {op}: {text}: {e}"))
    }

    /// Records how the newest operation changed the namespace.
    fn rename_names(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = (*self.names).clone();
        change(&mut names);
        self.names = Arc::new(names);
        self.history.ops.last_mut().expect("just recorded").names = self.names.clone();
    }

    fn touch(&mut self, id: NodeId) {
        self.history.nodes[id as usize].touched = self.op_nr() - 1;
    }

    fn change(&mut self, id: NodeId, what: ContentChange) {
        let op = self.op_nr() - 1;
        let node = &mut self.history.nodes[id as usize];
        node.changes.push(Change { op, what });
        node.size = match what {
            ContentChange::Write { to, .. } => node.size.max(to),
            ContentChange::Size { to, .. } => to,
            ContentChange::Zero { .. } => node.size,
        };
    }

    fn new_node(&mut self, inode: &InodeRef, kind: NodeKind, target: Option<Vec<u8>>) -> NodeId {
        let attr = self.fs.getattr(inode);
        let op = self.op_nr() - 1;
        self.history.nodes.push(Node {
            ino: attr.ino.0,
            generation: attr.generation,
            kind,
            target,
            changes: Vec::new(),
            durable: Vec::new(),
            replaced: Vec::new(),
            born: op,
            touched: op,
            size: 0,
        });
        self.history.nodes.len() as NodeId - 1
    }

    /// Records that everything up to now is durable: `op` was acknowledged.
    fn all_durable(&mut self) {
        let (op, events) = (self.op_nr() - 1, self.device.write_log());
        self.history.floors.push(Floor { events, op });
        self.history.nodes.iter_mut().for_each(|n| n.durable.push((events, op)));
    }

    // ---- operations ----

    fn make(&mut self, path: &str, kind: NodeKind, target: Option<&[u8]>) -> Result<NodeId, String> {
        let (dir, name) = self.parent(path)?;
        let node = match (kind, target) {
            (_, Some(t)) => NewNode::symlink(t),
            (NodeKind::Directory, _) => NewNode::directory(0o755),
            _ => NewNode::file(0o644),
        };
        let made =
            self.run(format!("make {kind:?} {path}"), |w| w.fs.create(&dir, name.as_bytes(), node, Cred::default()))?;
        let id = self.new_node(&made, kind, target.map(<[u8]>::to_vec));
        self.rename_names(|n| _ = n.paths.insert(path.to_owned(), id));
        self.touch_parent(path);
        Ok(id)
    }

    fn create(&mut self) -> Done {
        if self.of_kind(NodeKind::File).len() > 120 {
            return self.unlink();
        }
        let path = self.fresh_path("f");
        let id = self.make(&path, NodeKind::File, None)?;
        if self.rng.one_in(2) {
            let len = self.image.length(&mut self.rng, 30_000);
            self.write(&path, id, 0, len)?;
        }
        Ok(())
    }

    fn write(&mut self, path: &str, id: NodeId, from: u64, len: u64) -> Done {
        let inode = self.inode(path)?;
        self.write_to(&inode, path, id, from, len)
    }

    fn write_to(&mut self, inode: &InodeRef, path: &str, id: NodeId, from: u64, len: u64) -> Done {
        let to = from + len;
        let data = pattern::bytes(id, self.op_nr() as u32, from, to);
        let n = self.run(format!("write {path} (node {id}) {from}..{to}"), |w| {
            w.change(id, ContentChange::Write { from, to });
            w.fs.write(inode, from, &data, WriteFlags::default())
        })?;
        if n == data.len() { Ok(()) } else { Err(format!("{path}: short write of {n} of {len}")) }
    }

    fn append(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if size > FILE_MAX || self.total() > TOTAL_MAX {
            return self.unlink();
        }
        let most = if self.rng.one_in(8) { 200_000 } else { 12_000 };
        let len = self.image.length(&mut self.rng, most);
        self.write(&path, id, size, len)
    }

    fn overwrite(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if size == 0 {
            return self.append();
        }
        let from = self.rng.below(size);
        let len = (1 + self.rng.below(16_000)).min(size - from);
        self.write(&path, id, from, len)
    }

    fn write_beyond(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if size > FILE_MAX || self.total() > TOTAL_MAX {
            return self.truncate();
        }
        let from = size + self.image.length(&mut self.rng, 60_000);
        let len = self.image.length(&mut self.rng, 9_000);
        self.write(&path, id, from, len)
    }

    fn truncate(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        let to = if size > 0 && self.rng.below(10) < 7 {
            self.rng.below(size)
        } else {
            size + self.image.length(&mut self.rng, 20_000)
        };
        self.set_size(&path, id, to)?;
        if to < size && self.rng.one_in(3) {
            // Truncates and extends again: the bytes that were cut off must not reappear.
            let up = to + self.image.length(&mut self.rng, 10_000);
            self.set_size(&path, id, up)?;
        }
        Ok(())
    }

    fn set_size(&mut self, path: &str, id: NodeId, to: u64) -> Done {
        if to == self.history.nodes[id as usize].size {
            return Ok(());
        }
        let inode = self.inode(path)?;
        self.resize(&inode, path, id, to)
    }

    fn resize(&mut self, inode: &InodeRef, path: &str, id: NodeId, to: u64) -> Done {
        let set = SetAttr { size: Some(to), ..SetAttr::default() };
        self.run(format!("truncate {path} (node {id}) to {to}"), |w| {
            w.change(id, w.sized(to));
            w.fs.setattr(inode, &set).map(|_| ())
        })
    }

    fn sized(&self, to: u64) -> ContentChange {
        ContentChange::Size { to, zeroed_to: to.next_multiple_of(u64::from(self.image.block_size)) }
    }

    /// The change for a zeroed range, with its whole blocks separated.
    fn zeroed(&self, from: u64, to: u64) -> ContentChange {
        let bs = u64::from(self.image.block_size);
        let whole_from = from.div_ceil(bs) * bs;
        ContentChange::Zero { from, to, whole_from, whole_to: (to / bs * bs).max(whole_from) }
    }

    fn punch(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if size == 0 {
            return self.append();
        }
        let from = self.rng.below(size);
        let to = from + 1 + self.rng.below(40_000);
        self.punch_range(&path, id, from, to)
    }

    fn punch_range(&mut self, path: &str, id: NodeId, from: u64, to: u64) -> Done {
        let inode = self.inode(path)?;
        self.run(format!("punch {path} (node {id}) {from}..{to}"), |w| {
            w.change(id, w.zeroed(from, to));
            w.fs.fallocate(&inode, FallocateMode::PunchHole, from, to - from)
        })
    }

    fn preallocate(&mut self) -> Done {
        if !self.image.extents {
            return self.append();
        }
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if size > FILE_MAX || self.total() > TOTAL_MAX {
            return self.unlink();
        }
        let from = self.rng.below(size + 20_000);
        let to = from + 1 + self.rng.below(40_000);
        self.preallocate_range(&path, id, from, to)
    }

    /// Allocates or zeros.
    fn preallocate_range(&mut self, path: &str, id: NodeId, from: u64, to: u64) -> Done {
        let inode = self.inode(path)?;
        let size = self.history.nodes[id as usize].size;
        let keep_size = self.rng.one_in(3);
        let zero = self.rng.one_in(3);
        let (mode, text) = match zero {
            true => (FallocateMode::ZeroRange { keep_size }, "zero range"),
            false => (FallocateMode::Allocate { keep_size }, "allocate"),
        };
        self.run(format!("{text} {path} (node {id}) {from}..{to}, keep size {keep_size}"), |w| {
            if zero {
                w.change(id, w.zeroed(from, to));
            }
            if !keep_size && to > size {
                w.change(id, w.sized(to));
            }
            w.fs.fallocate(&inode, mode, from, to - from)
        })
    }

    /// Truncates a durable file within a block, and extends it in memory. Then something other than writeback updates
    /// its size on the device, and a commit for another file makes that durable. The bytes that were cut off must not
    /// reappear.
    fn cut_and_grow(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let size = self.history.nodes[id as usize].size;
        if !(100..=FILE_MAX).contains(&size) || self.total() > TOTAL_MAX {
            return self.append();
        }
        self.sync_file(&path, id, false)?;
        let cut = size - 1 - self.rng.below(size.min(8000) - 1);
        self.set_size(&path, id, cut)?;
        let len = 1 + self.rng.below(20_000);
        self.write(&path, id, cut, len)?;
        let end = cut + len;
        let more = 1 + self.rng.below(20_000);
        match self.rng.below(4) {
            0 => self.set_size(&path, id, end + more)?,
            1 => {
                let to = end - self.rng.below(len);
                self.set_size(&path, id, to)?;
            }
            n => {
                let from = cut + self.rng.below(len);
                if n == 2 || !self.image.extents {
                    self.punch_range(&path, id, from, from + more)?;
                } else {
                    self.preallocate_range(&path, id, from, from + more)?;
                }
            }
        }
        // No new name for it: see `rename` about directories without a log.
        let mut others = self.of_kind(NodeKind::File);
        others.retain(|(_, other)| *other != id);
        let Some((other, other_id)) = self.pick(&others) else { return self.sync() };
        let len = 1 + self.rng.below(100);
        self.write(&other, other_id, 0, len)?;
        self.sync_file(&other, other_id, false)
    }

    fn move_name(&mut self, old: &str, new: &str, whiteout: bool) -> Done {
        let (old_dir, old_name) = self.parent(old).map(|(dir, name)| (dir, self.spelled(name)))?;
        let (new_dir, new_name) = self.parent(new)?;
        let id = self.names.paths[old];
        let replaced = self.names.paths.get(new).copied();
        let flags = RenameFlags { whiteout: whiteout.then(Cred::default), ..RenameFlags::default() };
        let text = format!("rename {old} (node {id}) to {new} (over {replaced:?}), whiteout {whiteout}");
        self.run(text, |w| w.fs.rename(&old_dir, old_name.as_bytes(), &new_dir, new_name.as_bytes(), flags))?;
        if replaced == Some(id) {
            return Ok(()); // two names of one file: rename does nothing
        }
        let below = format!("{old}/");
        self.rename_names(|n| {
            n.paths.remove(old);
            n.paths.insert(new.to_owned(), id);
            let moved: Vec<_> = n.paths.keys().filter(|p| p.starts_with(&below)).cloned().collect();
            for path in moved {
                let id = n.paths.remove(&path).expect("just listed");
                n.paths.insert(format!("{new}/{}", &path[below.len()..]), id);
            }
        });
        if whiteout {
            let left = self.inode(old)?;
            let left = self.new_node(&left, NodeKind::Whiteout, None);
            self.rename_names(|n| _ = n.paths.insert(old.to_owned(), left));
        }
        self.touch(id);
        if let Some(other) = replaced {
            self.touch(other);
            self.forget_attrs(other);
            let op = self.op_nr() - 1;
            self.history.nodes[id as usize].replaced.push(op);
        }
        self.touch_parent(old);
        self.touch_parent(new);
        Ok(())
    }

    fn touch_parent(&mut self, path: &str) {
        if let Some(dir) = self.names.paths.get(split(path).0).copied() {
            self.touch(dir);
        }
    }

    /// Drops the attributes of a node without a name, which can no longer be read.
    fn forget_attrs(&mut self, id: NodeId) {
        if !self.names.paths.values().any(|i| *i == id) && self.names.attrs.contains_key(&id) {
            self.rename_names(|n| _ = n.attrs.remove(&id));
        }
    }

    fn rename(&mut self) -> Done {
        let left = self.of_kind(NodeKind::Whiteout);
        if left.len() > 6
            && let Some((path, _)) = self.pick(&left)
        {
            return self.unlink_path(&path);
        }
        let Some((old, _)) = self.some_file() else { return self.create() };
        if self.image.ignores_case() && self.rng.one_in(3) {
            let (dir, name) = split(&old);
            let lower = name.to_lowercase();
            let name = if lower == name { name.to_uppercase() } else { lower };
            let new = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            return self.move_name(&old, &new, false);
        }
        let new = self.fresh_path("r");
        // Without a log, names that remain make directories split more often, which is not atomic in two waves.
        let whiteout = self.image.has_journal() && self.rng.one_in(3);
        self.move_name(&old, &new, whiteout)
    }

    /// Replaces a file as programs save files: writes a new one, syncs it (or not), and renames it over the old one.
    fn replace(&mut self) -> Done {
        let Some((target, _)) = self.some_file() else { return self.create() };
        let path = self.fresh_path("tmp");
        let id = self.make(&path, NodeKind::File, None)?;
        let len = self.image.length(&mut self.rng, 25_000);
        self.write(&path, id, 0, len)?;
        if self.rng.one_in(2) {
            self.sync_file(&path, id, false)?;
        }
        self.move_name(&path, &target, false)
    }

    fn link(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let new = self.fresh_path("l");
        let inode = self.inode(&path)?;
        self.link_to(&inode, id, &new)
    }

    fn link_to(&mut self, inode: &InodeRef, id: NodeId, new: &str) -> Done {
        let (dir, name) = self.parent(new)?;
        self.run(format!("link node {id} as {new}"), |w| w.fs.link(inode, &dir, name.as_bytes()))?;
        self.rename_names(|n| _ = n.paths.insert(new.to_owned(), id));
        self.touch(id);
        self.touch_parent(new);
        Ok(())
    }

    fn unlink(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        if self.rng.one_in(3) {
            let inode = self.inode(&path)?;
            self.open.push((id, inode));
        }
        self.unlink_path(&path)?;
        if self.open.len() > 6 {
            self.let_go()?;
        }
        Ok(())
    }

    fn unlink_path(&mut self, path: &str) -> Done {
        let id = self.names.paths[path];
        let (dir, name) = self.parent(path)?;
        let name = self.spelled(name);
        self.run(format!("unlink {path} (node {id})"), |w| w.fs.unlink(&dir, name.as_bytes()))?;
        self.rename_names(|n| _ = n.paths.remove(path));
        self.touch(id);
        self.forget_attrs(id);
        self.touch_parent(path);
        Ok(())
    }

    /// Writes or truncates an open file, syncs it or not, and closes it.
    fn let_go(&mut self) -> Done {
        if self.open.is_empty() {
            return self.background();
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (id, inode) = self.open.swap_remove(at);
        if self.rng.one_in(2) {
            let size = self.history.nodes[id as usize].size;
            self.write_to(&inode, "(open)", id, size, 5_000)?;
        }
        if self.rng.one_in(2) {
            let to = self.rng.below(self.history.nodes[id as usize].size + 1);
            self.resize(&inode, "(open)", id, to)?;
        }
        if self.rng.one_in(2) {
            self.run(format!("fsync of open node {id}"), |w| w.fs.fsync(&inode, false))?;
            self.file_durable(id, false);
        }
        self.run(format!("close node {id}"), move |_| {
            drop(inode);
            Ok(())
        })
    }

    fn mkdir(&mut self) -> Done {
        if self.of_kind(NodeKind::Directory).len() > 10 {
            return self.rmdir();
        }
        let path = self.fresh_path("d");
        self.make(&path, NodeKind::Directory, None).map(|_| ())
    }

    fn rmdir(&mut self) -> Done {
        let dirs = self.of_kind(NodeKind::Directory);
        let empty = |p: &String| !self.names.paths.keys().any(|other| other.starts_with(&format!("{p}/")));
        let all: Vec<_> = dirs.into_iter().map(|(p, _)| p).filter(empty).collect();
        let Some(path) = self.pick(&all) else { return self.background() };
        self.rmdir_path(&path)
    }

    fn rmdir_path(&mut self, path: &str) -> Done {
        let (dir, name) = self.parent(path)?;
        let name = self.spelled(name);
        self.run(format!("rmdir {path}"), |w| w.fs.rmdir(&dir, name.as_bytes()))?;
        self.rename_names(|n| _ = n.paths.remove(path));
        self.touch_parent(path);
        Ok(())
    }

    fn rename_dir(&mut self) -> Done {
        let dirs: Vec<_> = self.of_kind(NodeKind::Directory).into_iter().map(|(p, _)| p).collect();
        let Some(old) = self.pick(&dirs) else { return self.mkdir() };
        let new = self.fresh_path("m");
        if new.starts_with(&format!("{old}/")) {
            return Ok(());
        }
        self.move_name(&old, &new, false)
    }

    fn symlink(&mut self) -> Done {
        let path = self.fresh_path("s");
        let len = if self.rng.one_in(2) { 1 + self.rng.below(59) } else { 60 + self.rng.below(500) };
        let mut target = vec![0; len as usize];
        pattern::fill(9999, self.op_nr() as u32, 0, &mut target);
        // The log's magic number at the start of a block must be escaped.
        if len > 60 && self.rng.one_in(3) {
            target[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
        }
        target.iter_mut().for_each(|b| {
            if *b == b'/' {
                *b = b'_'
            }
        });
        let links = self.of_kind(NodeKind::Symlink);
        if links.len() > 8
            && let Some((old, _)) = self.pick(&links)
        {
            self.unlink_path(&old)?;
        }
        self.make(&path, NodeKind::Symlink, Some(&target)).map(|_| ())
    }

    fn tmpfile(&mut self) -> Done {
        let dir = self.inode("")?;
        let made = self.run("tmpfile".into(), |w| w.fs.tmpfile(&dir, 0o600, Cred::default()))?;
        let id = self.new_node(&made, NodeKind::File, None);
        if self.rng.below(4) > 0 {
            let len = self.image.length(&mut self.rng, 20_000);
            self.write_to(&made, "(tmpfile)", id, 0, len)?;
        }
        match self.rng.below(4) {
            0 => self.open.push((id, made)),
            1 => {
                self.run(format!("fsync of tmpfile node {id}"), |w| w.fs.fsync(&made, false))?;
                self.file_durable(id, false);
                let path = self.fresh_path("t");
                self.link_to(&made, id, &path)?;
            }
            2 => {
                let path = self.fresh_path("t");
                self.link_to(&made, id, &path)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn attribute(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let inode = self.inode(&path)?;
        let name = format!("user.a{}", self.rng.below(3)).into_bytes();
        let has = self.names.attrs.get(&id).is_some_and(|a| a.contains_key(&name));
        if has && self.rng.one_in(3) {
            self.run(format!("remove attribute of {path}"), |w| w.fs.remove_xattr(&inode, &name))?;
            self.rename_names(|n| {
                let attrs = n.attrs.get_mut(&id).expect("it has one");
                attrs.remove(&name);
                if attrs.is_empty() {
                    n.attrs.remove(&id);
                }
            });
            self.touch(id);
        } else {
            let len = self.image.value_length(&mut self.rng);
            let value = pattern::bytes(id, self.op_nr() as u32, 0, len);
            self.set_attribute(&path, id, &inode, name, value)?;
        }
        Ok(())
    }

    fn set_attribute(&mut self, path: &str, id: NodeId, inode: &InodeRef, name: Vec<u8>, value: Vec<u8>) -> Done {
        self.run(format!("set attribute of {path}, {} bytes", value.len()), |w| {
            w.fs.set_xattr(inode, &name, &value, SetMode::Any)
        })?;
        self.rename_names(|n| _ = n.attrs.entry(id).or_default().insert(name, value));
        self.touch(id);
        Ok(())
    }

    /// Gives several files the same attribute.
    fn label(&mut self) -> Done {
        let value = pattern::label(self.rng.below(2) as u32, self.image.label_length());
        for _ in 0..1 + self.rng.below(4) {
            let Some((path, id)) = self.some_file() else { return self.create() };
            let inode = self.inode(&path)?;
            self.set_attribute(&path, id, &inode, b"user.a0".to_vec(), value.clone())?;
        }
        Ok(())
    }

    fn fsync(&mut self) -> Done {
        let Some((path, id)) = self.some_file() else { return self.create() };
        let data = self.rng.one_in(3);
        self.sync_file(&path, id, data)
    }

    fn sync_file(&mut self, path: &str, id: NodeId, data: bool) -> Done {
        let inode = self.inode(path)?;
        let text = if data { "fdatasync" } else { "fsync" };
        self.run(format!("{text} {path} (node {id})"), |w| w.fs.fsync(&inode, data))?;
        self.file_durable(id, data);
        Ok(())
    }

    /// Records that the content, and the newest change of names that an fsync covers, are durable.
    fn file_durable(&mut self, id: NodeId, data: bool) {
        let (op, events) = (self.op_nr() - 1, self.device.write_log());
        let node = &mut self.history.nodes[id as usize];
        node.durable.push((events, op));
        let named = if data { node.born } else { node.touched };
        self.history.floors.push(Floor { events, op: named });
    }

    fn fsync_dir(&mut self) -> Done {
        let dir = self.some_dir();
        let inode = self.inode(&dir)?;
        self.run(format!("fsync directory '{dir}'"), |w| w.fs.fsync(&inode, false))?;
        if let Some(id) = self.names.paths.get(&dir).copied() {
            let (op, events) = (self.history.nodes[id as usize].touched, self.device.write_log());
            self.history.floors.push(Floor { events, op });
        }
        Ok(())
    }

    fn sync(&mut self) -> Done {
        self.run("sync".into(), |w| w.fs.sync())?;
        self.all_durable();
        Ok(())
    }

    /// The work of the background threads: writeback, evictions, commits, checkpoints.
    fn background(&mut self) -> Done {
        let ms = self.rng.below(3500);
        self.clock.advance(Duration::from_millis(ms));
        self.run(format!("{ms} ms pass"), |w| {
            w.fs.step();
            Ok(())
        })
    }

    /// Grows by one block, a part of a group, or some groups.
    fn grow(&mut self) -> Done {
        let begin = self.fs.superblock();
        let (block, group) = (u64::from(begin.block_size), u64::from(begin.blocks_per_group));
        let more = match self.rng.below(3) {
            0 => 1,
            1 => 1 + self.rng.below(group),
            _ => group * (1 + self.rng.below(5)),
        };
        let bytes = ((begin.blocks_count + more) * block).min(self.image.size + self.image.room);
        let goal = target(&begin, bytes, Backups::Stay).map_err(|e| e.to_string())?.blocks_count;
        if goal == begin.blocks_count {
            return self.background();
        }
        let mut sizes = vec![begin.blocks_count];
        let mut now = begin.clone();
        while now.blocks_count < goal {
            now = growth_step(&begin, &now, goal).map_err(|e| e.to_string())?;
            sizes.push(now.blocks_count);
        }
        self.history.growths.push(Growth { start: self.device.write_log(), end: usize::MAX, sizes });
        let grown = self.run(format!("grow to {goal} blocks"), |w| w.fs.grow(GrowTo::Bytes(bytes)))?;
        self.history.growths.last_mut().expect("just recorded").end = self.device.write_log();
        if grown.after == goal { Ok(()) } else { Err(format!("it grew to {} blocks", grown.after)) }
    }

    /// Fills a directory of many blocks and removes it; its blocks are reused for data at once.
    fn many_names(&mut self) -> Done {
        self.serial += 1;
        let dir = format!("burst{}", self.serial);
        self.make(&dir, NodeKind::Directory, None)?;
        let count = 20 + self.rng.below(40);
        for i in 0..count {
            let path = format!("{dir}/many-{i:04}-{}", "x".repeat(60));
            self.make(&path, NodeKind::File, None)?;
        }
        if self.rng.one_in(2) {
            self.sync()?;
        }
        for i in 0..count {
            self.unlink_path(&format!("{dir}/many-{i:04}-{}", "x".repeat(60)))?;
        }
        self.rmdir_path(&dir)?;
        self.background()?;
        for _ in 0..3 {
            let path = self.fresh_path("after");
            let id = self.make(&path, NodeKind::File, None)?;
            let len = 20_000 + self.rng.below(40_000);
            self.write(&path, id, 0, len)?;
            self.sync_file(&path, id, false)?;
        }
        Ok(())
    }

    fn count(&mut self) {
        let s = self.fs.statistics().journal();
        self.logged += s.blocks.get();
        self.commits += s.commits.get();
        self.fast_commits += s.fast_commits.get();
        self.checkpoints += s.checkpoints.get();
        self.joined += self.fs.statistics().attribute_blocks_joined() + self.fs.statistics().values_shared();
    }

    fn unmount(&mut self) -> Done {
        // A clean unmount needs every file closed.
        let open = std::mem::take(&mut self.open);
        self.count();
        self.run("unmount".into(), move |w| {
            drop(open);
            w.fs.unmount()
        })?;
        self.all_durable();
        Ok(())
    }

    fn remount(&mut self) -> Done {
        self.unmount()?;
        // A new seed: otherwise inode numbers would get the same generations as before.
        self.options.seed = self.options.seed.map(|s| s + 1);
        let (top, options) = (self.top.clone(), self.options.clone());
        self.fs = self.run("mount".into(), |_| Filesystem::mount(top, options))?;
        Ok(())
    }
}
