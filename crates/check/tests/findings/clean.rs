//! Sound images of every kind that mke2fs makes: there are no findings, with few reads, and e2fsck agrees. The kernel
//! fills them, or debugfs where a kernel may lack support for the kind.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_block::device::{MemDevice, TracedDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Options, check};
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{MkfsOptions, debugfs, debugfs_write, e2fsck, expect_clean, make_image, run_ok};

/// Kind, features, block size, further arguments.
const KINDS: &[(&str, &str, u32, &[&str])] = &[
    ("ext2", "", 1024, &[]),
    ("ext2", "", 4096, &[]),
    ("ext2", "^filetype,^dir_index,^sparse_super,^resize_inode", 1024, &[]),
    ("ext3", "", 2048, &[]),
    ("ext4", "", 1024, &[]),
    ("ext4", "", 4096, &[]),
    ("ext4", "^metadata_csum", 4096, &[]),
    ("ext4", "^metadata_csum,uninit_bg", 1024, &[]),
    ("ext4", "^64bit", 4096, &[]),
    ("ext4", "^flex_bg", 1024, &["-g", "4096"]),
    ("ext4", "sparse_super2", 1024, &["-g", "4096"]),
    ("ext4", "meta_bg,^resize_inode", 1024, &["-g", "1024"]),
    ("ext4", "orphan_file", 4096, &[]),
    ("ext4", "fast_commit", 4096, &[]),
    ("ext4", "metadata_csum_seed", 4096, &[]),
    ("ext4", "^has_journal", 4096, &[]),
    ("ext4", "inline_data", 4096, &[]),
    ("ext4", "bigalloc", 4096, &[]),
    ("ext4", "bigalloc", 1024, &["-C", "8192"]),
    ("ext4", "quota,project", 4096, &[]),
    ("ext4", "casefold", 4096, &[]),
    ("ext4", "ea_inode", 4096, &[]),
    ("ext4", "ea_inode,bigalloc", 1024, &["-C", "8192"]),
    ("ext4", "ea_inode", 1024, &["-I", "128"]),
    ("ext4", "large_dir", 1024, &[]),
    ("ext4", "", 4096, &["-I", "128"]),
];

/// Files of every kind, by the kernel's own driver.
const FILL: &str = r#"
set -e
cd "$1"
for i in $(seq 1 200); do echo "file $i" > file$i; done
mkdir -p deep/er/still long many
for i in $(seq 1 800); do : > long/a-name-that-fills-directory-blocks-quickly-$i; done
for i in $(seq 1 40); do mkdir many/$i; done
ln file1 deep/hard
ln -s short fast
ln -s "$(printf 'x%.0s' $(seq 1 200))" slow
mknod null c 1 3
mknod large b 300 70000
mkfifo fifo
dd if=/dev/zero of=sparse bs=4k count=1 seek=50000 2>/dev/null
dd if=/dev/zero of=data bs=64k count=32 2>/dev/null
setfattr -n user.small -v value file2 2>/dev/null || true
setfattr -n user.large -v "$(printf 'y%.0s' $(seq 1 600))" file3 2>/dev/null || true
huge=$(printf 'z%.0s' $(seq 1 20000))
setfattr -n user.huge -v "$huge" file4 2>/dev/null || true
setfattr -n user.same -v "$huge" file4 2>/dev/null || true
setfattr -n user.$(printf 'n%.0s' $(seq 1 200)) -v "$huge" file6 2>/dev/null || true
setfattr -n user.gone -v "$huge" file7 2>/dev/null && setfattr -x user.gone file7 || true
fallocate -l 1M unwritten 2>/dev/null || true
rm file5 long/a-name-that-fills-directory-blocks-quickly-7
"#;

fn expect_no_damage(image: &Path, what: &str) {
    let traced = Arc::new(TracedDevice::new(Arc::new(MemDevice::load(image).expect("loaded"))));
    let device: Arc<dyn BlockDevice> = traced.clone();
    let now = extant_base::clock::Clock::real().wall().sec;
    let report = check(&device, &Options { threads: 2, now, ..Options::default() }).expect("checked");
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty() && report.complete, "{what}: {found:#?}");
    assert!(report.totals.inodes_used > 0 && report.totals.blocks_used > 0);
    expect_few_reads(&traced, what);
}

/// Hardly anything is read twice, except for the first blocks, which have several readers before the superblock is
/// known; gaps that are cheaper to read than to leave out; and the pointer blocks of the journal. Requests are few: one
/// for each run, one for the bitmaps of a group beside its table, and one more for each MiB, a tenth more at most.
fn expect_few_reads(traced: &TracedDevice, what: &str) {
    const SECTOR: u64 = 512;
    const FIRST: u64 = 64 << 10;
    /// Superblocks, descriptors, journal and resize inode are read before anything can be sorted. So are levels of
    /// trees whose neighbours in the level above have been read.
    const LEVELS: u64 = 32;
    let records = traced.take();
    let field = |at: u64| {
        let mut bytes = [0; 4];
        traced.read_at(1024 + at, &mut bytes, BioFlags::empty()).expect("read");
        u64::from(u32::from_le_bytes(bytes))
    };
    // s_blocks_count_lo and s_blocks_per_group.
    let groups = field(4).div_ceil(field(32));
    let mut times = std::collections::BTreeMap::new();
    for record in records.iter().filter(|record| record.end() > FIRST) {
        for sector in record.offset / SECTOR..record.end().div_ceil(SECTOR) {
            *times.entry(sector).or_insert(0u32) += 1;
        }
    }
    let again = times.values().filter(|times| **times > 1).count();
    // The gap between two runs has 16 KiB at most.
    assert!(again <= 32 * records.len(), "{what}: {again} of {} sectors are read more than once", times.len());
    let sectors: Vec<u64> = times.into_keys().collect();
    let runs = 1 + sectors.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
    let mib = (sectors.len() as u64 * SECTOR) >> 20;
    let most = (runs + groups + mib) * 11 / 10 + LEVELS;
    let reads = records.len() as u64;
    assert!(reads <= most, "{what}: {reads} reads for {runs} runs, {groups} groups and {mib} MiB");
}

fn fill(at: &Path) -> extant_testkit::Result<String> {
    // The shell would start a program for each block.
    let scattered = File::create(at.join("scattered")).expect("created");
    (0..=200).step_by(2).for_each(|block| scattered.write_all_at(&[0; 4096], block * 4096).expect("written"));
    run_ok("sh", &["-c", FILL, "fill", at.to_str().expect("UTF-8")])
}

#[test]
fn sound_images_of_every_kind_have_no_finding() {
    let mounts = loop_mounts_work();
    for (kind, features, block_size, arguments) in KINDS {
        let dir = tempfile::tempdir().expect("directory");
        let mut options = MkfsOptions::new(kind, 256 << 20);
        (options.features, options.block_size) = ((*features).to_owned(), *block_size);
        options.extra_args = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let image = make_image(dir.path(), &options).expect("made");
        let what = format!("{kind} {features} {block_size} {arguments:?}");
        expect_no_damage(&image, &what);
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).expect("made");
        // Not every kernel mounts every kind.
        if let Some(mount) = mounts.then(|| LoopMount::new(&image, &at, "").ok()).flatten() {
            let filled = fill(&at);
            Box::new(mount).unmount().expect("unmounted");
            filled.unwrap_or_else(|e| panic!("{what}: {e}"));
            expect_clean(&image).expect("clean for e2fsck");
            expect_no_damage(&image, &what);
        } else {
            expect_clean(&image).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

#[test]
fn encrypted_images_have_no_finding() {
    if !loop_mounts_work() {
        return;
    }
    // With small inodes, contexts lie in attribute blocks.
    for (inode_size, policy) in [("256", "v2"), ("256", "v1"), ("128", "v2"), ("128", "v1")] {
        let dir = tempfile::tempdir().expect("directory");
        let mut options = MkfsOptions::new("ext4", 256 << 20);
        options.features = "encrypt".to_owned();
        options.extra_args = ["-I", inode_size].map(str::to_owned).to_vec();
        let image = make_image(dir.path(), &options).expect("made");
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).expect("made");
        // Not every kernel can encrypt.
        let Ok(mount) = LoopMount::new(&image, &at, &format!("test_dummy_encryption={policy}")) else { return };
        let tree = at.join("tree");
        std::fs::create_dir(&tree).expect("made");
        let filled = fill(&tree);
        Box::new(mount).unmount().expect("unmounted");
        filled.unwrap_or_else(|e| panic!("{policy}: {e}"));
        let shown = debugfs(&image, "stat /tree").expect("debugfs");
        assert!(shown.contains("Flags: 0x81800") || shown.contains("Flags: 0x80800"), "{shown}");
        expect_clean(&image).expect("clean for e2fsck");
        expect_no_damage(&image, &format!("encrypted, {policy}, inodes of {inode_size} bytes"));
    }
}

/// Files with owners, large attributes, names in any case, and blocks behind the size of a verity file.
fn script(dir: &Path, features: &str) -> String {
    let source = |name: &str, bytes: usize| {
        let path = dir.join(name);
        std::fs::write(&path, vec![b'x'; bytes]).expect("written");
        path.display().to_string()
    };
    let (plain, large) = (source("plain", 50_000), source("large", 30_000));
    let mut script = String::new();
    for i in 0..60u32 {
        let _ =
            writeln!(script, "write {plain} /file{i}\nsif /file{i} uid {}\nsif /file{i} gid {}", i % 7 * 65_537, i % 3);
        if features.contains("project") {
            let _ = writeln!(script, "sif /file{i} projid {}", i % 5);
        }
        if features.contains("ea_inode") && i % 2 == 0 {
            let long = "n".repeat(i as usize * 3 + 1);
            let _ = writeln!(script, "ea_set -f {large} /file{i} user.{long}\nea_set -f {large} /file{i} user.second");
        }
    }
    if features.contains("casefold") {
        script.push_str("mkdir /fold\nsif /fold flags 0x40080000\n");
        for i in 0..300 {
            let _ = writeln!(
                script,
                "expand_dir /fold\nln /file{} /fold/{i}N\u{e4}ME\u{1d7}\u{1f600}{}",
                i % 60,
                "x".repeat(i % 50)
            );
        }
    }
    if features.contains("verity") {
        script.push_str("sif /file3 size 20000\nsif /file3 flags 0x180000\n");
    }
    script
}

#[test]
fn sound_images_that_debugfs_fills_have_no_finding() {
    let kinds = [
        ("quota,project", ""),
        ("quota,ea_inode", ""),
        ("quota,project,ea_inode,bigalloc", ""),
        ("casefold", ",encoding=utf8"),
        ("casefold,quota", ",encoding=utf8,encoding_flags=strict"),
        ("verity,quota", ""),
    ];
    for (features, extended) in kinds {
        for block_size in [1024, 4096] {
            let what = format!("{features}, blocks of {block_size}");
            let dir = tempfile::tempdir().expect("directory");
            let mut options = MkfsOptions::new("ext4", 64 << 20);
            (options.features, options.block_size) = (features.to_owned(), block_size);
            if !extended.is_empty() {
                options.extra_args = vec!["-E".to_owned(), extended[1..].to_owned()];
            }
            let image = make_image(dir.path(), &options).expect("made");
            debugfs_write(&image, &script(dir.path(), features)).expect("filled");
            // It counts links and usage, then makes indexes, which changes the usage.
            for flags in ["-fyD", "-fy"] {
                let fsck = e2fsck(&image, &[flags]).expect("run");
                assert!(fsck.code < 2, "{what}: {}", fsck.output);
            }
            expect_clean(&image).expect("clean for e2fsck");
            expect_no_damage(&image, &what);
        }
    }
}
