//! The images of the crash tests: small, with small journals, and poison in all unused blocks.
//!
//! # Locking
//! None.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use extant_recovery::JournalFile;
use extant_recovery::locate::read_super;

use extant_fs::{Cred, Filesystem, KeyRing, MountOptions, NewNode, Secret};
use extant_oracle::encryption::add_key;

use crate::crash::pattern::POISON;
use crate::oracle::{MkfsOptions, arg, debugfs_write, make_image, run_ok};
use crate::{Error, Result};

/// A kind of file system for crash tests.
#[derive(Clone, Copy, Debug)]
pub struct CrashImage {
    pub name: &'static str,
    pub fs_type: &'static str,
    pub block_size: u32,
    pub features: &'static str,
    /// Blocks of the journal that the image has; 0 for none.
    pub journal_blocks: u32,
    /// The journal is on a disk of its own. Both are one image, with that disk behind the file system's.
    pub external: bool,
    /// Extant borrows a journal for it; otherwise, without one of its own, commits go home in two waves.
    pub borrows: bool,
    /// Bytes.
    pub size: u64,
    /// Whether files are mapped by extents, so that preallocation works.
    pub extents: bool,
    /// Bytes per inode, if different from mke2fs's choice: if each inode has a whole block, each needs a block of the
    /// log.
    pub inode_size: Option<u32>,
    /// The number of inodes.
    pub inodes: u32,
    /// Bytes on the device behind the file system, into which it grows while it is mounted.
    pub room: u64,
    /// Additional arguments of mke2fs.
    pub more: &'static [&'static str],
    /// Requests to debugfs, for pairs of features that mke2fs refuses, and those that take them back.
    pub edits: &'static [&'static str],
    pub without: &'static [&'static str],
}

/// The size of an image in bytes. With blocks of 4 KiB and a borrowed journal, the free space must be four times the
/// journal.
const SIZE: u64 = 16 << 20;
const SIZE_LENT: u64 = 24 << 20;
/// Space for dozens of groups.
const ROOM: u64 = 40 << 20;
/// The size of a borrowed journal in images this small.
const LENT_BLOCKS: u32 = 1024;
/// Slightly more than fits into an inode of 256 bytes.
const SHORT: u64 = 150;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// The configurations that are explored by default. Journals have the minimum size that the kernel accepts, so that the
/// log wraps around.
pub const IMAGES: [CrashImage; 5] = [
    CrashImage { name: "ext4", journal_blocks: 1024, ..EXT4 },
    CrashImage {
        name: "ext4-1k",
        block_size: 1024,
        features: "orphan_file,metadata_csum_seed",
        journal_blocks: 1024,
        ..EXT4
    },
    CrashImage { name: "ext3", fs_type: "ext3", journal_blocks: 1024, ..EXT2 },
    CrashImage { name: "ext4-nojournal", features: "^has_journal", borrows: true, size: SIZE_LENT, ..EXT4 },
    CrashImage { name: "ext2", borrows: true, ..EXT2 },
];

/// The log is on a disk of its own: a flush of one disk says nothing about the other one. Two blocks more than the
/// least size of other journals are for superblocks.
pub const JOURNAL_DEV: [CrashImage; 2] = [
    CrashImage { name: "ext4-journal-dev", journal_blocks: 1026, external: true, ..EXT4 },
    CrashImage { name: "ext3-journal-dev", fs_type: "ext3", journal_blocks: 1026, external: true, ..EXT2 },
];

/// With a feature that the Linux kernel may lack.
pub const QUOTA: CrashImage =
    CrashImage { name: "ext4-quota", features: "quota,project", journal_blocks: 1024, ..EXT4 };

/// Small files and directories are stored in their inodes, and move out when they grow.
pub const INLINE: CrashImage =
    CrashImage { name: "ext4-inline", features: "inline_data", block_size: 1024, journal_blocks: 1024, ..EXT4 };

/// The workload is in an encrypted directory, [`ENCRYPTED_TOP`]. Nonces are random, so one seed leaves images that
/// differ in ciphertext and in the shape of hash trees.
pub const ENCRYPTED: CrashImage =
    CrashImage { name: "ext4-encrypted", features: "encrypt", block_size: 1024, journal_blocks: 1024, ..EXT4 };

/// The directory of the workload on images with `encrypt`.
pub const ENCRYPTED_TOP: &str = "encrypted";
/// Its key.
const KEY: [u8; 64] = [0x5e; 64];

/// Fsyncs write fast commits where they can. Their area has 32 blocks, so that it is often full, and the inode tables
/// are zeroed: a new inode in a slot with other content needs a full commit.
pub const FAST_COMMIT: CrashImage = CrashImage {
    name: "ext4-fast-commit",
    features: "fast_commit,orphan_file",
    block_size: 1024,
    journal_blocks: 2048,
    more: &["-E", "lazy_itable_init=0"],
    ..EXT4
};

/// Clusters of four and of sixteen blocks: those of one cluster are written at different times.
pub const CLUSTERS: [CrashImage; 2] = [
    CrashImage {
        name: "ext4-bigalloc",
        features: "bigalloc",
        journal_blocks: 1024,
        more: &["-C", "16384"],
        size: 32 << 20,
        ..EXT4
    },
    CrashImage {
        name: "ext4-1k-bigalloc",
        features: "bigalloc",
        block_size: 1024,
        journal_blocks: 1024,
        more: &["-C", "16384"],
        size: 32 << 20,
        ..EXT4
    },
];

/// Attribute values are stored in their own inodes, and files share them.
pub const VALUES: CrashImage =
    CrashImage { name: "ext4-values", features: "ea_inode", block_size: 1024, journal_blocks: 1024, ..EXT4 };

/// All directories ignore case, and names are used in any.
pub const CASEFOLD: CrashImage =
    CrashImage { name: "ext4-casefold", features: "casefold", block_size: 1024, journal_blocks: 1024, ..EXT4 };

/// Features that change what a byte of a file, a block or an attribute costs, in one file system.
pub const TOGETHER: CrashImage = CrashImage {
    name: "ext4-together",
    features: "bigalloc,inline_data,ea_inode,quota,project",
    journal_blocks: 1024,
    more: &["-C", "16384"],
    size: 32 << 20,
    ..EXT4
};

/// File systems that grow while they are mounted, in many steps: flex groups of 4 MiB, groups of 2 MiB, a borrowed
/// journal.
pub const GROWING: [CrashImage; 3] = [
    CrashImage {
        name: "ext4-grows",
        block_size: 1024,
        journal_blocks: 1024,
        room: ROOM,
        more: &["-g", "1024", "-G", "4"],
        ..EXT4
    },
    CrashImage { name: "ext3-grows", fs_type: "ext3", journal_blocks: 1024, room: ROOM, more: &["-g", "2048"], ..EXT2 },
    CrashImage {
        name: "ext2-grows",
        borrows: true,
        room: ROOM,
        features: "meta_bg,^resize_inode",
        more: &["-g", "1024"],
        ..EXT2
    },
];

/// Without any journal.
pub const TWO_WAVES: [CrashImage; 2] = [
    CrashImage { name: "ext4-two-waves", features: "^has_journal", ..EXT4 },
    CrashImage { name: "ext2-two-waves", ..EXT2 },
];

pub(crate) const EXT4: CrashImage = CrashImage {
    name: "",
    fs_type: "ext4",
    block_size: 4096,
    features: "",
    journal_blocks: 0,
    external: false,
    borrows: false,
    size: SIZE,
    extents: true,
    inode_size: None,
    inodes: 1024,
    room: 0,
    more: &[],
    edits: &[],
    without: &[],
};
pub(crate) const EXT2: CrashImage = CrashImage { fs_type: "ext2", block_size: 1024, extents: false, ..EXT4 };

impl CrashImage {
    /// Whether there is a journal while it is mounted.
    pub fn has_journal(&self) -> bool {
        self.log_blocks() > 0
    }

    /// Whether the workload is in [`ENCRYPTED_TOP`].
    pub fn is_encrypted(&self) -> bool {
        self.features.contains("encrypt")
    }

    /// The key, for mounts of such images.
    pub fn keys(&self) -> KeyRing {
        let mut keys = KeyRing::default();
        if self.is_encrypted() {
            keys.add(Secret::new(&KEY).expect("short"), None).expect("a key of 64 bytes");
        }
        keys
    }

    /// The top of the workload below a kernel's mount on `mounted`, which gets the key.
    pub fn top_of(&self, mounted: &Path) -> Result<PathBuf> {
        if !self.is_encrypted() {
            return Ok(mounted.to_owned());
        }
        add_key(mounted, &KEY, None)?;
        Ok(mounted.join(ENCRYPTED_TOP))
    }

    /// Makes [`ENCRYPTED_TOP`].
    fn encrypt(&self, dev: Arc<MemDevice>) -> std::result::Result<(), extant_fs::Error> {
        let options = MountOptions { threads: false, keys: self.keys(), ..MountOptions::default() };
        let fs = Filesystem::mount(dev, options)?;
        let root = fs.root()?;
        let top = fs.create(&root, ENCRYPTED_TOP.as_bytes(), NewNode::directory(0o755), Cred::default())?;
        let policy = fs.default_policy().ok_or(extant_fs::Error::NotSupported("no key"))?;
        fs.set_encryption_policy(&top, policy)?;
        drop((root, top));
        fs.unmount()
    }

    /// The length of the journal while it is mounted.
    pub fn log_blocks(&self) -> u32 {
        if self.borrows { LENT_BLOCKS } else { self.journal_blocks }
    }

    /// The length of a write, up to `most`. If content may be stored in inodes, every other write is about as long as
    /// fits.
    pub fn length(&self, rng: &mut Rng, most: u64) -> u64 {
        let short = self.features.contains("inline_data") && rng.one_in(2);
        1 + rng.below(if short { most.min(SHORT) } else { most })
    }

    /// The length of an attribute. If values may have their own inodes, every third one needs one, of several blocks.
    pub fn value_length(&self, rng: &mut Rng) -> u64 {
        match rng.below(3) {
            0 if self.has_values() => 1000 + rng.below(9000),
            1 => 1 + rng.below(30),
            _ => 100 + rng.below(150),
        }
    }

    /// The length of an attribute that many files share.
    pub fn label_length(&self) -> u64 {
        if self.has_values() { 5000 } else { 200 }
    }

    /// Whether its directories ignore case.
    pub fn ignores_case(&self) -> bool {
        self.features.contains("casefold")
    }

    /// Whether fsyncs may write fast commits.
    pub fn has_fast_commits(&self) -> bool {
        self.features.contains("fast_commit")
    }

    fn has_values(&self) -> bool {
        self.features.contains("ea_inode")
    }

    /// The block size of an image without a journal.
    pub fn unjournalled(&self) -> Option<u32> {
        (!self.has_journal()).then_some(self.block_size)
    }

    /// The file system's disk, and that of its journal if it has one of its own, of a state of both.
    pub fn disks(&self, image: Arc<dyn BlockDevice>) -> (Arc<dyn BlockDevice>, Option<Arc<dyn BlockDevice>>) {
        if !self.external {
            return (image, None);
        }
        let part = |start, len| -> Arc<dyn BlockDevice> {
            Arc::new(OffsetDevice::new(image.clone(), start, len).expect("within the image"))
        };
        (part(0, self.size), Some(part(self.size, image.size_bytes() - self.size)))
    }

    /// Adds a journal on a disk of its own behind the file system `dev`, which has none.
    fn with_journal(&self, dev: MemDevice, dir: &Path) -> Result<MemDevice> {
        let device = |e: &dyn std::fmt::Display| Error::Mismatch { what: self.name.into(), difference: e.to_string() };
        let path = dir.join("journal");
        let blocks = self.journal_blocks.to_string();
        let made = ["-q", "-F", "-O", "journal_dev", "-b", &self.block_size.to_string(), arg(&path), &blocks];
        run_ok("mke2fs", &made)?;
        let log = MemDevice::load(&path).map_err(|e| device(&e))?;
        std::fs::remove_file(&path).map_err(Error::io("remove"))?;
        let mut sb = read_super(&dev).map_err(|e| device(&e))?;
        let (mut journal, uuid) =
            JournalFile::open_any_external(Arc::new(log.snapshot()), self.block_size).map_err(|e| device(&e))?;
        // mke2fs does so itself if the journal is a block device.
        let mut journal_sb = journal.super_block().clone();
        journal_sb.set_user(sb.uuid());
        journal.write_super(journal_sb).map_err(|e| device(&e))?;
        sb.set_external_journal(uuid, 0);
        let mut bytes = [0; SUPERBLOCK_SIZE];
        sb.encode_into(&mut bytes);
        dev.write_at(SUPERBLOCK_OFFSET, &[&bytes], BioFlags::empty()).map_err(|e| device(&e))?;
        let both = MemDevice::new(self.size + log.size_bytes());
        let mut piece = vec![0; COPY_BYTES];
        for (from, start) in [(&dev as &dyn BlockDevice, 0), (&**journal.device(), self.size)] {
            for at in (0..from.size_bytes()).step_by(COPY_BYTES) {
                let len = COPY_BYTES.min((from.size_bytes() - at) as usize);
                from.read_at(at, &mut piece[..len], BioFlags::empty()).map_err(|e| device(&e))?;
                both.write_at(start + at, &[&piece[..len]], BioFlags::empty()).map_err(|e| device(&e))?;
            }
        }
        Ok(both)
    }

    /// Makes the image, with every free block and every unused inode table poisoned.
    pub fn build(&self, dir: &Path) -> Result<MemDevice> {
        let device = |e: extant_block::Error| Error::Mismatch { what: self.name.into(), difference: e.to_string() };
        let mut options = MkfsOptions::new(self.fs_type, self.size);
        options.block_size = self.block_size;
        options.inode_size = self.inode_size;
        options.features = self.features.to_owned();
        options.extra_args = vec!["-N".into(), self.inodes.to_string()];
        if self.external {
            options.features = [self.features, "^has_journal"].join(",").trim_start_matches(',').to_owned();
        } else if self.journal_blocks > 0 {
            let mib = (u64::from(self.journal_blocks) * u64::from(self.block_size)) >> 20;
            options.extra_args.extend(["-J".into(), format!("size={}", mib.max(1))]);
        }
        options.extra_args.extend(self.more.iter().map(|arg| (*arg).to_owned()));
        let path = make_image(dir, &options)?;
        if self.ignores_case() {
            // As chattr +F would leave it, were it not for lost+found. New directories inherit the flag.
            debugfs_write(&path, "set_inode_field / flags 0x40080000\n")?;
        }
        if !self.edits.is_empty() {
            debugfs_write(&path, &self.edits.join("\n"))?;
        }
        let longer = || std::fs::File::options().write(true).open(&path)?.set_len(self.size + self.room);
        longer().map_err(Error::io("lengthen"))?;
        let dev = MemDevice::load(&path).map_err(device)?;
        let poison: Vec<u8> = POISON.iter().copied().cycle().take(self.block_size as usize).collect();
        for at in (self.size..self.size + self.room).step_by(poison.len()) {
            dev.write_at(at, &[&poison], BioFlags::empty()).map_err(device)?;
        }
        for (first, last) in unused_blocks(&run_ok("dumpe2fs", &[arg(&path)])?) {
            for block in first..=last {
                dev.write_at(block * u64::from(self.block_size), &[&poison], BioFlags::empty()).map_err(device)?;
            }
        }
        std::fs::remove_file(&path).map_err(Error::io("remove"))?;
        if self.is_encrypted() {
            let failed = |e: extant_fs::Error| Error::Mismatch { what: self.name.into(), difference: e.to_string() };
            let shared = Arc::new(dev);
            self.encrypt(shared.clone()).map_err(failed)?;
            let in_use = || failed(extant_fs::Error::Busy("the image"));
            return Arc::into_inner(shared).ok_or_else(in_use);
        }
        if self.external { self.with_journal(dev, dir) } else { Ok(dev) }
    }
}

/// Ranges of unused blocks, from the listing of dumpe2fs: free ones, and the inode tables that were not zeroed.
fn unused_blocks(listing: &str) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut lazy_table = false;
    for line in listing.lines() {
        if line.starts_with("Group ") {
            lazy_table = line.contains("INODE_UNINIT") && !line.contains("ITABLE_ZEROED");
        } else if let Some(list) = line.strip_prefix("  Free blocks: ") {
            out.extend(list.split(", ").filter_map(range));
        } else if let Some(rest) = line.strip_prefix("  Inode table at ")
            && lazy_table
        {
            out.extend(rest.split_whitespace().next().and_then(range));
        }
    }
    out
}

fn range(text: &str) -> Option<(u64, u64)> {
    let text = text.trim();
    match text.split_once('-') {
        Some((a, b)) => Some((a.parse().ok()?, b.parse().ok()?)),
        None => text.parse().ok().map(|n| (n, n)),
    }
}

/// The writes that a disk is trusted not to tear: the superblock, the block of multi-mount protection, and, where no
/// journal repairs it, each block.
pub fn declare_atomic(device: &CrashDevice, image: &CrashImage) {
    device.declare_atomic(1024, 1024);
    if image.features.contains("mmp")
        && let Ok(sb) = read_super(device)
    {
        let size = u64::from(image.block_size);
        device.declare_atomic(sb.raw().s_mmp_block.get() * size, size);
    }
    if !image.has_journal() {
        let bs = u64::from(image.block_size);
        (0..device.size_bytes() / bs).for_each(|b| device.declare_atomic(b * bs, bs));
    }
}
