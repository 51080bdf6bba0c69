//! An image exists when it is finished: a power cut at any write leaves nothing that a program takes for a file system,
//! or a whole one.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, CrashMode, MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_build::content::{ContentPlan, add_lost_found};
use extant_build::erase;
use extant_build::options::{Fact, Request, UuidAsked};
use extant_build::tree::{self, Attributes, Builder, Content, ReadAt, Tree};
use extant_build::write::write_with_progress;
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Filesystem, MountOptions};

const MIB: u64 = 1 << 20;
/// The whole device, or the partition.
const WINDOW: u64 = 16 * MIB;
/// The new file system: the rest of the device keeps what it has.
const NEW: u64 = 12 * MIB;
/// Where the partition begins on its disk.
const START: u64 = 3 * MIB;
const FILES: u64 = 40;

/// A file's bytes follow from its number.
struct Pattern;

impl Content for Pattern {
    fn open(&self, content: u64) -> extant_build::Result<Box<dyn ReadAt + '_>> {
        Ok(Box::new(File(content)))
    }
}

struct File(u64);

impl ReadAt for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> extant_build::Result<()> {
        buf.copy_from_slice(&bytes(self.0, offset, buf.len()));
        Ok(())
    }

    fn finish(&self) -> extant_build::Result<()> {
        Ok(())
    }
}

fn bytes(content: u64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(|at| (at / 7 + content * 31) as u8 | 1).collect()
}

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree whose names and bytes follow from `seed`; each file is larger than the one before by `step`.
fn tree(seed: u64, step: u64) -> (Tree, Files) {
    let mut builder = Builder::new(tree::Options::default());
    let mut files = Files::new();
    for number in 0..FILES {
        let (path, content) = (format!("d{}/f{seed}-{number}", number % 5), seed * 1000 + number);
        let size = 1 + number * step;
        let attributes = Attributes { mode: 0o644, ..Attributes::default() };
        builder.file(path.as_bytes(), attributes, size, None, content).expect("a file");
        files.insert(path.into_bytes(), bytes(content, 0, size as usize));
    }
    let mut tree = builder.finish().expect("a tree");
    add_lost_found(&mut tree).expect("lost+found");
    (tree, files)
}

/// Writes a tree onto a device that may hold anything.
fn write(device: &dyn BlockDevice, bytes: u64, (fs_type, block): (&str, u64), tree: &Tree, threads: usize) {
    let request = Request {
        fs_type: Some(fs_type.into()),
        block_size: Some(block),
        // Several backups, at places that only the layout knows.
        blocks_per_group: Some(MIB / block),
        uuid: UuidAsked::Given([block as u8 | fs_type.as_bytes()[3]; 16]),
        ..Request::default()
    };
    let fact = Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now: 1, random: [5; 32], user: (0, 0) };
    let options = request.resolve(&fact).expect("options");
    let plan = ContentPlan::new(&options, tree, &Pattern).expect("a plan");
    erase::clear(device, bytes, BioFlags::UNMAP).expect("cleared");
    write_with_progress(device, &plan, threads, &|_| ()).expect("written");
}

/// The files that a mount shows; `None`: it is refused.
fn shown(device: Arc<dyn BlockDevice>, superblock: Option<u64>) -> Option<Files> {
    let options = MountOptions { read_only: true, superblock, threads: false, ..MountOptions::default() };
    let fs = Filesystem::mount(device, options).ok()?;
    let mut files = Files::new();
    let root = fs.walk(b"/", true).ok()?;
    let mut walk = Walk::new(&fs, b"/", root);
    while let Some(visit) = walk.next() {
        if let Visit::Name(inode) = visit.ok()?
            && !inode.is_dir()
        {
            let mut bytes = vec![0; fs.getattr(&inode).size as usize];
            let read = fs.read(&inode, 0, &mut bytes).ok()?;
            bytes.truncate(read);
            files.insert(walk.path()[1..].to_vec(), bytes);
        }
    }
    fs.unmount().ok()?;
    Some(files)
}

/// How often a state showed the new file system, the old one, and none.
#[derive(Debug, Default)]
struct StateCounts {
    new: u32,
    old: u32,
    none: u32,
}

/// The disk below a window.
struct Place {
    start: u64,
    disk: u64,
}

impl Place {
    fn window(&self, disk: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(OffsetDevice::new(disk, self.start, WINDOW).expect("a window"))
    }

    /// Each way to find a file system in a state of the disk finds a whole one, or none.
    fn judge(&self, state: MemDevice, new: &Files, old: Option<&Files>, seen: &mut StateCounts, what: &str) {
        let disk: Arc<dyn BlockDevice> = Arc::new(state);
        let window = self.window(disk.clone());
        let mut found = Vec::new();
        if extant_image::probe(&*window).is_ok() {
            found.push(shown(window.clone(), None));
        }
        for fs in extant_image::scan(&*disk, &mut |_| ()).filesystems {
            assert_eq!(fs.start, self.start, "{what}: a file system that begins elsewhere");
            for sighting in &fs.sightings {
                found.push(shown(window.clone(), Some(sighting.byte - self.start)));
            }
        }
        let found: Vec<Files> = found.into_iter().flatten().collect();
        match found.first() {
            None => seen.none += 1,
            Some(files) if files == new => seen.new += 1,
            Some(files) if Some(files) == old => seen.old += 1,
            Some(files) => panic!("{what}: {} files, not those of a whole file system", files.len()),
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{what}: two copies lead to different files");
    }
}

/// Stops a device behind every request of a mkfs.
fn stop_everywhere(kind: (&str, u64), place: &Place, has_old: bool, threads: usize) {
    let what = format!("{kind:?} at {} over {}", place.start, if has_old { "an old image" } else { "zeroes" });
    let disk = Arc::new(MemDevice::new(place.disk));
    let (old_tree, old_files) = tree(1, 9000);
    let (new_tree, new_files) = tree(2, 3000);
    if has_old {
        // The old file system is larger than the new one, and has blocks of another size.
        let old = if kind == ("ext2", 1024) { ("ext4", 4096) } else { ("ext2", 1024) };
        write(&*place.window(disk.clone()), WINDOW, old, &old_tree, 1);
    }
    let crash = CrashDevice::from_image(&disk);
    let crash = Arc::new(if threads > 1 { crash.deferring().expect("a thread") } else { crash });
    write(&*place.window(crash.clone()), NEW, kind, &new_tree, threads);
    let (mut seen, mut rng) = (StateCounts::default(), Rng::new(7));
    let old = has_old.then_some(&old_files);
    let events = crash.write_log();
    for stop in 0..=events {
        // The old image goes in a few large requests, of which any part may be lost.
        let torn = if has_old && stop < events / 3 { 12 } else { 1 };
        let modes = [CrashMode::InOrder, CrashMode::RandomSubset];
        for mode in modes.into_iter().chain([CrashMode::Torn].repeat(torn)) {
            let state = crash.state_after(stop, &mut rng, mode).expect("a state");
            place.judge(state, &new_files, old, &mut seen, &format!("{what}, {mode:?} after {stop} of {events}"));
        }
    }
    assert!(seen.new >= 3 && seen.none > 0 && (seen.old > 0) == has_old, "{what}: {seen:?}");
    let left = extant_image::scan(&crash.live(), &mut |_| ()).filesystems;
    assert_eq!(left.len(), 1, "{what}: {left:?}");
}

const DEVICE: Place = Place { start: 0, disk: WINDOW };
const PARTITION: Place = Place { start: START, disk: START + WINDOW + MIB };

#[test]
fn a_power_cut_over_zeroes_leaves_nothing_or_the_whole_image() {
    for kind in [("ext2", 1024), ("ext2", 4096), ("ext4", 1024), ("ext4", 4096)] {
        for threads in [1, 4] {
            stop_everywhere(kind, &DEVICE, false, threads);
        }
        stop_everywhere(kind, &PARTITION, false, 1);
    }
}

/// A power cut over an old image leaves one whole image or nothing. Each size of blocks comes with one thread and with
/// four, as a partition and as a device.
macro_rules! over_an_old_image {
    ($($name:ident: $fs_type:literal, $block_size:literal, $place:ident, $threads:literal;)*) => {
        mod a_power_cut_over_an_old_image {
            use super::*;
            $(
                #[test]
                fn $name() {
                    stop_everywhere(($fs_type, $block_size), &$place, true, $threads);
                }
            )*
        }
    };
}

over_an_old_image! {
    ext2_1k_in_a_partition: "ext2", 1024, PARTITION, 4;
    ext2_4k_in_a_partition: "ext2", 4096, PARTITION, 1;
    ext2_1k_on_a_device: "ext2", 1024, DEVICE, 1;
    ext2_4k_on_a_device: "ext2", 4096, DEVICE, 4;
    ext4_1k_in_a_partition: "ext4", 1024, PARTITION, 4;
    ext4_4k_in_a_partition: "ext4", 4096, PARTITION, 1;
    ext4_1k_on_a_device: "ext4", 1024, DEVICE, 1;
    ext4_4k_on_a_device: "ext4", 4096, DEVICE, 4;
}
