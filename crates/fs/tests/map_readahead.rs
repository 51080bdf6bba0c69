//! A map block that has to be read brings its neighbours of the same file: counted in requests, by their META flag.

mod common;

use std::sync::Arc;

use common::*;
use extant_base::rng::Rng;
use extant_block::device::{MemDevice, TracedDevice};
use extant_block::{BioFlags, BioOp};
use extant_fs::{Filesystem, MountOptions, Mounted};

const EXT3: &[&str] = &["-t", "ext3", "-b", "1024"];
/// Logical blocks below one indirect block of 1 KiB, and extents in a leaf of 1 KiB.
const OF_AN_ARRAY: u64 = 256;
const OF_A_LEAF: u64 = 84;
const ARRAYS: u64 = 256;

fn quiet() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// The image after `change`, written and unmounted.
fn with(dev: MemDevice, change: impl FnOnce(&Filesystem)) -> Arc<MemDevice> {
    let dev = Arc::new(dev);
    let fs = Filesystem::mount(dev.clone(), quiet()).expect("mounted");
    change(&fs);
    fs.unmount().expect("unmounted");
    dev
}

/// A file with a block of data below each of [`ARRAYS`] indirect blocks.
fn sparse() -> Arc<MemDevice> {
    with(image(64, EXT3, &[]), |fs| {
        let f = create(fs, "f");
        (0..ARRAYS).for_each(|n| put(fs, &f, n * OF_AN_ARRAY * 1024, &n.to_le_bytes()));
    })
}

struct Watched {
    fs: Mounted,
    dev: Arc<TracedDevice>,
}

impl Watched {
    fn mount(dev: &Arc<MemDevice>, cache_bytes: u64) -> Watched {
        let dev = Arc::new(TracedDevice::new(dev.clone()));
        let options = MountOptions { read_only: true, keep_clean: false, cache_bytes, ..quiet() };
        Watched { fs: Filesystem::mount(dev.clone(), options).expect("mounted"), dev }
    }

    /// Requests for map blocks, and their bytes, while numbers are read at these places of `f`.
    fn map_reads(&self, places: &[(u64, u64)]) -> (usize, u64) {
        let f = self.fs.lookup(&self.fs.root().expect("root"), b"f").expect("there");
        self.dev.take();
        for (at, n) in places {
            assert_eq!(get(&self.fs, &f, *at, 8), n.to_le_bytes(), "at {at}");
        }
        let trace = self.dev.take();
        let maps = trace.iter().filter(|r| r.op == BioOp::Read && r.flags.contains(BioFlags::META));
        maps.fold((0, 0), |(count, bytes), r| (count + 1, bytes + r.len))
    }
}

fn shuffled(mut places: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut rng = Rng::new(7);
    for i in (1..places.len()).rev() {
        places.swap(i, rng.below(i as u64 + 1) as usize);
    }
    places
}

const ROOMY: u64 = 64 << 20;

#[test]
fn cold_random_reads_bring_the_neighbours_of_an_indirect_block() {
    let dev = sparse();
    // The first array is in the inode.
    let places = shuffled((1..ARRAYS).map(|n| (n * OF_AN_ARRAY * 1024, n)).collect());
    let (requests, bytes) = Watched::mount(&dev, ROOMY).map_reads(&places);
    assert!(requests <= places.len() / 16, "{requests} requests for {} indirect blocks", places.len());
    assert!(bytes <= 2 * (ARRAYS + 2) * 1024, "{bytes} bytes");
}
