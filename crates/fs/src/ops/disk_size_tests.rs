//! Takes one file through every step of the table in the head of `disk_size.rs`.

use std::sync::Arc;

use extant_block::BioOp;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_ondisk::LogicalBlock;

use super::Move;
use crate::ops::credits;
use crate::{Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};
use extant_es::EsState;

const BLOCK: u64 = 1024;
/// Writes of this size are written through.
const THROUGH: u64 = 64 * BLOCK;
const ZERO: FallocateMode = FallocateMode::ZeroRange { keep_size: true };

/// The state of the bytes past the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// Data or zeros that exist only in memory.
    Waiting,
    /// The size on disk stays smaller than the end of the file.
    Lost,
    /// Old content on the device, in the block with the size on disk.
    Stale,
    /// Blocks whose removal is not finished.
    CutOff,
    /// More blocks than the file can have before its end.
    Blocks,
}
use Behind::*;

struct World {
    file: InodeRef,
    fs: Mounted,
    faulty: Arc<FaultyDevice>,
    disk: Arc<MemDevice>,
}

impl World {
    fn mount(disk: Arc<MemDevice>, read_only: bool) -> World {
        let faulty = Arc::new(FaultyDevice::new(disk.clone()));
        let options = MountOptions {
            read_only,
            threads: false,
            seed: Some(1),
            write_through_bytes: Some(THROUGH),
            ..MountOptions::default()
        };
        let fs = Filesystem::mount(faulty.clone(), options).expect("mounted");
        let file = fs.walk(b"f", true).expect("there");
        World { file, fs, faulty, disk }
    }

    fn write(&self, from: u64, to: u64) {
        let data = vec![0xAA; (to - from) as usize];
        assert_eq!(self.fs.write(&self.file, from, &data, WriteFlags::default()).expect("write"), data.len());
    }

    fn truncate(&self, size: u64) -> crate::Result<()> {
        self.fs.setattr(&self.file, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    }

    fn fallocate(&self, mode: FallocateMode, from: u64, to: u64) {
        self.fs.fallocate(&self.file, mode, from, to - from).expect("fallocate");
    }

    fn allocate(&self, end: u64, keep_size: bool) {
        self.fallocate(FallocateMode::Allocate { keep_size }, 0, end);
    }

    /// The power fails when all changes except those of data are durable.
    fn crash(&mut self, read_only: bool) {
        self.fs.journal.commit_running().expect("commit");
        *self = World::mount(Arc::new(self.disk.snapshot()), read_only);
    }

    /// The size in memory, the size on disk, and the state of the bytes past them.
    fn state(&self) -> (u64, u64, Vec<Behind>) {
        let (fs, f) = (&self.fs, &self.file);
        let (memory, desc) = (f.size(), f.meta.read().desc.clone());
        let (disk, blocks) = (desc.size, desc.blocks);
        let is_stale = || {
            let last = LogicalBlock((disk / BLOCK) as u32);
            let (_, EsState::Written(nr)) = fs.status(f, last, 1).expect("its map") else { return false };
            let mut block = [0; BLOCK as usize];
            fs.dev.read_at(nr.0 * BLOCK, &mut block, extant_block::BioFlags::empty()).expect("read");
            disk % BLOCK > 0 && block[(disk % BLOCK) as usize..].iter().any(|b| *b != 0)
        };
        let all = [
            (Waiting, f.pages.dirty_bytes() > 0),
            (Lost, memory > 0 && fs.content(f).is_left_behind()),
            (Stale, is_stale()),
            (CutOff, fs.orphans.is_cut_short(f.ino)),
            (Blocks, blocks * 512 > memory.next_multiple_of(BLOCK)),
        ];
        (memory, disk, all.into_iter().filter(|(_, is)| *is).map(|(what, _)| what).collect())
    }
}

type Row = (&'static str, fn(&mut World), u64, u64, &'static [Behind]);

const TABLE: &[Row] = &[
    ("write past the end", |w| w.write(0, 4000), 4000, 0, &[Waiting]),
    ("write back", |w| w.fs.fsync(&w.file, false).expect("fsync"), 4000, 4000, &[]),
    ("truncate down", |w| w.truncate(1500).expect("truncate"), 1500, 1500, &[Waiting, Stale]),
    ("crash", |w| w.crash(false), 1500, 1500, &[Stale]),
    ("write past the end again", |w| w.write(3000, 3500), 3500, 1500, &[Waiting]),
    ("write back fails", fail_writeback, 3500, 1500, &[Lost]),
    ("truncate to the same size", |w| w.truncate(3500).expect("truncate"), 3500, 3500, &[]),
    ("write far behind the end", |w| w.write(6000, 6100), 6100, 3500, &[Waiting]),
    ("punch", |w| w.fallocate(FallocateMode::PunchHole, 4096, 6100), 6100, 6100, &[]),
    ("truncate down", |w| w.truncate(3500).expect("truncate"), 3500, 3500, &[]),
    ("write far behind the end", |w| w.write(6000, 6100), 6100, 3500, &[Waiting]),
    ("fallocate zeros", |w| w.fallocate(ZERO, 4096, 6100), 6100, 6100, &[]),
    ("truncate down", |w| w.truncate(3500).expect("truncate"), 3500, 3500, &[]),
    ("write at the end", |w| w.write(3500, 3600), 3600, 3500, &[Waiting]),
    ("write back fails again", fail_writeback, 3600, 3500, &[Lost]),
    ("fallocate within the size", |w| w.allocate(3550, false), 3600, 3550, &[Lost]),
    ("truncate up", |w| w.truncate(5000).expect("truncate"), 5000, 5000, &[]),
    ("fallocate that keeps the size", |w| w.allocate(8000, true), 5000, 5000, &[Blocks]),
    ("fallocate", |w| w.allocate(9000, false), 9000, 9000, &[]),
    ("write-through past the end", |w| w.write(10 * BLOCK, 10 * BLOCK + THROUGH), 74 * BLOCK, 74 * BLOCK, &[]),
    ("truncate to 0", |w| w.truncate(0).expect("truncate"), 0, 0, &[]),
    ("write and write back", write_scattered, 59 * BLOCK, 59 * BLOCK, &[]),
    ("truncate, up to its first handle", begin_truncation, 2 * BLOCK, 2 * BLOCK, &[CutOff, Blocks]),
    ("crash", |w| w.crash(true), 2 * BLOCK, 2 * BLOCK, &[Blocks]),
    ("replay of the orphan list", |w| *w = World::mount(w.disk.clone(), false), 2 * BLOCK, 2 * BLOCK, &[]),
    ("write and write back", write_scattered, 59 * BLOCK, 59 * BLOCK, &[]),
    ("truncate, which fails", fail_truncation, 2 * BLOCK, 2 * BLOCK, &[CutOff, Blocks]),
    ("truncate up", |w| w.truncate(3 * BLOCK).expect("truncate"), 3 * BLOCK, 3 * BLOCK, &[]),
];

fn fail_writeback(w: &mut World) {
    w.faulty.inject(Fault::eio().op(BioOp::Write).data().once());
    w.fs.fsync(&w.file, false).expect_err("it is lost");
}

/// Writes a file with more extents than fit in the inode.
fn write_scattered(w: &mut World) {
    for block in (0..60).step_by(2) {
        w.write(block * BLOCK, (block + 1) * BLOCK);
    }
    w.fs.fsync(&w.file, false).expect("fsync");
}

fn fail_truncation(w: &mut World) {
    let mut nodes = Vec::new();
    w.file.map.read().walk_meta(&w.fs.map_view(&w.file), |nr| nodes.push(nr)).expect("its map");
    // A new mount has not read the map yet.
    w.crash(false);
    for nr in nodes {
        w.faulty.inject(Fault::eio().op(BioOp::Read).range(nr.0 * BLOCK..(nr.0 + 1) * BLOCK));
    }
    w.truncate(2 * BLOCK).expect_err("its map cannot be read");
    w.faulty.clear();
}

/// Begins a truncation without a read error. Such an error would be recorded, and a mount after errors leaves orphans
/// to e2fsck.
fn begin_truncation(w: &mut World) {
    w.fs.orphans.note_cut(w.file.ino);
    let begun = w.fs.transact(credits::TRUNCATE_BEGIN, |handle| {
        w.fs.orphans.add(handle, &w.file)?;
        w.fs.move_size(handle, &w.file, 2 * BLOCK, Move::Exactly)
    });
    begun.expect("begun");
}

#[test]
fn sizes_move_as_the_table_says() {
    for kind in ["ext3", "ext4"] {
        let disk = Arc::new(crate::tools::made(&["-t", kind, "-b", "1024"], "8M"));
        let fs = Filesystem::mount(disk.clone(), MountOptions { threads: false, ..MountOptions::default() });
        let fs = fs.expect("mounted");
        fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("create");
        fs.unmount().expect("unmount");
        let mut world = World::mount(disk, false);
        for &(step, run, memory, on_disk, behind) in TABLE {
            if kind == "ext3" && step.starts_with("fallocate") {
                continue; // these steps need extents
            }
            run(&mut world);
            assert_eq!(world.state(), (memory, on_disk, behind.to_vec()), "{kind}, {step}");
        }
        let World { file, fs, disk, .. } = world;
        drop(file);
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&disk);
    }
}
