//! Whoever looks whether a block has content (to zero a part of it, to say where data is) while its writeback ends: threads of
//! one mount in production's configuration, no fault, no cut, schedules of `extant_base::sim`.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use extant_base::sim;
use extant_block::device::{LateDevice, Lateness, MemDevice};
use extant_fs::{FallocateMode, Filesystem, InodeRef, MountOptions, Seek, SetAttr};

const SCHEDULES: u64 = 120;
/// One after the other in each schedule.
const FILES: usize = 50;
const LATE: Lateness = Lateness { threads: 1, inline_permille: 0, held_permille: 0, longest: Duration::ZERO };

/// In each schedule: a file whose data is on its way to the device, and what `act` makes of it.
fn explored(preallocated: bool, act: fn(&Filesystem, &InodeRef) -> Result<(), String>) {
    let image = image(16, &["-t", "ext4", "-b", "1024"], &[]);
    let mut wrong = Vec::new();
    for seed in 0..SCHEDULES {
        // Often enough that one of two neighbouring steps is interrupted for as long as the others have work.
        let strategy = sim::Strategy::Priorities { changes: 400, steps: 40_000 };
        let options = sim::Options { strategy, ..sim::Options::new(seed) };
        let image: Arc<MemDevice> = Arc::new(image.snapshot());
        let run = move || {
            let late = Arc::new(LateDevice::new(image, LATE, None).expect("threads"));
            let fs = Filesystem::mount(late.clone(), MountOptions { seed: Some(1), ..production() }).expect("mounted");
            let r = (0..FILES).try_for_each(|i| {
                let f = create(&fs, &format!("f{i}"));
                if preallocated {
                    preallocate(&fs, &f, 0, 8192);
                }
                put(&fs, &f, 0, &[7; 8192]);
                fs.fsync_async(&f, true, Box::new(|r| r.expect("fsync")));
                act(&fs, &f)
            });
            fs.unmount().expect("unmount");
            drop(fs);
            late.stop();
            r
        };
        let outcome = sim::run(&options, run);
        if let Err(e) = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}")) {
            wrong.push(format!("seed {seed}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {SCHEDULES} schedules: {:?}", wrong.len(), wrong.first());
}

fn zeros(fs: &Filesystem, f: &InodeRef, from: usize, to: usize) -> Result<(), String> {
    let now = content(fs, f);
    match (from..to).find(|at| now[*at] != 0) {
        Some(at) => Err(format!("byte {at} is {}", now[at])),
        None => Ok(()),
    }
}

#[test]
fn a_hole_is_punched_into_a_block_whose_writeback_ends() {
    explored(false, |fs, f| {
        fs.fallocate(f, FallocateMode::PunchHole, 1500, 300).expect("punched");
        zeros(fs, f, 1500, 1800)
    });
}

#[test]
fn a_file_is_cut_in_a_block_whose_writeback_ends() {
    explored(true, |fs, f| {
        let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(f, &sized(1500)).expect("cut");
        fs.setattr(f, &sized(4000)).expect("grown");
        zeros(fs, f, 1500, 4000)
    });
}

#[test]
fn data_is_found_whose_writeback_ends() {
    explored(true, |fs, f| match fs.seek(f, 0, Seek::Hole) {
        Ok(8192) => Ok(()),
        found => Err(format!("the first hole is at {found:?}")),
    });
}
