//! The kinds of images that mutations start from, each with every kind of object in it.
//!
//! Main type: [`Image`]; [`Image::made`] builds one once and caches it in memory. mke2fs and debugfs make them, and
//! `e2fsck -fyD` indexes their directories. So kinds that Extant cannot write are built like the others.
//!
//! | path | what it is |
//! |---|---|
//! | `/file`, `/other`, `/dir/one` | 20 KiB in a row; `/other` also `/dir/hard` |
//! | `/depth1`, `/depth2` | 9 and 400 islands: extent trees of depth 1 and 2 (1 with blocks of 4 KiB) |
//! | `/far` | indirect maps of one, two and three levels; as extents a few |
//! | `/dir`, `/dir/sub`, `/deep/a/b` | directories of one block |
//! | `/h1`, `/h2` | indexed directories; `/h2` with two levels in blocks of 1 KiB |
//! | `/fast`, `/slow`, `/chr`, `/blk`, `/fifo`, `/sock`, `/empty` | what their names say |
//! | `/ea`, `/eablock`, `/eashared` | attributes in the inode, and one block of them that two inodes share |
//! | `/gone` | deleted |
//!
//! With inline data, small directories have no blocks, and [`Edit`] finds no path that leads through one.
//!
//! # Locking
//! None but that of `OnceLock`.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use extant_block::device::{MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::{Incompat, RoCompat};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_recovery::JournalFile;
use extant_recovery::locate::read_super;

use super::edit::{Edit, set_half, set_word};
use crate::oracle::{arg, debugfs_write, e2fsck, mke2fs, run_ok};

/// A kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// ext2, blocks of 1 KiB.
    Ext2,
    /// ext2 of revision 0: no features, inodes of 128 bytes.
    Ext2Rev0,
    /// ext3: a journal, indirect maps.
    Ext3,
    /// ext4 without checksums of any kind.
    Ext4Plain,
    /// ext4 with checksums of descriptors only (`uninit_bg`).
    Ext4Gdt,
    /// ext4 as mke2fs makes it, blocks of 1 KiB.
    Ext4,
    /// ext4 as mke2fs makes it, blocks of 4 KiB.
    Ext4Large,
    /// `meta_bg`, no resize inode, no journal.
    MetaBg,
    /// `orphan_file`.
    OrphanFile,
    /// `inline_data`, with `/inline` and `/inlinedir`.
    InlineData,
    /// `bigalloc` with clusters of 4 blocks.
    Bigalloc,
    /// `quota` and `project`, with several owners.
    Quota,
    /// `ea_inode`, with a large attribute of `/value`, and one of `/valueblock` whose entry is in a block.
    EaInode,
    /// `casefold`, with the case-folded directories `/fold` and `/foldindex`, which is indexed.
    Casefold,
    /// `encrypt`, with the encrypted directory `/secret` and two files in it; the context of the second is in a block.
    Encrypt,
    /// `mmp`.
    Mmp,
    /// ext4 whose journal has two transactions to replay, with checksums of version 3.
    Dirty,
    /// `inline_data` with 66,000 inodes, without `dir_nlink` and checksums.
    ManyInodes,
    /// ext2 with blocks of 64 KiB, with `/file` only.
    LargeBlocks,
    /// ext4 with blocks of 8 KiB.
    Blocks8k,
    /// ext4 with blocks of 64 KiB, too small for a journal.
    Blocks64k,
    /// `verity`, with `/protected`, whose tree is behind its end.
    Verity,
    /// `uninit_bg` beside `metadata_csum`, which mke2fs refuses and the kernel mounts.
    UninitCsum,
    /// `resize_inode` beside `meta_bg`, all groups being those of `resize_inode`. As above.
    MetaBgResize,
    /// ext4 with its journal on a disk of its own, which is behind the file system's in the image.
    JournalDev,
}

/// The bytes of every file system.
const BYTES: u64 = 32 << 20;
/// The blocks of a journal on a disk of its own, the two before its superblock included.
const JOURNAL_BLOCKS: u64 = 1026;

impl Image {
    /// All kinds.
    pub const ALL: [Image; 25] = [
        Image::Ext2,
        Image::Ext2Rev0,
        Image::Ext3,
        Image::Ext4Plain,
        Image::Ext4Gdt,
        Image::Ext4,
        Image::Ext4Large,
        Image::MetaBg,
        Image::OrphanFile,
        Image::InlineData,
        Image::Bigalloc,
        Image::Quota,
        Image::EaInode,
        Image::Casefold,
        Image::Encrypt,
        Image::Mmp,
        Image::Dirty,
        Image::ManyInodes,
        Image::LargeBlocks,
        Image::Blocks8k,
        Image::Blocks64k,
        Image::Verity,
        Image::UninitCsum,
        Image::MetaBgResize,
        Image::JournalDev,
    ];

    /// mke2fs's arguments.
    fn arguments(self) -> &'static str {
        match self {
            Image::Ext2 => "-t ext2 -b 1024",
            Image::Ext2Rev0 => "-t ext2 -b 1024 -r 0 -O none",
            Image::Ext3 => "-t ext3 -b 1024",
            Image::Ext4Plain => "-t ext4 -b 1024 -O ^metadata_csum,^64bit,^uninit_bg,^flex_bg,^huge_file,^dir_nlink",
            Image::Ext4Gdt => "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^flex_bg",
            Image::Ext4 | Image::Dirty | Image::Mmp | Image::UninitCsum | Image::MetaBgResize => "-t ext4 -b 1024",
            Image::Ext4Large => "-t ext4 -b 4096",
            Image::MetaBg => "-t ext4 -b 1024 -O meta_bg,^resize_inode,^has_journal",
            Image::OrphanFile => "-t ext4 -b 1024 -O orphan_file",
            Image::InlineData => "-t ext4 -b 1024 -O inline_data",
            Image::Bigalloc => "-t ext4 -b 1024 -O bigalloc -C 4096",
            Image::Quota => "-t ext4 -b 1024 -O quota,project",
            Image::EaInode => "-t ext4 -b 1024 -O ea_inode",
            Image::Casefold => "-t ext4 -b 1024 -O casefold",
            Image::Encrypt => "-t ext4 -b 1024 -O encrypt",
            Image::ManyInodes => "-t ext4 -b 1024 -N 66000 -O inline_data,^metadata_csum,^uninit_bg,^dir_nlink",
            Image::LargeBlocks => "-t ext2 -b 65536",
            Image::Blocks8k => "-t ext4 -b 8192",
            Image::Blocks64k => "-t ext4 -b 65536",
            Image::Verity => "-t ext4 -b 1024 -O verity",
            Image::JournalDev => "-t ext4 -b 1024 -O ^has_journal",
        }
    }

    /// The block size.
    fn block_size(self) -> usize {
        match self {
            Image::Ext4Large => 4096,
            Image::Blocks8k => 8192,
            Image::LargeBlocks | Image::Blocks64k => 65_536,
            _ => 1024,
        }
    }

    /// The byte at which the journal's disk begins, if there is one.
    pub fn journal_at(self) -> Option<u64> {
        (self == Image::JournalDev).then_some(BYTES)
    }

    /// The disks of an image of this kind: the file system's, and that of its journal.
    pub fn disks(self, image: MemDevice) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        let bytes = image.size_bytes();
        let image = Arc::new(image);
        let Some(at) = self.journal_at() else { return (image, None) };
        let part = |start, len| -> Arc<dyn BlockDevice> {
            Arc::new(OffsetDevice::new(image.clone(), start, len).expect("within the image"))
        };
        (part(0, at), Some(part(at, bytes - at)))
    }

    /// The problems that e2fsck finds in the image of this kind: pairs of features that it takes for a fault, and the
    /// counts that it makes otherwise because of them.
    pub fn faults(self) -> &'static [&'static str] {
        match self {
            Image::UninitCsum => &["META_AND_GDT_CSUM_SET"],
            Image::MetaBgResize => &["DISABLE_RESIZE_INODE", "FREE_BLOCK_COUNT_GROUP", "FREE_BLOCK_COUNT"],
            _ => &[],
        }
    }

    /// The image, in which e2fsck finds nothing but [`Image::faults`].
    ///
    /// # Panics
    /// If a tool of e2fsprogs fails.
    pub fn made(self) -> &'static MemDevice {
        static MADE: [OnceLock<MemDevice>; Image::ALL.len()] = [const { OnceLock::new() }; Image::ALL.len()];
        MADE[self as usize].get_or_init(|| self.found_or_made())
    }

    /// The programs of one `make test` share images in the folder that EXTANT_IMAGE_FOLDER names: the e2fsprogs need
    /// a quarter of a second for each, and many programs need all.
    fn found_or_made(self) -> MemDevice {
        let Some(folder) = std::env::var_os("EXTANT_IMAGE_FOLDER") else { return self.make() };
        let path = Path::new(&folder).join(format!("{self:?}"));
        if let Ok(found) = MemDevice::load(&path) {
            return found;
        }
        let made = self.make();
        // Another program may look for it while it is written.
        let unfinished = path.with_extension(std::process::id().to_string());
        made.save(&unfinished).expect("saved");
        std::fs::rename(&unfinished, &path).expect("renamed");
        made
    }

    fn make(self) -> MemDevice {
        let dir = tempfile::tempdir().expect("tempdir");
        let image = dir.path().join("image");
        // The hash seed and the UUID determine the order of names in an index, so that the images of two runs are
        // equal.
        let uuid = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d";
        let mut extended = format!("hash_seed={uuid}");
        if self == Image::Casefold {
            extended.push_str(",encoding=utf8-12.1,encoding_flags=strict");
        }
        let mut args = vec!["-N", "2048", "-U", uuid, "-E", &extended];
        args.extend(self.arguments().split(' '));
        mke2fs(&image, &args, "32M");
        let debugfs = |requests: &str| debugfs_write(&image, requests).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        debugfs(&self.script(dir.path()));
        let mut edit = Edit::new(&MemDevice::load(&image).expect("loaded"));
        self.complete(&mut edit);
        edit.finish().save(&image).expect("saved");
        // Only now, because debugfs does not update link counts and usage. Indexing changes the usage that e2fsck has
        // just counted, so it runs twice.
        for flags in ["-fyD", "-fy"] {
            let fsck = e2fsck(&image, &[flags]).expect("e2fsck");
            assert!(fsck.code < 2, "{self:?}: {}", fsck.output);
        }
        if self == Image::Dirty {
            let plain = dir.path().join("plain").display().to_string();
            debugfs(&format!("jo -c -v 3\njw -b 5000 {plain}\njc\njo -c -v 3\njw -b 5001 {plain}\njc"));
        }
        let made = MemDevice::load(&image).expect("loaded");
        let mut edit = Edit::new(&made);
        match self {
            Image::Mmp => protect(&mut edit),
            Image::UninitCsum => edit.superblocks(|s| {
                let features = RoCompat::from_bits_retain(s.s_feature_ro_compat.get()) | RoCompat::GDT_CSUM;
                s.s_feature_ro_compat.set(features.bits());
            }),
            Image::MetaBgResize => {
                let first = edit.groups().div_ceil(edit.geometry().descs_per_block());
                edit.superblocks(|s| {
                    let features = Incompat::from_bits_retain(s.s_feature_incompat.get()) | Incompat::META_BG;
                    s.s_feature_incompat.set(features.bits());
                    s.s_first_meta_bg.set(first);
                });
            }
            Image::JournalDev => return with_journal_device(&made, dir.path()),
            _ => return made,
        }
        edit.finish()
    }

    /// The commands for debugfs. Source files are in `dir`.
    fn script(self, dir: &Path) -> String {
        let source = |name: &str, pieces: &[(u64, usize)]| {
            let path = dir.join(name);
            let file = File::create(&path).expect("created");
            for &(at, len) in pieces {
                file.write_all_at(&vec![b'a' + (at % 26) as u8; len], at).expect("written");
            }
            path.display().to_string()
        };
        let plain = source("plain", &[(0, 20_480)]);
        let empty = source("empty", &[]);
        let few = source("few", &(0..9).map(|i| (i * 90_000, 600)).collect::<Vec<_>>());
        let many = source("many", &(0..400).map(|i| (i * 9_000, 600)).collect::<Vec<_>>());
        let far = source("far", &[(0, 1500), (20 << 10, 1500), (400 << 10, 1500), (70 << 20, 1500)]);
        let large = source("large", &[(0, 700)]);
        if self == Image::LargeBlocks {
            return format!("write {plain} /file\n");
        }
        let mut s = String::new();
        for path in ["dir", "dir/sub", "deep", "deep/a", "deep/a/b", "h1", "h2"] {
            let _ = writeln!(s, "mkdir /{path}");
        }
        let files = [(&plain, "file"), (&plain, "other"), (&few, "depth1"), (&many, "depth2"), (&far, "far")];
        let more = [(&plain, "dir/one"), (&empty, "dir/two"), (&empty, "empty"), (&plain, "gone"), (&plain, "ea")];
        for (from, to) in files.iter().chain(&more).chain(&[(&plain, "eablock"), (&plain, "eashared")]) {
            let _ = writeln!(s, "write {from} /{to}");
        }
        let long = "x".repeat(200);
        let _ = writeln!(s, "ln /other /dir/hard\nrm /gone\nsymlink /fast target\nsymlink /slow {long}");
        let _ = writeln!(s, "mknod chr c 1 3\nmknod blk b 8 1\nmknod fifo p\nmknod sock p\nsif /sock mode 0140644");
        // 45 and 520 names of one file, whose links e2fsck then counts.
        for (dir, names, len, blocks) in [("h1", 45, 200, 14), ("h2", 520, 245, 175)] {
            let blocks = if self.block_size() > 4096 { (blocks << 10) / self.block_size() } else { blocks };
            s.push_str(&format!("expand_dir /{dir}\n").repeat(blocks));
            for i in 0..names {
                let _ = writeln!(s, "ln /file /{dir}/{i:03}{}", "n".repeat(len));
            }
        }
        if self != Image::Ext2Rev0 {
            let _ = writeln!(s, "ea_set /ea user.small value\nea_set -f {large} /eablock user.large");
        }
        match self {
            Image::InlineData | Image::ManyInodes => {
                let small = source("small", &[(0, 100)]);
                let _ = writeln!(s, "write {small} /inline\nmkdir /inlinedir\nwrite {empty} /inlinedir/a");
            }
            Image::Quota => {
                for (i, path) in
                    ["file", "other", "depth1", "depth2", "far", "dir", "ea", "eashared"].iter().enumerate()
                {
                    let owner = [1000, 1001, 70_000][i % 3];
                    let _ = writeln!(s, "sif /{path} uid {owner}\nsif /{path} gid {}\nsif /{path} projid {i}", i % 2);
                }
            }
            Image::EaInode => {
                let value = source("value", &[(0, 5000)]);
                let long = "n".repeat(90);
                let _ = writeln!(s, "write {empty} /value\nea_set -f {value} /value user.value");
                let _ = writeln!(s, "write {plain} /valueblock\nea_set -f {value} /valueblock user.{long}");
            }
            Image::Casefold => {
                let _ = writeln!(s, "mkdir /fold\nsif /fold flags 0x40080000\nwrite {plain} /fold/Name");
                let _ = writeln!(s, "ln /fold/Name /fold/Other\nmkdir /foldindex\nsif /foldindex flags 0x40080000");
                s.push_str(&"expand_dir /foldindex\n".repeat(14));
                for i in 0..45 {
                    let _ = writeln!(s, "ln /file /foldindex/{i:03}{}", "\u{c4}n\u{17d}N\u{3a3}\u{1fb3}".repeat(20));
                }
            }
            Image::Verity => {
                // The tree begins at the next multiple of 64 KiB, and the size leaves it out.
                let protected = source("protected", &[(0, 20_480), (64 << 10, 1500)]);
                let flags = InodeFlags::EXTENTS | InodeFlags::VERITY;
                let _ = writeln!(s, "write {protected} /protected\nsif /protected flags {:#x}", flags.bits());
                let _ = writeln!(s, "sif /protected size 20480");
            }
            Image::Encrypt => {
                let _ = writeln!(s, "mkdir /secret\nwrite {plain} /secret/abcdefghijklmnop\nwrite {plain} /plain");
                let path = SECRET_IN_BLOCK;
                let _ = writeln!(s, "write {plain} {path}\nea_set -f {large} {path} user.large");
            }
            _ => {}
        }
        s
    }

    /// Makes the changes that debugfs cannot make.
    fn complete(self, e: &mut Edit) {
        if !matches!(self, Image::Ext2Rev0 | Image::LargeBlocks) {
            let (block, blocks) = {
                let from = e.raw_inode("/eablock");
                (from.i_file_acl_lo, from.i_blocks_lo)
            };
            e.inode("/eashared", |i| (i.i_file_acl_lo, i.i_blocks_lo) = (block, blocks));
            e.attributes("/eablock", |b| set_word(b, 4, 2));
        }
        if self == Image::Encrypt {
            for path in ["/secret", "/secret/abcdefghijklmnop"] {
                e.inode(path, |i| i.i_flags.set(i.i_flags.get() | InodeFlags::ENCRYPT.bits()));
                e.inode_attributes(path, |area| encryption_context(area, 1));
            }
            e.inode(SECRET_IN_BLOCK, |i| i.i_flags.set(i.i_flags.get() | InodeFlags::ENCRYPT.bits()));
            e.attributes(SECRET_IN_BLOCK, |b| encryption_context_in_block(b, b"c", 28, 1));
        }
    }
}

/// The encrypted file whose context is in its attribute block.
pub(super) const SECRET_IN_BLOCK: &str = "/secret/qrstuvwxyz012345";

/// Adds a journal on a disk of its own behind the file system `made`, as mke2fs does if that disk is a block device.
fn with_journal_device(made: &MemDevice, dir: &Path) -> MemDevice {
    let (path, blocks) = (dir.join("journal"), JOURNAL_BLOCKS.to_string());
    run_ok("mke2fs", &["-q", "-F", "-O", "journal_dev", "-b", "1024", arg(&path), &blocks]).expect("a journal");
    let log = Arc::new(MemDevice::load(&path).expect("loaded"));
    let mut sb = read_super(made).expect("a superblock");
    let (mut journal, uuid) = JournalFile::open_any_external(log.clone(), 1024).expect("a journal");
    let mut journal_sb = journal.super_block().clone();
    journal_sb.set_user(sb.uuid());
    journal.write_super(journal_sb).expect("memory");
    sb.set_external_journal(uuid, 0);
    let both = MemDevice::new(BYTES + log.size_bytes());
    let mut piece = vec![0; 64 << 10];
    for (from, start) in [(made, 0), (&*log, BYTES)] {
        for at in (0..from.size_bytes()).step_by(piece.len()) {
            let len = piece.len().min((from.size_bytes() - at) as usize);
            from.read_at(at, &mut piece[..len], BioFlags::empty()).expect("memory");
            if piece[..len].iter().any(|byte| *byte != 0) {
                both.write_at(start + at, &[&piece[..len]], BioFlags::empty()).expect("memory");
            }
        }
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    sb.encode_into(&mut bytes);
    both.write_at(SUPERBLOCK_OFFSET, &[&bytes], BioFlags::empty()).expect("memory");
    both
}

/// Turns on multi-mount protection. mke2fs could do it, but then each writing tool would wait for eleven seconds.
fn protect(e: &mut Edit) {
    let block = e.free_block();
    let group = e.group_of(block);
    e.set_block_bit(block, true);
    e.group(group, |g| g.bg_free_blocks_count_lo.set(g.bg_free_blocks_count_lo.get() - 1));
    e.superblocks(|s| {
        s.s_feature_incompat.set(s.s_feature_incompat.get() | 0x100);
        s.s_mmp_update_interval.set(5);
        s.s_mmp_block.set(block);
    });
    e.superblock(|s| s.s_free_blocks_count_lo.set(s.s_free_blocks_count_lo.get() - 1));
    let seed = e.geometry().seed;
    e.block(block, |b| {
        b.fill(0);
        set_word(b, 0, 0x004D_4D50);
        // Cleanly unmounted.
        set_word(b, 4, 0xFF4D_4D50);
        set_half(b, 112, 5);
        let sum = seed.checksum(&b[..1020]);
        set_word(b, 1020, sum);
    });
}

/// Overwrites the attribute area of an inode with one attribute that contains an encryption policy of version 1.
pub(super) fn encryption_context(area: &mut [u8], key: u8) {
    area.fill(0);
    set_word(area, 0, extant_ondisk::xattr::MAGIC);
    // One entry: name "c" of index 9, with 28 bytes at the end of the area. Offsets count from the first entry.
    let len = 28;
    let at = (area.len() - 4 - len) & !3;
    area[4..6].copy_from_slice(&[1, extant_ondisk::xattr::index::ENCRYPTION]);
    set_half(area, 6, at as u16);
    set_word(area, 12, len as u32);
    area[20] = b'c';
    let value = &mut area[4 + at..4 + at + len];
    value[..4].copy_from_slice(&[1, 1, 4, 0]);
    value[4..12].fill(key);
}

/// Overwrites all attributes in a block with one encryption attribute: a policy of version 1, cut off at `len` bytes.
pub(super) fn encryption_context_in_block(block: &mut [u8], name: &[u8; 1], len: usize, key: u8) {
    block[32..].fill(0);
    let at = block.len() - 28;
    block[32..34].copy_from_slice(&[1, extant_ondisk::xattr::index::ENCRYPTION]);
    set_half(block, 34, at as u16);
    set_word(block, 40, len as u32);
    block[48] = name[0];
    block[at..at + 4].copy_from_slice(&[1, 1, 4, 0]);
    block[at + 4..at + 12].fill(key);
    let hash = extant_ondisk::xattr::entry_hash(name, &block[at..at + len]);
    set_word(block, 44, hash);
}
