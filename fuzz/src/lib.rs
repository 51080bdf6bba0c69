//! Shared parts of the fuzz targets: images of mke2fs, a file tree to put into them, and bytes taken off an input.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::{LazyLock, OnceLock};

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SuperBlock};
use extant_testkit::damage::{self, Mutation};
use extant_testkit::oracle::{arg, e2fsck, mke2fs};

/// One per way to protect descriptors and inodes, and per way to map files.
const KINDS: &[&str] = &[
    "-t ext4 -b 1024 -O ^metadata_csum",
    "-t ext4 -b 1024 -O metadata_csum,64bit,metadata_csum_seed",
    "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg",
    "-t ext3 -b 2048 -I 128",
    "-t ext2 -b 1024",
    "-t ext4 -b 1024 -O ^metadata_csum,meta_bg,^resize_inode,^has_journal",
];

/// The images, 8 MiB each, with a small tree inside.
pub static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| KINDS.iter().map(|kind| image(kind)).collect());

/// An image to change.
struct Base {
    device: MemDevice,
    /// The sectors that are not all zero.
    places: Vec<u64>,
}

impl Base {
    fn new(device: MemDevice) -> Base {
        let mut sector = [0; 512];
        let mut holds = |place: &u64| {
            device.read_at(*place, &mut sector, BioFlags::empty()).expect("memory");
            sector.iter().any(|byte| *byte != sector[0])
        };
        let places = (0..device.size_bytes()).step_by(512).filter(&mut holds).collect();
        Base { device, places }
    }

    /// The image with up to 64 changes of 1 to 4 bytes, which are taken off the input.
    fn changed(&self, data: &mut &[u8]) -> MemDevice {
        let device = self.device.snapshot();
        for _ in 0..64 {
            if data.len() < 4 {
                break;
            }
            let change = take(data, 8);
            let place = self.places[usize::from(u16::from_le_bytes([change[0], change[1]])) % self.places.len()];
            let mut sector = [0; 512];
            device.read_at(place, &mut sector, BioFlags::empty()).expect("memory");
            let at = usize::from(change[2]) * 2;
            let len = usize::from(change[3] % 4) + 1;
            let end = (at + len).min(512);
            sector[at..end].copy_from_slice(&change[4..][..end - at]);
            device.write_at(place, &[&sector], BioFlags::empty()).expect("memory");
        }
        device
    }
}

static BASES: LazyLock<Vec<Base>> =
    LazyLock::new(|| IMAGES.iter().map(|bytes| Base::new(MemDevice::from_bytes(bytes))).collect());

/// Image `n`, counted round, with changes from the input.
pub fn damaged(n: u8, data: &mut &[u8]) -> MemDevice {
    BASES[usize::from(n) % BASES.len()].changed(data)
}

/// The mutations of the table, each on one of its images, which is made when it is first needed.
static MUTATED: LazyLock<Vec<(Mutation, OnceLock<Base>)>> =
    LazyLock::new(|| damage::table().map(|mutation| (*mutation, OnceLock::new())).collect());

/// Image `n` of the table of mutations, counted round, with more changes from the input.
pub fn mutated(n: u16, data: &mut &[u8]) -> MemDevice {
    let (mutation, base) = &MUTATED[usize::from(n) % MUTATED.len()];
    base.get_or_init(|| Base::new(mutation.on(mutation.images[0]))).changed(data)
}

fn tree(at: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(at.join("dir/below"))?;
    std::fs::write(at.join("dir/file"), vec![7u8; 100_000])?;
    std::fs::write(at.join("empty"), b"")?;
    std::os::unix::fs::symlink("short target", at.join("short"))?;
    std::os::unix::fs::symlink("l".repeat(200), at.join("long"))?;
    for i in 0..60 {
        std::fs::write(at.join(format!("dir/a rather long name for a file {i}")), vec![i; i as usize * 50])?;
    }
    Ok(())
}

/// An image of 8 MiB with a tree in it, after `change`.
fn made(kind: &str, tree: impl FnOnce(&Path), change: impl FnOnce(&Path)) -> Vec<u8> {
    let dir = std::env::temp_dir().join(format!("extant-fuzz-{}", std::process::id()));
    let (from, image) = (dir.join("tree"), dir.join("image"));
    std::fs::create_dir_all(&from).expect("a directory");
    tree(&from);
    mke2fs(&image, &["-d", arg(&from)].into_iter().chain(kind.split_whitespace()).collect::<Vec<_>>(), "8M");
    change(&image);
    let bytes = std::fs::read(&image).expect("the image");
    std::fs::remove_dir_all(&dir).expect("removed");
    bytes
}

fn image(kind: &str) -> Vec<u8> {
    made(kind, |at| tree(at).expect("a tree"), |_| ())
}

/// As [`KINDS`]: directories that are listed by place and by hash, with checksums and without, and in their inodes.
const DIRECTORY_KINDS: &[&str] = &[
    "-t ext2 -b 1024 -O ^dir_index",
    "-t ext4 -b 1024 -O ^metadata_csum,dir_index",
    "-t ext4 -b 1024 -O ^metadata_csum,^dir_index,inline_data -I 256",
    "-t ext4 -b 1024 -O metadata_csum,dir_index",
];

/// Images with a directory `large` of several blocks, indexed where the kind has an index, and a directory `small`.
pub fn directories() -> Vec<Vec<u8>> {
    let make = |kind: &&str| {
        let tree = |at: &Path| {
            for i in 0..300 {
                std::fs::create_dir_all(at.join(format!("large/a name of some length {i}"))).expect("directories");
            }
            std::fs::create_dir_all(at.join("small")).expect("directories");
            std::fs::write(at.join("small/inline"), b"").expect("a file");
        };
        // It builds the index; status 1: it has changed something.
        let index = |image: &Path| assert!(e2fsck(image, &["-fyD"]).expect("e2fsck").code <= 1, "e2fsck {kind}");
        made(kind, tree, index)
    };
    DIRECTORY_KINDS.iter().map(make).collect()
}

/// The superblock of image `n`, counted round.
pub fn superblock(n: u8) -> SuperBlock {
    let image = &IMAGES[usize::from(n) % IMAGES.len()];
    SuperBlock::decode(&image[SUPERBLOCK_OFFSET as usize..][..1024], SUPERBLOCK_OFFSET).expect("mke2fs made it")
}

/// As [`superblock`]: the geometry that follows from it.
pub fn geometry(n: u8) -> Geometry {
    superblock(n).geometry().clone()
}

/// Takes the first `n` bytes off the input; zeroes where it is shorter.
pub fn take(data: &mut &[u8], n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    let there = n.min(data.len());
    bytes[..there].copy_from_slice(&data[..there]);
    *data = &data[there..];
    bytes
}

/// Takes one byte off the input.
pub fn byte(data: &mut &[u8]) -> u8 {
    take(data, 1)[0]
}
