//! A small file system in memory that exercises the transport with a real kernel.
//!
//! It maintains the state that the protocol requires (lookup counts, handles) and counts the requests.
#![allow(dead_code)]

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::OnceLock;
use std::time::Duration;

use extant_base::clock::{Clock, Timespec};
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_fuse::abi::ROOT_ID;
use extant_fuse::*;

static CLASS: LockClass = LockClass::new("memfs", 900);

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

#[derive(Clone, Default)]
struct Node {
    attr: Attr,
    data: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
    /// Positions in the directory: numbers that do not change when other entries go.
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
        if self.entries.insert(name.to_vec(), ino).is_none() {
            self.next_cookie += 1;
            self.order.insert(self.next_cookie, name.to_vec());
        }
    }

    fn remove(&mut self, name: &[u8]) {
        self.entries.remove(name);
        self.order.retain(|_, n| n != name);
    }

    fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.order.range(cookie + 1..).map(|(c, n)| (*c, &n[..], self.entries[n]))
    }
}

impl MemFs {
    pub fn new(config: Config) -> MemFs {
        let root = Node {
            attr: Attr { ino: ROOT_ID, mode: S_IFDIR | 0o755, nlink: 2, blksize: 4096, ..Attr::default() },
            ..Node::default()
        };
        MemFs {
            state: Mutex::new(&CLASS, State { nodes: HashMap::from([(ROOT_ID, root)]), next: ROOT_ID + 1 }),
            clock: Clock::real(),
            config,
            counts: Counts::default(),
            entry_valid: FOREVER,
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
        Entry {
            nodeid: ino,
            generation: 0,
            attr: s.nodes[&ino].attr,
            entry_valid: self.entry_valid,
            attr_valid: FOREVER,
        }
    }

    fn now(&self) -> Timespec {
        self.clock.wall()
    }

    fn child(&self, s: &State, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        s.nodes.get(&parent).ok_or(Errno::STALE)?.entries.get(name).copied().ok_or(Errno::NOENT)
    }

    fn make(&self, s: &mut State, req: &Request, parent: u64, name: Option<&[u8]>, mode: u32) -> Result<u64, Errno> {
        let dir = s.nodes.get(&parent).ok_or(Errno::STALE)?;
        if name.is_some_and(|n| dir.entries.contains_key(n)) {
            return Err(Errno::EXIST);
        }
        let (ino, now) = (s.next, self.now());
        s.next += 1;
        let nlink = if mode & S_IFMT == S_IFDIR { 2 } else { u32::from(name.is_some()) };
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

    /// Answers with `ino` and counts the kernel's reference.
    fn give(&self, mut s: extant_base::sync::MutexGuard<'_, State>, ino: u64, reply: ReplyEntry) {
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
        let s = self.state.lock();
        let attr = attempt!(reply, s.nodes.get(&ino).ok_or(Errno::STALE)).attr;
        reply.ok(&attr, FOREVER);
    }

    fn statx(&self, _: &Request, ino: u64, _: Option<u64>, reply: ReplyStatx) {
        let s = self.state.lock();
        let attr = attempt!(reply, s.nodes.get(&ino).ok_or(Errno::STALE)).attr;
        reply.ok(&attr, FOREVER);
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
            node.data.resize(size as usize, 0);
            node.attr.size = size;
        }
        let pick = |t: SetTime| if let SetTime::At(t) = t { t } else { now };
        node.attr.atime = set.atime.map_or(node.attr.atime, pick);
        node.attr.mtime = set.mtime.map_or(node.attr.mtime, pick);
        node.attr.ctime = set.ctime.unwrap_or(now);
        reply.ok(&node.attr, FOREVER);
    }

    fn readlink(&self, _: &Request, ino: u64, reply: ReplyData) {
        let s = self.state.lock();
        reply.ok(&s.nodes[&ino].data);
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), args.mode));
        s.nodes.get_mut(&ino).expect("node").attr.rdev = args.rdev;
        self.give(s, ino, reply);
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), S_IFDIR | args.mode));
        self.give(s, ino, reply);
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), S_IFLNK | 0o777));
        let node = s.nodes.get_mut(&ino).expect("node");
        node.data = target.to_vec();
        node.attr.size = target.len() as u64;
        self.give(s, ino, reply);
    }

    fn unlink(&self, _: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.child(&s, parent, name));
        s.nodes.get_mut(&parent).expect("parent").remove(name);
        self.unlink_node(&mut s, ino, false);
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
            node.data.clear();
            node.attr.size = 0;
        }
        let _ = reply.ok(ino, OpenFlags::KEEP_CACHE);
    }

    /// Answers from another thread, out of several pieces.
    fn read(&self, _: &Request, ino: u64, args: &ReadArgs, reply: ReplyData) {
        bump(&self.counts.read);
        let data = {
            let s = self.state.lock();
            let data = &s.nodes[&ino].data;
            let from = (args.offset as usize).min(data.len());
            let to = (from + args.size as usize).min(data.len());
            data[from..to].to_vec()
        };
        let pieces = move || {
            let pieces: Vec<IoSlice<'_>> = data.chunks(4096).map(IoSlice::new).collect();
            reply.vectored(&pieces);
        };
        task::spawn("memfs reader", pieces).expect("thread");
    }

    fn write(&self, _: &Request, ino: u64, args: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        let mut s = self.state.lock();
        let node = attempt!(reply, s.nodes.get_mut(&ino).ok_or(Errno::STALE));
        let end = args.offset as usize + data.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[args.offset as usize..end].copy_from_slice(data);
        node.attr.size = node.data.len() as u64;
        node.attr.blocks = node.attr.size.div_ceil(512);
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
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, Some(name), args.mode));
        self.give_open(s, ino, reply);
    }

    fn tmpfile(&self, req: &Request, parent: u64, args: &CreateArgs, reply: ReplyCreate) {
        bump(&self.counts.tmpfile);
        let mut s = self.state.lock();
        let ino = attempt!(reply, self.make(&mut s, req, parent, None, S_IFREG | args.mode & 0o7777));
        self.give_open(s, ino, reply);
    }

    fn copy_file_range(&self, _: &Request, a: &CopyArgs, reply: ReplyCopy) {
        let mut s = self.state.lock();
        let data = s.nodes[&a.ino_in].data.clone();
        let from = (a.offset_in as usize).min(data.len());
        let to = (from + a.length as usize).min(data.len());
        let node = s.nodes.get_mut(&a.ino_out).expect("node");
        let end = a.offset_out as usize + (to - from);
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[a.offset_out as usize..end].copy_from_slice(&data[from..to]);
        node.attr.size = node.data.len() as u64;
        reply.ok((to - from) as u64);
    }

    fn ioctl(&self, _: &Request, _: u64, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        // FS_IOC_GETFLAGS: the number says long, but the data is an int.
        if args.cmd & 0xffff == 0x6601 { reply.ok(0, &0x10u32.to_le_bytes()) } else { reply.error(Errno::NOTTY) }
    }
}

impl MemFs {
    fn give_open(&self, mut s: extant_base::sync::MutexGuard<'_, State>, ino: u64, reply: ReplyCreate) {
        let entry = self.entry(&s, ino);
        s.nodes.get_mut(&ino).expect("node").lookups += 1;
        drop(s);
        if reply.ok(&entry, ino, OpenFlags::KEEP_CACHE).is_err() {
            bump(&self.counts.undelivered);
            self.drop_lookups(ino, 1);
        }
    }
}
