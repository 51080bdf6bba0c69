//! Images with a tree in them, read by e2fsck, debugfs, the kernel and Extant's checker.
#![allow(clippy::disallowed_methods)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{FileDevice, IoMode, MemDevice, OpenOptions};
use extant_build::content::{ContentPlan, Spare, add_lost_found, fit};
use extant_build::options::{Fact, Options, Request, SizeAsked, UuidAsked};
use extant_build::skeleton::{OwnerUsage, Skeleton};
use extant_build::source::{self, Source};
use extant_build::tree::{Attributes, Builder, Content, Id, ReadAt, Tree};
use extant_build::write::write_with_progress;
use extant_testkit::mount::{LoopMount, Mounted, loop_mounts_work};
use extant_testkit::oracle::{arg, debugfs, e2fsck, tool};
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
            "-J" => request.journal_options.push(value.into()),
            "-O" => request.features.push(value.into()),
            "-C" => request.cluster_size = value.parse().ok(),
            "-E" => request.extended.push(value.into()),
            other => panic!("no such option: {other}"),
        }
    }
    request.uuid = UuidAsked::Given([7; 16]);
    request.extended.push("hash_seed=1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed".into());
    request.size = SizeAsked::Device;
    request
}

fn fact(bytes: u64) -> Fact {
    Fact { device_bytes: bytes, sector_size: 0, zeroed: true, now: NOW, random: [0; 32], user: (0, 0) }
}

fn options(bytes: u64, args: &str) -> Options {
    request(args).resolve(&fact(bytes)).unwrap_or_else(|e| panic!("{args}: {e}"))
}

#[test]
fn an_image_that_is_too_small_for_itself_says_what_to_do() {
    let planned = |bytes, args| Skeleton::plan(&options(bytes, args), &OwnerUsage::default()).map(|_| ());
    let refused = |bytes, args| planned(bytes, args).expect_err("refused").to_string();
    let said = refused(64 << 10, "-t ext4");
    assert_eq!(
        said,
        "there is room for 8 inodes, and a file system needs 11 for itself; make it larger, or ask for inodes with -N"
    );
    assert!(planned(64 << 10, "-t ext4 -N 16").is_ok());
    let said = refused(16 << 10, "-t ext4");
    assert_eq!(said, "the file system is too small for its own structures; make it larger");
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
for i in 1 60 61 127 128 129 300 895 896 897 3000; do
    head -c $i /dev/urandom > dir/size$i; cp dir/size$i dir/attributed$i; mkdir dir/names$i
    setfattr -n user.a -v "$(printf 'a%.0s' $(seq 1 20))" dir/attributed$i dir/names$i
    cp dir/size$i dir/long$i; setfattr -n user.l -v "$(printf 'l%.0s' $(seq 1 200))" dir/long$i
    (cd dir/names$i; seq -f 'n%.0f' $((1000 - i / 10)) 1000 | xargs touch)
done
"#;

/// Gives all files whole seconds, which each inode can hold.
const WHOLE_SECONDS: &str = "find . -exec touch -h -d '2021-03-04 05:06:07' {} +";

fn build(source: &Path, image: &Path, bytes: u64, args: &str, threads: usize) -> extant_build::Result<()> {
    let mut source = Source::directory(source, source::Options::default())?;
    add_lost_found(&mut source.tree)?;
    let plan = ContentPlan::new(&options(bytes, args), &source.tree, &*source.content)?;
    let _ = std::fs::remove_file(image);
    let device = FileDevice::create(image, bytes, OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() })?;
    write_with_progress(&device, &plan, threads, &|_| ())
}

/// A fingerprint without the parts that the source does not have.
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

/// Asserts that e2fsck and Extant's checker find nothing.
fn expect_clean(image: &Path, what: &str) {
    let fsck = e2fsck(image, &["-fn"]).expect("e2fsck runs");
    assert_eq!(fsck.code, 0, "{what}: {}", fsck.output);
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(image).expect("loaded"));
    let options = extant_check::Options { threads: 2, ..extant_check::Options::default() };
    let report = extant_check::check(&device, &options).expect("checked");
    let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty() && report.complete, "{what}: {found:#?}");
}

/// Asserts that the kernel shows the contents of the source.
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
    "-t ext4 -b 4096 -O inline_data,ea_inode,metadata_csum_seed",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode,sparse_super2",
    "-t ext4 -b 4096 -O quota,project -E quotatype=usrquota:grpquota:prjquota",
    "-t ext3 -b 1024 -O quota",
    "-t ext4 -b 4096 -I 1024 -O inline_data,quota",
    "-t ext4 -b 1024 -O inline_data,^metadata_csum,^extents,^64bit",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext4 -b 1024 -O bigalloc,quota,inline_data -C 8192",
];

/// A tree with everything is clean and the same for the kernel, with one third of the kinds.
fn everything_is_there(part: usize) {
    // Not every tmpfs has the attributes of users.
    let (dir, images) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir().unwrap());
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, EVERYTHING);
    shell(&source, WHOLE_SECONDS);
    let image = images.path().join("image");
    for args in KINDS.iter().skip(part).step_by(3) {
        build(&source, &image, 128 * MIB, args, 2).unwrap_or_else(|e| panic!("{args}: {e}"));
        expect_clean(&image, args);
        expect_inline(&image, args);
        let index = debugfs(&image, "htree_dump /many").expect("debugfs runs");
        assert_eq!(index.contains("Root node dump"), !args.contains("^dir_index"), "{args}: {index}");
        assert!(!index.contains("corrupt"), "{args}: {index}");
        expect_same(&image, &source, args);
    }
}

mod a_tree_with_everything_is_clean_and_the_same_for_the_kernel {
    #[test]
    fn first_third_of_the_kinds() {
        super::everything_is_there(0);
    }

    #[test]
    fn second_third_of_the_kinds() {
        super::everything_is_there(1);
    }

    #[test]
    fn last_third_of_the_kinds() {
        super::everything_is_there(2);
    }
}

/// Asserts that contents that fit into an inode are there, and no others.
fn expect_inline(image: &Path, args: &str) {
    // Inodes of 256 bytes have room for 68 bytes behind `i_block`, those of 1024 for 836.
    let last = match args {
        _ if !args.contains("inline_data") => 0,
        _ if args.contains("-I 1024") => 895,
        _ => 128,
    };
    for size in [1, 60, 61, 127, 128, 129, 300, 895, 897] {
        let said = debugfs(image, format!("stat /dir/size{size}")).expect("debugfs runs");
        let flags = said.split("Flags: 0x").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("flags");
        let flags = u32::from_str_radix(flags, 16).expect("a number");
        assert_eq!(flags & 0x1000_0000 != 0, size <= last, "{args}: {said}");
    }
}

/// Paths below a directory in the order in which find(1) and tar(1) meet them.
fn listed(dir: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        paths.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            listed(&entry.path(), paths);
        }
    }
}

#[test]
fn inodes_and_data_ascend_in_the_order_in_which_the_kernel_lists_them() {
    if !loop_mounts_work() {
        eprintln!("skipped: no loop mounts here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, mounted, image) = (dir.path().join("source"), dir.path().join("mounted"), dir.path().join("image"));
    std::fs::create_dir_all(source.join("indexed")).unwrap();
    for directory in ["", "b", "b/below", "d", "d/x", "d/x/y", "indexed"] {
        std::fs::create_dir_all(source.join(directory)).unwrap();
        for number in 0..if directory == "indexed" { 500 } else { 12 } {
            std::fs::write(source.join(directory).join(format!("file {number}")), "content").unwrap();
        }
    }
    std::fs::create_dir(&mounted).unwrap();
    for args in ["-t ext4", "-t ext4 -O ^dir_index", "-t ext3", "-t ext2 -b 1024"] {
        build(&source, &image, 64 * MIB, args, 2).unwrap();
        let mount = Box::new(LoopMount::new(&image, &mounted, "ro").unwrap());
        let mut paths = Vec::new();
        listed(&mounted, &mut paths);
        paths.retain(|path| !path.ends_with("lost+found"));
        let numbers: Vec<u64> = paths.iter().map(|path| path.symlink_metadata().unwrap().ino()).collect();
        let is_file: Vec<bool> = paths.iter().map(|path| path.is_file()).collect();
        mount.unmount().unwrap();
        assert!(numbers.is_sorted(), "{args}: {:?}", paths.iter().zip(&numbers).collect::<Vec<_>>());
        let files = numbers.iter().zip(is_file).filter(|(_, is_file)| *is_file).map(|(number, _)| number);
        let commands: String = files.map(|number| format!("blocks <{number}>\n")).collect();
        let said = debugfs(&image, commands).unwrap();
        let blocks: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert!(blocks.len() >= 572 && blocks.is_sorted(), "{args}: {blocks:?}");
    }
}

#[test]
fn an_image_is_the_same_with_any_number_of_threads() {
    // Not every tmpfs has the attributes of users.
    let (dir, images) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir().unwrap());
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, EVERYTHING);
    for args in ["-t ext2 -b 1024", "-t ext4 -b 4096", "-t ext4 -b 4096 -N 8192 -O inline_data,quota,bigalloc"] {
        let read = |threads| {
            let image = images.path().join("image");
            build(&source, &image, 128 * MIB, args, threads).unwrap();
            std::fs::read(image).unwrap()
        };
        let one = read(1);
        assert!(read(2) == one && read(8) == one, "{args}");
    }
}

/// Files with generated bytes: those of file `n` at `offset` follow from both.
struct Pattern;

struct PatternFile(u64);

impl Content for Pattern {
    fn open(&self, content: u64) -> extant_build::Result<Box<dyn ReadAt + '_>> {
        Ok(Box::new(PatternFile(content)))
    }
}

impl ReadAt for PatternFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> extant_build::Result<()> {
        for (at, byte) in (offset..).zip(buf) {
            *byte = pattern(self.0, at);
        }
        Ok(())
    }

    fn finish(&self) -> extant_build::Result<()> {
        Ok(())
    }
}

fn pattern(file: u64, at: u64) -> u8 {
    ((at >> 9).wrapping_mul(0x9e37_79b9).wrapping_add(file) % 251) as u8
}

fn attributes(mode: u16) -> Attributes {
    Attributes { mode, ..Attributes::default() }
}

fn builder() -> Builder {
    Builder::new(extant_build::tree::Options::default())
}

fn finish(builder: Builder) -> Tree {
    let mut tree = builder.finish().unwrap();
    add_lost_found(&mut tree).unwrap();
    tree
}

/// Writes a tree of generated files into an image file.
fn build_tree(tree: &Tree, image: &Path, bytes: u64, options: &Options) -> extant_build::Result<()> {
    let plan = ContentPlan::new(options, tree, &Pattern)?;
    let _ = std::fs::remove_file(image);
    let device = FileDevice::create(image, bytes, OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() })?;
    write_with_progress(&device, &plan, 2, &|_| ())
}

fn error_of(tree: &Tree, bytes: u64, args: &str) -> String {
    let plan = ContentPlan::new(&options(bytes, args), tree, &Pattern);
    plan.err().unwrap_or_else(|| panic!("{args}: no error")).to_string()
}

#[test]
fn blocks_of_64_kib_hold_a_tree() {
    // Not every tmpfs has the attributes of users.
    let (dir, images) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir().unwrap());
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    shell(&source, EVERYTHING);
    let image = images.path().join("image");
    build(&source, &image, 512 * MIB, "-t ext4 -b 65536", 2).unwrap();
    expect_clean(&image, "64 KiB");
    let out = dir.path().join("data");
    debugfs(&image, format!("dump /data {}", out.display())).unwrap();
    assert!(std::fs::read(out).unwrap() == std::fs::read(source.join("data")).unwrap());
}

/// A file that has changed at the end of its reading.
struct Changing;

impl Content for Changing {
    fn open(&self, _: u64) -> extant_build::Result<Box<dyn ReadAt + '_>> {
        Ok(Box::new(Changing))
    }
}

impl ReadAt for Changing {
    fn read_at(&self, _: u64, _: &mut [u8]) -> extant_build::Result<()> {
        Ok(())
    }

    fn finish(&self) -> extant_build::Result<()> {
        Err(extant_build::Error::Source { name: "file".into(), why: "changed while it was read".into() })
    }
}

#[test]
fn a_file_that_changes_while_it_is_written_fails_the_image_and_the_digest() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = builder();
    builder.file(b"file", attributes(0o644), 5000, None, 0).unwrap();
    let tree = finish(builder);
    let device = FileDevice::create(dir.path().join("image"), 8 * MIB, OpenOptions::default()).unwrap();
    let plan = ContentPlan::new(&options(8 * MIB, "-t ext2"), &tree, &Changing).unwrap();
    let written = write_with_progress(&device, &plan, 2, &|_| ());
    assert_eq!(written.expect_err("refused").to_string(), "file: changed while it was read");
    let digest = extant_build::content::digest(&tree, Some(&Changing));
    assert_eq!(digest.expect_err("refused").to_string(), "file: changed while it was read");
}

/// Every other block of a file: more extents than two levels of nodes have room for with blocks of 1 KiB, and pointer
/// blocks of each level.
#[test]
fn a_file_of_many_pieces_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let data = (0..9000).map(|i| i * 8192..i * 8192 + 1000);
    let far = 100_000_000..100_300_000;
    let mut builder = builder();
    builder.file(b"file", attributes(0o644), 200_000_000, Some(data.chain([far]).collect()), 3).unwrap();
    let tree = finish(builder);
    for args in ["-t ext2 -b 1024", "-t ext4 -b 1024", "-t ext4 -b 4096", "-t ext4 -b 1024 -O bigalloc -C 16384"] {
        build_tree(&tree, &image, 128 * MIB, &options(128 * MIB, args)).unwrap();
        expect_clean(&image, args);
        if !loop_mounts_work() {
            continue;
        }
        let mount = Box::new(LoopMount::new(&image, dir.path(), "ro").unwrap());
        let bytes = std::fs::read(dir.path().join("file")).unwrap();
        mount.unmount().unwrap();
        assert_eq!(bytes.len(), 200_000_000, "{args}");
        let is_data = |at: usize| at % 8192 < 1000 && at / 8192 < 9000 || (100_000_000..100_300_000).contains(&at);
        let block = if args.contains("1024") { 1024 } else { 4096 };
        for (number, found) in bytes.chunks(block).enumerate() {
            let at = number * block;
            let any = (at..at + found.len()).any(is_data);
            let expected = |i: usize| if any { pattern(3, (at + i) as u64) } else { 0 };
            assert!((0..found.len()).step_by(97).all(|i| found[i] == expected(i)), "{args}: block {number}");
        }
    }
}

#[test]
fn the_smallest_size_leaves_nothing_and_the_usual_one_a_tenth() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let mut builder = builder();
    for i in 0..5000u64 {
        builder.file(format!("d{}/f{i}", i % 7).as_bytes(), attributes(0o644), i * 7 % 30_000, None, i).unwrap();
    }
    let tree = finish(builder);
    for args in [
        "-t ext2 -b 1024",
        "-t ext3",
        "-t ext4",
        "-t ext4 -b 4096",
        "-t ext4 -b 4096 -O ^flex_bg,^64bit",
        "-t ext4 -O inline_data",
    ] {
        for spare in [Spare::NONE, Spare::DEFAULT] {
            let (options, bytes) = fit(&request(args), &fact(0), &tree, spare).unwrap();
            build_tree(&tree, &image, bytes, &options).unwrap();
            expect_clean(&image, args);
            let stats = debugfs(&image, "stats -h").unwrap();
            let field = |name: &str| -> u64 {
                let line = stats.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{stats}"));
                line.split_whitespace().last().unwrap().parse().unwrap()
            };
            let (free, count, size) = (field("Free blocks:"), field("Block count:"), field("Block size:"));
            assert_eq!(count * size, bytes, "{args}");
            // A last group has room for 50 blocks besides its tables, or is left out.
            let (least, most) = if spare == Spare::NONE {
                (0, if args.contains("bigalloc") { 16 * 60 } else { 60 })
            } else {
                (count / 15, count / 8)
            };
            assert!((least..=most).contains(&free), "{args}: {free} of {count} blocks are free");
            assert!(field("Free inodes:") > 0 || spare == Spare::NONE);
        }
    }
}

/// More owners than a block of entries has room for, whose numbers use all of their bytes.
#[test]
fn quotas_of_many_owners_are_those_of_the_tree() {
    let mut builder = builder();
    for i in 0..700u32 {
        let owned = Attributes { uid: i % 70 * 0x0100_8001, gid: i % 2, ..attributes(0o644) };
        builder.file(format!("f{i}").as_bytes(), owned, 5000, None, i.into()).unwrap();
    }
    let tree = finish(builder);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let args = "-t ext4 -b 4096 -O quota,project -E quotatype=usrquota:grpquota:prjquota";
    for spare in [Spare::NONE, Spare::DEFAULT] {
        let (options, bytes) = fit(&request(args), &fact(0), &tree, spare).unwrap();
        build_tree(&tree, &image, bytes, &options).unwrap();
        expect_clean(&image, args);
    }
    let used = |kind: &str, id: u32| -> Vec<u64> {
        let said = debugfs(&image, format!("get_quota {kind} {id}")).unwrap();
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(&id.to_string()));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect()
    };
    // Ten files of two blocks: bytes, limits of bytes, inodes, limits of inodes.
    assert_eq!(used("user", 69 * 0x0100_8001), [81_920, 0, 0, 10, 0, 0]);
    assert_eq!(used("group", 1), [350 * 8192, 0, 0, 350, 0, 0]);
    // All have a project: the files, the root and lost+found.
    assert_eq!(used("project", 0)[3], 702);
}

#[test]
fn more_entries_than_the_ratio_gives_get_their_inodes() {
    let mut builder = builder();
    for i in 0..30_000u64 {
        builder.file(format!("f{i}").as_bytes(), attributes(0o644), 0, None, i).unwrap();
    }
    let tree = finish(builder);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for spare in [Spare::NONE, Spare::DEFAULT] {
        let (options, bytes) = fit(&request("-t ext4"), &fact(0), &tree, spare).unwrap();
        build_tree(&tree, &image, bytes, &options).unwrap();
        expect_clean(&image, "many inodes");
    }
    let error = error_of(&tree, 64 * MIB, "-t ext4 -N 20000");
    assert!(error.contains("needs 30011 inodes") && error.contains("-N"), "{error}");
}

#[test]
fn a_size_that_is_found_has_room_for_the_journal() {
    let mut builder = builder();
    builder.file(b"f", attributes(0o644), 5000, None, 0).unwrap();
    let tree = finish(builder);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (args, journal) in [
        ("-t ext4", Some("1024k")),
        ("-t ext4 -b 4096", Some("4096k")),
        ("-t ext3", Some("1024k")),
        ("-t ext4 -J size=8", Some("8M")),
        ("-t ext2 -J size=2", Some("2048k")),
        ("-t ext4 -O ^has_journal", None),
        ("-t ext2", None),
    ] {
        for spare in [Spare::NONE, Spare::DEFAULT] {
            let (options, bytes) = fit(&request(args), &fact(0), &tree, spare).unwrap();
            assert_eq!(options.warnings, [""; 0], "{args}");
            build_tree(&tree, &image, bytes, &options).unwrap();
            expect_clean(&image, args);
            let shown = tool("dumpe2fs", &["-h", arg(&image)]);
            let size = shown.lines().find_map(|line| line.strip_prefix("Total journal size:"));
            assert_eq!(size.map(str::trim), journal, "{args}: {bytes} bytes");
            assert!(bytes <= 20 * MIB && (journal.is_some() || bytes < MIB), "{args}: {bytes} bytes");
        }
    }
}

#[test]
fn options_that_are_refused_at_each_size_end_the_search_for_one() {
    let mut builder = builder();
    builder.file(b"f", attributes(0o644), 5000, None, 0).unwrap();
    let tree = finish(builder);
    for (args, word) in [("-t ext4 -O meta_bg", "meta_bg"), ("-t ext4 -O ^sparse_super", "resize_inode")] {
        let error = fit(&request(args), &fact(0), &tree, Spare::DEFAULT).expect_err("refused").to_string();
        assert!(error.contains(word), "{args}: {error}");
    }
}

#[test]
fn content_that_no_size_has_room_for_is_named_with_the_reason() {
    let mut builder = builder();
    for i in 0..10u64 {
        builder.file(format!("f{i}").as_bytes(), attributes(0o644), 2_000_000_000_000, None, i).unwrap();
    }
    let tree = finish(builder);
    let error = fit(&request("-t ext3 -b 4096"), &fact(0), &tree, Spare::NONE).expect_err("refused").to_string();
    assert!(error.starts_with("the content takes 48"), "{error}");
    assert!(
        error.contains(" blocks of 4096 bytes: ") && error.ends_with("need -O 64bit, or larger blocks with -b"),
        "{error}"
    );
    // Holes need no room.
    let mut sparse = self::builder();
    sparse.file(b"f", attributes(0o644), 15 << 40, Some(std::iter::once(0..5).collect()), 0).unwrap();
    let (_, bytes) = fit(&request("-t ext4 -b 4096"), &fact(0), &finish(sparse), Spare::NONE).unwrap();
    assert!(bytes < 20 * MIB, "{bytes}");
}

/// The smallest file systems have blocks of 1 KiB, in which such a link has no room; the one that holds the tree has
/// larger ones.
#[test]
fn a_size_is_found_for_entries_that_need_large_blocks() {
    let mut builder = builder();
    builder.file(b"f", attributes(0o644), 600 * MIB, None, 0).unwrap();
    builder.file(b"g", attributes(0o644), 600 * MIB, None, 1).unwrap();
    builder.symlink(b"link", attributes(0o777), &[b'x'; 1200]).unwrap();
    let (options, bytes) = fit(&request("-t ext4"), &fact(0), &finish(builder), Spare::NONE).unwrap();
    assert!(bytes > 600 * MIB && options.wanted.block_size == 4096, "{bytes}");
}

#[test]
fn an_entry_that_does_not_fit_is_named() {
    let mut file = builder();
    file.file(b"dir/large", attributes(0o644), 100_000_000, None, 0).unwrap();
    let error = error_of(&finish(file), 64 * MIB, "-t ext4");
    assert!(error.contains("more than are free") && error.contains("--size auto"), "{error}");

    let mut large = builder();
    let value = |len: usize| vec![(b"user.large".to_vec().into_boxed_slice(), vec![b'x'; len].into_boxed_slice())];
    large.file(b"a/b", Attributes { xattrs: value(5000), ..attributes(0o644) }, 0, None, 0).unwrap();
    let large = finish(large);
    let error = error_of(&large, 64 * MIB, "-t ext4 -b 4096");
    assert!(error.starts_with("/a/b: attribute user.large with 5000 bytes does not fit"), "{error}");
    assert!(ContentPlan::new(&options(64 * MIB, "-t ext4 -b 8192"), &large, &Pattern).is_ok());

    let mut symlink = builder();
    symlink.symlink(b"l", attributes(0o777), &[b'x'; 1024]).unwrap();
    let error = error_of(&finish(symlink), 64 * MIB, "-t ext4 -b 1024");
    assert!(error.starts_with("/l: a target of 1024 bytes"), "{error}");

    let mut wrong = builder();
    wrong.file(b"lost+found", attributes(0o644), 0, None, 0).unwrap();
    let error = add_lost_found(&mut wrong.finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("lost+found") && error.contains("is not a directory"), "{error}");
}

#[test]
fn a_lost_found_of_the_tree_retains_its_entries() {
    let mut builder = builder();
    builder.file(b"lost+found/#12", attributes(0o600), 5, None, 0).unwrap();
    builder.file(b"a", attributes(0o600), 5, None, 1).unwrap();
    builder.file(b"z", attributes(0o600), 5, None, 2).unwrap();
    let tree = finish(builder);
    assert_eq!(tree.entries(Id(0)).filter(|(name, _)| *name == b"lost+found").count(), 1);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    build_tree(&tree, &image, 16 * MIB, &options(16 * MIB, "-t ext4 -b 1024")).unwrap();
    expect_clean(&image, "lost+found");
    let listed = debugfs(&image, "ls /lost+found").unwrap();
    assert!(listed.contains("#12") && listed.contains("11  (12) ."), "{listed}");
}

/// Directories with more subdirectories than can be counted, and one of very many names; a file of 1 TiB.
fn extremes(names: u64, subdirectories: u64) {
    let mut builder = builder();
    for i in 0..subdirectories {
        builder.directory(format!("dirs/{i}").as_bytes(), attributes(0o755)).unwrap();
    }
    for i in 0..names {
        builder.file(format!("names/{i:x}").as_bytes(), attributes(0o644), 0, None, i).unwrap();
    }
    let tera = 1u64 << 40;
    let data = (0..100).map(|i| i * 10_000_000_000..i * 10_000_000_000 + 5000).collect();
    builder.file(b"tera", attributes(0o644), tera, Some(data), 0).unwrap();
    let tree = finish(builder);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (options, bytes) = fit(&request("-t ext4 -b 4096"), &fact(0), &tree, Spare::DEFAULT).unwrap();
    build_tree(&tree, &image, bytes, &options).unwrap();
    expect_clean(&image, "extremes");
    let links = debugfs(&image, "stat /dirs").unwrap();
    let expected = if subdirectories + 2 > 65_000 { 1 } else { subdirectories + 2 };
    assert!(links.contains(&format!("Links: {expected} ")), "{links}");
}

#[test]
fn many_names_and_a_tebibyte() {
    extremes(20_000, 2_000);
}

#[test]
#[ignore = "soak: 20 seconds"]
fn soak_a_million_names_and_70000_subdirectories() {
    extremes(1_000_000, 70_000);
}
