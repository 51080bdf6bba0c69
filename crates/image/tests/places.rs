//! Where a file system begins: a copy of a superblock that belongs to another start is not believed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use extant_image::{ImageSpec, UnrecognizedContent, look, nothing_found, probe};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_oracle::mke2fs;

const MIB: u64 = 1 << 20;

/// The parts of an image that are not zeros.
fn content(image: &Path) -> Vec<(u64, Vec<u8>)> {
    let bytes = std::fs::read(image).expect("image");
    let parts = bytes.chunks(1024).enumerate().map(|(n, part)| (n as u64 * 1024, part.to_vec()));
    parts.filter(|(_, part)| part.iter().any(|byte| *byte != 0)).collect()
}

fn made(dir: &Path, block_size: &str, size: &str) -> PathBuf {
    let image = dir.join(format!("fs-{block_size}-{size}.img"));
    mke2fs(&image, &["-t", "ext2", "-b", block_size], size);
    image
}

/// Writes a disk of zeros, with an image from byte `start` on.
fn disk(path: &Path, parts: &[(u64, Vec<u8>)], start: u64) {
    let disk = File::create(path).expect("disk");
    disk.set_len(128 * MIB).expect("size");
    for (at, part) in parts {
        disk.write_all_at(part, start + at).expect("written");
    }
}

#[test]
fn a_file_system_at_any_mebibyte_is_named_and_never_read_at_another_byte() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk.img");
    for block_size in ["1024", "2048", "4096"] {
        let parts = content(&made(dir.path(), block_size, "30M"));
        for start in (1..=64).map(|mib| mib * MIB) {
            disk(&path, &parts, start);
            let dev = look(&ImageSpec::whole(&path)).expect("opened");
            assert!(probe(&*dev).is_err(), "blocks of {block_size} bytes, {} MiB", start / MIB);
            assert_eq!(nothing_found(&*dev), UnrecognizedContent::At(start), "blocks of {block_size} bytes");
        }
    }
}

/// Removes the primary superblock; all copies name group 0, as kernels before 5.18 left them.
fn without_numbers(image: &Path) {
    let file = File::options().read(true).write(true).open(image).expect("opened");
    let mut bytes = [0; SUPERBLOCK_SIZE];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET).expect("read");
    let sb = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).expect("superblock");
    for group in sb.backup_groups() {
        let at = sb.super_location(group).0.0 * u64::from(sb.block_size);
        file.write_all_at(&[0, 0], at + 90).expect("written");
    }
    file.write_all_at(&[0; SUPERBLOCK_SIZE], SUPERBLOCK_OFFSET).expect("written");
}

/// Three groups have one backup, nine have three.
#[test]
fn copies_that_old_kernels_wrote_without_a_group_number_are_backups_at_their_places() {
    let dir = tempfile::tempdir().expect("directory");
    let disk_path = dir.path().join("disk.img");
    for (size, backup) in [("20M", 8193), ("70M", 8193)] {
        let image = made(dir.path(), "1024", size);
        without_numbers(&image);
        let dev = look(&ImageSpec::whole(&image)).expect("opened");
        let (_, block) = probe(&*dev).expect("a backup");
        assert_eq!(block.map(|block| block.0), Some(backup), "{size}");
        // An image further in begins neither at byte 0, nor at its first copy.
        disk(&disk_path, &content(&image), 8 * MIB);
        let dev = look(&ImageSpec::whole(&disk_path)).expect("opened");
        assert!(probe(&*dev).is_err(), "{size}");
    }
}
