//! The combinations of image, mount options and device that the explorer runs.
//!
//! Main types: [`Config`], [`Base`] (an image with the files of every client, made once per process).
//!
//! # Locking
//! None: each image is made once, in a `OnceLock`.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BioFlags;
use extant_block::BlockDevice;
use extant_block::device::{Lateness, Limits, MemDevice};
use extant_fs::{
    BorrowJournal, Cred, FallocateMode, Filesystem, InodeRef, JournalDevice, MetaPolicy, MountOptions, NewNode,
    ReclaimPolicy, WriteFlags,
};

use crate::crash::explore::state_files;
use crate::crash::history::NodeKind;
use crate::crash::image::{CrashImage, ENCRYPTED, ENCRYPTED_TOP, EXT2, EXT4};
use crate::crash::pattern;
use crate::verity;

/// The file that all clients write to, each its own stripes.
pub const STRIPED: &str = "stripes";

/// The maximum number of clients in a plan; the images contain files for each.
pub const CLIENTS_MAX: usize = 8;
/// The number of files per client in an image with many files.
pub const MANY: usize = 60;
/// The memory of the run's mount, unless a client temporarily takes some.
pub const CACHE_BYTES: u64 = 8 << 20;
/// Distance between the clients' node numbers in patterns.
pub const NODES: u32 = 4096;
/// The time at which images are made, in seconds since 1970: before any run begins.
const MADE_S: i64 = 1_600_000_000;
/// The number of blocks of a file with a deep map, of which every other one is written. An inode holds 4 extents, and a
/// block of 1 KiB holds 84. Without extents, 12 blocks need no map block, and 268 need one level.
const DEEP_BLOCKS: u64 = 360;
/// The number of bytes of a written and of a preallocated file in the image.
const WRITTEN: u64 = 20_000;
const ALLOCATED: u64 = 48 << 10;

/// The file with a Merkle tree, where there is one, and its bytes: the tree has a root and two blocks below it.
pub const PROTECTED: &str = "protected";
const PROTECTED_BYTES: u32 = 700_001;

/// Its content.
pub fn protected_content() -> Vec<u8> {
    (0..PROTECTED_BYTES).map(|i| (i / 7 + i / 4096) as u8).collect()
}

/// One way to use a file system.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub name: &'static str,
    pub image: CrashImage,
    /// Whether clients have many small files.
    pub many: bool,
    /// Whether clients have a file whose map has two levels of nodes.
    pub deep: bool,
    /// The number of free blocks, for configurations with a full disk.
    pub free_blocks: Option<u64>,
    pub keep_clean: bool,
    pub through: Option<u64>,
    pub lateness: Lateness,
    /// Whether the device has sectors of 4 KiB.
    pub large_sectors: bool,
    /// Whether one request in the middle fails.
    pub faults: bool,
    /// Whether clients also write into one file, each its own stripes of it: see [`crate::sched::stripes`].
    pub stripes: bool,
    /// The number of plans, relative to the others, that use this configuration. 0: only plans that name it. This keeps
    /// the meaning of seeds in older series.
    pub weight: u64,
}

const RING: Lateness =
    Lateness { threads: 2, inline_permille: 100, held_permille: 200, longest: Duration::from_millis(30) };
const INLINE: Lateness =
    Lateness { threads: 1, inline_permille: 1000, held_permille: 50, longest: Duration::from_millis(2) };

const JOURNAL: CrashImage = CrashImage { name: "ext4", journal_blocks: 1024, size: 12 << 20, inodes: 256, ..EXT4 };

/// A block device under FUSE, as in production.
const MOUNT: Config = Config {
    name: "mount",
    image: JOURNAL,
    many: false,
    deep: false,
    free_blocks: None,
    keep_clean: false,
    through: None,
    lateness: RING,
    large_sectors: false,
    faults: false,
    stripes: false,
    weight: 6,
};
const SMALL_BLOCKS: CrashImage = CrashImage {
    name: "ext4-1k",
    block_size: 1024,
    features: "orphan_file,metadata_csum_seed",
    journal_blocks: 1024,
    size: 4 << 20,
    inodes: 256,
    ..EXT4
};
/// Each inode has a separate block, so that a transaction is full after a few dozen files.
const WIDE: CrashImage =
    CrashImage { name: "ext4-wide", inode_size: Some(4096), size: 16 << 20, inodes: 512, ..JOURNAL };

/// All configurations, those of production first.
pub static CONFIGS: &[Config] = &[
    MOUNT,
    // An image file without O_DIRECT.
    Config { name: "file", through: Some(16 << 10), lateness: INLINE, weight: 4, ..MOUNT },
    Config { name: "mount-1k", image: SMALL_BLOCKS, weight: 4, ..MOUNT },
    Config { name: "file-1k", image: SMALL_BLOCKS, through: Some(4096), weight: 2, ..MOUNT },
    Config { name: "full-log", image: WIDE, many: true, weight: 2, ..MOUNT },
    Config { name: "embedded", keep_clean: true, weight: 2, ..MOUNT },
    // The command line tool on an image file.
    Config { name: "embedded-file", keep_clean: true, through: Some(16 << 10), lateness: INLINE, weight: 2, ..MOUNT },
    Config { name: "sectors", large_sectors: true, weight: 1, ..MOUNT },
    Config { name: "full-disk", free_blocks: Some(40), weight: 2, ..MOUNT },
    Config {
        name: "borrowed",
        image: CrashImage {
            name: "ext4-lent",
            features: "^has_journal",
            borrows: true,
            size: 24 << 20,
            inodes: 256,
            ..EXT4
        },
        weight: 1,
        ..MOUNT
    },
    Config {
        name: "borrowed-ext2",
        image: CrashImage { name: "ext2-lent", borrows: true, size: 8 << 20, inodes: 256, ..EXT2 },
        weight: 1,
        ..MOUNT
    },
    Config {
        name: "two-waves",
        image: CrashImage { name: "ext4-two", features: "^has_journal", size: 8 << 20, inodes: 256, ..EXT4 },
        weight: 1,
        ..MOUNT
    },
    Config {
        name: "deep",
        image: CrashImage { name: "ext4-1k-deep", size: 14 << 20, ..SMALL_BLOCKS },
        deep: true,
        weight: 1,
        ..MOUNT
    },
    Config {
        name: "deep-indirect",
        image: CrashImage {
            name: "ext2-1k-deep",
            borrows: true,
            block_size: 1024,
            size: 14 << 20,
            inodes: 256,
            ..EXT2
        },
        deep: true,
        weight: 1,
        ..MOUNT
    },
    Config { name: "mount-eio", faults: true, weight: 2, ..MOUNT },
    Config { name: "file-eio", faults: true, through: Some(16 << 10), weight: 1, ..MOUNT },
    Config {
        name: "quota",
        image: CrashImage { name: "ext4-quota", features: "quota,project", ..JOURNAL },
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "inline",
        image: CrashImage {
            name: "ext4-1k-inline",
            features: "inline_data",
            block_size: 1024,
            size: 8 << 20,
            ..JOURNAL
        },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "bigalloc",
        image: CrashImage {
            name: "ext4-1k-bigalloc",
            features: "bigalloc",
            block_size: 1024,
            size: 12 << 20,
            more: &["-C", "8192"],
            ..JOURNAL
        },
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "bigalloc-full",
        image: CrashImage {
            name: "ext4-1k-bigalloc",
            features: "bigalloc",
            block_size: 1024,
            size: 12 << 20,
            more: &["-C", "8192"],
            ..JOURNAL
        },
        free_blocks: Some(400),
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "bigalloc-through",
        image: CrashImage {
            name: "ext4-bigalloc",
            features: "bigalloc",
            size: 32 << 20,
            more: &["-C", "16384"],
            ..JOURNAL
        },
        through: Some(4096),
        faults: true,
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "fast-commit",
        image: CrashImage {
            name: "ext4-1k-fast-commit",
            features: "fast_commit",
            block_size: 1024,
            size: 10 << 20,
            journal_blocks: 2048,
            more: &["-E", "lazy_itable_init=0"],
            ..JOURNAL
        },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "values",
        image: CrashImage { name: "ext4-1k-values", features: "ea_inode", block_size: 1024, size: 8 << 20, ..JOURNAL },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "casefold",
        image: CrashImage {
            name: "ext4-1k-casefold",
            features: "casefold",
            block_size: 1024,
            size: 8 << 20,
            ..JOURNAL
        },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "together",
        image: CrashImage {
            name: "ext4-1k-together",
            features: "bigalloc,inline_data,ea_inode,quota,project",
            block_size: 1024,
            size: 16 << 20,
            more: &["-C", "8192"],
            ..JOURNAL
        },
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "grow",
        image: CrashImage { name: "ext4-grow", room: 40 << 20, more: &["-g", "1024", "-G", "4"], ..JOURNAL },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "grow-1k",
        image: CrashImage {
            name: "ext4-1k-grow",
            size: 12 << 20,
            room: 20 << 20,
            more: &["-g", "1024", "-G", "4"],
            ..SMALL_BLOCKS
        },
        through: Some(4096),
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "large-blocks",
        image: CrashImage { name: "ext4-16k", block_size: 16384, size: 48 << 20, ..JOURNAL },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "encrypted",
        image: CrashImage { name: "ext4-1k-encrypted", size: 8 << 20, inodes: 256, ..ENCRYPTED },
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "journal-dev",
        image: CrashImage { name: "ext4-journal-dev", external: true, journal_blocks: 1026, ..JOURNAL },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "mmp",
        image: CrashImage { name: "ext4-mmp", features: "mmp", ..JOURNAL },
        stripes: true,
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "verity",
        image: CrashImage { name: "ext4-verity", features: "verity", ..JOURNAL },
        weight: 0,
        ..MOUNT
    },
    // Pairs of features that mke2fs refuses.
    Config {
        name: "uninit-csum",
        image: CrashImage {
            name: "ext4-1k-uninit-csum",
            block_size: 1024,
            size: 8 << 20,
            edits: &["feature uninit_bg"],
            without: &["feature -uninit_bg"],
            ..JOURNAL
        },
        weight: 0,
        ..MOUNT
    },
    Config {
        name: "meta-bg-resize",
        image: CrashImage {
            name: "ext4-1k-meta-bg-resize",
            block_size: 1024,
            size: 12 << 20,
            // Both groups have their descriptors in one block.
            edits: &["set_super_value first_meta_bg 1", "feature meta_bg"],
            without: &["feature -meta_bg", "set_super_value first_meta_bg 0"],
            ..JOURNAL
        },
        weight: 0,
        ..MOUNT
    },
];

impl Config {
    pub fn find(name: &str) -> Option<&'static Config> {
        CONFIGS.iter().find(|c| c.name == name)
    }

    /// The mount options of the run.
    pub fn options(&self, seed: u64) -> MountOptions {
        MountOptions {
            keep_clean: self.keep_clean,
            write_through_bytes: self.through,
            fast_commits: self.image.has_fast_commits(),
            cache_bytes: CACHE_BYTES,
            borrow_journal: self.lends(),
            keys: self.image.keys(),
            reclaim_policy: ReclaimPolicy::ALL[seed as usize % ReclaimPolicy::ALL.len()],
            meta_policy: MetaPolicy::ALL[seed as usize / 8 % MetaPolicy::ALL.len()],
            seed: Some(seed),
            ..MountOptions::default()
        }
    }

    /// The mount options for one thread, before and after the run.
    pub fn quiet(&self, epoch_s: i64) -> MountOptions {
        MountOptions {
            threads: false,
            seed: Some(99),
            cache_bytes: CACHE_BYTES,
            borrow_journal: self.lends(),
            keys: self.image.keys(),
            clock: Clock::virtual_at(epoch_s),
            ..MountOptions::default()
        }
    }

    fn lends(&self) -> BorrowJournal {
        if self.image.borrows { BorrowJournal::IfClean } else { BorrowJournal::Never }
    }

    /// Whether there is a file with a Merkle tree, [`PROTECTED`].
    pub fn has_protected(&self) -> bool {
        self.image.features.contains("verity")
    }

    /// The directory of the clients.
    ///
    /// # Panics
    /// If there is none, as in an image that is not of this configuration.
    pub fn top(&self, fs: &Filesystem) -> InodeRef {
        let path = if self.image.is_encrypted() { ENCRYPTED_TOP } else { "" };
        fs.walk(path.as_bytes(), false).expect("the directory of the clients")
    }

    /// A path of a client, from the root.
    pub fn path(&self, path: &str) -> String {
        if self.image.is_encrypted() { format!("{ENCRYPTED_TOP}/{path}") } else { path.to_owned() }
    }

    /// The image, made at first use.
    pub fn base(&'static self) -> &'static Base {
        static BASES: [OnceLock<Base>; 40] = [const { OnceLock::new() }; 40];
        let at = CONFIGS.iter().position(|c| c.name == self.name).expect("one of the list");
        BASES[at].get_or_init(|| self.build())
    }

    fn build(&self) -> Base {
        let dir = state_files();
        let made = self.image.build(dir.path()).expect("an image");
        let made = match self.has_protected() {
            true => verity::with_protected_file(made, PROTECTED, &protected_content(), 1, b"pepper"),
            false => made,
        };
        let device = Arc::new(if self.large_sectors { with_large_sectors(&made) } else { made });
        let (disk, journal) = self.image.disks(device.clone());
        let options = MountOptions { journal_device: journal.map(JournalDevice), ..self.quiet(MADE_S) };
        let fs = Filesystem::mount(disk, options).expect("mount");
        let root = self.top(&fs);
        if self.stripes {
            fs.create(&root, STRIPED.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
        }
        let mut files = BTreeMap::new();
        for client in 0..CLIENTS_MAX {
            let mut node = 0;
            let mut make = |name: String, kind: NodeKind, written: Vec<(u64, u64)>, allocated: u64| {
                let new = if kind == NodeKind::Directory { NewNode::directory(0o755) } else { NewNode::file(0o644) };
                let inode = fs.create(&root, name.as_bytes(), new, Cred::default()).expect("create");
                let mut size = allocated;
                if allocated > 0 && self.image.extents {
                    let mode = FallocateMode::Allocate { keep_size: false };
                    fs.fallocate(&inode, mode, 0, allocated).expect("fallocate");
                }
                for &(from, to) in &written {
                    let bytes = pattern::bytes(client as u32 * NODES + node, 0, from, to);
                    fs.write(&inode, from, &bytes, WriteFlags::default()).expect("write");
                    size = size.max(to);
                }
                files.insert(name, PreparedFile { client, node, kind, written, size });
                node += 1;
            };
            make(format!("t{client}d"), NodeKind::Directory, Vec::new(), 0);
            make(format!("t{client}a"), NodeKind::File, vec![(0, WRITTEN)], 0);
            if self.image.extents {
                // Its first third already has data, so that overwrites meet a part that is still to be converted.
                make(format!("t{client}p"), NodeKind::File, vec![(0, ALLOCATED / 3)], ALLOCATED);
            }
            if self.many && client < 3 {
                (0..MANY).for_each(|i| make(format!("t{client}m{i:02}"), NodeKind::File, vec![(0, 100)], 0));
            }
            if self.deep {
                let block = u64::from(self.image.block_size);
                let written = (0..DEEP_BLOCKS / 2).map(|i| (2 * i * block, (2 * i + 1) * block)).collect();
                let allocated = if self.image.extents { DEEP_BLOCKS * block } else { 0 };
                make(format!("t{client}x"), NodeKind::File, written, allocated);
            }
        }
        if let Some(free) = self.free_blocks {
            let filler = fs.create(&root, b"filler", NewNode::file(0o600), Cred::default()).expect("create");
            fs.sync().expect("sync");
            let blocks = fs.statfs().blocks_available.saturating_sub(free);
            let mode = FallocateMode::Allocate { keep_size: true };
            fs.fallocate(&filler, mode, 0, blocks * u64::from(self.image.block_size)).expect("fallocate");
        }
        drop(root);
        fs.unmount().expect("unmount");
        drop(fs);
        let device = Arc::into_inner(device).expect("no other reference");
        Base { device, files }
    }
}

/// An image and its files.
pub struct Base {
    pub device: MemDevice,
    /// Keyed by name, in the order of creation for each client.
    pub files: BTreeMap<String, PreparedFile>,
}

#[derive(Clone, Debug)]
pub struct PreparedFile {
    pub client: usize,
    pub node: u32,
    pub kind: NodeKind,
    /// Bytes with the pattern of write 0; the rest of the size is preallocated, or a hole without extents.
    pub written: Vec<(u64, u64)>,
    pub size: u64,
}

fn with_large_sectors(image: &MemDevice) -> MemDevice {
    let limits = Limits { logical_block: 4096, ..*image.limits() };
    let copy = MemDevice::with_limits(image.size_bytes(), limits);
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    while at < image.size_bytes() {
        image.read_at(at, &mut buf, BioFlags::empty()).expect("memory");
        copy.write_at(at, &[&buf], BioFlags::empty()).expect("memory");
        at += buf.len() as u64;
    }
    copy
}
