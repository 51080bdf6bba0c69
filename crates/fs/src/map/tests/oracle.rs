//! Comparison with e2fsprogs and the kernel. Extant and debugfs must find the same mappings in the kernel's maps.
//! Extant's own maps must pass e2fsck, and the kernel must be able to read them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use extant_oracle::mount::{LoopMount, Mounted};
use extant_oracle::{arg, debugfs_write, e2fsck, expect_clean, mke2fs, tool};
use tempfile::TempDir;

use crate::map::{MapError, MapRoot, MapState, MapStore, Mapping, NewNode, Progress, Shared};

/// Blocks by logical block: (physical, unwritten).
type Map = BTreeMap<u32, (u64, bool)>;

struct Image {
    _dir: TempDir,
    path: PathBuf,
    mount_dir: PathBuf,
    block_size: u32,
}

impl Image {
    fn new(fs_type: &str, block_size: u32, size: &str) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        mke2fs(&path, &["-t", fs_type, "-b", &block_size.to_string()], size);
        Image { mount_dir: dir.path().join("mnt"), _dir: dir, path, block_size }
    }

    fn debugfs(&self, request: &str) -> String {
        extant_oracle::debugfs(&self.path, request).unwrap()
    }

    fn mount(&self) -> Option<Box<LoopMount>> {
        LoopMount::if_permitted(&self.path, &self.mount_dir, "")
    }

    /// The offset of the inode in the image, in bytes.
    fn inode_at(&self, ino: u32) -> u64 {
        let text = self.debugfs(&format!("imap <{ino}>"));
        let rest = text.split("located at block ").nth(1).unwrap_or_else(|| panic!("{text}"));
        let (block, offset) = rest.trim().split_once(", offset 0x").unwrap();
        block.parse::<u64>().unwrap() * u64::from(self.block_size) + u64::from_str_radix(offset, 16).unwrap()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn crc(seed: u32, data: &[u8]) -> u32 {
    // The checksum is computed bit by bit, so that this test shares no code with the code under test.
    data.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82F6_3B78 } else { c >> 1 })
    })
}

/// A store over a whole image in memory. It allocates from the free blocks that dumpe2fs lists.
struct ImageStore {
    bytes: RefCell<Vec<u8>>,
    blocks_count: u64,
    block_size: u32,
    free: RefCell<Vec<u64>>,
}

impl ImageStore {
    fn open(image: &Image) -> ImageStore {
        let bytes = fs::read(&image.path).unwrap();
        ImageStore {
            blocks_count: bytes.len() as u64 / u64::from(image.block_size),
            bytes: RefCell::new(bytes),
            block_size: image.block_size,
            free: RefCell::default(),
        }
    }

    fn load_free_blocks(&self, image: &Image) {
        let text = tool("dumpe2fs", &[arg(&image.path)]);
        let mut free = Vec::new();
        for line in text.lines().filter_map(|l| l.strip_prefix("  Free blocks: ")) {
            for range in line.split(", ").filter(|r| !r.is_empty()) {
                let (a, b) = range.split_once('-').unwrap_or((range, range));
                free.extend(a.parse::<u64>().unwrap()..=b.parse::<u64>().unwrap());
            }
        }
        free.reverse();
        *self.free.borrow_mut() = free;
    }

    fn range(&self, block: u64) -> std::ops::Range<usize> {
        let bs = self.block_size as usize;
        block as usize * bs..(block as usize + 1) * bs
    }

    /// Allocates up to `want` adjacent free blocks.
    fn allocate_run(&self, want: u32) -> (BlockNr, u32) {
        let mut free = self.free.borrow_mut();
        let start = free.pop().expect("image is full");
        let mut len = 1;
        while len < want && free.last() == Some(&(start + u64::from(len))) {
            free.pop();
            len += 1;
        }
        (BlockNr(start), len)
    }

    fn inode(&self, image: &Image, ino: u32) -> MapRoot {
        let at = image.inode_at(ino) as usize;
        let bytes = self.bytes.borrow();
        let superblock = &bytes[1024..2048];
        let csum = u32_at(superblock, 0x64) & 0x400 != 0;
        let seed = crc(!0, &superblock[0x68..0x78]);
        let seed = crc(crc(seed, &ino.to_le_bytes()), &bytes[at + 100..at + 104]);
        let extents = u32_at(&bytes, at + 32) & 0x8_0000 != 0;
        MapRoot::new(InodeNr(ino), bytes[at + 40..at + 100].try_into().unwrap(), extents, csum.then_some(seed))
    }
}

impl MapStore for ImageStore {
    type Txn = ();
    type Error = MapError;

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    fn group_of(&self, block: BlockNr) -> GroupNr {
        GroupNr((block.0 / (8 * u64::from(self.block_size))) as u32)
    }

    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, MapError> {
        let bytes = self.bytes.borrow();
        let content = &bytes[self.range(block.0)];
        verify(content).map_err(|detail| MapError::Corrupt { ino: InodeNr(0), block: Some(block), detail })?;
        Ok(f(content))
    }

    fn read_damaged<R>(&self, block: BlockNr, f: impl FnOnce(&[u8]) -> R) -> Result<R, MapError> {
        Ok(f(&self.bytes.borrow()[self.range(block.0)]))
    }

    fn modify<R>(
        &self,
        (): &mut (),
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, MapError> {
        let mut bytes = self.bytes.borrow_mut();
        let content = &mut bytes[self.range(block.0)];
        verify(content).map_err(|detail| MapError::Corrupt { ino: InodeNr(0), block: Some(block), detail })?;
        Ok(f(content))
    }

    fn allocate_meta(&self, (): &mut (), _: NewNode) -> Result<BlockNr, MapError> {
        Ok(self.allocate_run(1).0)
    }

    fn init<R>(&self, (): &mut (), block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, MapError> {
        let mut bytes = self.bytes.borrow_mut();
        let content = &mut bytes[self.range(block.0)];
        content.fill(0);
        Ok(f(content))
    }

    fn free_meta(&self, (): &mut (), block: BlockNr) -> Result<(), MapError> {
        self.free.borrow_mut().insert(0, block.0);
        Ok(())
    }

    fn free_data(&self, (): &mut (), start: BlockNr, len: u32, _: Shared) -> Result<(), MapError> {
        self.free.borrow_mut().splice(0..0, start.0..start.0 + u64::from(len));
        Ok(())
    }

    fn has_credits(&self, (): &mut (), _blocks: u32) -> bool {
        true
    }
}

/// Parses `debugfs stat`: the mapped blocks, and the metadata blocks of the map.
fn map_by_debugfs(text: &str) -> (Map, BTreeSet<u64>) {
    let (mut map, mut meta) = (Map::new(), BTreeSet::new());
    let list = text.split_once("EXTENTS:\n").or_else(|| text.split_once("BLOCKS:\n")).map_or("", |(_, l)| l);
    let list = list.split("\nTOTAL").next().unwrap();
    for item in list.split(", ").map(str::trim).filter(|i| !i.is_empty()) {
        let (logical, physical) = item.strip_prefix('(').and_then(|i| i.split_once("):")).expect(item);
        let first = |range: &str| range.split('-').next().unwrap().parse::<u64>().unwrap();
        if logical.ends_with("IND") || logical.starts_with("ETB") {
            assert!(meta.insert(first(physical)));
            continue;
        }
        let unwritten = logical.ends_with("[u]");
        let logical = logical.trim_end_matches("[u]");
        let (from, to) = logical.split_once('-').unwrap_or((logical, logical));
        for (i, lblk) in (from.parse::<u32>().unwrap()..=to.parse().unwrap()).enumerate() {
            assert!(map.insert(lblk, (first(physical) + i as u64, unwritten)).is_none());
        }
    }
    (map, meta)
}

fn add_run(map: &mut Map, m: &Mapping) {
    let (pblk, unwritten) = match m.state {
        MapState::Hole => return,
        MapState::Written(b) => (b.0, false),
        MapState::Unwritten(b) => (b.0, true),
    };
    for i in 0..m.len {
        assert!(map.insert(m.lblk.0 + i, (pblk + u64::from(i), unwritten)).is_none());
    }
}

/// The same from `walk`, from `lookup` of one run after another, and from `walk_meta`.
fn map_by_us(root: &MapRoot, store: &ImageStore) -> (Map, BTreeSet<u64>) {
    let mut walked = Map::new();
    root.walk(store, LogicalBlock(0), |m| {
        add_run(&mut walked, &m);
        ControlFlow::Continue(())
    })
    .unwrap();
    let (mut looked_up, mut at) = (Map::new(), 0u32);
    let end = root.logical_end(store.block_size);
    while at < end {
        let m = root.lookup(store, LogicalBlock(at), end - at).unwrap();
        add_run(&mut looked_up, &m);
        at += m.len;
    }
    assert!(walked == looked_up, "walk and lookup differ");
    let mut meta = BTreeSet::new();
    root.walk_meta(store, |b| assert!(meta.insert(b.0))).unwrap();
    (walked, meta)
}

/// Files of many shapes, written by the kernel.
fn kernel_files(dir: &Path, block_size: u64, extents: bool) {
    let write = |f: &File, block: u64, blocks: u64| {
        f.write_all_at(&vec![0x5A; (blocks * block_size) as usize], block * block_size).unwrap();
    };
    let create = |name: &str| File::create(dir.join(name)).unwrap();
    create("empty");
    write(&create("small"), 0, 3);
    write(&create("large"), 0, 6_000);
    let comb = create("comb");
    (0..1_200).for_each(|i| write(&comb, 2 * i + u64::from(i % 7 == 0), 1));
    let far = create("far");
    for border in [12, 12 + block_size / 4, 12 + block_size / 4 + (block_size / 4).pow(2)] {
        write(&far, border - 2, 4);
    }
    let (a, b) = (create("interleaved-a"), create("interleaved-b"));
    for i in 0..300 {
        write(if i % 2 == 0 { &a } else { &b }, i / 2 * 3, 3);
        if i % 50 == 0 {
            a.sync_all().unwrap();
            b.sync_all().unwrap();
        }
    }
    if extents {
        let name = dir.join("unwritten");
        let name = name.to_str().unwrap();
        tool("fallocate", &["-l", &(4_000 * block_size).to_string(), name]);
        let f = OpenOptions::new().write(true).open(name).unwrap();
        (0..400).for_each(|i| write(&f, 10 * i + 3, 1 + i % 3));
        f.sync_all().unwrap();
        for i in [5u64, 100, 333] {
            let (at, len) = ((10 * i * block_size).to_string(), (12 * block_size).to_string());
            tool("fallocate", &["-p", "-o", &at, "-l", &len, name]);
        }
    }
}

fn reads_what_the_kernel_wrote(fs_type: &str, block_size: u32) {
    let image = Image::new(fs_type, block_size, "96M");
    let Some(mount) = image.mount() else { return };
    kernel_files(&image.mount_dir, u64::from(block_size), fs_type == "ext4");
    let inos: Vec<(String, u32)> = fs::read_dir(&image.mount_dir)
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.file_type().unwrap().is_file())
        .map(|e| (e.file_name().into_string().unwrap(), std::os::unix::fs::DirEntryExt::ino(&e) as u32))
        .collect();
    mount.unmount().unwrap();
    assert!(inos.len() >= 7);
    let store = ImageStore::open(&image);
    let mut deepest = 0;
    for (name, ino) in inos.iter().map(|(n, i)| (n.as_str(), *i)).chain([("journal", 8)]) {
        let root = store.inode(&image, ino);
        assert_eq!(root.extents, fs_type == "ext4", "{name}");
        let (want, want_meta) = map_by_debugfs(&image.debugfs(&format!("stat <{ino}>")));
        let (got, got_meta) = map_by_us(&root, &store);
        assert!(got == want, "{fs_type} {block_size} {name}: the maps differ");
        assert_eq!(got_meta, want_meta, "{name}");
        assert_eq!(want.is_empty(), name == "empty", "{name}: the parser missed debugfs's output");
        if root.extents {
            deepest = deepest.max(root.i_block[6]);
        }
    }
    if fs_type == "ext4" {
        assert!(deepest >= if block_size == 1024 { 2 } else { 1 });
    }
}

#[test]
fn reads_kernel_extents() {
    reads_what_the_kernel_wrote("ext4", 1024);
    reads_what_the_kernel_wrote("ext4", 4096);
}

#[test]
fn reads_kernel_indirect_blocks() {
    reads_what_the_kernel_wrote("ext3", 1024);
    reads_what_the_kernel_wrote("ext3", 4096);
}

/// Random operations on the map of a file in a real image. Each data block contains its logical number.
fn churn(store: &ImageStore, root: &mut MapRoot, seed: u64, spread: u64) -> Map {
    let mut rng = Rng::new(seed);
    let mut map = Map::new();
    for _ in 0..3_000 {
        let lblk = rng.below(spread) as u32;
        let len = 1 + rng.below(6) as u32;
        match rng.below(8) {
            0 => {
                assert_eq!(
                    root.remove(store, &mut (), LogicalBlock(lblk), LogicalBlock(lblk + len)),
                    Ok(Progress::Done)
                );
                map.retain(|k, _| *k < lblk || *k > lblk + len);
            }
            1 | 2 if root.extents => {
                let unwritten = rng.one_in(2);
                let done = if unwritten {
                    root.mark_unwritten(store, &mut (), LogicalBlock(lblk), len)
                } else {
                    root.convert_unwritten(store, &mut (), LogicalBlock(lblk), len)
                };
                assert_eq!(done, Ok(Progress::Done));
                map.range_mut(lblk..lblk + len).for_each(|(_, v)| v.1 = unwritten);
            }
            _ => {
                let hole = root.lookup(store, LogicalBlock(lblk), len).unwrap();
                if hole.state != MapState::Hole {
                    continue;
                }
                let (pblk, len) = store.allocate_run(hole.len);
                let unwritten = root.extents && rng.one_in(3);
                assert_eq!(root.insert(store, &mut (), LogicalBlock(lblk), pblk, len, unwritten), Ok(len));
                map.extend((0..len).map(|i| (lblk + i, (pblk.0 + u64::from(i), unwritten))));
            }
        }
    }
    for (lblk, (pblk, _)) in &map {
        let mut bytes = store.bytes.borrow_mut();
        let range = store.range(*pblk);
        bytes[range].chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&lblk.to_le_bytes()));
    }
    map
}

fn e2fsck_and_the_kernel_agree(fs_type: &str, block_size: u32, seed: u64) {
    let image = Image::new(fs_type, block_size, "64M");
    debugfs_write(&image.path, "write /dev/null made").unwrap();
    let ino: u32 =
        image.debugfs("stat made").split("Inode: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let store = ImageStore::open(&image);
    store.load_free_blocks(&image);
    let mut root = store.inode(&image, ino);
    let spread = 9_000;
    let map = churn(&store, &mut root, seed, spread);
    let (walked, meta) = map_by_us(&root, &store);
    assert!(walked == map);
    assert_eq!(root.blocks_delta, (map.len() + meta.len()) as i64);
    assert!(map.len() > 2_000 && meta.len() > 4);
    fs::write(&image.path, &*store.bytes.borrow()).unwrap();
    let size = spread * u64::from(block_size) + u64::from(block_size) * 10;
    let sectors = root.blocks_delta as u64 * u64::from(block_size) / 512;
    let mut script = format!("sif <{ino}> size {size}\nsif <{ino}> blocks {sectors}\n");
    for i in 0..15usize {
        let name = ["IND", "DIND", "TIND"].get(i.wrapping_sub(12)).map_or(i.to_string(), |n| (*n).to_owned());
        script += &format!("sif <{ino}> block[{name}] {}\n", u32_at(&root.i_block, 4 * i));
    }
    debugfs_write(&image.path, &script).unwrap();
    assert_eq!(store_root(&image, ino).i_block, root.i_block, "debugfs stored i_block");
    // The test does not update bitmaps and counts, so e2fsck corrects those (pass 5). It must find nothing wrong with
    // the inode itself.
    let fsck = e2fsck(&image.path, &["-fy"]).unwrap();
    assert_eq!(fsck.code, 1, "{}", fsck.output);
    // For the kernel's own trees, e2fsck also prints "could be narrower" after so many random changes.
    let text = fsck.output;
    let fine =
        ["e2fsck ", "Pass ", "Block bitmap differences", "Inode bitmap differences", "Free blocks count", "Fix? yes"];
    for line in text.lines().filter(|l| !l.is_empty() && !l.contains("could be narrower") && !l.starts_with("/")) {
        assert!(fine.iter().any(|f| line.starts_with(f)) || line.contains("***"), "{line}\n{text}");
    }
    expect_clean(&image.path).unwrap();
    let (by_debugfs, _) = map_by_debugfs(&image.debugfs(&format!("stat <{ino}>")));
    assert!(by_debugfs == map, "e2fsck changed the map");
    let Some(mount) = image.mount() else { return };
    let content = fs::read(image.mount_dir.join("made")).unwrap();
    assert_eq!(content.len() as u64, size);
    for (lblk, block) in content.chunks_exact(block_size as usize).enumerate() {
        let want = match map.get(&(lblk as u32)) {
            Some((_, false)) => lblk as u32,
            _ => 0,
        };
        assert!(block.chunks_exact(4).all(|c| c == want.to_le_bytes()), "block {lblk}");
    }
    fs::remove_file(image.mount_dir.join("made")).unwrap();
    mount.unmount().unwrap();
    expect_clean(&image.path).unwrap();
}

fn store_root(image: &Image, ino: u32) -> MapRoot {
    ImageStore::open(image).inode(image, ino)
}

#[test]
fn e2fsck_and_the_kernel_accept_our_extents() {
    e2fsck_and_the_kernel_agree("ext4", 1024, 1);
    e2fsck_and_the_kernel_agree("ext4", 4096, 2);
}

#[test]
fn e2fsck_and_the_kernel_accept_our_indirect_blocks() {
    e2fsck_and_the_kernel_agree("ext3", 1024, 3);
    e2fsck_and_the_kernel_agree("ext3", 4096, 4);
}
