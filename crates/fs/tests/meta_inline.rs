//! `meta_policy=inline`: each pointer block lies directly in front of the data that it maps, whichever way the file was
//! written; and nothing is lost for it.

mod common;

use std::sync::Arc;

use common::*;
use extant_block::device::MemDevice;
use extant_fs::{Filesystem, MetaPolicy, MountOptions, Mounted};

const SMALL: &[&str] = &["-t", "ext3", "-b", "1024"];
const LARGE: &[&str] = &["-t", "ext3", "-b", "4096"];

fn inline() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), meta_policy: MetaPolicy::Inline, ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>, options: MountOptions) -> Mounted {
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// A pointer block and what lies behind it in the order of the file: the next pointer block, or data.
struct Pair {
    pointers: u64,
    next: u64,
}

/// The blocks of a file as debugfs shows them.
fn pairs(dev: &MemDevice, name: &str) -> Vec<Pair> {
    let said = tools::debugfs(dev, &format!("stat {name}"));
    let (_, list) = said.split_once("BLOCKS:").expect("a list of blocks");
    let list = list.split("TOTAL").next().expect("before the sum").replace('\n', "");
    let entry = |entry: &str| {
        let (what, blocks) = entry.trim().split_once("):")?;
        Some((what.ends_with("IND"), blocks.split('-').next()?.parse().ok()?))
    };
    let entries: Vec<(bool, u64)> = list.split(", ").map(|e| entry(e).unwrap_or_else(|| panic!("{e:?}"))).collect();
    let pairs = entries.windows(2).filter(|w| w[0].0);
    pairs.map(|w| Pair { pointers: w[0].1, next: w[1].1 }).collect()
}

/// How many pointer blocks `name` has; each of them must lie directly in front.
fn all_in_front(dev: &MemDevice, name: &str) -> usize {
    let pairs = pairs(dev, name);
    for pair in &pairs {
        assert_eq!(pair.next, pair.pointers + 1, "{name}: {}", tools::debugfs(dev, &format!("stat {name}")));
    }
    pairs.len()
}

#[test]
fn each_pointer_block_lies_in_front_of_its_data() {
    for (args, blocks, pointers) in [(SMALL, 65536, 1 + 1 + 255), (LARGE, 16384, 1 + 1 + 15)] {
        let dev = Arc::new(image(160, args, &[]));
        let fs = mount(&dev, inline());
        put(&fs, &create(&fs, "f"), 0, &vec![7; 64 << 20]);
        fs.unmount().expect("unmounted");
        assert_eq!(all_in_front(&dev, "f"), pointers, "{blocks} blocks");
        tools::assert_clean(&dev);
    }
}
