//! Quota files beside the actual usage: many owners, and each difference named.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Options, Place, Problem, Report, UsageOf, check};
use extant_ondisk::InodeNr;
use extant_testkit::damage::{Edit, fsck};
use extant_testkit::oracle::{MkfsOptions, debugfs_write, e2fsck, expect_clean, make_image};

const FILES: u32 = 300;

fn checked(image: &Path, threads: usize) -> Report {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(image).expect("loaded"));
    check(&device, &Options { threads, now: 4_000_000_000, ..Options::default() }).expect("checked")
}

/// An image with many owners, far enough apart that each needs tree blocks of its own; counted by e2fsck.
fn many_owners(dir: &Path, block_size: u32, features: &str) -> std::path::PathBuf {
    let mut options = MkfsOptions::new("ext4", 64 << 20);
    (options.features, options.block_size) = (features.to_owned(), block_size);
    let image = make_image(dir, &options).expect("made");
    let source = dir.join("source");
    std::fs::write(&source, vec![7; 9000]).expect("written");
    let mut script = String::new();
    for i in 0..FILES {
        let (path, id) = (format!("/f{i}"), (i % 250) * 100_000);
        let _ = writeln!(script, "write {} {path}\nsif {path} uid {id}\nsif {path} gid {}", source.display(), i % 7);
        let _ = writeln!(script, "sif {path} projid {id}");
    }
    debugfs_write(&image, &script).expect("changed");
    // The first run counts, and then gives the root an index, which takes one more block.
    for _ in 0..2 {
        let fsck = e2fsck(&image, &["-fy"]).expect("run");
        assert!(fsck.code < 2, "{}", fsck.output);
    }
    expect_clean(&image).expect("clean for e2fsck");
    image
}

#[test]
fn usage_of_many_owners_is_counted_as_e2fsck_counts_it() {
    for (block_size, features) in [(1024, "quota"), (1024, "quota,project"), (4096, "quota,project,bigalloc")] {
        let dir = tempfile::tempdir().expect("directory");
        let image = many_owners(dir.path(), block_size, features);
        let one = checked(&image, 1);
        let texts: Vec<_> = one.findings.iter().map(ToString::to_string).collect();
        assert!(one.complete && texts.is_empty(), "{features}: {texts:#?}");
        // Owner and group of a file that no quota file counts.
        debugfs_write(&image, "sif /f249 uid 5").expect("changed");
        let [one, two] = [1, 2].map(|threads| checked(&image, threads));
        assert_eq!(one.findings, two.findings);
        let used = if features.contains("bigalloc") { 65536 } else { 12288 - u64::from(block_size == 1024) * 3072 };
        let usage = |id, of, found: u64, expected: u64| {
            (Problem::UpdateQuotas, Place::Usage { file: InodeNr(3), id, of }, found, expected)
        };
        let found: Vec<_> = one.findings.iter().map(|one| (one.problem, one.place, one.found, one.expected)).collect();
        let expected = [
            usage(5, UsageOf::Bytes, 0, used),
            usage(5, UsageOf::Inodes, 0, 1),
            usage(24_900_000, UsageOf::Bytes, used, 0),
            usage(24_900_000, UsageOf::Inodes, 1, 0),
        ];
        assert_eq!(found, expected, "{features}");
        assert_eq!(one.findings[1].to_string(), "quota file 3, inodes of owner 5: the quota file says 0, expected 1");
    }
}

#[test]
fn a_quota_file_of_another_kind_is_damage() {
    let dir = tempfile::tempdir().expect("directory");
    let image = many_owners(dir.path(), 1024, "quota");
    let mut edit = Edit::new(&MemDevice::load(&image).expect("loaded"));
    let header = edit.data(4)[0].1;
    edit.block(header, |bytes| bytes[1] ^= 0xff);
    let device: Arc<dyn BlockDevice> = Arc::new(edit.finish());
    let report = check(&device, &Options { now: 4_000_000_000, ..Options::default() }).expect("checked");
    assert_eq!(report.count(Problem::UpdateQuotas), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].place, Place::Inode(InodeNr(4)));
}

#[test]
fn damage_in_quota_files_is_found_where_e2fsck_finds_some() {
    let dir = tempfile::tempdir().expect("directory");
    let sound = MemDevice::load(&many_owners(dir.path(), 1024, "quota,project")).expect("loaded");
    let edit = Edit::new(&sound);
    let blocks: Vec<Vec<u64>> = [3, 4].map(|ino| edit.data(ino).into_iter().map(|(_, block)| block).collect()).into();
    let (mut found, mut missed) = (0, 0);
    for seed in 0..60 {
        let (device, rng) = (sound.snapshot(), &mut Rng::new(seed));
        for _ in 0..=rng.below(3) {
            // Both files are equally likely: that of the groups is small, so changes often hit its header and its tree.
            let file = &blocks[rng.below(2) as usize];
            let at = file[rng.below(file.len() as u64) as usize] * 1024;
            let mut bytes = vec![0; 1024];
            device.read_at(at, &mut bytes, BioFlags::empty()).expect("memory");
            let word = rng.below(256) as usize * 4;
            // A small number is often a valid block number.
            let value = if rng.below(2) == 0 { rng.below(1000) as u32 } else { rng.next_u64() as u32 };
            match rng.below(3) {
                0 => bytes[word..word + 4].copy_from_slice(&value.to_le_bytes()),
                1 => bytes[word..].fill(0),
                _ => bytes.chunks_mut(4).for_each(|word| word.copy_from_slice(&value.to_le_bytes())),
            }
            device.write_at(at, &[&bytes], BioFlags::empty()).expect("memory");
        }
        let theirs = fsck::e2fsck(&device, dir.path(), "-fn", false);
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let checked = |threads| {
            let options = Options { threads, now: 4_000_000_000, ..Options::default() };
            check(&device, &options).expect("checked")
        };
        let (one, many) = (checked(1), checked(4));
        assert_eq!(one.findings, many.findings, "seed {seed}");
        assert_eq!(one.counts, many.counts, "seed {seed}");
        let magic = |report: &Report| {
            let own = |place| matches!(place, Place::Inode(_));
            report.findings.iter().all(|finding| own(finding.place) && finding.expected > 1 << 31)
        };
        match theirs.code {
            Some(4) => assert!(one.is_damaged(), "seed {seed}: {}", theirs.output),
            // e2fsck does not check the magic number.
            Some(0) => assert!(!one.is_damaged() || magic(&one), "seed {seed}: {:#?}\n{}", one.findings, theirs.output),
            // e2fsck crashes on some trees.
            _ => missed += 1,
        }
        found += u32::from(theirs.code == Some(4));
    }
    assert!(found > 20 && missed < 20, "e2fsck found {found} and crashed on {missed}");
}
