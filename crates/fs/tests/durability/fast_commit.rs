//! Fast commits, as the kernel writes them. Extant's replay restores the state before the power cut, the kernel and
//! e2fsck find the same after theirs, and this holds if the power fails at any moment of the replay.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, CrashMode, Fault, FaultyDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, RenameFlags, SetMode, WriteFlags};
use extant_ondisk::csum::crc32c;
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::jbd2::{FastCommitRecord, IncompatFeatures};
use extant_ondisk::superblock::SUPERBLOCK_SIZE;
use extant_ondisk::{BlockNr, InodeNr};
use extant_oracle::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_oracle::{e2fsck, memory, mke2fs, tool};
use extant_recovery::Replay;
use extant_recovery::locate::{journal_inode, open_journal, read_super};

use crate::tree::{Tree, assert_same, tree};

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn sh(script: &str) {
    tool("bash", &["-c", script]);
}

fn e2fsck_repairs(image: &Path, who: &str) {
    let fsck = e2fsck(image, &["-fy"]).expect("e2fsck");
    assert!(fsck.code < 2, "{who}: {}", fsck.output);
}

fn assert_sound(dev: &MemDevice, who: &str) {
    let (status, text) = memory::e2fsck(dev, &["-fn"]);
    assert_eq!(status, 0, "{who}: {text}");
}

fn replay_of(dev: Arc<dyn BlockDevice>) -> Replay {
    let sb = read_super(&*dev).expect("superblock");
    let journal = open_journal(dev.clone(), &sb).expect("journal").expect("journal");
    Replay::load(&journal, &*dev, &mut |_| {}).expect("log")
}

fn records(dev: Arc<dyn BlockDevice>) -> Vec<FastCommitRecord> {
    let commits = replay_of(dev).fast_commits;
    commits.into_iter().flat_map(|commit| commit.records).map(|(_, record)| record).collect()
}

/// An image after a power cut, and its content at that moment.
struct Cut {
    dir: tempfile::TempDir,
    crashed: PathBuf,
    wanted: Tree,
}

impl Cut {
    /// Makes the kernel do `work`, with an fsync for each step, and cuts the power.
    fn new(mkfs: &str, mount: &str, work: &str) -> Cut {
        let dir = tempfile::tempdir().expect("directory");
        let (live, crashed) = (dir.path().join("live.img"), dir.path().join("crashed.img"));
        mke2fs(&live, &["-O", "fast_commit"].into_iter().chain(mkfs.split(' ')).collect::<Vec<_>>(), "64M");
        let mnt = dir.path().join("mnt");
        let mounted = LoopMount::if_permitted(&live, &mnt, &format!("commit=300{mount}")).expect("permitted");
        // A fast commit needs an earlier full one.
        let before = "mkdir d d/rm d/full e; for i in 1 2 3 4 5 6 7 8; do echo old $i > f$i; done; ln f7 hard; \
            dd if=/dev/urandom of=big bs=4k count=60 2>/dev/null; cp big big2; cp big big3; touch -d @1000000 f*; sync -f .";
        // In the same shell, so that its open files stay open.
        let copy = format!("cp {} {}", live.display(), crashed.display());
        sh(&format!("cd {} && {{ {before} ; }} && {{ {work} ; }} && {copy}", mnt.display()));
        mounted.unmount().expect("unmounted");
        let wanted = tree(Arc::new(MemDevice::load(&live).expect("loaded")));
        Cut { dir, crashed, wanted }
    }

    fn load(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::load(&self.crashed).expect("loaded"))
    }

    /// Lets the kernel replay the log of this image.
    fn mount(&self, image: &Path) {
        let mounted = LoopMount::if_permitted(image, &self.dir.path().join("mnt"), "").expect("permitted");
        mounted.unmount().expect("unmounted");
    }

    fn copy(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::copy(&self.crashed, &path).expect("copied");
        path
    }
}

const NAMES: &str = "echo new > n1; sync n1; ln n1 n2; sync n1; ln n1 n3; rm n1; sync n2; echo more >> f1; sync f1; \
    rm f2; sync f1; mv f3 moved; sync moved; mv f4 f5; sync f5; mkdir d/sub; echo x > d/sub/x; sync d/sub/x; rm hard; \
    sync f7; rmdir d/rm; mkdir d/rm2; echo y > d/rm2/y; sync d/rm2/y; mkdir d/full/gone; rmdir d/full/gone; rm n3; mkdir e/f; \
    mkdir e/f/g; echo z > e/f/g/z; sync e/f/g/z; chmod 4755 f6; chown 5:6 f6; sync f6; rm d/sub/x; rmdir d/sub; \
    echo last > last; sync last";
const RANGES: &str = "truncate -s 10000 big; sync big; truncate -s 300000 big; sync big; truncate -s 0 f1; sync f1; \
    fallocate -p -o 8192 -l 16384 big2; sync big2; \
    dd if=/dev/urandom of=big2 bs=4k seek=3 count=1 conv=notrunc 2>/dev/null; sync big2; fallocate -l 100000 pre; \
    sync pre; dd if=/dev/urandom of=pre bs=4k seek=3 count=1 conv=notrunc 2>/dev/null; sync pre; \
    fallocate -l 400000 big3; sync big3; fallocate -z -o 4096 -l 30000 big3; sync big3; echo again > f1; sync f1; \
    cp big3 copy; sync copy; rm big3; sync copy; echo tail >> copy; sync copy";
const TREES: &str = "for i in $(seq 150); do dd if=/dev/urandom of=sparse bs=4k count=1 seek=$((i*2)) conv=notrunc \
    2>/dev/null; done; sync sparse; for i in $(seq 20 50); do fallocate -p -o $((i*8192)) -l 4096 sparse; done; \
    sync sparse; truncate -s 60000 sparse; sync sparse";
const MANY: &str = "for i in $(seq 40); do mkdir m$i; done; for i in $(seq 70); do \
    echo $i > m1/a-file-with-a-rather-long-name-so-that-its-directory-needs-a-second-and-a-third-block-$i; done; \
    sync m1/*; rm m1/*5; sync m1/*7; rmdir m2 m3; sync m1/*7";

const ORPHANS: &str = "exec 7<>f7 8<>f8 5<>f6; rm f7 hard f8 f6; sync -f .; exec 7<&-; echo new > n1; sync n1; \
    echo more >&8; sync /proc/self/fd/8; exec 9<>f1; rm f1; echo much more >&9; sync /proc/self/fd/9; mkdir m; \
    echo new > m/n2; sync m/n2; exec 5<&- 8<&-; echo new > n3; sync n3; exec 8<>f3; rm f3; echo last > last; sync last";
const FILES: &str = "echo new > n1; sync n1; ln n1 n2; sync n1; rm n1; sync n2; echo more >> f1; sync f1; rm f2; \
    sync f1; mv f3 moved; sync moved; mv f4 f5; sync f5; echo y > d/y; sync d/y; mv d/y e/y; sync e/y; \
    chmod 755 f6; chown 5:6 f6; sync f6; truncate -s 5000 big; sync big; rm f8; echo last > last; sync last";

/// The other programs that replay these fast commits correctly. The kernel (6.18) and e2fsck (1.47.0) lose
/// directories that were created or removed. e2fsck also loses blocks of a file whose new content lies in the place
/// of a removed file.
#[derive(Clone, Copy, PartialEq)]
enum Others {
    Both,
    Kernel,
    None,
}

/// Copies the journal and the superblock of `from` into `dev`.
fn restore_log(dev: &MemDevice, from: Arc<MemDevice>) {
    let sb = read_super(&*from).expect("superblock");
    let journal = open_journal(from.clone(), &sb).expect("journal").expect("journal");
    let copy = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        from.read_at(at, &mut bytes, BioFlags::empty()).expect("read");
        dev.write_at(at, &[&bytes], BioFlags::empty()).expect("written");
    };
    let size = u64::from(sb.block_size);
    for block in journal.map().blocks() {
        copy(block.0 * size, size as usize);
    }
    copy(1024, SUPERBLOCK_SIZE);
}

#[test]
fn replay_restores_the_state_before_the_power_cut() {
    if !loop_mounts_work() {
        return;
    }
    let cases = [
        ("files", "-t ext4 -b 4096 -J size=16,fast_commit_size=256", "", FILES, Others::Both),
        ("files, small blocks", "-t ext4 -b 1024 -J size=8,fast_commit_size=1024", "", FILES, Others::Both),
        ("names", "-t ext4 -b 4096 -J size=16,fast_commit_size=256", "", NAMES, Others::None),
        ("names, list of orphans", "-t ext4 -b 1024 -O ^orphan_file -J size=8", "", NAMES, Others::None),
        ("no checksums", "-t ext4 -b 1024 -O ^metadata_csum,^64bit -I 128 -J size=8", "", NAMES, Others::None),
        ("ranges", "-t ext4 -b 4096 -J size=16,fast_commit_size=256", "", RANGES, Others::Kernel),
        ("ranges, small blocks", "-t ext4 -b 1024 -J size=8,fast_commit_size=1024", "", RANGES, Others::Kernel),
        ("trees", "-t ext4 -b 1024 -J size=8,fast_commit_size=1024", "", TREES, Others::Both),
        ("writeback", "-t ext4 -b 1024 -J size=8,fast_commit_size=1024", ",data=writeback", TREES, Others::Both),
        ("orphans in a file", "-t ext4 -b 1024 -O orphan_file -J size=8", "", ORPHANS, Others::None),
        ("orphans on a list", "-t ext4 -b 1024 -O ^orphan_file -J size=8", "", ORPHANS, Others::None),
        ("indirect", "-t ext4 -b 1024 -O ^extents,^64bit -J size=8", "", FILES, Others::None),
        ("many", "-t ext4 -b 1024 -J size=8,fast_commit_size=1024", "", MANY, Others::None),
        ("groups", "-t ext4 -b 1024 -N 4096 -O ^flex_bg -J size=8,fast_commit_size=1024", "", MANY, Others::None),
    ];
    let mut kinds = [0; 6];
    for (name, mkfs, mount, work, others) in cases {
        // A busy kernel falls back to a full commit now and then.
        let mut cuts = (0..5).map(|_| Cut::new(mkfs, mount, work)).map(|cut| (records(cut.load()), cut));
        let Some((found, cut)) = cuts.find(|(found, _)| !found.is_empty()) else {
            panic!("{name}: the kernel wrote no fast commit");
        };
        let found_records = found.len();
        for record in &found {
            kinds[match record {
                FastCommitRecord::AddRange { .. } => 0,
                FastCommitRecord::DelRange { .. } => 1,
                FastCommitRecord::Create(_) => 2,
                FastCommitRecord::Link(_) => 3,
                FastCommitRecord::Unlink(_) => 4,
                FastCommitRecord::Inode { .. } => 5,
            }] += 1;
        }
        // In memory first: nothing is written.
        let dev = cut.load();
        let writes = dev.stats().writes;
        assert_same(&tree(dev.clone()), &cut.wanted, &format!("{name}: read-only"));
        assert_eq!(dev.stats().writes, writes);
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        fs.unmount().expect("unmounted");
        drop(fs);
        assert_same(&tree(dev.clone()), &cut.wanted, &format!("{name}: Extant"));
        assert_sound(&dev, name);
        let after = replay_of(dev);
        assert!(!after.live && after.fast_commits.is_empty());
        if others != Others::None {
            let path = cut.copy("kernel.img");
            cut.mount(&path);
            let found = tree(Arc::new(MemDevice::load(&path).expect("loaded")));
            assert_same(&found, &cut.wanted, &format!("{name}: the kernel"));
            // Interrupted at its end: the kernel writes home the replayed blocks one by one, and the log is still
            // there.
            let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
            restore_log(&dev, cut.load());
            assert_eq!(records(dev.clone()).len(), found_records);
            let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
            fs.unmount().expect("unmounted");
            drop(fs);
            assert_same(&tree(dev.clone()), &cut.wanted, &format!("{name}: after the kernel"));
            assert_sound(&dev, &format!("{name}: after the kernel"));
        }
        if others == Others::Both {
            let path = cut.copy("e2fsck.img");
            e2fsck_repairs(&path, name);
            let found = tree(Arc::new(MemDevice::load(&path).expect("loaded")));
            assert_same(&found, &cut.wanted, &format!("{name}: e2fsck"));
        }
    }
    assert!(kinds.iter().all(|n| *n > 0), "kinds of records: {kinds:?}");
}

/// The records do not say that content has left its inode.
#[test]
fn fast_commits_of_images_with_inline_data_are_not_replayed() {
    if !loop_mounts_work() {
        return;
    }
    let cut = Cut::new("-t ext4 -b 1024 -O inline_data -J size=8", "", "seq 100 > n; sync n");
    let dev = cut.load();
    assert!(!records(dev.clone()).is_empty());
    let writes = dev.stats().writes;
    let e = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).err().expect("refused");
    let message = e.to_string();
    assert!(message.contains("fast commits, which cannot be replayed because of: inline_data; let the kernel"), "{e}");
    assert_eq!(dev.stats().writes, writes);
}

/// The power fails at any moment of Extant's replay: Extant, e2fsck and the kernel find the same state afterwards.
#[test]
fn a_replay_interrupted_anywhere_can_be_repeated() {
    if !loop_mounts_work() {
        return;
    }
    let cut = Cut::new("-t ext4 -b 1024 -J size=8,fast_commit_size=1024", "", FILES);
    let crash = Arc::new(CrashDevice::from_image(&cut.load()));
    crash.declare_atomic(1024, 1024);
    Filesystem::mount(crash.clone(), options()).expect("mounted").unmount().expect("unmounted");
    let mut rng = Rng::new(7);
    let path = cut.dir.path().join("state.img");
    // With the fast commits, then with the transaction made of them, then replayed.
    let mut stages = [0; 3];
    for n in 0..=crash.write_log() {
        for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
            let state = Arc::new(crash.state_after(n, &mut rng, mode).expect("state"));
            let who = format!("event {n}, {mode:?}");
            let replay = replay_of(state.clone());
            stages[match (replay.fast_commits.is_empty(), replay.live) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => 2,
            }] += 1;
            assert_same(&tree(state.clone()), &cut.wanted, &format!("{who}: read-only"));
            if mode == CrashMode::RandomSubset && n % 3 == 0 {
                state.save(&path).expect("saved");
                e2fsck_repairs(&path, &who);
                let found = tree(Arc::new(MemDevice::load(&path).expect("loaded")));
                assert_same(&found, &cut.wanted, &format!("{who}: e2fsck"));
                state.save(&path).expect("saved");
                cut.mount(&path);
                let found = tree(Arc::new(MemDevice::load(&path).expect("loaded")));
                assert_same(&found, &cut.wanted, &format!("{who}: the kernel"));
            }
            let fs = Filesystem::mount(state.clone(), options()).expect("mounted");
            fs.unmount().expect("unmounted");
            drop(fs);
            assert_same(&tree(state.clone()), &cut.wanted, &who);
            if mode == CrashMode::Torn {
                assert_sound(&state, &who);
            }
        }
    }
    assert!(stages.iter().all(|n| *n > 0), "{stages:?}");
}

/// Fast commits made by hand, over an image that has a file of 20000 bytes, an empty one, and a directory with a file.
struct ByHand {
    dev: Arc<MemDevice>,
    area: Vec<u8>,
    crc: u32,
    tid: u32,
}

const BLOCK: usize = 1024;
const FILE: u32 = 12;
const EMPTY: u32 = 13;
const DIR: u32 = 14;
/// Not allocated.
const NEW: u32 = 20;

/// An empty image with room for fast commits, and these features.
fn made(features: &str) -> MemDevice {
    let features = format!("fast_commit,{features}");
    memory::made(&["-t", "ext4", "-b", "1024", "-O", &features, "-J", "size=4"], "16M")
}

fn pristine() -> MemDevice {
    let dev = Arc::new(made("^orphan_file"));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    let file = fs.create(&root, b"file", NewNode::file(0o644), Cred::default()).expect("file");
    fs.write(&file, 0, &[7; 20_000], WriteFlags::default()).expect("written");
    fs.set_xattr(&file, b"user.kept", b"value", SetMode::Any).expect("attribute");
    let empty = fs.create(&root, b"empty", NewNode::file(0o644), Cred::default()).expect("file");
    let sub = fs.create(&root, b"dir", NewNode::directory(0o755), Cred::default()).expect("directory");
    let below = fs.create(&sub, b"below", NewNode::file(0o644), Cred::default()).expect("file");
    assert_eq!([&file, &empty, &sub, &below].map(|i| i.ino.0), [FILE, EMPTY, DIR, 15]);
    drop((root, file, empty, sub, below));
    fs.unmount().expect("unmounted");
    drop(fs);
    Arc::into_inner(dev).expect("no other reference exists")
}

impl ByHand {
    fn over(image: &MemDevice) -> ByHand {
        let dev = Arc::new(image.snapshot());
        let mut sb = read_super(&*dev).expect("superblock");
        let mut journal = open_journal(dev.clone(), &sb).expect("journal").expect("journal");
        let mut jsb = journal.super_block().clone();
        jsb.incompat |= IncompatFeatures::FAST_COMMIT;
        (jsb.sequence, jsb.start) = (jsb.sequence.plus(50), jsb.first);
        let tid = jsb.sequence.0;
        journal.write_super(jsb).expect("written");
        sb.set_needs_recovery(true);
        let mut bytes = [0; SUPERBLOCK_SIZE];
        sb.encode_into(&mut bytes);
        dev.write_at(1024, &[&bytes], BioFlags::empty()).expect("written");
        let mut new = ByHand { dev, area: Vec::new(), crc: 0, tid };
        new.record(9, &[&[0; 4][..], &tid.to_le_bytes()].concat());
        new
    }

    fn put(&mut self, tag: u16, len: usize, value: &[u8]) {
        let record = [&tag.to_le_bytes()[..], &(len as u16).to_le_bytes(), value].concat();
        self.crc = crc32c(self.crc, &record);
        self.area.extend_from_slice(&record);
    }

    fn left(&self) -> usize {
        BLOCK - self.area.len() % BLOCK
    }

    fn record(&mut self, tag: u16, value: &[u8]) {
        // Leave room for a tail behind it, as the kernel does.
        if self.left() < value.len() + 24 {
            let pad = self.left() - 4;
            self.put(7, pad, &vec![0; pad]);
        }
        self.put(tag, value.len(), value);
    }

    fn name(&mut self, tag: u16, parent: u32, ino: u32, name: &[u8]) {
        self.record(tag, &[&parent.to_le_bytes()[..], &ino.to_le_bytes(), name].concat());
    }

    fn add(&mut self, ino: u32, lblk: u32, len: u16, pblk: u64) {
        let raw = [&ino.to_le_bytes()[..], &lblk.to_le_bytes(), &len.to_le_bytes()].concat();
        let high = ((pblk >> 32) as u16).to_le_bytes();
        self.record(1, &[&raw[..], &high, &(pblk as u32).to_le_bytes()].concat());
    }

    /// The inode in the image.
    fn desc(&self, ino: u32) -> InodeDesc {
        let sb = read_super(&*self.dev).expect("superblock");
        journal_inode(&*self.dev, &sb, InodeNr(ino)).expect("inode")
    }

    fn inode(&mut self, ino: u32, change: impl FnOnce(&mut InodeDesc)) {
        let geo = read_super(&*self.dev).expect("superblock").geometry().clone();
        let mut desc = InodeDesc::new(0o100_644, &geo);
        desc.links = 1;
        desc.generation = 77;
        desc.flags = InodeFlags::EXTENTS;
        change(&mut desc);
        let mut raw = vec![0; geo.inode_size];
        desc.encode_into(&mut raw, InodeNr(ino), &geo).expect("inode");
        self.record(6, &[&ino.to_le_bytes()[..], &raw[..160]].concat());
    }

    fn tail(&mut self) {
        let tid = self.tid.to_le_bytes();
        let len = self.left() - 4;
        self.put(8, len, &tid);
        let crc = std::mem::take(&mut self.crc);
        self.area.extend_from_slice(&crc.to_le_bytes());
        self.area.resize(self.area.len().next_multiple_of(BLOCK), 0);
    }

    /// The image with the fast commits in its journal.
    fn finish(mut self) -> Arc<MemDevice> {
        self.tail();
        let sb = read_super(&*self.dev).expect("superblock");
        let journal = open_journal(self.dev.clone(), &sb).expect("journal").expect("journal");
        for (at, block) in journal.super_block().fast_commit_area().zip(self.area.chunks(BLOCK)) {
            let (place, _) = journal.map().lookup(at).expect("place");
            self.dev.write_at(place.0 * BLOCK as u64, &[block], BioFlags::empty()).expect("written");
        }
        self.dev
    }
}

#[test]
fn fast_commits_by_hand_are_replayed() {
    let mut image = ByHand::over(&pristine());
    let free = 15_000;
    image.inode(NEW, |desc| desc.size = 5000);
    image.add(NEW, 0, 3, free);
    image.add(NEW, 3, 2, free + 10);
    image.name(3, DIR, NEW, b"new");
    image.name(4, 2, NEW, b"again");
    image.inode(NEW, |desc| (desc.size, desc.links) = (5000, 2));
    // Changes of missing inodes are skipped.
    image.add(NEW + 1, 0, 3, free + 100);
    image.name(4, 2, NEW + 1, b"never");
    image.name(5, 2, NEW + 1, b"file");
    image.name(5, NEW + 1, FILE, b"file");
    image.tail();
    // Half of the blocks move; one becomes a hole, and the last becomes unwritten.
    image.add(NEW, 0, 2, free + 20);
    image.record(2, &[NEW, 2, 1].map(u32::to_le_bytes).concat());
    image.add(NEW, 4, 32768 + 1, free + 11);
    image.record(2, &[FILE, 3, u32::MAX].map(u32::to_le_bytes).concat());
    let before = image.desc(FILE);
    // The replay retains blocks, the kind of the map, and attributes.
    image.inode(FILE, |desc| {
        *desc = before;
        (desc.uid, desc.size, desc.blocks, desc.i_block) = (4711, 3000, 99, [0xEE; 60]);
    });
    image.name(5, 2, EMPTY, b"empty");
    // The same number again, now for a directory.
    image.inode(EMPTY, |desc| (desc.mode, desc.generation, desc.size) = (0o40_755, 78, 1 << 20));
    image.name(3, DIR, EMPTY, b"sub");
    image.name(5, DIR, 15, b"below");
    let dev = image.finish();
    let state = tree(dev.clone());
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    fs.unmount().expect("unmounted");
    drop(fs);
    assert_same(&tree(dev.clone()), &state, "written");
    assert_sound(&dev, "by hand");
    let names: Vec<_> = state.keys().map(String::as_str).collect();
    assert_eq!(names, ["/again", "/dir", "/dir/new", "/dir/sub", "/file"]);
    assert!(state["/dir"].contains("nlink 3") && state["/dir/sub"].contains("13 40755 nlink 2"), "{state:?}");
    assert!(state["/again"].contains("20 100644 nlink 2") && state["/again"].contains("blocks 8"), "{state:?}");
    assert_eq!(state["/again"], state["/dir/new"]);
    let wanted = format!("4711:0 3000 bytes {:x} blocks 6 ", crc32c(0, &[7; 3000]));
    assert!(state["/file"].contains(&wanted), "{wanted}: {state:?}");
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
    let file = fs.lookup(&fs.root().expect("root"), b"file").expect("file");
    assert_eq!(fs.get_xattr(&file, b"user.kept").expect("attribute"), b"value");
    drop(file);
    drop(fs);
    // The blocks that the file lost are free, also those that it had only in between.
    for (block, marked) in [(free, false), (free + 2, false), (free + 10, true), (free + 20, true), (free + 100, false)]
    {
        let said = memory::debugfs(&dev, &format!("testb {block}"));
        assert_eq!(said.contains("marked in use"), marked, "{said}");
    }
}

/// The kernel's replay was complete, and the log still there. A file has got another name, and its old name belongs to
/// another file.
#[test]
fn a_replay_of_changes_that_are_home_changes_nothing() {
    let dev = Arc::new(pristine());
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    fs.rename(&root, b"file", &root, b"moved", RenameFlags::default()).expect("renamed");
    let other = fs.create(&root, b"file", NewNode::file(0o600), Cred::default()).expect("file");
    let new = other.ino.0;
    drop((root, other));
    fs.unmount().expect("unmounted");
    drop(fs);
    let wanted = tree(dev.clone());
    let mut image = ByHand::over(&dev);
    let (moved, other) = (image.desc(FILE), image.desc(new));
    image.name(4, 2, FILE, b"moved");
    image.name(5, 2, FILE, b"file");
    image.inode(new, |desc| *desc = other.clone());
    image.name(3, 2, new, b"file");
    image.inode(FILE, |desc| *desc = moved);
    image.inode(new, |desc| *desc = other);
    let dev = image.finish();
    assert_same(&tree(dev.clone()), &wanted, "read-only");
    Filesystem::mount(dev.clone(), options()).expect("mounted").unmount().expect("unmounted");
    assert_same(&tree(dev.clone()), &wanted, "replayed");
    assert_sound(&dev, "replayed");
}

/// A file without a name is linked and fsynced after the newest full commit: only the records of orphans show that it
/// is in use. Every request fails, alone and with the two after it: a failed readahead is repeated as a single read.
#[test]
fn a_failed_request_does_not_remove_the_name_of_a_linked_orphan() {
    for features in ["^orphan_file", "orphan_file"] {
        let dev = Arc::new(made(features));
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        let orphan = fs.tmpfile(&fs.root().expect("root"), 0o600, Cred::default()).expect("file without a name");
        fs.write(&orphan, 0, &[9; 3000], WriteFlags::default()).expect("written");
        fs.freeze().expect("frozen");
        let mut image = ByHand::over(&dev);
        let mut desc = image.desc(orphan.ino.0);
        (desc.links, desc.dtime) = (1, 0);
        image.name(4, 2, orphan.ino.0, b"linked");
        image.inode(orphan.ino.0, |new| *new = desc);
        let image = image.finish();
        let wanted = tree(image.clone());
        assert!(wanted["/linked"].contains("nlink 1 0:0 3000 bytes"), "{features}: {wanted:?}");
        for (op, times) in [(BioOp::Read, 1), (BioOp::Read, 3), (BioOp::Write, 1), (BioOp::Write, 3), (BioOp::Flush, 1)]
        {
            let mut failed = 0;
            for n in 0.. {
                let who = format!("{features}, {op:?} {n}, {times} times");
                let dev = Arc::new(image.snapshot());
                let faulty = Arc::new(FaultyDevice::new(dev.clone()));
                faulty.inject(Fault::eio().op(op).after(n).times(times));
                if let Err(e) = Filesystem::mount(faulty.clone(), options()).and_then(|fs| fs.unmount()) {
                    assert!(e.to_string().contains("Input/output error"), "{who}: {e}");
                    failed += 1;
                }
                assert_same(&tree(dev.clone()), &wanted, &who);
                if faulty.injected() == 0 {
                    break;
                }
            }
            assert!(failed > 0, "{features}, {op:?}");
        }
    }
}

/// The expected part of the error message, and the record.
type Hostile = (&'static str, fn(&mut ByHand));

#[test]
fn invalid_records_are_refused_and_nothing_is_written() {
    let cases: &[Hostile] = &[
        ("15 bytes in a record with tag 1", |i| i.record(1, &[0; 15])),
        ("unknown tag 33", |i| i.record(33, &[0; 15])),
        ("number", |i| i.inode(1 << 20, |_| ())),
        ("number", |i| i.inode(0, |_| ())),
        ("number", |i| i.inode(8, |_| ())),
        ("number", |i| i.add(1 << 30, 0, 1, 15_000)),
        ("number", |i| i.name(4, 1 << 30, FILE, b"x")),
        ("number", |i| i.name(5, 2, u32::MAX, b"x")),
        ("which no file can own", |i| i.add(FILE, 40, 1, 3)),
        ("which no file can own", |i| i.add(FILE, 40, 1, 1 << 40)),
        ("which no file can own", |i| i.add(FILE, 40, 1000, 16_000)),
        ("a range up to block 4294967296", |i| i.add(FILE, u32::MAX, 1, 15_000)),
        ("a range of something that has none", |i| i.add(DIR, 1, 1, 15_000)),
        ("a name in an inode that is not a directory", |i| i.name(4, FILE, EMPTY, b"x")),
        ("a name in an inode that is not a directory", |i| i.name(5, FILE, EMPTY, b"x")),
        ("created without a record of its own", |i| i.name(3, 2, NEW, b"x")),
        ("a second name for a directory", |i| i.name(4, 2, DIR, b"x")),
        ("created in two others", |i| i.name(3, DIR, DIR, b"x")),
        ("a directory is removed that is not empty", |i| i.name(5, 2, DIR, b"dir")),
        ("name", |i| i.name(4, 2, FILE, b"a/b")),
        ("'.' and '..'", |i| i.name(5, DIR, 2, b"..")),
        ("mode 0", |i| i.inode(NEW, |desc| desc.mode = 0)),
        ("a new one with a block of attributes", |i| i.inode(NEW, |desc| desc.file_acl = BlockNr(15_000))),
        ("257 bytes of it", |i| i.record(6, &[&NEW.to_le_bytes()[..], &[1; 257]].concat())),
        ("size", |i| i.inode(NEW, |desc| desc.size = u64::MAX)),
    ];
    let pristine = pristine();
    for (wanted, record) in cases {
        let mut image = ByHand::over(&pristine);
        image.add(FILE, 30, 2, 14_000);
        record(&mut image);
        let dev = image.finish();
        let writes = dev.stats().writes;
        for read_only in [true, false] {
            let e = Filesystem::mount(dev.clone(), MountOptions { read_only, ..options() }).err().expect("refused");
            let message = e.to_string();
            assert!(message.contains("fast commit at log block ") && message.contains("byte 32"), "{message}");
            assert!(message.contains(wanted), "{wanted}: {message}");
        }
        assert_eq!(dev.stats().writes, writes, "{wanted}");
    }
}

#[test]
fn fast_commits_that_replace_the_root_directory_are_refused_before_anything_is_written() {
    type Change = fn(&mut InodeDesc);
    let cases: &[(&str, Change)] = &[
        ("a regular file", |desc| desc.mode = 0o100_755),
        ("a fifo", |desc| (desc.mode, desc.flags) = (0o10_755, InodeFlags::empty())),
        ("another directory", |desc| desc.mode = 0o40_755),
    ];
    let pristine = pristine();
    for (what, change) in cases {
        let mut image = ByHand::over(&pristine);
        image.name(4, 2, FILE, b"further");
        image.inode(2, change);
        let dev = image.finish();
        let bytes = || {
            let mut bytes = vec![0; dev.size_bytes() as usize];
            dev.read_at(0, &mut bytes, BioFlags::empty()).expect("read");
            bytes
        };
        let before = bytes();
        for read_only in [true, false] {
            let e = Filesystem::mount(dev.clone(), MountOptions { read_only, ..options() }).err().expect("refused");
            assert!(before == bytes(), "{what}, read_only={read_only}: it was written");
            let message = e.to_string();
            assert!(message.contains("cannot replace the root directory"), "{what}: {message}");
        }
    }
    // The same directory may change.
    let mut image = ByHand::over(&pristine);
    let root = image.desc(2);
    image.inode(2, |desc| {
        *desc = root;
        desc.mode = 0o40_700;
    });
    let fs = Filesystem::mount(image.finish(), options()).expect("mounted");
    assert_eq!(fs.getattr(&fs.root().expect("root")).mode, 0o40_700);
    fs.unmount().expect("unmounted");
}

/// Any well-formed records: the image can be mounted or not, and nothing panics or hangs.
#[test]
fn replay_of_any_well_formed_records_ends() {
    let pristine = pristine();
    let mut rng = Rng::new(11);
    let mut mounted = 0;
    for _ in 0..400 {
        let mut image = ByHand::over(&pristine);
        let mut number = |from: &[u32]| from[rng.below(from.len() as u64) as usize];
        for _ in 0..number(&[1, 3, 12]) {
            let ino = number(&[2, FILE, FILE, EMPTY, DIR, 15, 16, NEW, NEW, NEW + 1]);
            let parent = number(&[2, 2, 2, DIR, DIR, NEW, FILE]);
            let name = format!("{}", number(&[1, 2, 3]));
            let name = number(&[0, 1, 2, 3, 4])
                .checked_sub(1)
                .map_or(name, |i| ["file", "empty", "dir", "below"][i as usize].into());
            match number(&[1, 1, 2, 3, 4, 5, 6, 6]) {
                1 => {
                    let len = number(&[1, 2, 200, 32769, 33000]) as u16;
                    image.add(
                        ino,
                        number(&[0, 1, 5, 100, u32::MAX - 1]),
                        len,
                        u64::from(number(&[15_000, 15_001, 15_300, 14_000])),
                    );
                }
                2 => {
                    let (from, len) = (number(&[0, 1, 5, u32::MAX - 1, u32::MAX]), number(&[0, 1, 9, u32::MAX]));
                    image.record(2, &[ino, from, len].map(u32::to_le_bytes).concat());
                }
                6 => {
                    let mode = number(&[0o100_644, 0o100_644, 0o40_755, 0o120_777, 0o20_600]) as u16;
                    let (size, links) = (number(&[0, 5, 5000, 1 << 30]), number(&[0, 1, 2, 9]) as u16);
                    let flags = number(&[0, 0x80000, 0x80000, 0x1000_0000, 0x81000]);
                    let generation = number(&[77, 78]);
                    image.inode(ino, |desc| {
                        (desc.mode, desc.size, desc.links) = (mode, u64::from(size), links);
                        desc.flags = InodeFlags::from_bits_retain(flags);
                        desc.generation = generation;
                    });
                }
                tag => image.name(tag as u16, parent, ino, name.as_bytes()),
            }
        }
        let dev = image.finish();
        let read = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).map(drop);
        let written = Filesystem::mount(dev.clone(), options()).map(|fs| drop(fs.unmount()));
        assert_eq!(read.is_ok(), written.is_ok(), "{read:?} {written:?}");
        mounted += u32::from(read.is_ok());
    }
    assert!((40..360).contains(&mounted), "{mounted} of 400");
}
