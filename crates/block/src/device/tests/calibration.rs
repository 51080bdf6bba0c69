//! The source of the constants of `hdd-2007`: rows 2 to 4 of the table in "Clustering indirect blocks in Ext3"
//! (November 2007), computed from the requests that its kernel made. Row 5 is the check and is not used here, so that
//! the model can predict it.
//!
//! Sizes are binary, as the mail's count of 10,240 reads of 512 bytes for 5 MB shows. Each indirect block is directly
//! before the 4 MiB that it maps. Blocks that were read are kept in memory. Offsets are random multiples of the read
//! size.

use std::collections::HashSet;

use extant_base::rng::Rng;

use crate::device::{Arrival, DeviceModel, Timer};

const BLOCK: u64 = 4096;
const GIB: u64 = 1 << 30;
/// The number of blocks that an indirect block maps.
const MAPPED: u64 = 1024;
/// The kernel's readahead window.
const WINDOW: u64 = 128 << 10;
const DISK: u64 = 400 * GIB;
const FILE: u64 = 300 * GIB;

struct Run {
    timer: Timer,
    in_memory: HashSet<u64>,
}

impl Run {
    fn new() -> Run {
        let model = DeviceModel::named("hdd-2007").expect("known");
        Run { timer: Timer::new(model, DISK), in_memory: HashSet::new() }
    }

    /// Reads a part of the file, window by window.
    fn read(&mut self, at: u64, len: u64, window: u64) {
        let mut at = at / BLOCK;
        let end = at + len.div_ceil(BLOCK);
        while at < end {
            let indirect = at / MAPPED;
            let place = indirect * (MAPPED + 1);
            if self.in_memory.insert(indirect) {
                self.timer.read(place * BLOCK, BLOCK, Arrival::ReadAhead);
            }
            let n = (end - at).min(window / BLOCK).min(MAPPED - at % MAPPED);
            self.timer.read((place + 1 + at % MAPPED) * BLOCK, n * BLOCK, Arrival::ReadAhead);
            at += n;
        }
    }

    fn random(mut self, reads: u64, len: u64) -> f64 {
        let mut rng = Rng::new(2007);
        for _ in 0..reads {
            self.read(rng.below(FILE / len) * len, len, WINDOW);
        }
        self.timer.usage().seconds()
    }
}

#[track_caller]
fn assert_near(row: u32, is: f64, observed: f64) {
    let off = 100.0 * (is / observed - 1.0);
    eprintln!("row {row}: {is:.1} s, observed {observed} s, {off:+.2} %");
    assert!(off.abs() < 3.0, "row {row}: {is:.1} s, observed {observed} s");
}

/// Determines the rate of the outer zone.
#[test]
fn a_sequential_read_of_10_gb_takes_as_long_as_in_2007() {
    let mut run = Run::new();
    run.read(0, 10 * GIB, WINDOW);
    assert_near(2, run.timer.usage().seconds(), 194.5);
}

/// Determines the time of a seek across a part of the disk.
#[test]
fn ten_thousand_random_reads_of_a_sector_take_as_long_as_in_2007() {
    assert_near(3, Run::new().random(10_240, 512), 236.4);
}

/// Determines the time lost between the windows of a read.
#[test]
fn random_reads_of_512_kib_take_as_long_as_in_2007() {
    assert_near(4, Run::new().random(6_144, 512 << 10), 286.3);
}
