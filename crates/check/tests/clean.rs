//! Sound images of every kind that mke2fs makes: nothing is found, and e2fsck agrees.

use std::path::Path;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_check::{Options, check};
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{MkfsOptions, expect_clean, make_image, run_command, run_ok};

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
for i in $(seq 0 2 200); do dd if=/dev/zero of=scattered bs=4k count=1 seek=$i conv=notrunc 2>/dev/null; done
setfattr -n user.small -v value file2 2>/dev/null || true
setfattr -n user.large -v "$(printf 'y%.0s' $(seq 1 600))" file3 2>/dev/null || true
fallocate -l 1M unwritten 2>/dev/null || true
rm file5 long/a-name-that-fills-directory-blocks-quickly-7
"#;

fn expect_no_damage(image: &Path, what: &str) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(image).expect("loaded"));
    let now = extant_base::clock::Clock::real().wall().sec;
    let report = check(&device, &Options { threads: 2, now, ..Options::default() }).expect("checked");
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty() && report.complete, "{what}: {found:#?}");
    assert!(report.totals.inodes_used > 0 && report.totals.blocks_used > 0);
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
            let filled = run_ok("sh", &["-c", FILL, "fill", at.to_str().expect("UTF-8")]);
            Box::new(mount).unmount().expect("unmounted");
            filled.unwrap_or_else(|e| panic!("{what}: {e}"));
            expect_clean(&image).expect("clean for e2fsck");
            expect_no_damage(&image, &what);
        } else {
            let (code, _) = run_command(Path::new("e2fsck"), &["-fn", image.to_str().expect("UTF-8")]).expect("run");
            assert_eq!(code, Some(0), "{what}");
        }
    }
}
