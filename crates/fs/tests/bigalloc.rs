//! Clusters of several blocks: random changes of files against a model, under each way of writing, with e2fsck as
//! judge of what counts clusters.

use extant_oracle::memory as tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_fs::{Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};

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
        assert_eq!(fs.delayed().1, 0, "promises without data");
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
