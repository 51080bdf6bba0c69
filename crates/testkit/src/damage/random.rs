//! Random damage: images that Extant itself has filled, with a few bytes of metadata changed according to a seed.
//!
//! Main functions: [`filled`] (an image of one of [`KINDS`]), [`pieces`] (the non-empty pieces), [`strike`]. The same
//! kind and seed give the same image.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, SetFlags, SetMode, WriteFlags};
use extant_ondisk::inode::InodeFlags;

use crate::oracle::memory::made;

/// mke2fs arguments, and whether the image is left as a crash leaves it.
pub const KINDS: [(&[&str], bool); 8] = [
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], false),
    (&["-t", "ext4", "-b", "4096"], false),
    (&["-t", "ext3", "-b", "1024"], false),
    (&["-t", "ext2", "-b", "1024"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "metadata_csum_seed,orphan_file"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit,^flex_bg", "-I", "128"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,meta_bg,^resize_inode"], false),
];

/// An image of `kind` with a few hundred files, an indexed directory, scattered extents and attributes.
///
/// # Panics
/// If mke2fs or Extant fails.
pub fn filled(kind: &[&str], crashed: bool) -> MemDevice {
    let dev = Arc::new(made(kind, "24M"));
    let options = MountOptions { threads: false, seed: Some(1), cache_bytes: 16 << 20, ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    let cred = Cred::default();
    let root = fs.root().expect("root");
    let d = fs.create(&root, b"dir", NewNode::directory(0o755), cred).expect("mkdir");
    if fs.may_ignore_case() {
        let flags = InodeFlags::from_bits_retain(fs.getattr(&d).flags) | InodeFlags::CASEFOLD;
        fs.set_flags(&d, SetFlags { flags: Some(flags.bits()), ..SetFlags::default() }).expect("chattr +F");
    }
    for i in 0..250u32 {
        let name = format!("file-{i}-with-a-name-that-fills-directory-blocks");
        let f = fs.create(&d, name.as_bytes(), NewNode::file(0o644), cred).expect("create");
        fs.write(&f, 0, &vec![i as u8; (i as usize * 37) % 9_000], WriteFlags::default()).expect("write");
        if i % 5 == 0 {
            fs.set_xattr(&f, b"user.small", b"value", SetMode::Any).expect("xattr");
        }
        if i % 20 == 0 {
            fs.set_xattr(&f, b"user.large", &[b'L'; 700], SetMode::Any).expect("xattr");
        }
    }
    let sparse = fs.create(&d, b"sparse", NewNode::file(0o644), cred).expect("create");
    for i in 0..400u64 {
        fs.write(&sparse, i * 9_000, b"island", WriteFlags::default()).expect("write");
    }
    let mut at = d.clone();
    for i in 0..6 {
        at = fs.create(&at, format!("deep-{i}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
        fs.create(&at, b"short", NewNode::symlink(b"../target"), cred).expect("symlink");
        fs.create(&at, b"long", NewNode::symlink(&[b'x'; 200]), cred).expect("symlink");
    }
    fs.link(&sparse, &at, b"hard").expect("link");
    fs.sync().expect("sync");
    if crashed {
        // Leaves an orphan, and a transaction that is only in the log.
        let open = fs.create(&root, b"open", NewNode::file(0o600), cred).expect("create");
        fs.write(&open, 0, &[1; 50_000], WriteFlags::default()).expect("write");
        fs.unlink(&root, b"open").expect("unlink");
        fs.sync().expect("sync");
        let copy = dev.snapshot();
        drop((open, sparse, at, d, root));
        fs.unmount().expect("unmount");
        return copy;
    }
    drop((sparse, at, d, root));
    fs.unmount().expect("unmount");
    dev.snapshot()
}

/// The non-empty 1 KiB pieces of the image. The content of files is constant, and excluded.
pub fn pieces(dev: &MemDevice) -> Vec<u64> {
    let mut places = Vec::new();
    let mut buf = [0; 1024];
    for at in (0..dev.size_bytes()).step_by(1024) {
        dev.read_at(at, &mut buf, BioFlags::empty()).expect("memory");
        if buf.iter().any(|&b| b != buf[0]) {
            places.push(at);
        }
    }
    places
}

/// Changes a few bytes of one or several pieces.
pub fn strike(dev: &MemDevice, places: &[u64], rng: &mut Rng) {
    for _ in 0..1 + rng.below(6) {
        let at = match rng.below(10) {
            0 => 1024,
            1 => places[rng.below(12.min(places.len() as u64)) as usize],
            _ => places[rng.below(places.len() as u64) as usize],
        };
        let mut buf = [0; 1024];
        dev.read_at(at, &mut buf, BioFlags::empty()).expect("memory");
        for _ in 0..1 + rng.below(8) {
            // Mostly aligned fields with extreme values, to make arithmetic overflow.
            let i = rng.below(1021) as usize;
            match rng.below(6) {
                0 => buf[i] ^= 1 << rng.below(8),
                1 => buf[i] = rng.next_u32() as u8,
                2 => buf[i & !3..][..4].fill(0xFF),
                3 => buf[i & !3..][..4].fill(0),
                4 => {
                    let near = rng.below(1 << 16) as u32;
                    buf[i & !3..][..4].copy_from_slice(&near.to_le_bytes());
                }
                _ => {
                    let from = rng.below(1021) as usize & !3;
                    buf.copy_within(from..from + 4, i & !3);
                }
            }
        }
        if at == 1024 && rng.one_in(2) {
            // Often restores the magic number, so that it remains an ext superblock.
            buf[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        }
        dev.write_at(at, &[&buf], BioFlags::empty()).expect("memory");
    }
}
