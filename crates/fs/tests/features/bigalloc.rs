//! Clusters of several blocks: random changes of files against a model, under each way of writing, with e2fsck as
//! judge of what counts clusters.

use extant_oracle::memory as tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_fs::{
    Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, WriteFlags,
};

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// Shapes of clusters: blocks, bytes of a cluster, other features.
const SHAPES: &[(&str, &[&str])] = &[
    ("1 KiB in 2 KiB", &["-b", "1024", "-C", "2048"]),
    ("1 KiB in 4 KiB", &["-b", "1024", "-C", "4096"]),
    ("1 KiB in 64 KiB", &["-b", "1024", "-C", "65536"]),
    ("4 KiB in 16 KiB", &["-b", "4096", "-C", "16384"]),
    ("4 KiB in 64 KiB, inline data", &["-b", "4096", "-C", "65536", "-I", "256", "-O", "inline_data"]),
    ("4 KiB in 256 KiB, no checksums", &["-b", "4096", "-C", "262144", "-O", "^metadata_csum,uninit_bg"]),
    ("1 KiB in 4 KiB, no journal", &["-b", "1024", "-C", "4096", "-O", "^has_journal"]),
    ("1 KiB in 8 KiB, no flex_bg, quota", &["-b", "1024", "-C", "8192", "-O", "^flex_bg,quota"]),
];

fn image(shape: &[&str]) -> Arc<MemDevice> {
    let args = [&["-t", "ext4", "-O", "bigalloc"], shape].concat();
    Arc::new(tools::made(&args, "64M"))
}

struct Model {
    content: Vec<u8>,
    inode: Option<InodeRef>,
}

struct Bench {
    dev: Arc<MemDevice>,
    options: MountOptions,
    fs: Option<Mounted>,
    files: BTreeMap<u32, Model>,
    rng: Rng,
    block: u64,
}

impl Bench {
    fn new(shape: &[&str], options: MountOptions, seed: u64) -> Bench {
        let dev = image(shape);
        let fs = Filesystem::mount(dev.clone(), options.clone()).expect("mounted");
        let block = u64::from(fs.statfs().block_size);
        Bench { dev, options, fs: Some(fs), files: BTreeMap::new(), rng: Rng::new(seed), block }
    }

    fn fs(&self) -> &Mounted {
        self.fs.as_ref().expect("mounted")
    }

    /// A place in a file: often at or near the border of a block.
    fn place(&mut self) -> u64 {
        let blocks = self.rng.below(150);
        let at = blocks * self.block;
        if self.rng.one_in(3) { at + self.rng.below(self.block) } else { at }
    }

    fn len(&mut self) -> u64 {
        let most = if self.rng.one_in(8) { 60 } else { 4 };
        let blocks = self.rng.below(most) * self.block;
        let bytes = if self.rng.one_in(2) { self.rng.below(self.block) } else { 0 };
        (blocks + bytes).max(1)
    }

    fn inode(&mut self, nr: u32) -> InodeRef {
        let (root, name) = (self.fs().root().expect("root"), format!("f{nr}"));
        if let Some(Model { inode: Some(inode), .. }) = self.files.get(&nr) {
            return inode.clone();
        }
        let inode = match self.files.contains_key(&nr) {
            true => self.fs().lookup(&root, name.as_bytes()).expect("there"),
            false => self.fs().create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created"),
        };
        let model = self.files.entry(nr).or_insert(Model { content: Vec::new(), inode: None });
        model.inode = Some(inode.clone());
        inode
    }

    fn step(&mut self, step: u32) {
        let nr = self.rng.below(4) as u32;
        let inode = self.inode(nr);
        let (pos, len) = (self.place(), self.len());
        let (from, to) = (pos as usize, (pos + len) as usize);
        let byte = (step % 255 + 1) as u8;
        match self.rng.below(20) {
            0..=8 => {
                let mut done = 0;
                while done < len {
                    let data = vec![byte; (len - done) as usize];
                    done += self.fs().write(&inode, pos + done, &data, WriteFlags::default()).expect("write") as u64;
                }
                let content = &mut self.files.get_mut(&nr).expect("there").content;
                content.resize(content.len().max(to), 0);
                content[from..to].fill(byte);
            }
            9 | 10 => {
                let set = SetAttr { size: Some(pos), ..SetAttr::default() };
                self.fs().setattr(&inode, &set).expect("truncate");
                self.files.get_mut(&nr).expect("there").content.resize(from, 0);
            }
            11 | 12 => {
                self.fs().fallocate(&inode, FallocateMode::PunchHole, pos, len).expect("punch");
                self.zero(nr, from, to, true);
            }
            13 => {
                let keep_size = self.rng.one_in(2);
                self.fs().fallocate(&inode, FallocateMode::Allocate { keep_size }, pos, len).expect("allocate");
                let content = &mut self.files.get_mut(&nr).expect("there").content;
                content.resize(content.len().max(if keep_size { 0 } else { to }), 0);
            }
            14 => {
                let keep_size = self.rng.one_in(2);
                self.fs().fallocate(&inode, FallocateMode::ZeroRange { keep_size }, pos, len).expect("zero");
                self.zero(nr, from, to, keep_size);
            }
            15 => self.fs().fsync(&inode, false).expect("fsync"),
            16 => self.fs().sync().expect("sync"),
            17 if self.rng.one_in(3) => {
                let root = self.fs().root().expect("root");
                self.fs().unlink(&root, format!("f{nr}").as_bytes()).expect("unlink");
                self.files.remove(&nr);
            }
            18 if self.rng.one_in(4) => self.remount(),
            _ => self.compare(nr),
        }
    }

    fn zero(&mut self, nr: u32, from: usize, to: usize, keep_size: bool) {
        let content = &mut self.files.get_mut(&nr).expect("there").content;
        if !keep_size {
            content.resize(content.len().max(to), 0);
        }
        let (from, to) = (from.min(content.len()), to.min(content.len()));
        content[from..to].fill(0);
    }

    fn compare(&mut self, nr: u32) {
        if !self.files.contains_key(&nr) {
            return;
        }
        let inode = self.inode(nr);
        let content = &self.files[&nr].content;
        assert_eq!(self.fs().getattr(&inode).size, content.len() as u64, "size of f{nr}");
        let mut found = vec![0xEE; content.len()];
        let n = self.fs().read(&inode, 0, &mut found).expect("read");
        assert_eq!(n, content.len());
        if let Some(at) = found.iter().zip(content).position(|(a, b)| a != b) {
            panic!("f{nr} at {at} (block {}): {} for {}", at as u64 / self.block, found[at], content[at]);
        }
    }

    fn compare_all(&mut self) {
        let all: Vec<u32> = self.files.keys().copied().collect();
        all.into_iter().for_each(|nr| self.compare(nr));
    }

    fn remount(&mut self) {
        self.compare_all();
        self.files.values_mut().for_each(|file| file.inode = None);
        let fs = self.fs.take().expect("mounted");
        fs.sync().expect("sync");
        assert_eq!(fs.statistics().delayed().1, 0, "promises without data");
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&self.dev);
        self.fs = Some(Filesystem::mount(self.dev.clone(), self.options.clone()).expect("mounted again"));
        self.compare_all();
    }
}

fn run(name: &str, shape: &[&str], options: &MountOptions, seeds: std::ops::Range<u64>, steps: u32) {
    for seed in seeds {
        let mut bench = Bench::new(shape, options.clone(), seed);
        for step in 0..steps {
            let at = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.step(step)));
            if let Err(e) = at {
                eprintln!("{name}, seed {seed}, step {step}");
                std::panic::resume_unwind(e);
            }
        }
        eprintln!("{name}, seed {seed}: ends");
        bench.remount();
        bench.files.clear();
        bench.fs.take().expect("mounted").unmount().expect("unmount");
    }
}

#[test]
fn delayed_writes_agree_with_a_model() {
    for (name, shape) in SHAPES {
        run(name, shape, &options(), 0..3, 300);
    }
}

#[test]
fn writes_through_agree_with_a_model() {
    for (name, shape) in SHAPES {
        let options = MountOptions { write_through_bytes: Some(1024), ..options() };
        run(name, shape, &options, 10..12, 300);
    }
}

#[test]
fn writes_beside_threads_agree_with_a_model() {
    for (name, shape) in SHAPES {
        run(name, shape, &MountOptions { threads: true, ..options() }, 20..22, 300);
    }
}

const FOUR: &[&str] = &["-b", "1024", "-C", "4096", "-N", "64"];

fn file(fs: &Filesystem, name: &str) -> InodeRef {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("created")
}

fn write(fs: &Filesystem, inode: &InodeRef, block: u64, byte: u8) {
    assert_eq!(fs.write(inode, block * 1024, &[byte; 1024], WriteFlags::default()).expect("written"), 1024);
}

fn byte_at(fs: &Filesystem, inode: &InodeRef, block: u64) -> u8 {
    let mut found = [0xEE];
    assert_eq!(fs.read(inode, block * 1024 + 512, &mut found).expect("read"), 1);
    found[0]
}

/// Takes every free cluster, those that are kept back too.
fn fill(fs: &Filesystem) -> InodeRef {
    let filler = file(fs, "filler");
    let mut at = 0;
    loop {
        match fs.write(&filler, at, &[0x5A; 64 << 10], WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(Error::NoSpace) => break,
            Err(e) => panic!("at {at}: {e}"),
        }
    }
    fs.sync().expect("sync");
    filler
}

/// Delayed or mapped, and wherever they are in it.
#[test]
fn blocks_of_a_cluster_take_its_space_once() {
    let dev = image(FOUR);
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let f = file(&fs, "f");
    let free = || fs.statfs().blocks_free;
    let before = free();
    for (block, clusters) in [(5, 1), (7, 1), (4, 1), (1, 2), (13, 3), (14, 3)] {
        write(&fs, &f, block, 1);
        assert_eq!((fs.getattr(&f).blocks, before - free()), (8 * clusters, 4 * clusters), "block {block}, delayed");
        if block == 4 || block == 13 {
            fs.sync().expect("sync");
            assert_eq!((fs.getattr(&f).blocks, before - free()), (8 * clusters, 4 * clusters), "block {block}, mapped");
        }
    }
    // A cluster is freed when its last block is punched out.
    for (block, clusters) in [(5, 3), (1, 2), (4, 2), (14, 2), (13, 1), (7, 0)] {
        fs.fallocate(&f, FallocateMode::PunchHole, block * 1024, 1024).expect("punched");
        fs.sync().expect("sync");
        assert_eq!((fs.getattr(&f).blocks, before - free()), (8 * clusters, 4 * clusters), "without block {block}");
    }
    drop(f);
    fs.unmount().expect("unmount");
    tools::assert_clean(&dev);
}

#[test]
fn a_full_disk_has_room_in_the_clusters_that_files_have() {
    for through in [None, Some(1024)] {
        let dev = image(FOUR);
        let options = MountOptions { write_through_bytes: through, ..options() };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let f = file(&fs, "f");
        write(&fs, &f, 1, 1);
        fs.sync().expect("sync");
        let filler = fill(&fs);
        for block in [0, 3, 2] {
            write(&fs, &f, block, 2);
        }
        let full = fs.write(&f, 4096, &[3; 1024], WriteFlags::default());
        assert!(matches!(full, Err(Error::NoSpace)), "{full:?}");
        fs.fsync(&f, false).expect("written to the device");
        drop((f, filler));
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
        let fs = Filesystem::mount(dev, self::options()).expect("mounted again");
        let f = fs.lookup(&fs.root().expect("root"), b"f").expect("there");
        assert_eq!([0, 1, 2, 3].map(|block| byte_at(&fs, &f, block)), [2, 1, 2, 2]);
        drop(f);
        fs.unmount().expect("unmount");
    }
}

/// Blocks leave a cluster that stays, and the file gets them again. Their data waits for the commit of the first
/// change, because a power cut before it brings the old file back. A write over both kinds of blocks is not cut short.
#[test]
fn blocks_that_left_a_cluster_are_written_after_the_next_commit() {
    for through in [None, Some(1024)] {
        let dev = image(FOUR);
        let options = MountOptions { write_through_bytes: through, ..options() };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let f = file(&fs, "f");
        assert_eq!(fs.write(&f, 0, &[1; 4096], WriteFlags::default()).expect("written"), 4096);
        fs.sync().expect("sync");
        let commits = || fs.statistics().journal().commits.get();
        let commits_of_a_write = |from: usize| {
            let before = commits();
            let data = vec![2; 4096 - from];
            assert_eq!(fs.write(&f, from as u64, &data, WriteFlags::default()).expect("written"), data.len());
            fs.fsync(&f, false).expect("durable");
            commits() - before
        };
        let usual = commits_of_a_write(0);
        for kept in [1024, 2048] {
            fs.setattr(&f, &SetAttr { size: Some(kept as u64), ..SetAttr::default() }).expect("shorter");
            assert_eq!(commits_of_a_write(0), usual + 1, "through {through:?}, {kept} bytes kept");
            assert_eq!(commits_of_a_write(0), usual, "through {through:?}: the cluster is whole again");
        }
        drop(f);
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

/// A delayed block without a promise, because its cluster was mapped, gets one when that cluster is freed.
#[test]
fn delayed_blocks_keep_their_space_when_the_rest_of_the_cluster_leaves() {
    for cut in ["punched", "truncated"] {
        let dev = image(FOUR);
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        let f = file(&fs, "f");
        let (mapped, delayed) = if cut == "punched" { (1, 2) } else { (2, 1) };
        write(&fs, &f, mapped, 1);
        fs.sync().expect("sync");
        let filler = fill(&fs);
        write(&fs, &f, delayed, 2);
        match cut {
            "punched" => fs.fallocate(&f, FallocateMode::PunchHole, 1024, 1024).expect("punched"),
            _ => drop(fs.setattr(&f, &SetAttr { size: Some(2048), ..SetAttr::default() }).expect("truncated")),
        }
        // Others find no space in its place.
        let other = fs.write(&filler, 60 << 20, &[3; 1024], WriteFlags::default());
        assert!(matches!(other, Err(Error::NoSpace)), "{cut}: {other:?}");
        fs.fsync(&f, false).expect("written to the device");
        assert_eq!((byte_at(&fs, &f, delayed), fs.statistics().delayed().1), (2, 0), "{cut}");
        drop((f, filler));
        fs.unmount().expect("unmount");
        tools::assert_clean(&dev);
    }
}

/// Half of a cluster belongs to one file, half to another: both can be read and removed, and e2fsck mends the rest.
#[test]
fn clusters_of_two_files_do_no_harm() {
    let dev = image(FOUR);
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    for (name, blocks) in [("a", [0, 1]), ("b", [2, 3])] {
        let f = file(&fs, name);
        blocks.into_iter().for_each(|block| write(&fs, &f, block, name.as_bytes()[0]));
    }
    fs.unmount().expect("unmount");
    drop(fs);
    let place = |name: &str| {
        let text = tools::debugfs(&dev, &format!("blocks /{name}\n"));
        let blocks = text.lines().last().expect("blocks").split_whitespace().next().expect("one");
        blocks.parse::<u64>().unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let moved = format!("set_inode_field /b block[5] {}", place("a") + 2);
    let damaged = Arc::new(tools::edited(&dev, &[&moved]));
    for (keep, remove) in [("a", "b"), ("b", "a"), ("", "a")] {
        let dev = Arc::new(damaged.snapshot());
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        let root = fs.root().expect("root");
        fs.unlink(&root, remove.as_bytes()).expect("unlinked");
        fs.sync().expect("sync");
        if keep.is_empty() {
            let f = fs.lookup(&root, b"b").expect("there");
            let _ = fs.setattr(&f, &SetAttr { size: Some(0), ..SetAttr::default() });
        }
        drop(root);
        let _ = fs.unmount();
        let (code, text) = tools::e2fsck(&dev, &["-fy"]);
        assert!(code <= 1 || text.contains("FILE SYSTEM WAS MODIFIED"), "{code}: {text}");
    }
}

/// e2fsck takes a file without extents for damage; its content can be read, and nothing of it is changed.
#[test]
fn files_without_extents_are_only_read() {
    let dev = image(FOUR);
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let f = file(&fs, "f");
    (0..4).for_each(|block| write(&fs, &f, block, 7));
    drop(f);
    fs.unmount().expect("unmount");
    drop(fs);
    let text = tools::debugfs(&dev, "blocks /f\n");
    let first: u64 =
        text.lines().last().expect("blocks").split_whitespace().next().expect("one").parse().expect("block");
    let mut edits = vec!["set_inode_field /f flags 0".to_owned()];
    edits.extend((0..12).map(|i| format!("set_inode_field /f block[{i}] {}", if i < 4 { first + i } else { 0 })));
    let edits: Vec<&str> = edits.iter().map(String::as_str).collect();
    let damaged = Arc::new(tools::edited(&dev, &edits));
    let fs = Filesystem::mount(damaged.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    let f = fs.lookup(&root, b"f").expect("there");
    assert_eq!([0, 3].map(|block| byte_at(&fs, &f, block)), [7, 7]);
    let grown = fs.write(&f, 9 << 10, &[1; 1024], WriteFlags::default());
    assert!(matches!(grown, Err(Error::Corrupt { .. })), "{grown:?}");
    let cut = fs.fallocate(&f, FallocateMode::PunchHole, 0, 1024);
    assert!(matches!(cut, Err(Error::Corrupt { .. })), "{cut:?}");
    let cut = fs.setattr(&f, &SetAttr { size: Some(1024), ..SetAttr::default() });
    assert!(matches!(cut, Err(Error::Corrupt { .. })), "{cut:?}");
    assert_eq!((fs.getattr(&f).size, byte_at(&fs, &f, 3)), (4096, 7), "nothing has changed");
    fs.unlink(&root, b"f").expect("unlinked");
    drop((f, root));
    let _ = fs.unmount();
    let (_, text) = tools::e2fsck(&damaged, &["-fy"]);
    assert!(text.contains("FILE SYSTEM WAS MODIFIED") && !text.contains("Multiply-claimed"), "{text}");
}
