//! Any options: an error or a plan, never a panic. The pieces of each plan do not overlap and lie on the device, and
//! e2fsck finds the image clean.

use extant_base::rng::Rng;
use extant_block::device::{FileDevice, IoMode, OpenOptions};
use extant_build::options::{Fact, Request, SizeAsked};
use extant_build::plan::Plan;
use extant_build::skeleton::{Empty, OwnerUsage, Skeleton};
use extant_build::write::write_with_progress;
use extant_testkit::oracle::expect_clean;

/// One plan in this many goes through e2fsck, if it is smaller than the limit of bytes.
const EACH: u32 = 7;
const CHECKED_MAX: u64 = 1 << 30;

const FEATURES: [&str; 24] = [
    "bigalloc",
    "^flex_bg",
    "meta_bg",
    "^resize_inode",
    "sparse_super2",
    "^sparse_super",
    "^64bit",
    "^extent",
    "^has_journal",
    "fast_commit",
    "orphan_file",
    "^metadata_csum",
    "uninit_bg",
    "metadata_csum_seed",
    "quota",
    "project",
    "mmp",
    "inline_data",
    "casefold",
    "^filetype",
    "large_dir",
    "ea_inode",
    "none",
    "encrypt",
];
const EXTENDED: [&str; 8] = [
    "stride=7",
    "packed_meta_blocks=1",
    "num_backup_sb=1",
    "resize=1T",
    "orphan_file_size=64k",
    "root_owner=1:70000",
    "num_backup_sb=0",
    "mmp_update_interval=9",
];

fn pick(rng: &mut Rng, words: &[&str], most: u64) -> Vec<String> {
    (0..rng.below(most + 1)).map(|_| words[rng.below(words.len() as u64) as usize].to_owned()).collect()
}

fn odd(rng: &mut Rng) -> (Request, u64) {
    let maybe = |rng: &mut Rng, value: u64| rng.one_in(3).then_some(value);
    let log2 = |rng: &mut Rng, low: u64, high: u64| 1 << (low + rng.below(high - low + 1));
    let bytes = rng.next_u64() >> (18 + rng.below(34));
    let (block_size, cluster_size, flex) = (log2(rng, 10, 16), log2(rng, 11, 20), log2(rng, 0, 8));
    let (inode_size, ratio, group) = (log2(rng, 7, 12), log2(rng, 10, 20), 8 * (1 + rng.below(8192)));
    let (inodes, megabytes) = (rng.next_u64() >> (40 + rng.below(20)), 1 + rng.below(64));
    let request = Request {
        fs_type: Some(["ext2", "ext3", "ext4", "ext4"][rng.below(4) as usize].into()),
        block_size: maybe(rng, block_size),
        cluster_size: maybe(rng, cluster_size),
        extended: pick(rng, &EXTENDED, 2),
        blocks_per_group: maybe(rng, group),
        flex_bg_size: maybe(rng, flex),
        inode_ratio: maybe(rng, ratio),
        inode_size: maybe(rng, inode_size),
        inodes: maybe(rng, inodes),
        features: pick(rng, &FEATURES, 4),
        journal_options: maybe(rng, megabytes).map(|n| format!("size={n}")).into_iter().collect(),
        size: SizeAsked::Bytes(bytes),
        ..Request::default()
    };
    (request, bytes)
}

#[test]
fn every_plan_keeps_its_pieces_apart_and_on_the_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut planned, mut checked) = (0, 0);
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let (request, bytes) = odd(&mut rng);
        let fact = Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now: 1, random: [1; 32], user: (0, 0) };
        let Ok(options) = request.resolve(&fact) else { continue };
        // Plans that take long are no odder than others.
        if options.wanted.blocks_count / (8 * u64::from(options.wanted.block_size)) > 5000 {
            continue;
        }
        let Ok(empty) = Empty::plan(&options) else { continue };
        planned += 1;
        let mut end = 0;
        for piece in empty.pieces() {
            assert!(piece.start.0 >= end, "seed {seed}: {piece:?} begins before {end}: {request:?}");
            end = piece.start.0 + u64::from(piece.blocks);
        }
        assert!(end <= empty.blocks_count() && empty.blocks_count() * u64::from(empty.block_size()) <= bytes);
        if planned % EACH == 0 && bytes < CHECKED_MAX {
            checked += 1;
            let image = dir.path().join("image");
            let buffered = OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() };
            let device = FileDevice::create(&image, bytes & !511, buffered).expect("the image can be made");
            write_with_progress(&device, &empty, 1, &|_| ()).expect("the image can be written");
            drop(device);
            expect_clean(&image).unwrap_or_else(|e| panic!("seed {seed}: {request:?}: {e}"));
            std::fs::remove_file(&image).expect("the image goes");
        }
        if let Ok(skeleton) = Skeleton::plan(&options, &OwnerUsage::default()) {
            let mut end = 0;
            for run in skeleton.free_runs() {
                assert!(run.start >= end && run.start < run.end, "seed {seed}: {run:?}: {request:?}");
                end = run.end;
            }
            assert!(end <= skeleton.geometry().blocks_count);
        }
    }
    assert!(checked > 30, "{checked} were checked");
    assert!(planned > 300, "{planned} of 3000 could be planned");
}
