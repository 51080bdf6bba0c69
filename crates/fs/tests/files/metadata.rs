//! Maps that lead into the file system's own structures: no file shows or changes a superblock, a descriptor, a
//! bitmap, an inode table or the journal, whatever its inode, its tree or its pointer blocks contain.
//!
//! On images of several kinds a file's map is redirected to each kind of metadata, at each possible place (the inode,
//! a node, a pointer to a node), with correct checksums. Then the test tries every operation that uses the map.
//! Afterwards it compares the metadata: only the hostile file could have changed it, so it must be unchanged and its
//! blocks still in use.

use extant_oracle::memory as tools;

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{
    Cred, Damage, Error, FallocateMode, Filesystem, InodeRef, MountOptions, NewNode, RenameFlags, SetAttr, SetMode,
    WriteFlags,
};
use extant_ondisk::extent::{HEADER_BYTES, NodeMut, NodeRef};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::inode::{InodeDesc, update_checksum};
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};
use extant_testkit::tests_of_cases;

/// mke2fs arguments.
const KINDS: [&[&str]; 6] = [
    &["-t", "ext4", "-b", "4096", "-g", "2048"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
    &["-t", "ext3", "-b", "1024"],
    &["-t", "ext3", "-b", "4096", "-g", "2048"],
    &["-t", "ext2", "-b", "1024"],
];
/// The content written to the hostile file: it must never appear in metadata.
const MARK: &[u8; 16] = b"hostile-content!";
/// The logical block whose mapping is redirected; in an indirect map it is behind the first pointer block.
const BENT: u32 = 30;

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), cache_bytes: 16 << 20, ..MountOptions::default() }
}

fn made(kind: &[&str]) -> Arc<MemDevice> {
    let dev = Arc::new(tools::made(kind, "20M"));
    let fs = Filesystem::mount(dev.clone(), options()).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    let (root, cred) = (fs.root().expect("root"), Cred::default());
    for i in 0..20 {
        let f = fs.create(&root, format!("bystander-{i}").as_bytes(), NewNode::file(0o644), cred).expect("create");
        fs.write(&f, 0, &[i as u8; 3000], WriteFlags::default()).expect("write");
    }
    let bs = u64::from(fs.block_size());
    let flat = fs.create(&root, b"flat", NewNode::file(0o644), cred).expect("create");
    fs.write(&flat, 0, &vec![1; 8 * bs as usize], WriteFlags::default()).expect("write");
    // Every second block: more extents than fit the inode, and pointers behind the first pointer block.
    let tall = fs.create(&root, b"tall", NewNode::file(0o644), cred).expect("create");
    for i in 0..40 {
        fs.write(&tall, i * 2 * bs, &vec![2; bs as usize], WriteFlags::default()).expect("write");
    }
    let dir = fs.create(&root, b"dir", NewNode::directory(0o755), cred).expect("mkdir");
    fs.create(&dir, b"inside", NewNode::file(0o644), cred).expect("create");
    fs.create(&root, b"link", NewNode::symlink(&[b'x'; 300]), cred).expect("symlink");
    let attributed = fs.create(&root, b"attributed", NewNode::file(0o644), cred).expect("create");
    fs.set_xattr(&attributed, b"user.large", &[b'L'; 600], SetMode::Any).expect("xattr");
    drop((root, flat, tall, dir, attributed));
    fs.unmount().expect("unmount");
    dev
}

/// An image, read without a mount.
struct Image<'a> {
    dev: &'a MemDevice,
    sb: SuperBlock,
}

impl Image<'_> {
    fn new(dev: &MemDevice) -> Image<'_> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        dev.read_at(1024, &mut bytes, BioFlags::empty()).expect("memory");
        Image { dev, sb: SuperBlock::decode(&bytes, 1024).expect("superblock") }
    }

    fn geo(&self) -> &Geometry {
        self.sb.geometry()
    }

    fn block(&self, block: BlockNr) -> Vec<u8> {
        let mut bytes = vec![0; self.geo().block_size as usize];
        self.dev.read_at(block.0 * bytes.len() as u64, &mut bytes, BioFlags::empty()).expect("memory");
        bytes
    }

    fn put(&self, block: BlockNr, bytes: &[u8]) {
        self.dev.write_at(block.0 * bytes.len() as u64, &[bytes], BioFlags::empty()).expect("memory");
    }

    fn desc(&self, group: GroupNr) -> GroupDesc {
        self.try_desc(group).expect("descriptor")
    }

    fn try_desc(&self, group: GroupNr) -> extant_ondisk::Result<GroupDesc> {
        let (block, offset) = self.geo().group_desc_block(group).expect("there");
        GroupDesc::decode(&self.block(block)[offset..], group, self.geo())
    }

    /// Changes an inode's bytes and corrects its checksum.
    fn edit_inode(&self, ino: InodeNr, f: impl FnOnce(&mut [u8])) {
        let place = self.geo().inode_location(ino).expect("place");
        let block = BlockNr(self.desc(place.group).inode_table.0 + u64::from(place.table_block));
        let mut bytes = self.block(block);
        let slot = &mut bytes[place.offset..place.offset + self.geo().inode_size];
        f(slot);
        update_checksum(slot, ino, self.geo());
        self.put(block, &bytes);
    }

    fn inode(&self, ino: InodeNr) -> InodeDesc {
        self.try_inode(ino).expect("inode")
    }

    fn try_inode(&self, ino: InodeNr) -> Option<InodeDesc> {
        let place = self.geo().inode_location(ino).expect("place");
        let block = BlockNr(self.desc(place.group).inode_table.0 + u64::from(place.table_block));
        let slot = &self.block(block)[place.offset..][..self.geo().inode_size];
        InodeDesc::parse(slot, ino, self.geo()).ok()
    }

    /// Kinds of metadata and a block of each, in the first and in a later group, and in the journal.
    fn victims(&self) -> Vec<(String, BlockNr)> {
        let mut out = Vec::new();
        for group in [GroupNr(0), GroupNr(1)] {
            let desc = self.desc(group);
            if let Some((start, _)) = self.geo().base_metadata(group).ranges().next() {
                // Not block 0, to which no pointer can lead: 0 is a hole.
                if start.0 != 0 {
                    out.push((format!("superblock of {group}"), start));
                }
                out.push((format!("descriptors of {group}"), BlockNr(start.0 + 1)));
            }
            out.push((format!("block bitmap of {group}"), desc.block_bitmap));
            out.push((format!("inode bitmap of {group}"), desc.inode_bitmap));
            out.push((format!("inode table of {group}"), desc.inode_table));
            out.push((format!("end of the inode table of {group}"), self.last_of_table(group)));
        }
        if let Some(journal) = self.sb.journal_inode() {
            let map = extant_recovery::locate::journal_map(self.dev, &self.sb, journal).expect("journal");
            let blocks: Vec<BlockNr> = map.blocks().collect();
            out.push(("journal superblock".into(), blocks[0]));
            out.push(("log".into(), blocks[blocks.len() / 2]));
        }
        out
    }

    fn last_of_table(&self, group: GroupNr) -> BlockNr {
        BlockNr(self.desc(group).inode_table.0 + u64::from(self.geo().inode_table_blocks) - 1)
    }

    /// Every block of metadata.
    fn zones(&self) -> BTreeSet<u64> {
        let mut zones = BTreeSet::new();
        let geo = self.geo();
        for group in geo.groups() {
            let desc = self.desc(group);
            for (start, len) in geo.base_metadata(group).ranges() {
                zones.extend(start.0..start.0 + u64::from(len));
            }
            zones.extend([desc.block_bitmap.0, desc.inode_bitmap.0]);
            zones.extend(desc.inode_table.0..=self.last_of_table(group).0);
        }
        if let Some(journal) = self.sb.journal_inode() {
            let map = extant_recovery::locate::journal_map(self.dev, &self.sb, journal).expect("journal");
            zones.extend(map.blocks().map(|b| b.0));
        }
        zones
    }
}

/// The place where a map is redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bend {
    /// The inode maps a data block there.
    Root,
    /// A node, or a pointer block, maps a data block there.
    Leaf,
    /// The inode has a node, or a pointer block, there.
    Node,
}

fn set_u32(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

const I_BLOCK: usize = 40;

/// Redirects the map of `ino` to `to`. False if that kind of map has no such place.
fn bend(image: &Image<'_>, ino: InodeNr, bend: Bend, to: BlockNr) -> bool {
    let desc = image.inode(ino);
    let extents = desc.has_extents();
    let (deep, child) = if extents {
        let root = NodeRef::parse(&desc.i_block, 0).expect("root");
        (root.depth() > 0, root.index(0).map(|i| i.child))
    } else {
        let pointer = u32::from_le_bytes(desc.i_block[48..52].try_into().expect("4 bytes"));
        (pointer != 0, Some(BlockNr(u64::from(pointer))))
    };
    match bend {
        Bend::Root if extents && deep => false,
        Bend::Root => {
            image.edit_inode(ino, |slot| match extents {
                // ee_start_lo and ee_start_hi of the first extent.
                true => {
                    set_u32(slot, I_BLOCK + HEADER_BYTES + 8, to.0);
                    slot[I_BLOCK + HEADER_BYTES + 6..][..2].fill(0);
                    // One block long.
                    slot[I_BLOCK + HEADER_BYTES + 4..][..2].copy_from_slice(&1u16.to_le_bytes());
                }
                false => set_u32(slot, I_BLOCK, to.0),
            });
            true
        }
        _ if !deep => false,
        Bend::Node => {
            image.edit_inode(ino, |slot| match extents {
                // ei_leaf_lo of the first index; the block at its old place does not change.
                true => set_u32(slot, I_BLOCK + HEADER_BYTES + 4, to.0),
                false => set_u32(slot, I_BLOCK + 48, to.0),
            });
            true
        }
        Bend::Leaf => {
            let child = child.expect("a child");
            let mut bytes = image.block(child);
            if extents {
                let seed = image.geo().metadata_csum.then(|| image.geo().seed.for_inode(ino, desc.generation).raw());
                let at = NodeRef::parse(&bytes, child.0).expect("leaf").search(BENT).expect("mapped");
                set_u32(&mut bytes, HEADER_BYTES + at * 12 + 8, to.0);
                NodeMut::parse(&mut bytes, child.0).expect("leaf").seal(seed);
            } else {
                set_u32(&mut bytes, (BENT as usize - 12) * 4, to.0);
            }
            image.put(child, &bytes);
            true
        }
    }
}

/// An operation: its name, and its effect on the file (`None`: the lookup itself failed).
type Try = (&'static str, fn(&Filesystem, &InodeRef, &InodeRef, &[u8]) -> Result<(), Error>);

const TRIES: [Try; 12] = [
    ("read", |fs, _, f, _| read_all(fs, f)),
    ("write", |fs, _, f, _| write_all(fs, f, WriteFlags::default())),
    ("write by a mapping", |fs, _, f, _| {
        let flags = WriteFlags { keep_times: true, ..WriteFlags::default() };
        write_all(fs, f, flags)
    }),
    ("write a few bytes", |fs, _, f, _| {
        for at in [5, u64::from(BENT) * u64::from(fs.block_size()) + 5] {
            fs.write(f, at, MARK, WriteFlags::default())?;
        }
        fs.fsync(f, false)
    }),
    ("truncate", |fs, _, f, _| {
        fs.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        fs.sync()
    }),
    ("truncate into the block", |fs, _, f, _| {
        let size = Some(u64::from(BENT) * u64::from(fs.block_size()) + 7);
        fs.setattr(f, &SetAttr { size, ..SetAttr::default() })?;
        fs.setattr(f, &SetAttr { size: Some(7), ..SetAttr::default() })?;
        fs.sync()
    }),
    ("punch", |fs, _, f, _| fs.fallocate(f, FallocateMode::PunchHole, 100, 60 * u64::from(fs.block_size()))),
    ("zero", |fs, _, f, _| {
        fs.fallocate(f, FallocateMode::ZeroRange { keep_size: true }, 100, 60 * u64::from(fs.block_size()))?;
        fs.sync()
    }),
    ("fill holes", |fs, _, f, _| {
        fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, 0, 90 * u64::from(fs.block_size()))?;
        write_all(fs, f, WriteFlags::default())
    }),
    ("unlink", |fs, root, _, name| fs.unlink(root, name)),
    ("rename over", |fs, root, _, name| fs.rename(root, b"bystander-1", root, name, RenameFlags::default())),
    ("append", |fs, _, f, _| {
        fs.write(f, f.size(), &MARK.repeat(400), WriteFlags::default())?;
        fs.fsync(f, false)
    }),
];

fn read_all(fs: &Filesystem, f: &InodeRef) -> Result<(), Error> {
    let mut buf = vec![0; f.size() as usize];
    fs.read(f, 0, &mut buf).map(drop)
}

fn write_all(fs: &Filesystem, f: &InodeRef, flags: WriteFlags) -> Result<(), Error> {
    let content = MARK.repeat(f.size() as usize / MARK.len());
    fs.write(f, 0, &content, flags)?;
    fs.fsync(f, false)
}

/// Checks the metadata afterwards.
fn compare(before: &Image<'_>, after: &MemDevice, touched: &[InodeNr]) -> Vec<String> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    after.read_at(1024, &mut bytes, BioFlags::empty()).expect("memory");
    let after = match SuperBlock::decode(&bytes, 1024) {
        Ok(sb) => Image { dev: after, sb },
        Err(e) => return vec![e.to_string()],
    };
    let geo = before.geo();
    let mut wrong: Vec<String> = geo.groups().filter_map(|g| Some(after.try_desc(g).err()?.to_string())).collect();
    if !wrong.is_empty() {
        return wrong;
    }
    let in_use = |group| {
        let desc = after.desc(group);
        let uninit = desc.flags.contains(extant_ondisk::group_desc::GroupFlags::BLOCK_UNINIT);
        (!uninit).then(|| after.block(desc.block_bitmap))
    };
    let in_use: Vec<Option<Vec<u8>>> = geo.groups().map(in_use).collect();
    for &block in &before.zones() {
        let bytes = after.block(BlockNr(block));
        // The content did not exist before.
        if bytes != before.block(BlockNr(block)) && bytes.windows(MARK.len()).any(|w| w == MARK) {
            wrong.push(format!("block {block} of the metadata has the file's content"));
        }
        let (group, at) = geo.group_of_block(BlockNr(block)).expect("inside");
        if in_use[group.0 as usize].as_ref().is_some_and(|blocks| !bitmap::test(blocks, at)) {
            wrong.push(format!("block {block} of the metadata was freed"));
        }
    }
    for ino in (11..geo.inodes_count.min(80)).map(InodeNr).filter(|i| !touched.contains(i)) {
        let (Some(was), Some(is)) = (before.try_inode(ino), after.try_inode(ino)) else {
            wrong.push(format!("{ino} is gone"));
            continue;
        };
        let same = (was.mode, was.links, was.size, was.i_block) == (is.mode, is.links, is.size, is.i_block);
        if !same {
            wrong.push(format!("{ino} has changed"));
        }
    }
    for group in geo.groups() {
        let (was, is) = (before.desc(group), after.desc(group));
        if (was.block_bitmap, was.inode_bitmap, was.inode_table) != (is.block_bitmap, is.inode_bitmap, is.inode_table) {
            wrong.push(format!("descriptor of {group} has changed"));
        }
        if let Err(e) = is.verify_block_bitmap(&after.block(is.block_bitmap), group, geo) {
            wrong.push(e.to_string());
        }
    }
    if let Some(journal) = before.sb.journal_inode()
        && let Err(e) = extant_recovery::locate::open_journal(Arc::new(after.dev.snapshot()), &after.sb)
    {
        wrong.push(format!("{journal}: {e}"));
    }
    wrong
}

fn ino_of(dev: &Arc<MemDevice>, name: &[u8]) -> InodeNr {
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("mounted");
    let ino = fs.lookup(&fs.root().expect("root"), name).expect("there").ino;
    fs.unmount().expect("unmount");
    ino
}

fn sweep(kind: &[&str]) -> (usize, Vec<String>) {
    let base = made(kind);
    let mut wrong = Vec::new();
    let mut tried = 0;
    let bystander = ino_of(&base, b"bystander-1");
    for (name, places) in [("flat", &[Bend::Root][..]), ("tall", &[Bend::Root, Bend::Leaf, Bend::Node])] {
        let ino = ino_of(&base, name.as_bytes());
        for &place in places {
            for (what, to) in Image::new(&base).victims() {
                let bent = Arc::new(base.snapshot());
                if !bend(&Image::new(&bent), ino, place, to) {
                    continue;
                }
                for (n, (action, run)) in TRIES.into_iter().enumerate() {
                    let dev = Arc::new(bent.snapshot());
                    let case = format!("{} {place:?} of {name}, {what} ({to}), {action}", kind.join(" "));
                    // Through the page cache, and past it.
                    let write_through_bytes = (n % 2 == to.0 as usize % 2).then_some(1);
                    let errors = Some(extant_fs::OnError::Continue);
                    let options = MountOptions { write_through_bytes, errors, ..options() };
                    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
                    let root = fs.root().expect("root");
                    let result = fs.lookup(&root, name.as_bytes()).and_then(|f| {
                        let r = run(&fs, &root, &f, name.as_bytes());
                        // Reads must not have seen the metadata, and a later read must not find it.
                        if action != "unlink" && action != "rename over" && action != "truncate" {
                            let _ = read_all(&fs, &f);
                        }
                        r
                    });
                    tried += 1;
                    match &result {
                        Err(Error::Corrupt { what: Damage::Map, ino: Some(of), .. }) if *of == ino => {}
                        // The file is removed; its blocks remain with an orphan that cannot be freed.
                        Ok(()) if matches!(action, "unlink" | "rename over") => {}
                        Err(Error::NotSupported(_)) if matches!(action, "zero" | "fill holes") => {}
                        // They end before the redirected block.
                        Ok(()) if matches!(action, "append" | "write a few bytes") => {}
                        Ok(()) if action == "truncate into the block" && name == "flat" => {}
                        other => wrong.push(format!("{case}: {other:?}")),
                    }
                    let noted = fs.superblock().raw().s_error_count.get();
                    if matches!(result, Err(Error::Corrupt { .. })) && noted == 0 {
                        wrong.push(format!("{case}: no error in the superblock"));
                    }
                    drop(root);
                    let _ = fs.unmount();
                    for w in compare(&Image::new(&bent), &dev, &[ino, bystander]) {
                        wrong.push(format!("{case}: {w}"));
                    }
                }
            }
        }
    }
    (tried, wrong)
}

fn reach(kind: &[&str]) {
    let (tried, wrong) = sweep(kind);
    println!("{kind:?}: {tried} cases");
    assert!(tried > 200, "{kind:?}: {tried} cases");
    assert!(wrong.is_empty(), "{kind:?}: {} of {tried}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

tests_of_cases!(
    no_file_reaches_metadata,
    reach,
    ext4_4k: KINDS[0],
    ext4_1k_without_checksums: KINDS[1],
    ext4_1k_without_flexible_groups: KINDS[2],
    ext3_1k: KINDS[3],
    ext3_4k: KINDS[4],
    ext2_1k: KINDS[5],
);

/// Directories, symbolic links and attributes have blocks as well.
#[test]
fn no_directory_symlink_or_attribute_reaches_metadata() {
    for kind in KINDS {
        let base = made(kind);
        let (dir, link, attributed) = (ino_of(&base, b"dir"), ino_of(&base, b"link"), ino_of(&base, b"attributed"));
        for (what, to) in Image::new(&base).victims() {
            let bent = Arc::new(base.snapshot());
            let image = Image::new(&bent);
            assert!(bend(&image, dir, Bend::Root, to));
            assert!(bend(&image, link, Bend::Root, to));
            // i_file_acl_lo.
            image.edit_inode(attributed, |slot| set_u32(slot, 104, to.0));
            let dev = Arc::new(bent.snapshot());
            let errors = Some(extant_fs::OnError::Continue);
            let fs = Filesystem::mount(dev.clone(), MountOptions { errors, ..options() }).expect("mounted");
            let root = fs.root().expect("root");
            let results = [
                fs.lookup(&root, b"dir").and_then(|d| fs.read_dir(&d, 0, |_| true)).map(drop),
                fs.lookup(&root, b"dir")
                    .and_then(|d| fs.create(&d, MARK, NewNode::file(0o600), Cred::default()))
                    .map(drop),
                fs.rmdir(&root, b"dir"),
                fs.rename(&root, b"dir", &root, b"dir2", RenameFlags::default()),
                fs.lookup(&root, b"link").and_then(|l| fs.read_link(&l)).map(drop),
                fs.lookup(&root, b"attributed").and_then(|f| fs.list_xattrs(&f)).map(drop),
                fs.lookup(&root, b"attributed")
                    .and_then(|f| fs.set_xattr(&f, b"user.m", &MARK.repeat(30), SetMode::Any)),
                fs.unlink(&root, b"attributed"),
                fs.unlink(&root, b"link"),
            ];
            for (n, r) in results.iter().enumerate() {
                assert!(matches!(r, Err(Error::Corrupt { ino: Some(_), .. })), "{kind:?}: {what}: {n}: {r:?}");
            }
            drop(root);
            let _ = fs.unmount();
            let wrong = compare(&image, &dev, &[dir, link, attributed]);
            assert!(wrong.is_empty(), "{kind:?}: {what}: {}", wrong.join("\n"));
        }
    }
}

/// The mount reads which blocks belong to the journal. If it cannot, files must not get them.
#[test]
fn a_failed_request_does_not_make_the_journals_blocks_available() {
    for kind in [KINDS[0], KINDS[3]] {
        let base = made(kind);
        let (name, to) = Image::new(&base).victims().pop().expect("a victim");
        assert_eq!(name, "log");
        assert!(bend(&Image::new(&base), ino_of(&base, b"flat"), Bend::Root, to));
        let before = Image::new(&base).block(to);
        let mut failed = 0;
        for n in 0.. {
            let dev = Arc::new(base.snapshot());
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            faulty.inject(Fault::eio().op(BioOp::Read).after(n).once());
            let errors = Some(extant_fs::OnError::Continue);
            match Filesystem::mount(faulty.clone(), MountOptions { errors, ..options() }) {
                Err(_) => failed += 1,
                Ok(fs) => {
                    let root = fs.root().expect("root");
                    let written = fs.lookup(&root, b"flat").and_then(|f| write_all(&fs, &f, WriteFlags::default()));
                    assert!(written.is_err(), "{kind:?}, read {n}");
                    drop(root);
                    let _ = fs.unmount();
                }
            }
            let after = Image::new(&dev).block(to);
            assert!(after == before || !after.windows(MARK.len()).any(|w| w == MARK), "{kind:?}, read {n}");
            if faulty.injected() == 0 {
                break;
            }
        }
        assert!(failed > 0, "{kind:?}");
    }
}

/// A mount that changes nothing and ignores the log makes everything readable available.
#[test]
fn files_are_readable_without_a_readable_journal() {
    let base = made(KINDS[3]);
    let said = tools::debugfs(&base, "stat <8>");
    let node = said.split("(IND):").nth(1).and_then(|s| s.split(|c: char| !c.is_ascii_digit()).next());
    let at = node.and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| panic!("{said}")) << 10;
    let faulty = Arc::new(FaultyDevice::new(base));
    faulty.inject(Fault::eio().op(BioOp::Read).range(at..at + 1024));
    assert!(Filesystem::mount(faulty.clone(), options()).is_err());
    let fs = Filesystem::mount(faulty, MountOptions { no_recovery: true, ..options() }).expect("mounted");
    let mut content = [0; 1000];
    let flat = fs.walk(b"flat", true).expect("there");
    assert_eq!(fs.read(&flat, 0, &mut content).map(|n| (n, content)).expect("read"), (1000, [1; 1000]));
}

/// The journal and the file system's other own inodes have no name and no handle.
#[test]
fn the_file_systems_own_inodes_cannot_be_opened() {
    let base = made(KINDS[0]);
    let bystander = ino_of(&base, b"bystander-2");
    for own in [InodeNr::JOURNAL, InodeNr(7), InodeNr(1)] {
        let dev = Arc::new(base.snapshot());
        {
            // The root directory is one block; the name keeps its place and gets another inode number.
            let image = Image::new(&dev);
            let root = image.inode(InodeNr::ROOT);
            let block = NodeRef::parse(&root.i_block, 0).expect("root").extent(0).expect("mapped").pblk;
            let mut bytes = image.block(block);
            let name = bytes.windows(11).position(|w| w == b"bystander-2").expect("there");
            assert_eq!(bytes[name - 8..name - 4], bystander.0.to_le_bytes());
            set_u32(&mut bytes, name - 8, u64::from(own.0));
            extant_ondisk::dirent::seal_leaf(&mut bytes, image.geo().seed.for_inode(InodeNr::ROOT, root.generation));
            image.put(block, &bytes);
        }
        let errors = Some(extant_fs::OnError::Continue);
        let fs = Filesystem::mount(dev.clone(), MountOptions { errors, ..options() }).expect("mounted");
        let root = fs.root().expect("root");
        assert!(matches!(fs.iget(own), Err(Error::Stale(_))), "{own}");
        let found = fs.lookup(&root, b"bystander-2");
        assert!(matches!(found, Err(Error::Corrupt { what: Damage::Tree, .. })), "{own}: {found:?}");
        let gone = fs.unlink(&root, b"bystander-2");
        assert!(matches!(gone, Err(Error::Corrupt { what: Damage::Tree, .. })), "{own}: {gone:?}");
        drop(root);
        fs.unmount().expect("unmount");
        extant_recovery::locate::open_journal(dev.clone(), &Image::new(&dev).sb).expect("the journal is whole");
    }
}
