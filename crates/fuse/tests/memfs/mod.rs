//! A small file system in memory that exercises the transport with a real kernel.
//!
//! It maintains the state that the protocol requires (lookup counts, handles) and counts the requests. The example
//! `memory_server` uses it to measure the transport. So its operations copy data at most once and search no lists.
//!
//! # Locking
//! `memfs` (900), all inodes; `memfs data` (901), the content of one file.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::clock::{Clock, Timespec};
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex, MutexGuard, RwLock};
use extant_base::task;
use extant_fuse::abi::ROOT_ID;
use extant_fuse::*;

static CLASS: LockClass = LockClass::new("memfs", 900);
static DATA_CLASS: LockClass = LockClass::new("memfs data", 901);

/// As in [`FsServer`]: a reply in flight may be older than a change of names, which changes the directory.
const DIRECTORY_VALID: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Counts {
    pub init: AtomicU64,
    pub destroy: AtomicU64,
    pub poisoned: AtomicU64,
    pub statfs: AtomicU64,
    pub syncfs: AtomicU64,
    pub open: AtomicU64,
    pub opendir: AtomicU64,
    pub read: AtomicU64,
    pub readdirplus: AtomicU64,
    pub forget: AtomicU64,
    pub tmpfile: AtomicU64,
    pub undelivered: AtomicU64,
    pub after_destroy: AtomicU64,
}

/// The content of a file, or the target of a symbolic link. Readers of one file do not wait for each other.
struct Data(RwLock<Vec<u8>>);

impl Default for Data {
    fn default() -> Data {
        Data(RwLock::new(&DATA_CLASS, Vec::new()))
    }
}

impl Data {
    /// The part of a requested range that is inside the file.
    fn part(data: &[u8], offset: u64, size: usize) -> &[u8] {
        let from = (offset as usize).min(data.len());
        &data[from..(from + size).min(data.len())]
    }

    fn resize(data: &mut Vec<u8>, size: usize) {
        if data.is_empty() {
            // Uses the system's zero pages, so that a large file made by truncation costs no time.
            *data = vec![0; size];
        } else {
            data.resize(size, 0);
        }
    }

    /// Returns the file's new size.
    fn write(&self, offset: u64, bytes: &[u8]) -> u64 {
        let mut data = self.0.write();
        let (at, end) = (offset as usize, offset as usize + bytes.len());
        if at == data.len() {
            data.extend_from_slice(bytes);
        } else {
            if data.len() < end {
                Data::resize(&mut data, end);
            }
            data[at..end].copy_from_slice(bytes);
        }
        data.len() as u64
    }
}

#[derive(Default)]
struct Node {
    attr: Attr,
    data: Arc<Data>,
    /// The inode, and its position.
    entries: BTreeMap<Vec<u8>, (u64, u64)>,
    /// Positions in the directory: numbers that do not change when other entries are removed.
    order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    lookups: u64,
}

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Node>,
    next: u64,
}

pub struct MemFs {
    state: Mutex<State>,
    clock: Clock,
    pub config: Config,
    pub counts: Counts,
    pub entry_valid: Duration,
    /// READ and FSYNC are answered by another thread, READ with several pieces.
    pub from_threads: bool,
    pub destroy_takes: Duration,
    pub destroy_waits: AtomicBool,
    pub destroying: AtomicBool,
    pub statfs_waits: AtomicBool,
    /// Used by `destroy`.
    pub unmounter: OnceLock<Unmounter>,
    pub mounted_at_destroy: AtomicBool,
    destroyed: AtomicBool,
}

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Node {
    fn insert(&mut self, name: &[u8], ino: u64) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.0 = ino;
            return;
        }
        self.next_cookie += 1;
        self.entries.insert(name.to_vec(), (ino, self.next_cookie));
        self.order.insert(self.next_cookie, name.to_vec());
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.entries.remove(name) {
            self.order.remove(&cookie);
        }
    }

    fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.order.range(cookie + 1..).map(|(c, n)| (*c, &n[..], self.entries[n].0))
    }

    fn attr_valid(&self) -> Duration {
        if self.attr.mode & S_IFMT == S_IFDIR { DIRECTORY_VALID } else { FOREVER }
    }

    fn set_size(&mut self, size: u64) {
        self.attr.size = size;
        self.attr.blocks = size.div_ceil(512);
    }
}

impl MemFs {
    pub fn new(config: Config) -> MemFs {
        let root = Node {
            attr: Attr { ino: ROOT_ID, mode: S_IFDIR | 0o755, nlink: 1, blksize: 4096, ..Attr::default() },
            ..Node::default()
        };
        MemFs {
            state: Mutex::new(&CLASS, State { nodes: HashMap::from([(ROOT_ID, root)]), next: ROOT_ID + 1 }),
            clock: Clock::real(),
            config,
            counts: Counts::default(),
            entry_valid: FOREVER,
            from_threads: true,
            destroy_takes: Duration::ZERO,
            destroy_waits: AtomicBool::new(false),
            destroying: AtomicBool::new(false),
            statfs_waits: AtomicBool::new(false),
            unmounter: OnceLock::new(),
            mounted_at_destroy: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
        }
    }

    /// Sum of the kernel's lookup counts, without the root's.
    pub fn lookups(&self) -> u64 {
        self.state.lock().nodes.iter().filter(|n| *n.0 != ROOT_ID).map(|n| n.1.lookups).sum()
    }

    pub fn nodes(&self) -> usize {
        self.state.lock().nodes.len()
    }

    fn alive(&self) {
        if self.destroyed.load(Ordering::Acquire) {
            bump(&self.counts.after_destroy);
        }
    }

    fn entry(&self, s: &State, ino: u64) -> Entry {
        let node = &s.nodes[&ino];
        Entry {
            nodeid: ino,
            generation: 0,
            attr: node.attr,
            entry_valid: self.entry_valid,
            attr_valid: node.attr_valid(),
        }
    }

    fn attr_of(&self, ino: u64) -> Result<(Attr, Duration), Errno> {
        let s = self.state.lock();
        s.nodes.get(&ino).map(|node| (node.attr, node.attr_valid())).ok_or(Errno::STALE)
    }

    fn data_of(&self, ino: u64) -> Result<Arc<Data>, Errno> {
        self.state.lock().nodes.get(&ino).map(|node| node.data.clone()).ok_or(Errno::STALE)
    }

    /// Puts bytes into a file. The kernel sends the changes of one file's size one after the other.
    fn put(&self, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let size = self.data_of(ino)?.write(offset, bytes);
        self.state.lock().nodes.get_mut(&ino).ok_or(Errno::STALE)?.set_size(size);
        Ok(())
    }

    fn now(&self) -> Timespec {
        self.clock.wall()
    }

    fn child(&self, s: &State, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        s.nodes.get(&parent).ok_or(Errno::STALE)?.entries.get(name).map(|e| e.0).ok_or(Errno::NOENT)
    }

    fn make(&self, s: &mut State, req: &Request, parent: u64, name: Option<&[u8]>, mode: u32) -> Result<u64, Errno> {
        let dir = s.nodes.get(&parent).ok_or(Errno::STALE)?;
        if name.is_some_and(|n| dir.entries.contains_key(n)) {
            return Err(Errno::EXIST);
        }
        let (ino, now) = (s.next, self.now());
        s.next += 1;
        // Directories also have a link count of one: programs then expect any number of subdirectories.
        let nlink = u32::from(name.is_some());
        let attr = Attr {
            ino,
            mode,
            nlink,
            uid: req.uid,
            gid: req.gid,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            btime: Some(Timespec { sec: 1234, nsec: 5 }),
            ..Attr::default()
        };
        s.nodes.insert(ino, Node { attr, ..Node::default() });
        if let Some(name) = name {
            s.nodes.get_mut(&parent).expect("parent").insert(name, ino);
        }
        Ok(ino)
    }

    /// With ACLs the kernel leaves the umask to the server.
    fn masked(&self, mode: u32, umask: u32) -> u32 {
        if self.config.posix_acl { mode & !(umask & 0o777) } else { mode }
    }

    /// Answers with `ino` and counts the kernel's reference.
    fn give(&self, mut s: MutexGuard<'_, State>, ino: u64, reply: ReplyEntry) {
        let entry = self.entry(&s, ino);
        s.nodes.get_mut(&ino).expect("node").lookups += 1;
        drop(s);
        if reply.ok(&entry).is_err() {
            bump(&self.counts.undelivered);
            self.drop_lookups(ino, 1);
        }
    }

    fn drop_lookups(&self, ino: u64, n: u64) {
        let mut s = self.state.lock();
        if let Some(node) = s.nodes.get_mut(&ino) {
            node.lookups = node.lookups.checked_sub(n).expect("forgot more than was looked up");
            if node.lookups == 0 && node.attr.nlink == 0 {
                s.nodes.remove(&ino);
            }
        }
    }

    fn unlink_node(&self, s: &mut State, ino: u64, directory: bool) {
        let node = s.nodes.get_mut(&ino).expect("node");
        node.attr.nlink = if directory { 0 } else { node.attr.nlink - 1 };
        if node.attr.nlink == 0 && node.lookups == 0 {
            s.nodes.remove(&ino);
        }
    }
}

macro_rules! attempt {
    ($reply:ident, $e:expr) => {
        match $e {
            Ok(v) => v,
            Err(e) => return $reply.error(e),
        }
    };
}

impl Server for MemFs {
    fn init(&self, offer: &InitOffer) -> Config {
        assert!(offer.minor >= 28);
        bump(&self.counts.init);
        // At the end of an earlier mount the kernel dropped its references without FORGETs.
        let mut s = self.state.lock();
        s.nodes.retain(|_, node| node.attr.nlink > 0);
        s.nodes.values_mut().for_each(|node| node.lookups = 0);
        self.destroyed.store(false, Ordering::Release);
        self.config
    }

    fn destroy(&self) {
        self.destroying.store(true, Ordering::Release);
        self.clock.sleep(self.destroy_takes);
        while self.destroy_waits.load(Ordering::Acquire) {
            self.clock.sleep(Duration::from_millis(1));
        }
        let mounted = self.unmounter.get().is_some_and(Unmounter::is_mounted);
        self.mounted_at_destroy.store(mounted, Ordering::Release);
        self.destroyed.store(true, Ordering::Release);
        bump(&self.counts.destroy);
    }

    fn poisoned(&self) {
        bump(&self.counts.poisoned);
    }

    fn lookup(&self, _: &Request, parent: u64, name: &[u8], reply: ReplyEntry) {
        self.alive();
        assert_ne!(name, b"panic", "a panic on request");
        let s = self.state.lock();
        match self.child(&s, parent, name) {
            Ok(ino) => self.give(s, ino, reply),
            Err(Errno::NOENT) => reply.negative(self.entry_valid),
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, batch: &[Forget]) {
        self.alive();
        for f in batch {
            self.counts.forget.fetch_add(f.nlookup, Ordering::Relaxed);
            self.drop_lookups(f.nodeid, f.nlookup);
        }
    }

    fn getattr(&self, _: &Request, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        let (attr, valid) = attempt!(reply, self.attr_of(ino));
        reply.ok(&attr, valid);
    }

    fn statx(&self, _: &Request, ino: u64, _: Option<u64>, reply: ReplyStatx) {
        let (attr, valid) = attempt!(reply, self.attr_of(ino));
        reply.ok(&attr, valid);
    }

    fn setattr(&self, _: &Request, ino: u64, set: &SetAttr, reply: ReplyAttr) {
        let now = self.now();
        let mut s = self.state.lock();
        let node = attempt!(reply, s.nodes.get_mut(&ino).ok_or(Errno::STALE));
        if let Some(mode) = set.mode {
            node.attr.mode = node.attr.mode & S_IFMT | mode & 0o7777;
        }
        node.attr.uid = set.uid.unwrap_or(node.attr.uid);
        node.attr.gid = set.gid.unwrap_or(node.attr.gid);
        if let Some(size) = set.size {
            Data::resize(&mut node.data.0.write(), size as usize);
            node.set_size(size);
        }
        let pick = |t: SetTime| if let SetTime::At(t) = t { t } else { now };
        node.attr.atime = set.atime.map_or(node.attr.atime, pick);
        node.attr.mtime = set.mtime.map_or(node.attr.mtime, pick);
        node.attr.ctime = set.ctime.unwrap_or(now);
        let (attr, valid) = (node.attr, node.attr_valid());
        drop(s);
        reply.ok(&attr, valid);
    }

    fn readlink(&self, _: &Request, ino: u64, reply: ReplyData) {
        let data = attempt!(reply, self.data_of(ino));
        reply.ok(&data.0.read());
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), self.masked(args.mode, args.umask)));
        s.nodes.get_mut(&ino).expect("node").attr.rdev = args.rdev;
        self.give(s, ino, reply);
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino =
            attempt!(reply, self.make(&mut s, req, parent, Some(name), S_IFDIR | self.masked(args.mode, args.umask)));
        self.give(s, ino, reply);
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), S_IFLNK | 0o777));
        let node = s.nodes.get_mut(&ino).expect("node");
        node.attr.size = node.data.write(0, target);
        self.give(s, ino, reply);
    }

    fn unlink(&self, _: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.child(&s, parent, name));
        s.nodes.get_mut(&parent).expect("parent").remove(name);
        self.unlink_node(&mut s, ino, false);
        drop(s);
        reply.ok();
    }

    fn rmdir(&self, _: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.child(&s, parent, name));
        if !s.nodes[&ino].entries.is_empty() {
            return reply.error(Errno::NOTEMPTY);
        }
        s.nodes.get_mut(&parent).expect("parent").remove(name);
        self.unlink_node(&mut s, ino, true);
        drop(s);
        reply.ok();
    }

    fn rename(&self, _: &Request, a: &RenameArgs<'_>, reply: ReplyEmpty) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.child(&s, a.parent, a.name));
        let target = self.child(&s, a.new_parent, a.new_name).ok();
        match (a.flags, target) {
            (1, Some(_)) => return reply.error(Errno::EXIST),
            (2, None) => return reply.error(Errno::NOENT),
            (2, Some(t)) => {
                s.nodes.get_mut(&a.parent).expect("parent").insert(a.name, t);
            }
            (0 | 1, t) => {
                s.nodes.get_mut(&a.parent).expect("parent").remove(a.name);
                if let Some(t) = t {
                    let directory = s.nodes[&t].attr.mode & S_IFMT == S_IFDIR;
                    self.unlink_node(&mut s, t, directory);
                }
            }
            _ => return reply.error(Errno::INVAL),
        }
        s.nodes.get_mut(&a.new_parent).expect("parent").insert(a.new_name, ino);
        drop(s);
        reply.ok();
    }

    fn link(&self, _: &Request, ino: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let mut s = self.state.lock();
        attempt!(reply, s.nodes.get_mut(&ino).ok_or(Errno::STALE)).attr.nlink += 1;
        s.nodes.get_mut(&parent).expect("parent").insert(name, ino);
        self.give(s, ino, reply);
    }

    fn open(&self, _: &Request, ino: u64, flags: u32, _: bool, reply: ReplyOpen) {
        bump(&self.counts.open);
        if flags & 0o1000 != 0 {
            let mut s = self.state.lock();
            let node = s.nodes.get_mut(&ino).expect("node");
            node.data.0.write().clear();
            node.set_size(0);
        }
        let _ = reply.ok(ino, OpenFlags::KEEP_CACHE);
    }

    fn read(&self, _: &Request, ino: u64, args: &ReadArgs, reply: ReplyData) {
        bump(&self.counts.read);
        let (data, offset, size) = (attempt!(reply, self.data_of(ino)), args.offset, args.size as usize);
        if !self.from_threads {
            return reply.ok(Data::part(&data.0.read(), offset, size));
        }
        let pieces = move || {
            let data = data.0.read();
            let pieces: Vec<IoSlice<'_>> = Data::part(&data, offset, size).chunks(4096).map(IoSlice::new).collect();
            reply.vectored(&pieces);
        };
        task::spawn("memfs reader", pieces).expect("thread");
    }

    fn write(&self, _: &Request, ino: u64, args: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        attempt!(reply, self.put(ino, args.offset, data));
        reply.ok(data.len() as u32);
    }

    fn statfs(&self, _: &Request, _: u64, reply: ReplyStatfs) {
        bump(&self.counts.statfs);
        while self.statfs_waits.load(Ordering::Acquire) {
            self.clock.sleep(Duration::from_millis(2));
        }
        let st = Statfs {
            blocks: 1000,
            bfree: 400,
            bavail: 300,
            files: 77,
            ffree: 7,
            bsize: 4096,
            frsize: 4096,
            namelen: 255,
        };
        reply.ok(&st);
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        if !self.from_threads {
            return reply.ok();
        }
        task::spawn("memfs fsync", move || reply.ok()).expect("thread");
    }

    fn syncfs(&self, _: &Request, _: u64, reply: ReplyEmpty) {
        bump(&self.counts.syncfs);
        reply.ok();
    }

    fn setxattr(&self, _: &Request, ino: u64, name: &[u8], value: &[u8], args: &SetxattrArgs, reply: ReplyEmpty) {
        let mut s = self.state.lock();
        let node = s.nodes.get_mut(&ino).expect("node");
        match (args.flags, node.xattrs.contains_key(name)) {
            (1, true) => return reply.error(Errno::EXIST),
            (2, false) => return reply.error(Errno::NODATA),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        reply.ok();
    }

    fn getxattr(&self, _: &Request, ino: u64, name: &[u8], reply: ReplyXattr) {
        let s = self.state.lock();
        match s.nodes[&ino].xattrs.get(name) {
            Some(v) => reply.ok(v),
            None => reply.error(Errno::NODATA),
        }
    }

    fn listxattr(&self, _: &Request, ino: u64, reply: ReplyXattr) {
        let s = self.state.lock();
        let list: Vec<u8> = s.nodes[&ino].xattrs.keys().flat_map(|k| k.iter().copied().chain([0])).collect();
        reply.ok(&list);
    }

    fn removexattr(&self, _: &Request, ino: u64, name: &[u8], reply: ReplyEmpty) {
        match self.state.lock().nodes.get_mut(&ino).expect("node").xattrs.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::NODATA),
        }
    }

    fn opendir(&self, _: &Request, _: u64, _: u32, reply: ReplyOpen) {
        bump(&self.counts.opendir);
        let _ = reply.ok(0, OpenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: u64, _: u64, offset: u64, mut reply: ReplyDir) {
        let s = self.state.lock();
        for (cookie, name, child) in s.nodes[&ino].after(offset) {
            if reply.add(child, cookie, (s.nodes[&child].attr.mode >> 12) & 15, name) == DirAdd::Full {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Request, ino: u64, _: u64, offset: u64, mut reply: ReplyDirPlus) {
        bump(&self.counts.readdirplus);
        let mut s = self.state.lock();
        let mut counted = Vec::new();
        for (cookie, name, child) in s.nodes[&ino].after(offset) {
            match reply.add(&self.entry(&s, child), cookie, name) {
                DirAdd::Added => counted.push(child),
                DirAdd::Full => break,
                DirAdd::BadName => {}
            }
        }
        for child in &counted {
            s.nodes.get_mut(child).expect("node").lookups += 1;
        }
        drop(s);
        if reply.ok().is_err() {
            bump(&self.counts.undelivered);
            counted.iter().for_each(|c| self.drop_lookups(*c, 1));
        }
    }

    fn create(&self, req: &Request, parent: u64, name: &[u8], args: &CreateArgs, reply: ReplyCreate) {
        // As in `FsServer`: the kernel then creates with MKNOD, which is one request less.
        if self.config.no_open {
            return reply.nosys();
        }
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), self.masked(args.mode, args.umask)));
        self.give_open(s, ino, reply);
    }

    fn tmpfile(&self, req: &Request, parent: u64, args: &CreateArgs, reply: ReplyCreate) {
        bump(&self.counts.tmpfile);
        let mut s = self.state.lock();
        let ino = attempt!(
            reply,
            self.make(&mut s, req, parent, None, S_IFREG | self.masked(args.mode & 0o7777, args.umask))
        );
        self.give_open(s, ino, reply);
    }

    fn copy_file_range(&self, _: &Request, a: &CopyArgs, reply: ReplyCopy) {
        let data = attempt!(reply, self.data_of(a.ino_in));
        let part = Data::part(&data.0.read(), a.offset_in, a.length as usize).to_vec();
        attempt!(reply, self.put(a.ino_out, a.offset_out, &part));
        reply.ok(part.len() as u64);
    }

    fn ioctl(&self, _: &Request, _: u64, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        // FS_IOC_GETFLAGS: the number declares a long, but the data is an int.
        if args.cmd & 0xffff == 0x6601 { reply.ok(0, &0x10u32.to_le_bytes()) } else { reply.error(Errno::NOTTY) }
    }
}

impl MemFs {
    fn give_open(&self, mut s: MutexGuard<'_, State>, ino: u64, reply: ReplyCreate) {
        let entry = self.entry(&s, ino);
        s.nodes.get_mut(&ino).expect("node").lookups += 1;
        drop(s);
        if reply.ok(&entry, ino, OpenFlags::KEEP_CACHE).is_err() {
            bump(&self.counts.undelivered);
            self.drop_lookups(ino, 1);
        }
    }
}
