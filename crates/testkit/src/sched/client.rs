//! One client: operations on its own files and names, compared with its expectations and recorded in its own history.
//!
//! Main types: [`Client`], [`Shared`] (the state that all clients of a run share), [`Ack`] (an acknowledgement that
//! something is durable), [`Record`] (a client's record after the run).
//!
//! A client that finds something wrong panics, which ends the run.
//!
//! # Locking
//! `schedule shared` (0) for the lists of acknowledgements and files, held for a moment.

mod durability;
mod looking;
mod striped;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::device::{CrashDevice, FaultyDevice, LateDevice};
use extant_fs::{
    Attr, Cred, Error, FallocateMode, Filesystem, InodeRef, NewNode, RenameFlags, SetAttr, SetFlags, SetMode, SetTime,
    WriteFlags,
};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::time::Timestamp;

use crate::crash::history::{Change, ContentChange, History, Names, Node, NodeId, NodeKind, Op, split};
use crate::crash::pattern;
use crate::sched::acks::{Ack, Coverage};
use crate::sched::config::{Base, CACHE_BYTES, Config, NODES, PROTECTED, STRIPED, protected_content};
use crate::sched::plan::{Cmd, Trick, Verb};
use crate::sched::stripes::{self, Stripes};
use durability::PendingFsync;

static CLASS: LockClass = LockClass::new("schedule shared", 0);

/// The number of operations between growths, on images that grow.
const GROWS_EVERY: u64 = 7;
/// On images with a striped file, one operation in this many uses it.
const STRIPES_EVERY: u64 = 3;
/// The number of operations between those on the file with a Merkle tree, on images that have one.
const PROTECTED_EVERY: u64 = 3;
/// The number of owners where the usage of each is counted, so that clients change the same counts.
const OWNERS: u64 = 3;
/// The maximum size of a file.
const FILE_MAX: u64 = 200 << 10;

/// The state that all clients share.
pub struct Shared {
    pub config: &'static Config,
    pub device: Arc<CrashDevice>,
    pub faulty: Arc<FaultyDevice>,
    pub late: Arc<LateDevice>,
    /// The number of operations that have ended, by client.
    ended: Vec<AtomicUsize>,
    /// The number of acknowledgements so far.
    given: AtomicUsize,
    /// The device that lies, if there is one.
    trick: Trick,
    /// The changes of the file that all clients write to.
    pub stripes: Stripes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    acks: Vec<Ack>,
    files: Vec<(usize, NodeId, InodeRef)>,
    /// Files for which a caller got the error of a lost write: their content is no longer checked.
    told: Vec<(usize, NodeId)>,
    /// Whether a caller got the error of a lost write of an unknown file.
    told_of_any: bool,
}

impl Shared {
    pub fn new(
        config: &'static Config,
        device: Arc<CrashDevice>,
        faulty: Arc<FaultyDevice>,
        late: Arc<LateDevice>,
        clients: usize,
        trick: Trick,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            config,
            device,
            faulty,
            late,
            given: AtomicUsize::new(0),
            ended: (0..clients).map(|_| AtomicUsize::new(0)).collect(),
            trick,
            stripes: Stripes::default(),
            state: Mutex::new(&CLASS, State::default()),
        })
    }

    /// Whether a request has failed: the consequences are not defects.
    pub fn struck(&self) -> bool {
        self.faulty.injected() > 0
    }

    pub fn ended(&self) -> Vec<usize> {
        self.ended.iter().map(|e| e.load(Ordering::Relaxed)).collect()
    }

    /// Records an acknowledgement. `upto`: the operations that had ended at the time of the call.
    pub fn acknowledge(&self, upto: Vec<usize>, what: Coverage, by: &'static str) {
        let in_flight = self.late.in_flight();
        let mut s = self.state.lock();
        if let Coverage::File { client, node, .. } = what
            && s.told.contains(&(client, node))
        {
            return;
        }
        if what == Coverage::Everything && s.told_of_any {
            return;
        }
        let events = self.device.write_log();
        let nr = self.given.fetch_add(1, Ordering::Relaxed);
        s.acks.push(Ack { events, upto, what, by, in_flight, nr });
    }

    fn tell(&self, client: usize, node: NodeId) {
        self.state.lock().told.push((client, node));
    }

    /// Records that a caller which synced all files got the error of a lost write. When it called, `given`
    /// acknowledgements had been made. The write was lost between that call and now, and later calls do not report it
    /// again.
    pub fn tell_of_any(&self, given: usize) {
        let mut s = self.state.lock();
        s.told_of_any = true;
        s.acks.retain(|ack| ack.nr < given || ack.what != Coverage::Everything);
    }

    pub fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    pub fn told(&self) -> Vec<(usize, NodeId)> {
        self.state.lock().told.clone()
    }

    pub fn acks(&self) -> Vec<Ack> {
        self.state.lock().acks.clone()
    }

    /// Drops the references to all files.
    pub fn forget_files(&self) {
        let files = std::mem::take(&mut self.state.lock().files);
        drop(files);
    }
}

/// The attributes of a node after an operation.
#[derive(Clone, Debug)]
pub struct Observation {
    pub node: NodeId,
    pub op: usize,
    pub attr: Attr,
    /// Nothing was delayed, so the number of blocks is the same as on the device.
    pub settled: bool,
}

/// A client's record after the run.
pub struct Record {
    pub client: usize,
    pub history: History,
    /// Operations that changed a node, its names or its attributes.
    pub touches: Vec<(NodeId, usize)>,
    pub looks: Vec<Observation>,
    /// Ranges that were preallocated (true), and ranges that have become holes, in order.
    pub reserved: Vec<(NodeId, u64, u64, bool)>,
    /// Whether an operation failed because of a failed request: only acknowledged operations count.
    pub broken: bool,
}

impl Record {
    /// Whether byte `at` of the file was in a block that was preallocated before anything was written to it.
    pub fn was_preallocated(&self, node: NodeId, at: u64) -> bool {
        let mut of = self.reserved.iter().filter(|(n, from, to, _)| *n == node && (*from..*to).contains(&at));
        of.next_back().is_some_and(|r| r.3)
    }
}

struct OpenFile {
    id: NodeId,
    /// Its first name.
    path: String,
    inode: InodeRef,
    content: Vec<u8>,
    /// Whether written blocks of it may have been lost.
    doubtful: bool,
    /// Whether each change is durable when the call returns.
    synchronous: bool,
}

pub struct Client {
    nr: usize,
    fs: Arc<Filesystem>,
    shared: Arc<Shared>,
    record: Record,
    names: Arc<Names>,
    files: Vec<OpenFile>,
    root: InodeRef,
    serial: u32,
    /// How many of ten operations use the preallocated file.
    focus: u64,
    clock: Clock,
    /// fsyncs that were started and whose replies are pending, with their files.
    asked: Vec<PendingFsync>,
    /// The file with a stripe for each client, and the last write of this one to each of its stripes; 0: zeros.
    striped: Option<InodeRef>,
    written: [u32; stripes::ROWS],
}

impl Client {
    /// Client `nr`, with its files in the image.
    pub fn new(nr: usize, fs: Arc<Filesystem>, shared: Arc<Shared>, base: &Base, focus: u64) -> Client {
        let root = shared.config.top(&fs);
        let mut history = History { first: nr as u32 * NODES, ..History::default() };
        let mut names = Names::default();
        let mut files = Vec::new();
        let mut looks = Vec::new();
        let mut reserved = Vec::new();
        let mut mine: Vec<_> = base.files.iter().filter(|(_, m)| m.client == nr).collect();
        mine.sort_by_key(|(_, m)| m.node);
        for (name, made) in mine {
            let inode = fs.lookup(&root, name.as_bytes()).expect("a file of the image");
            let attr = fs.getattr(&inode);
            let id = made.node;
            let mut changes = Vec::new();
            let end = made.written.last().map_or(0, |(_, to)| *to);
            let scattered = made.written.len() > 1;
            if made.size > end || scattered {
                changes.push(Change { op: 0, what: ContentChange::Size { to: made.size, zeroed_to: made.size } });
            }
            changes.extend(
                made.written.iter().map(|&(from, to)| Change { op: 0, what: ContentChange::Write { from, to } }),
            );
            history.nodes.push(Node {
                ino: attr.ino.0,
                generation: attr.generation,
                kind: made.kind,
                target: None,
                changes,
                durable: vec![(0, 0)],
                replaced: Vec::new(),
                born: 0,
                touched: 0,
                size: made.size,
            });
            if end < made.size || scattered {
                let from = if scattered { 0 } else { end };
                reserved.push((id, from, made.size, true));
            }
            names.paths.insert(name.clone(), id);
            looks.push(Observation { node: id, op: 0, attr, settled: true });
            if made.kind == NodeKind::File {
                let mut content = vec![0; made.size as usize];
                for &(from, to) in &made.written {
                    let bytes = pattern::bytes(history.first + id, 0, from, to);
                    content[from as usize..to as usize].copy_from_slice(&bytes);
                }
                shared.state.lock().files.push((nr, id, inode.clone()));
                files.push(OpenFile { id, path: name.clone(), inode, content, doubtful: false, synchronous: false });
            }
        }
        let names = Arc::new(names);
        history.ops[0].names = names.clone();
        let record = Record { client: nr, history, touches: Vec::new(), looks, reserved, broken: false };
        let striped = shared.config.stripes.then(|| fs.lookup(&root, STRIPED.as_bytes()).expect("a file"));
        Client {
            nr,
            fs,
            shared,
            record,
            names,
            files,
            root,
            serial: 0,
            focus,
            clock: Clock::real(),
            asked: Vec::new(),
            striped,
            written: [0; stripes::ROWS],
        }
    }

    /// Runs `cmds`.
    pub fn run(mut self, cmds: &[Cmd]) -> Record {
        for cmd in cmds {
            if self.record.broken {
                break;
            }
            self.step(*cmd);
        }
        for (answer, client, node) in std::mem::take(&mut self.asked) {
            if let Err(e) = answer.wait() {
                self.sync_failed(&e, Some((client, node)));
            }
        }
        self.read_everything();
        self.record
    }

    fn step(&mut self, cmd: Cmd) {
        let mut rng = Rng::new(cmd.draw);
        let rng = &mut rng;
        if self.shared.config.image.room > 0 && rng.one_in(GROWS_EVERY) {
            return self.grow(rng);
        }
        if self.shared.config.has_protected() && rng.one_in(PROTECTED_EVERY) {
            return self.read_protected(rng);
        }
        if self.shared.config.stripes && rng.one_in(STRIPES_EVERY) {
            return self.stripe(rng);
        }
        match cmd.verb {
            Verb::Create => self.create(rng),
            Verb::Mkdir => self.mkdir(),
            Verb::Symlink => self.symlink(rng),
            Verb::Link => self.link(rng),
            Verb::Rename => self.rename(rng, false),
            Verb::Replace => self.rename(rng, true),
            Verb::Unlink => self.unlink(rng),
            Verb::Append => self.append(rng, 900),
            Verb::AppendLarge => self.append(rng, 40_000),
            Verb::Overwrite => self.overwrite(rng),
            Verb::Poke => self.poke(rng, 1),
            Verb::PokeRun => self.poke(rng, 6),
            Verb::Truncate => self.truncate(rng),
            Verb::Allocate => self.allocate(rng, Some(false)),
            Verb::ZeroRange => self.allocate(rng, Some(true)),
            Verb::Punch => self.allocate(rng, None),
            Verb::Mode => self.mode(rng),
            Verb::Times => self.times(rng),
            Verb::Attribute => self.attribute(rng),
            Verb::Synchronous => self.synchronous(rng),
            Verb::Read => self.read(rng, None),
            Verb::ReadStart => self.read(rng, Some(4096)),
            Verb::Reclaim => self.reclaim(rng),
            Verb::Fsync => self.fsync(rng, false),
            Verb::Fdatasync => self.fsync(rng, true),
            Verb::FsyncOther => self.fsync_other(rng),
            Verb::FsyncMany => self.fsync_many(rng),
            Verb::Sync => self.sync(false),
            Verb::SyncAsync => self.sync(true),
            Verb::Freeze => self.freeze(rng),
            Verb::Nap => self.clock.sleep(Duration::from_millis(rng.below(40))),
            Verb::Sleep => self.clock.sleep(Duration::from_millis(5000 + rng.below(4) * 500)),
            Verb::DirtyMany => self.dirty_many(rng),
        }
    }

    // ---- recording ----

    fn op_nr(&self) -> usize {
        self.record.history.ops.len()
    }

    fn pattern_of(&self, id: NodeId) -> u32 {
        self.record.history.first + id
    }

    /// Records and runs `f`. `None`: `f` failed for an accepted reason. `undo` removes the part of the record that a
    /// failure for lack of space did not do.
    fn op<T>(
        &mut self,
        text: String,
        node: Option<NodeId>,
        change: &[ContentChange],
        f: impl FnOnce(&mut Client) -> Result<T, Error>,
    ) -> Option<T> {
        let op = self.op_nr();
        let start = self.shared.device.write_log();
        let names = self.names.clone();
        self.record.history.ops.push(Op { text: text.clone(), start, end: usize::MAX, names });
        if let Some(id) = node {
            self.record.touches.push((id, op));
            let node = &mut self.record.history.nodes[id as usize];
            node.changes.extend(change.iter().map(|what| Change { op, what: *what }));
        }
        let result = f(self);
        let failed = match &result {
            Ok(_) => false,
            Err(e) if e.is_no_space() || matches!(e, Error::NoInodes) => {
                if let Some(id) = node {
                    self.record.history.nodes[id as usize].changes.retain(|c| c.op != op);
                }
                self.record.history.ops[op].text += &format!(": {e}");
                true
            }
            Err(e) => {
                assert!(self.shared.struck(), "client {}: op {op}: {text}: {e}", self.nr);
                self.record.history.ops[op].text += &format!(": {e}");
                self.fail(node);
                true
            }
        };
        if !failed || !self.record.broken {
            self.record.history.ops[op].end = self.shared.device.write_log();
        }
        self.shared.ended[self.nr].store(op, Ordering::Relaxed);
        if failed {
            return None;
        }
        if let Some(id) = node {
            self.look(id, false);
            if self.files.iter().any(|f| f.id == id && f.synchronous) {
                let covers = Coverage::File { client: self.nr, node: id, data: true };
                self.shared.acknowledge(self.shared.ended(), covers, "a synchronous change");
            }
        }
        result.ok()
    }

    /// Handles an operation that failed because of a failed request: its effect is unknown.
    fn fail(&mut self, node: Option<NodeId>) {
        self.record.broken = true;
        if let Some(id) = node {
            self.shared.tell(self.nr, id);
            self.files.iter_mut().filter(|f| f.id == id).for_each(|f| f.doubtful = true);
        }
    }

    fn look(&mut self, id: NodeId, settled: bool) {
        if let Some(f) = self.files.iter().find(|f| f.id == id) {
            let attr = self.fs.getattr(&f.inode);
            let op = self.op_nr() - 1;
            self.record.looks.push(Observation { node: id, op, attr, settled });
        }
    }

    fn rename_names(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = (*self.names).clone();
        change(&mut names);
        self.names = Arc::new(names);
        let op = self.record.history.ops.last_mut().expect("just recorded");
        op.names = self.names.clone();
    }

    fn touch(&mut self, id: NodeId) {
        let op = self.op_nr() - 1;
        self.record.touches.push((id, op));
        self.record.history.nodes[id as usize].touched = op;
        self.look(id, false);
    }

    fn new_node(&mut self, inode: &InodeRef, kind: NodeKind, target: Option<Vec<u8>>) -> NodeId {
        let attr = self.fs.getattr(inode);
        let op = self.op_nr() - 1;
        self.record.history.nodes.push(Node {
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
        let id = self.record.history.nodes.len() as NodeId - 1;
        self.record.touches.push((id, op));
        id
    }

    // ---- choosing ----

    fn some_file(&self, rng: &mut Rng) -> Option<usize> {
        if rng.below(10) < self.focus
            && let Some(at) = self.files.iter().position(|f| f.path.ends_with('p'))
        {
            return Some(at);
        }
        let n = self.files.len() as u64;
        (n > 0).then(|| rng.below(n) as usize)
    }

    fn fresh_path(&mut self, rng: &mut Rng, what: &str) -> String {
        self.serial += 1;
        let dirs: Vec<&String> = self
            .names
            .paths
            .iter()
            .filter(|(_, id)| self.record.history.nodes[**id as usize].kind == NodeKind::Directory)
            .map(|(p, _)| p)
            .collect();
        let name = format!("t{}{what}{}", self.nr, self.serial);
        match dirs.get(rng.below(dirs.len() as u64 + 2) as usize) {
            Some(dir) => format!("{dir}/{name}"),
            None => name,
        }
    }

    fn dir_of<'p>(&self, path: &'p str) -> (InodeRef, &'p str) {
        let (dir, name) = split(path);
        if dir.is_empty() {
            return (self.root.clone(), name);
        }
        let whole = self.spelled(&self.shared.config.path(dir));
        (self.fs.walk(whole.as_bytes(), false).unwrap_or_else(|e| panic!("client {}: walk {dir}: {e}", self.nr)), name)
    }

    /// Another spelling of an existing path, where directories ignore case.
    fn spelled(&self, path: &str) -> String {
        match (self.op_nr() + path.len()) % 3 {
            0 if self.shared.config.image.ignores_case() => path.to_uppercase(),
            _ => path.to_owned(),
        }
    }

    // ---- names ----

    fn make(&mut self, path: &str, kind: NodeKind, target: Option<&[u8]>) -> Option<NodeId> {
        let (dir, name) = self.dir_of(path);
        let new = match (kind, target) {
            (_, Some(t)) => NewNode::symlink(t),
            (NodeKind::Directory, _) => NewNode::directory(0o755),
            _ => NewNode::file(0o644),
        };
        let made = self.op(format!("make {kind:?} {path}"), None, &[], |c| {
            c.fs.create(&dir, name.as_bytes(), new, Cred::default())
        })?;
        let id = self.new_node(&made, kind, target.map(<[u8]>::to_vec));
        self.rename_names(|n| _ = n.paths.insert(path.to_owned(), id));
        if kind == NodeKind::File {
            self.shared.state.lock().files.push((self.nr, id, made.clone()));
            let (path, content) = (path.to_owned(), Vec::new());
            self.files.push(OpenFile { id, path, inode: made, content, doubtful: false, synchronous: false });
            self.look(id, false);
        }
        Some(id)
    }

    fn create(&mut self, rng: &mut Rng) {
        let path = self.fresh_path(rng, "f");
        if self.make(&path, NodeKind::File, None).is_some() && rng.one_in(2) {
            let at = self.files.len() - 1;
            let len = self.shared.config.image.length(rng, 9000);
            self.write(at, 0, len);
        }
    }

    fn mkdir(&mut self) {
        self.serial += 1;
        let path = format!("t{}d{}", self.nr, self.serial);
        self.make(&path, NodeKind::Directory, None);
    }

    fn symlink(&mut self, rng: &mut Rng) {
        let path = self.fresh_path(rng, "s");
        let len = if rng.one_in(2) { 1 + rng.below(59) } else { 60 + rng.below(200) };
        let mut target = vec![b'x'; len as usize];
        target.iter_mut().for_each(|b| *b = b'a' + rng.below(26) as u8);
        self.make(&path, NodeKind::Symlink, Some(&target));
    }

    fn link(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let new = self.fresh_path(rng, "l");
        let (dir, name) = self.dir_of(&new);
        if self
            .op(format!("link node {id} as {new}"), None, &[], |c| c.fs.link(&inode, &dir, name.as_bytes()))
            .is_some()
        {
            self.rename_names(|n| _ = n.paths.insert(new, id));
            self.touch(id);
        }
    }

    /// Renames to a new name, or over another file.
    fn rename(&mut self, rng: &mut Rng, over: bool) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, old) = (self.files[at].id, self.files[at].path.clone());
        let other = if over { self.some_file(rng).filter(|o| *o != at) } else { None };
        let new = match other {
            Some(o) => self.files[o].path.clone(),
            None => self.fresh_path(rng, "r"),
        };
        let (old_dir, old_name) = self.dir_of(&old);
        let (new_dir, new_name) = self.dir_of(&new);
        let replaced = self.names.paths.get(&new).copied();
        let text = format!("rename {old} (node {id}) to {new} (over {replaced:?})");
        let done = self.op(text, None, &[], |c| {
            c.fs.rename(&old_dir, c.spelled(old_name).as_bytes(), &new_dir, new_name.as_bytes(), RenameFlags::default())
        });
        if done.is_none() || replaced == Some(id) {
            return;
        }
        self.rename_names(|n| {
            n.paths.remove(&old);
            n.paths.insert(new.clone(), id);
        });
        self.files[at].path = new;
        self.touch(id);
        if let Some(gone) = replaced {
            self.touch(gone);
            let op = self.op_nr() - 1;
            self.record.history.nodes[id as usize].replaced.push(op);
            self.drop_name(gone);
        }
    }

    /// Handles the loss of one name of the node: the node has another name, or the file is closed.
    fn drop_name(&mut self, id: NodeId) {
        let other = self.names.paths.iter().find(|(_, i)| **i == id).map(|(p, _)| p.clone());
        let Some(at) = self.files.iter().position(|f| f.id == id) else { return };
        match other {
            Some(path) => self.files[at].path = path,
            None => {
                if self.names.attrs.contains_key(&id) {
                    self.rename_names(|n| _ = n.attrs.remove(&id));
                }
                let mut s = self.shared.state.lock();
                let found = s.files.iter().position(|(c, n, _)| (*c, *n) == (self.nr, id));
                let gone = found.map(|i| s.files.remove(i));
                drop(s);
                drop(gone);
                let file = self.files.remove(at);
                drop(file);
            }
        }
    }

    fn unlink(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, path) = (self.files[at].id, self.files[at].path.clone());
        let (dir, name) = self.dir_of(&path);
        let kept = (rng.below(3) == 0).then(|| self.files[at].inode.clone());
        if self
            .op(format!("unlink {path} (node {id})"), None, &[], |c| c.fs.unlink(&dir, c.spelled(name).as_bytes()))
            .is_some()
        {
            self.rename_names(|n| _ = n.paths.remove(&path));
            self.touch(id);
            self.drop_name(id);
            if let Some(inode) = kept.filter(|inode| inode.links() == 0) {
                // The file stays open for a while and is truncated, so it remains an orphan. Its name may return.
                let to = rng.below(self.fs.getattr(&inode).size + 1);
                let set = SetAttr { size: Some(to), ..SetAttr::default() };
                let what = self.sized(to);
                self.op(format!("truncate open node {id} to {to}"), Some(id), &[what], |c| c.fs.setattr(&inode, &set));
                if rng.below(2) == 0 {
                    self.op(format!("fsync of open node {id}"), None, &[], |c| c.fs.fsync(&inode, false));
                }
            }
        }
    }

    // ---- content ----

    fn write(&mut self, at: usize, from: u64, len: u64) {
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let to = from + len;
        let op = self.op_nr();
        let data = pattern::bytes(self.pattern_of(id), op as u32, from, to);
        let text = format!("write {} (node {id}) {from}..{to}", self.files[at].path);
        let done = self.op(text, Some(id), &[ContentChange::Write { from, to }], |c| {
            c.fs.write(&inode, from, &data, WriteFlags::default())
        });
        let Some(n) = done else { return };
        let to = from + n as u64;
        if (n as u64) < len {
            // The write is as long as the free space allowed.
            let node = &mut self.record.history.nodes[id as usize];
            if let Some(c) = node.changes.last_mut() {
                c.what = ContentChange::Write { from, to };
            }
        }
        let file = &mut self.files[at];
        if file.content.len() < to as usize {
            file.content.resize(to as usize, 0);
        }
        file.content[from as usize..to as usize].copy_from_slice(&data[..n]);
    }

    fn append(&mut self, rng: &mut Rng, most: u64) {
        let Some(at) = self.some_file(rng) else { return };
        let size = self.files[at].content.len() as u64;
        if size < FILE_MAX {
            let gap = if rng.one_in(8) { rng.below(9000) } else { 0 };
            self.write(at, size + gap, self.shared.config.image.length(rng, most));
        }
    }

    fn overwrite(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let size = self.files[at].content.len() as u64;
        if size == 0 {
            return self.write(at, 0, self.shared.config.image.length(rng, 5000));
        }
        let bs = u64::from(self.shared.config.image.block_size);
        let from = if rng.one_in(2) { rng.below(size) / bs * bs } else { rng.below(size) };
        let len = if rng.one_in(2) { bs } else { 1 + rng.below(9000) };
        self.write(at, from, len.min(size - from));
    }

    fn poke(&mut self, rng: &mut Rng, pages: u64) {
        let Some(at) = self.some_file(rng) else { return };
        let size = self.files[at].content.len() as u64;
        if size < 8 {
            return self.write(at, 0, 5000);
        }
        let first = rng.below(size.div_ceil(4096));
        let within = rng.below(500) * 8;
        let scattered = rng.one_in(2);
        for i in 0..pages {
            let page = if scattered { rng.below(size.div_ceil(4096)) } else { first + i };
            let from = page * 4096 + within;
            if from + 8 <= size {
                self.write(at, from, 8);
            }
        }
        if rng.one_in(3) {
            self.check_read(at);
        }
    }

    fn truncate(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let size = self.files[at].content.len() as u64;
        let to = if size > 0 && rng.below(10) < 7 {
            rng.below(size)
        } else {
            size + self.shared.config.image.length(rng, 9000) - 1
        };
        if to == size || to > FILE_MAX {
            return;
        }
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let set = SetAttr { size: Some(to), ..SetAttr::default() };
        let what = self.sized(to);
        let text = format!("truncate {} (node {id}) to {to}", self.files[at].path);
        if self.op(text, Some(id), &[what], |c| c.fs.setattr(&inode, &set)).is_some() {
            self.files[at].content.resize(to as usize, 0);
            self.record.reserved.push((id, to, u64::MAX, false));
        }
    }

    fn sized(&self, to: u64) -> ContentChange {
        ContentChange::Size { to, zeroed_to: to.next_multiple_of(u64::from(self.shared.config.image.block_size)) }
    }

    /// Allocates, zeros (`Some(true)`) or punches (`None`).
    fn allocate(&mut self, rng: &mut Rng, zero: Option<bool>) {
        let Some(at) = self.some_file(rng) else { return };
        let size = self.files[at].content.len() as u64;
        if size > FILE_MAX || (zero.is_none() && size == 0) {
            return;
        }
        let extents = self.shared.config.image.extents;
        if zero.is_some() && !extents {
            return self.append(rng, 9000);
        }
        let bs = u64::from(self.shared.config.image.block_size);
        let from = rng.below(size + if zero.is_some() { 9000 } else { 0 });
        let from = if rng.one_in(2) { from / bs * bs } else { from };
        let to = from + 1 + rng.below(30_000);
        let keep_size = rng.one_in(3);
        let whole_from = from.div_ceil(bs) * bs;
        let zeroed = ContentChange::Zero { from, to, whole_from, whole_to: (to / bs * bs).max(whole_from) };
        let (mode, text) = match zero {
            None => (FallocateMode::PunchHole, "punch"),
            Some(true) => (FallocateMode::ZeroRange { keep_size }, "zero range"),
            Some(false) => (FallocateMode::Allocate { keep_size }, "allocate"),
        };
        let grows = zero.is_some() && !keep_size && to > size;
        let mut changes = Vec::new();
        if zero != Some(false) {
            changes.push(zeroed);
        }
        if grows {
            changes.push(self.sized(to));
        }
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let text = format!("{text} {} (node {id}) {from}..{to}, keep size {keep_size}", self.files[at].path);
        let done = self.op(text, Some(id), &changes, |c| c.fs.fallocate(&inode, mode, from, to - from)).is_some();
        if !done {
            // For lack of space, the operation may have stopped halfway: the zeroed part is unknown.
            if !self.record.broken && zero != Some(false) {
                self.give_up(id);
            }
            return;
        }
        let whole = (from / bs * bs, to.next_multiple_of(bs));
        if zero == Some(false) {
            // Only holes become preallocated; written data remains.
            let new = whole.0.max(size.next_multiple_of(bs));
            self.record.reserved.push((id, new, whole.1.max(new), true));
        } else if zero.is_none() {
            self.record.reserved.push((id, whole.0, whole.1, false));
        }
        let file = &mut self.files[at];
        if zero != Some(false) {
            let end = (to as usize).min(file.content.len());
            file.content[(from as usize).min(end)..end].fill(0);
        }
        if grows {
            file.content.resize(to as usize, 0);
        }
    }

    /// Removes a file whose content is unknown.
    fn give_up(&mut self, id: NodeId) {
        self.shared.tell(self.nr, id);
        let paths: Vec<String> = self.names.paths.iter().filter(|(_, i)| **i == id).map(|(p, _)| p.clone()).collect();
        for path in paths {
            let (dir, name) = self.dir_of(&path);
            let done = self
                .op(format!("unlink {path} (node {id})"), None, &[], |c| c.fs.unlink(&dir, c.spelled(name).as_bytes()));
            if done.is_none() {
                return;
            }
            self.rename_names(|n| _ = n.paths.remove(&path));
            self.touch(id);
        }
        self.drop_name(id);
    }

    fn dirty_many(&mut self, rng: &mut Rng) {
        let mine: Vec<NodeId> =
            self.files.iter().filter(|f| f.path.contains('m') && f.content.len() == 100).map(|f| f.id).collect();
        let append = rng.one_in(2);
        for id in mine {
            let Some(at) = self.files.iter().position(|f| f.id == id) else { continue };
            if self.record.broken {
                return;
            }
            if append { self.write(at, 4096, 8) } else { self.write(at, rng.below(90), 8) }
        }
    }

    // ---- attributes ----

    fn mode(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let owners = if self.shared.config.image.features.contains("quota") { OWNERS } else { 100_000 };
        let set = SetAttr {
            mode: Some(0o400 + rng.below(0o377) as u16),
            uid: Some(rng.below(owners) as u32),
            gid: Some(rng.below(owners) as u32),
            ..SetAttr::default()
        };
        if self.op(format!("mode and owner of node {id}"), Some(id), &[], |c| c.fs.setattr(&inode, &set)).is_some() {
            self.touch(id);
        }
    }

    fn times(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let time = Timestamp {
            seconds: 1_500_000_000 + rng.below(100_000_000) as i64,
            nanos: rng.below(1_000_000_000) as u32,
        };
        let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        if self.op(format!("time of node {id}"), Some(id), &[], |c| c.fs.setattr(&inode, &set)).is_some() {
            self.touch(id);
        }
    }

    fn attribute(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode) = (self.files[at].id, self.files[at].inode.clone());
        let name = format!("user.a{}", rng.below(3)).into_bytes();
        let has = self.names.attrs.get(&id).is_some_and(|a| a.contains_key(&name));
        if has && rng.one_in(3) {
            let text = format!("remove attribute of node {id}");
            if self.op(text, Some(id), &[], |c| c.fs.remove_xattr(&inode, &name)).is_some() {
                self.rename_names(|n| {
                    let attrs: &mut BTreeMap<_, _> = n.attrs.get_mut(&id).expect("it has one");
                    attrs.remove(&name);
                    if attrs.is_empty() {
                        n.attrs.remove(&id);
                    }
                });
                self.touch(id);
            }
            return;
        }
        let len = self.shared.config.image.value_length(rng);
        let value = match rng.below(3) {
            // Files of all clients then share a block or an inode.
            0 => pattern::label(rng.below(2) as u32, self.shared.config.image.label_length()),
            _ => pattern::bytes(self.pattern_of(id), self.op_nr() as u32, 0, len),
        };
        let text = format!("set attribute of node {id}, {} bytes", value.len());
        if self.op(text, Some(id), &[], |c| c.fs.set_xattr(&inode, &name, &value, SetMode::Any)).is_some() {
            self.rename_names(|n| _ = n.attrs.entry(id).or_default().insert(name, value));
            self.touch(id);
        }
    }

    /// chattr(1) with `+S` or `-S`.
    fn synchronous(&mut self, rng: &mut Rng) {
        let Some(at) = self.some_file(rng) else { return };
        let (id, inode, on) = (self.files[at].id, self.files[at].inode.clone(), !self.files[at].synchronous);
        let mut flags = InodeFlags::from_bits_retain(self.fs.getattr(&inode).flags & InodeFlags::USER_VISIBLE.bits());
        flags.set(InodeFlags::SYNC, on);
        let set = SetFlags { flags: Some(flags.bits()), ..SetFlags::default() };
        let text = format!("chattr of {} (node {id}): synchronous {on}", self.files[at].path);
        if self.op(text, Some(id), &[], |c| c.fs.set_flags(&inode, set)).is_none() {
            return;
        }
        self.files[at].synchronous = on;
        // A synchronous change reports only its own errors, so the client collects the error of an earlier lost write
        // here.
        if let Some(e) = self.fs.fsync(&inode, true).err().filter(|_| on) {
            self.sync_failed(&e, Some((self.nr, id)));
        }
    }
}
