//! Images with a tree in them: what e2fsck, debugfs, the kernel and Extant's checker find there.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{FileDevice, IoMode, MemDevice, OpenOptions};
use extant_build::content::{ContentPlan, add_lost_found};
use extant_build::options::{Fact, Request, SizeAsked, UuidAsked};
use extant_build::skeleton::Skeleton;
use extant_build::source::{self, Source};
use extant_build::write::write;
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{debugfs, e2fsck};
use extant_testkit::tree::{Fingerprint, diff, fingerprint};

const NOW: i64 = 1_700_000_000;
const MIB: u64 = 1 << 20;

/// The options of mke2fs that the tests use.
fn request(args: &str) -> Request {
    let mut request = Request::default();
    let mut args = args.split_whitespace();
    while let Some(option) = args.next() {
        let value = args.next().expect("each option has a value");
        match option {
            "-t" => request.fs_type = Some(value.into()),
            "-b" => request.block_size = value.parse().ok(),
            "-g" => request.blocks_per_group = value.parse().ok(),
            "-I" => request.inode_size = value.parse().ok(),
            "-N" => request.inodes = value.parse().ok(),
            "-O" => request.features.push(value.into()),
            other => panic!("no such option: {other}"),
        }
    }
    request.uuid = UuidAsked::Given([7; 16]);
    request.extended.push("hash_seed=1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed".into());
    request.size = SizeAsked::Device;
    request
}

fn skeleton(bytes: u64, args: &str) -> Skeleton {
    let fact = Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now: NOW, random: [0; 32], user: (0, 0) };
    let options = request(args).resolve(&fact).unwrap_or_else(|e| panic!("{args}: {e}"));
    Skeleton::plan(&options).unwrap_or_else(|e| panic!("{args}: {e}"))
}

/// Runs a script of bash in a directory.
fn shell(dir: &Path, script: &str) {
    let done = Command::new("bash").args(["-euc", script]).current_dir(dir).output().expect("bash runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A tree with everything.
const EVERYTHING: &str = r#"
mkdir -p dir/sub/deep empty many long
echo small > dir/file; : > dir/nothing; ln dir/file dir/sub/hard
ln -s short dir/link; ln -s "$(printf 'l%.0s' $(seq 1 59))" dir/link59; ln -s "$(printf 'l%.0s' $(seq 1 60))" dir/link60
ln -s "$(printf 'l%.0s' $(seq 1 900))" dir/link900
mkfifo dir/fifo; mknod dir/null c 1 3; mknod dir/large b 300 70000
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("dir/socket")'
head -c 9000000 /dev/urandom > data; head -c 20000000 /dev/zero | tr '\0' z > large
truncate -s 40M sparse; printf x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
printf y | dd of=sparse bs=1 seek=30000000 conv=notrunc status=none; truncate -s 3G hole
for i in $(seq 0 7 1400); do printf "$i" | dd of=scattered bs=4096 seek=$i conv=notrunc status=none; done
(cd many; seq -f 'a-name-that-fills-blocks-%05.0f' 3000 | xargs touch)
(cd long; for i in $(seq 1 40); do : > "$(printf "%0255d" $i)"; done)
for i in $(seq 1 60); do echo $i > dir/f$i; setfattr -n user.shared -v "$(printf 's%.0s' $(seq 1 300))" dir/f$i; done
setfattr -n user.small -v value data; setfattr -n user.large -v "$(printf 'y%.0s' $(seq 1 700))" large
setfattr -n trusted.of.root -v t dir; setfattr -n user.both -v "$(printf 'b%.0s' $(seq 1 200))" dir/sub
setfacl -m u:1000:rw,g:50:r data; setfacl -d -m u:1000:rwx dir/sub; chmod 4755 dir/f1; chown 100000:200000 dir/f2
chmod 1777 empty
"#;

/// Gives all files whole seconds, which each inode can hold.
const WHOLE_SECONDS: &str = "find . -exec touch -h -d '2021-03-04 05:06:07' {} +";

fn build(source: &Path, image: &Path, bytes: u64, args: &str, threads: usize) -> extant_build::Result<()> {
    let mut source = Source::directory(source, source::Options::default())?;
    add_lost_found(&mut source.tree)?;
    let plan = ContentPlan::new(skeleton(bytes, args), &source.tree, &*source.content)?;
    let _ = std::fs::remove_file(image);
    let device = FileDevice::create(image, bytes, OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() })?;
    write(&device, &plan, threads)
}

/// What is not the source's own.
fn comparable(mut tree: Fingerprint) -> Fingerprint {
    if tree.remove(Path::new("lost+found")).is_some()
        && let Some(root) = tree.get_mut(Path::new(""))
    {
        root.nlink -= 1;
    }
    for node in tree.values_mut() {
        node.atime = node.mtime;
    }
    tree
}

/// e2fsck and Extant's checker find nothing.
fn expect_clean(image: &Path, what: &str) {
    let fsck = e2fsck(image, &["-fn"]).expect("e2fsck runs");
    assert_eq!(fsck.code, 0, "{what}: {}", fsck.output);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(image).expect("loaded"));
    let options = extant_check::Options { threads: 2, ..extant_check::Options::default() };
    let report = extant_check::check(&device, &options).expect("checked");
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty() && report.complete, "{what}: {found:#?}");
}

/// The kernel shows what the source has.
fn expect_same(image: &Path, source: &Path, what: &str) {
    if !loop_mounts_work() {
        eprintln!("skipped: no loop mounts here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = Box::new(LoopMount::new(image, dir.path(), "ro").unwrap_or_else(|e| panic!("{what}: {e}")));
    let differs = diff(&comparable(fingerprint(source).unwrap()), &comparable(fingerprint(dir.path()).unwrap()));
    mount.unmount().unwrap();
    assert!(differs.is_empty(), "{what}: {differs}");
}

const KINDS: &[&str] = &[
    "-t ext2 -b 1024",
    "-t ext2 -b 4096",
    "-t ext3 -b 4096",
    "-t ext4 -b 1024",
    "-t ext4 -b 4096",
    "-t ext4 -b 4096 -I 128",
    "-t ext4 -b 4096 -O ^metadata_csum",
    "-t ext4 -b 4096 -O ^extents,^64bit",
    "-t ext4 -b 1024 -O ^flex_bg,^resize_inode",
    "-t ext4 -b 4096 -O ^64bit,^resize_inode",
    "-t ext4 -b 4096 -O ^dir_index",
    "-t ext4 -b 1024 -I 512 -O large_dir,orphan_file",
    "-t ext4 -b 2048 -g 2048 -O ^has_journal",
];

#[test]
fn a_tree_with_everything_is_clean_and_the_same_for_the_kernel() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, EVERYTHING);
    shell(&source, WHOLE_SECONDS);
    let image = dir.path().join("image");
    for args in KINDS {
        build(&source, &image, 128 * MIB, args, 2).unwrap_or_else(|e| panic!("{args}: {e}"));
        expect_clean(&image, args);
        let index = debugfs(&image, "htree_dump /many").expect("debugfs runs");
        assert_eq!(index.contains("Root node dump"), !args.contains("^dir_index"), "{args}: {index}");
        assert!(!index.contains("corrupt"), "{args}: {index}");
        expect_same(&image, &source, args);
    }
}

#[test]
fn an_image_is_the_same_with_any_number_of_threads() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, EVERYTHING);
    for args in ["-t ext2 -b 1024", "-t ext4 -b 4096"] {
        let read = |threads| {
            let image = dir.path().join("image");
            build(&source, &image, 128 * MIB, args, threads).unwrap();
            std::fs::read(image).unwrap()
        };
        let one = read(1);
        assert!(read(2) == one && read(8) == one, "{args}");
    }
}
