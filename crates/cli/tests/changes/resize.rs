//! `extant resize`: images of many kinds change their size and keep their files, and partitions follow. If a size
//! cannot change, the image stays unchanged, with the reason.

use std::fs;
use std::process::Command;

use extant_testkit::tests_of_cases;

use crate::common::{Dir, extant, extant_path, fsck_clean, loop_mounts_work, patch, tool, whole_disk};

/// Kinds of images, as mke2fs makes them.
const KINDS: [(&str, &[&str]); 14] = [
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext2 2 KiB", &["-t", "ext2", "-b", "2048"]),
    ("ext3", &["-t", "ext3", "-b", "4096"]),
    ("ext4 1 KiB", &["-t", "ext4", "-b", "1024"]),
    ("ext4 4 KiB", &["-t", "ext4", "-b", "4096"]),
    ("without resize_inode", &["-t", "ext4", "-b", "4096", "-O", "^resize_inode"]),
    ("without flex_bg", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]),
    ("without 64bit and checksums", &["-t", "ext4", "-b", "4096", "-O", "^64bit,^metadata_csum"]),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    ("quota", &["-t", "ext4", "-b", "4096", "-O", "quota"]),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2"]),
    ("without a journal", &["-t", "ext4", "-b", "2048", "-O", "^has_journal"]),
    ("a short last group", &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "2000"]),
];

/// Every third kind of image.
fn third_of_kinds(part: usize) -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    KINDS.into_iter().skip(part).step_by(3)
}

/// An image of 64 MiB with some files.
fn made(dir: &Dir, args: &[&str]) -> String {
    let image = dir.text("disk.img");
    let _ = fs::remove_file(&image);
    tool("mke2fs", &[&["-q", "-F"], args, &[&image, "65000K"]].concat());
    let tree = if dir.path("src").exists() { dir.text("src") } else { dir.tree() };
    extant(&["cp", "-r", &tree, &format!("{image}:/tree")]).ok();
    image
}

fn exported(image: &str) -> Vec<u8> {
    let ran = extant(&["export", image]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.out
}

/// The number in a line of `dumpe2fs -h`.
fn number(image: &str, key: &str) -> u64 {
    let said = tool("dumpe2fs", &["-h", image]);
    let line = said.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
    line.trim_start_matches(':').trim().parse().expect("a number")
}

/// Whether this kernel mounts the image for writing: a kernel without quota support mounts an image with quota files
/// read-only.
fn kernel_mounts(dir: &Dir, image: &str) -> bool {
    let mount = dir.text("mnt");
    fs::create_dir_all(&mount).expect("directory");
    let mounted = Command::new("mount").args(["-o", "loop", image, &mount]).output().expect("mount runs");
    if mounted.status.success() {
        crate::common::umount(&[&mount]);
    }
    mounted.status.success()
}

fn kernel_takes(dir: &Dir, image: &str) {
    let mount = dir.text("mnt");
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop", image, &mount]);
    fs::write(format!("{mount}/big"), vec![7; 8 << 20]).expect("written");
    crate::common::umount(&[&mount]);
    fsck_clean(image);
}

fn grow_and_keep_their_files(part: usize) {
    let dir = Dir::new();
    let grown = dir.text("grown.img");
    for (kind, args) in third_of_kinds(part) {
        let image = made(&dir, args);
        let files = exported(&image);
        let mounts = loop_mounts_work() && kernel_mounts(&dir, &image);
        assert!(mounts || !loop_mounts_work() || kind == "quota", "{kind}: the kernel refuses the image of mke2fs");
        let (block, blocks) = (number(&image, "Block size"), number(&image, "Block count"));
        let group = block * number(&image, "Blocks per group");
        for size in [format!("+{block}"), format!("+{group}"), "8G".to_owned()] {
            fs::copy(&image, &grown).expect("copied");
            let said = extant(&["resize", &grown, &size]).ok();
            fsck_clean(&grown);
            assert!(exported(&grown) == files, "{kind}, {size}: other files");
            let (now, bytes) = (number(&grown, "Block count"), fs::metadata(&grown).expect("image").len());
            assert!(now > blocks || said.contains("nothing to do"), "{kind}, {size}: {said}");
            assert!(now * block <= bytes, "{kind}, {size}: {now} blocks, {bytes} bytes");
            assert!(!dir.path("grown.img.undo").exists(), "{kind}, {size}");
            if size == "8G" {
                assert_eq!(now * block, 8 << 30, "{kind}");
            }
            if mounts {
                kernel_takes(&dir, &grown);
            }
        }
    }
}

tests_of_cases!(
    images_of_all_kinds_grow_and_keep_their_files,
    grow_and_keep_their_files,
    first_third: 0,
    second_third: 1,
    last_third: 2,
);

fn shrink_and_keep_their_files(part: usize) {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    fs::write(dir.path("big"), crate::common::big()).expect("file");
    fs::write(dir.path("filler"), vec![1; 40 << 20]).expect("file");
    for (kind, args) in third_of_kinds(part) {
        let _ = fs::remove_file(&image);
        tool("mke2fs", &[&["-q", "-F"], args, &[&image, "120M"]].concat());
        // Files behind the filler are behind the new end.
        let at = |path: &str| format!("{image}:{path}");
        let change = |args: &[&str]| {
            // If there is no space for a journal, a message says so.
            let ran = extant(args);
            assert_eq!(ran.code, Some(0), "{kind}: {}", ran.err);
        };
        change(&["cp", &dir.text("filler"), &at("/one")]);
        change(&["cp", &dir.text("filler"), &at("/two")]);
        for number in 0..8 {
            change(&["cp", &dir.text("big"), &at(&format!("/file{number}"))]);
        }
        change(&["rm", &at("/one"), &at("/two")]);
        let (files, block) = (exported(&image), number(&image, "Block size"));
        let ran = extant(&["resize", &image, "60M"]);
        assert_eq!(ran.code, Some(0), "{kind}: {}", ran.err);
        fsck_clean(&image);
        assert!(exported(&image) == files, "{kind}: other files");
        let now = number(&image, "Block count") * block;
        assert!(now <= 60 << 20 && now > 50 << 20, "{kind}: {now}");
        assert_eq!(fs::metadata(&image).expect("image").len(), now, "{kind}");
        assert!(!dir.path("disk.img.undo").exists(), "{kind}");
        if loop_mounts_work() && kernel_mounts(&dir, &image) {
            kernel_takes(&dir, &image);
        }
        extant(&["resize", &image, "100M"]).ok();
        fsck_clean(&image);
    }
}

tests_of_cases!(
    images_of_all_kinds_shrink_and_keep_their_files,
    shrink_and_keep_their_files,
    first_third: 0,
    second_third: 1,
    last_third: 2,
);

#[test]
fn a_refused_shrink_leaves_the_image_and_names_the_reason() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^flex_bg", &image, "64M"]);
    fs::write(dir.path("filler"), vec![1; 30 << 20]).expect("file");
    extant(&["cp", &dir.text("filler"), &format!("{image}:/one")]).ok();
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "30M"]).fails(1, &["not shrunk", "do not fit", "extant mkfs --from image:"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
    let _ = fs::remove_file(&image);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "256", &image, "64M"]);
    for at in 0..60 {
        extant(&["mkdir", &format!("{image}:/dir{at}")]).ok();
    }
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "9M"]).fails(1, &["not shrunk: ", "would get other inodes", "--size 9437184 NEW"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}

/// Names with their inode numbers, as debugfs lists them.
fn numbers(image: &str, path: &str) -> Vec<(String, u64)> {
    let listed = crate::common::debugfs(image, &format!("ls -p {path}"));
    let lines = listed.lines().filter_map(|line| {
        let words: Vec<&str> = line.split('/').collect();
        Some((words.get(5)?.to_string(), words.get(1)?.parse().ok()?))
    });
    lines.collect()
}

#[test]
fn inodes_of_groups_that_go_get_other_numbers() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let tree = dir.tree();
    for features in ["^flex_bg", "^flex_bg,^metadata_csum"] {
        let _ = fs::remove_file(&image);
        tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, &image, "64M"]);
        // Both the kernel and Extant put directories of the root into different groups.
        for at in 0..8 {
            extant(&["cp", "-r", &tree, &format!("{image}:/dir{at}")]).ok();
        }
        extant(&["ln", &format!("{image}:/dir7/etc/deep/er/file"), &format!("{image}:/dir0/again")]);
        let (files, before) = (exported(&image), numbers(&image, "/"));
        let said = extant(&["resize", &image, "45M"]).ok();
        assert!(said.contains("inodes have other numbers now"), "{said}");
        fsck_clean(&image);
        assert!(exported(&image) == files, "other files");
        let (after, most) = (numbers(&image, "/"), number(&image, "Inode count"));
        let stays = before.iter().filter(|(_, ino)| *ino <= most);
        assert!(stays.clone().all(|pair| after.contains(pair)), "{before:?}, {after:?}");
        assert!(stays.count() < before.len() && after.len() == before.len(), "{before:?}, {after:?}");
        if loop_mounts_work() {
            kernel_takes(&dir, &image);
        }
    }
}

/// A file system with files at its end, and fragmented free space between them.
fn fragmented(dir: &Dir, megabytes: usize) -> String {
    let (image, piece) = (dir.text("disk.img"), dir.text("piece"));
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-J", "size=4", &image, &format!("{megabytes}M")]);
    fs::write(&piece, vec![7; 300 << 10]).expect("file");
    let mut script = String::new();
    let count = (megabytes - 20) * 3;
    for at in 0..count {
        script.push_str(&format!("put {piece} /file{at}\n"));
    }
    for at in (0..count).filter(|at| at % 5 < 3) {
        script.push_str(&format!("rm /file{at}\n"));
    }
    fs::write(dir.path("script"), script).expect("file");
    extant(&["script", &image, &dir.text("script")]).ok();
    image
}

#[test]
fn the_least_size_is_that_of_a_rebuild() {
    let dir = Dir::new();
    let image = fragmented(&dir, 96);
    let (files, block) = (exported(&image), number(&image, "Block size"));
    let rebuilt = dir.text("rebuilt.img");
    extant(&["mkfs", "--from", &format!("image:{image}"), "-J", "size=4", "--size", "min", &rebuilt]).ok();
    let (least, old) = (number(&rebuilt, "Block count"), number(&image, "Block count"));
    let said = extant(&["resize", &image, "min"]).ok();
    fsck_clean(&image);
    assert!(exported(&image) == files, "other files");
    let now = number(&image, "Block count");
    assert_eq!(fs::metadata(&image).expect("image").len(), now * block);
    assert!(now * 2 < old && now * 100 <= least * 103, "{now} of {old} blocks, {least} of a rebuild: {said}");
    let said = extant(&["resize", &image, "min"]).ok();
    assert!(said.contains("nothing to do"), "{said}");
    extant(&["resize", &image, "+50M"]).ok();
    fsck_clean(&image);
    assert!(exported(&image) == files, "other files");
}

/// resize2fs makes the file system larger again, and the kernel accepts it.
fn grows_again(dir: &Dir, image: &str) {
    let (blocks, len) = (number(image, "Block count"), fs::metadata(image).expect("image").len());
    fs::File::options().write(true).open(image).expect("image").set_len(len + (40 << 20)).expect("longer");
    tool("resize2fs", &["-f", image]);
    assert!(number(image, "Block count") > blocks);
    kernel_takes(dir, image);
}

/// PiShrink asks for the minimum size, and gives it in blocks; others name no size.
#[test]
fn under_the_name_of_resize2fs_it_takes_its_arguments() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (files, program) = (exported(&image), dir.text("resize2fs"));
    std::os::unix::fs::symlink(extant_path(), &program).expect("a link");
    let blocks = |image: &str| number(image, "Block count");
    let said = tool(&program, &["-P", &image]);
    let least = said.trim().strip_prefix("Estimated minimum size of the filesystem: ").expect("a number");
    assert_eq!(blocks(&image), 65_000);
    tool(&program, &["-fp", &image, least]);
    assert_eq!(blocks(&image).to_string(), least);
    for (args, mib) in [(&["-f", "40M"][..], 40), (&["-f", "131072s"], 64), (&["81920"], 80)] {
        let (letters, size) = args.split_at(args.len() - 1);
        tool(&program, &[letters, &[&image], size].concat());
        assert_eq!(blocks(&image), mib << 10, "{args:?}");
    }
    tool(&program, &["-M", &image]);
    assert_eq!(blocks(&image).to_string(), least);
    fs::File::options().write(true).open(&image).expect("image").set_len(60 << 20).expect("longer");
    tool(&program, &[&image]);
    assert_eq!(blocks(&image), 60 << 10);
    assert!(exported(&image) == files, "other files");
    fsck_clean(&image);
    let ran = Command::new(&program).args([&image, "much"]).output().expect("runs");
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("'much' is not a size (blocks, or with s, K, M, G or T)"));
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_kinds_of_image_grow_to_200_gib_and_shrink_to_the_least() {
    let dir = Dir::new();
    let (image, changed, tree) = (dir.text("disk.img"), dir.text("changed.img"), dir.tree());
    let (mut largest, mut counted) = (0, 0);
    for (kind, args) in KINDS {
        let _ = fs::remove_file(&image);
        let mut all = [&["-q", "-F"], args, &["-d", &tree]].concat();
        if !args.iter().any(|word| word.contains("resize_inode")) && !kind.contains("1 KiB") {
            all.extend(["-E", "resize=200G"]);
        }
        let made = [&all[..], &[&image, "64M"]].concat();
        let (code, _) = extant_testkit::oracle::run_command("mke2fs", &made).expect("mke2fs runs");
        if code != Some(0) {
            // There are not as many blocks reserved for descriptors.
            tool("mke2fs", &[&["-q", "-F"], args, &["-d", &tree, &image, "64M"]].concat());
        }
        if kind == "quota" {
            // mke2fs 1.47 does not count the files that it copies with -d.
            extant(&["fsck", "-fy", &image]);
        }
        let files = exported(&image);
        let mounts = loop_mounts_work() && kernel_mounts(&dir, &image);
        let (block, per_group) = (number(&image, "Block size"), number(&image, "Blocks per group"));
        for size in [format!("+{block}"), format!("+{}", block * per_group), "200G".to_owned(), "min".to_owned()] {
            fs::copy(&image, &changed).expect("copied");
            let ran = extant(&["resize", &changed, &size]);
            if ran.code != Some(0) {
                let (_, most) =
                    ran.err.split_once("no room for more than ").unwrap_or_else(|| panic!("{kind}: {}", ran.err));
                extant(&["resize", &changed, most.split(' ').next().expect("a number")]).ok();
            }
            fsck_clean(&changed);
            assert!(exported(&changed) == files, "{kind}, {size}: other files");
            let bytes = number(&changed, "Block count") * block;
            largest += u32::from(bytes == 200 << 30);
            assert!(size != "min" || bytes < 40 << 20, "{kind}: {bytes}");
            if size == "200G" {
                extant(&["resize", &changed, "min"]).ok();
                fsck_clean(&changed);
                assert!(exported(&changed) == files, "{kind}: other files after all");
            }
            match mounts {
                // resize2fs 1.47 adds the blocks of a grown bigalloc group to its count of free clusters. It also frees
                // one block too many behind a backup of sparse_super2 that moves: often a bitmap, even in images of
                // mke2fs.
                true if !["bigalloc", "sparse_super2"].contains(&kind) => grows_again(&dir, &changed),
                // At the minimum size there is no space for a file.
                true if size.starts_with('+') => kernel_takes(&dir, &changed),
                _ => {}
            }
            counted += 1;
        }
    }
    println!("{counted} images, {largest} of 200 GiB");
    assert!(counted == 4 * KINDS.len() && largest >= 6, "{counted}, {largest}");
}

/// Whether sgdisk and sfdisk are installed.
fn has_partitioners() -> bool {
    ["sgdisk", "sfdisk"].iter().all(|program| Command::new(program).arg("--version").output().is_ok())
}

/// The partition table as both programs print it, if they find no error in it.
fn table(disk: &str) -> String {
    let verified = tool("sfdisk", &["--verify", disk]);
    let dumped = tool("sfdisk", &["--dump", disk]);
    if dumped.contains("label: gpt") {
        let said = tool("sgdisk", &["-v", disk]);
        assert!(said.contains("No problems found"), "{said}");
    }
    assert!(!verified.contains("warning"), "{verified}");
    dumped
}

/// The lines of a dump, without the size of the partition that changes, and without the end of the table.
fn others(dump: &str) -> Vec<String> {
    let lines = dump.lines().filter(|line| !line.starts_with("last-lba"));
    let cut = |line: &str| match line.split_once(" : start=") {
        Some((name, rest)) if name.ends_with('2') => {
            let (start, behind) = rest.split_once("size=").expect("a size");
            let (_, behind) = behind.split_once(',').expect("a type");
            format!("{name} {start} {behind}")
        }
        _ => line.to_owned(),
    };
    lines.map(cut).collect()
}

/// A disk of 80 MiB, whose second and last partition contains the image.
fn partitioned(dir: &Dir, image: &str, script: &str) -> String {
    let disk = dir.text("disk");
    let _ = fs::remove_file(&disk);
    fs::File::create(&disk).expect("disk").set_len(80 << 20).expect("size");
    fs::write(dir.path("table"), script).expect("file");
    tool("sh", &["-c", &format!("sfdisk -q '{disk}' < '{}'", dir.text("table"))]);
    let copy = format!("dd if='{image}' of='{disk}' bs=1M seek=4 conv=notrunc,sparse status=none");
    tool("sh", &["-c", &copy]);
    format!("{disk}@2")
}

const GPT: &str = "label: gpt\n\
    start=2048, size=6144, type=21686148-6449-6E6F-744E-656564454649, name=\"boot \u{e4}\", attrs=\"RequiredPartition\"\n\
    start=8192, size=131072, type=linux, name=\"data\", attrs=\"GUID:59\"\n";
const MBR: &str = "label: dos\nstart=2048, size=6144, type=82\nstart=8192, size=131072, type=83, bootable\n";

#[test]
fn the_last_partition_grows_and_shrinks_with_its_file_system() {
    if !has_partitioners() {
        return;
    }
    let dir = Dir::new();
    let small = made(&dir, &["-t", "ext4", "-b", "1024"]);
    for (label, script) in [("gpt", GPT), ("dos", MBR)] {
        let part = partitioned(&dir, &small, script);
        let disk = dir.text("disk");
        let len = || fs::metadata(&disk).expect("disk").len();
        let (files, first) = (exported(&part), table(&disk));
        // Larger than the partition: on the present disk, and beyond its end.
        for (size, bytes) in [("70M", 70 << 20), ("+60M", 130 << 20)] {
            let said = extant(&["resize", &part, size]).ok();
            assert!(said.contains(&format!("partition 2 has {bytes} bytes now")), "{label}: {said}");
            assert_eq!(others(&table(&disk)), others(&first), "{label}, {size}");
            assert!(exported(&part) == files, "{label}, {size}: other files");
            extant(&["fsck", "-fn", &part]).ok();
        }
        let (tail, start) = (if label == "gpt" { 33 * 512 } else { 0u64 }, 4u64 << 20);
        assert_eq!(len(), start + (130 << 20) + tail, "{label}");
        // The whole of a longer file.
        fs::File::options().write(true).open(&disk).expect("disk").set_len(160 << 20).expect("longer");
        extant(&["resize", &part, "max"]).ok();
        assert_eq!(others(&table(&disk)), others(&first), "{label}");
        let longest: u64 = ((160 << 20) - tail - start) / 4096 * 4096;
        let dumped = tool("sfdisk", &["--dump", &disk]);
        let (_, size) = dumped.rsplit_once("size=").expect("a size");
        assert!(size.trim_start().starts_with(&format!("{},", longest / 512)), "{label}: {size}");
        assert_eq!(len(), 160 << 20, "{label}");
        // Smaller: partition and file follow.
        let said = extant(&["resize", &part, "20M"]).ok();
        assert!(said.contains("partition 2 has 20971520 bytes now"), "{label}: {said}");
        assert_eq!(len(), start + (20 << 20) + tail, "{label}");
        assert_eq!(others(&table(&disk)), others(&first), "{label}");
        extant(&["resize", &part, "min"]).ok();
        assert!(len() < start + (20 << 20) + tail, "{label}");
        assert_eq!(others(&table(&disk)), others(&first), "{label}");
        assert!(exported(&part) == files, "{label}: other files");
        extant(&["fsck", "-fn", &part]).ok();
    }
}

#[test]
fn a_partition_with_a_reason_to_stay_is_left_as_it_is() {
    if !has_partitioners() {
        return;
    }
    let dir = Dir::new();
    let small = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let behind = format!("{GPT}start=139264, size=2048, type=swap, name=\"swap\"\n");
    let part = partitioned(&dir, &small, &behind);
    let disk = dir.text("disk");
    let before = fs::read(&disk).expect("disk");
    extant(&["resize", &part, "70M"]).fails(1, &["disk@2: not grown: partition 3 is behind it", "nothing was written"]);
    assert!(fs::read(&disk).expect("disk") == before, "the disk has changed");
    // The file system shrinks, and the disk keeps its length and its other partitions.
    let first = table(&disk);
    extant(&["resize", &part, "20M"]).ok();
    assert_eq!((others(&table(&disk)), fs::metadata(&disk).expect("disk").len()), (others(&first), 80 << 20));
    extant(&["fsck", "-fn", &part]).ok();
    // A damaged table at the start, and a second list of the partition.
    let part = partitioned(&dir, &small, GPT);
    patch(&disk, 512 + 16, &[0; 4]);
    let before = fs::read(&disk).expect("disk");
    extant(&["resize", &part, "70M"]).fails(1, &["not grown: the partition table at the start of the disk is damaged"]);
    assert!(fs::read(&disk).expect("disk") == before, "the disk has changed");
    let part = partitioned(&dir, &small, GPT);
    let mut entry = [0; 16];
    entry[4] = 0x83;
    entry[8..12].copy_from_slice(&8192u32.to_le_bytes());
    entry[12..].copy_from_slice(&131_072u32.to_le_bytes());
    patch(&disk, 446 + 16, &entry);
    extant(&["resize", &part, "70M"]).fails(1, &["not grown: an MBR lists the partition beside the GPT"]);
    // A logical partition keeps its length.
    whole_disk(&disk, &small);
    let logical = format!("{disk}@5");
    extant(&["resize", &logical, "70M"]).fails(1, &["not grown: partition 5 is a logical or extended one"]);
    let said = extant(&["resize", &logical, "20M"]).ok();
    assert!(said.contains("partition 5 stays as long as it is"), "{said}");
    extant(&["fsck", "-fn", &logical]).ok();
}

#[test]
fn a_growth_that_fails_gives_partition_and_disk_their_old_lengths() {
    if !has_partitioners() {
        return;
    }
    let dir = Dir::new();
    let small = made(&dir, &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"]);
    let part = partitioned(&dir, &small, GPT);
    let disk = dir.text("disk");
    let before = fs::read(&disk).expect("disk");
    extant(&["resize", &part, "8G"]).fails(1, &["descriptors have no room for more"]);
    assert!(fs::read(&disk).expect("disk") == before, "the disk has changed");
    let said = tool("dumpe2fs", &[&small]);
    let (_, place) = said.split_once("Block bitmap at ").expect("a bitmap");
    let block: u64 = place.split_once(' ').expect("a number").0.parse().expect("a number");
    patch(&disk, (4 << 20) + block * 1024, &[0; 64]);
    let before = fs::read(&disk).expect("disk");
    extant(&["resize", &part, "100M"]).fails(1, &["it is damaged"]);
    assert!(fs::read(&disk).expect("disk") == before, "the disk has changed");
}

#[test]
fn resize2fs_grows_it_further() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    extant(&["resize", &image, "300M"]).ok();
    fs::File::options().write(true).open(&image).expect("image").set_len(700 << 20).expect("longer");
    tool("resize2fs", &["-f", &image]);
    fsck_clean(&image);
    let said = extant(&["resize", &image, "+200M"]).ok();
    assert!(said.contains("900 MiB"), "{said}");
    fsck_clean(&image);
    fs::File::options().write(true).open(&image).expect("image").set_len(1 << 30).expect("longer");
    extant(&["resize", &image, "max"]).ok();
    fsck_clean(&image);
    let said = extant(&["resize", &image, "max"]).ok();
    assert!(said.contains("nothing to do"), "{said}");
}

#[test]
fn a_file_system_grows_to_the_end_of_its_partition() {
    let dir = Dir::new();
    let small = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (room, disk) = (dir.text("room.img"), dir.text("whole.img"));
    fs::copy(&small, &room).expect("copied");
    fs::File::options().write(true).open(&room).expect("image").set_len(100 << 20).expect("longer");
    whole_disk(&disk, &room);
    let bytes = fs::metadata(&disk).expect("disk").len();
    let disk = format!("{disk}@2");
    let files = exported(&disk);
    extant(&["resize", &disk, "200M"]).fails(1, &["not grown", "partition 3 is behind it"]);
    let said = extant(&["resize", &disk, "max"]).ok();
    assert!(said.contains("100 MiB"), "{said}");
    assert_eq!(fs::metadata(dir.text("whole.img")).expect("disk").len(), bytes);
    assert!(exported(&disk) == files);
    extant(&["fsck", "-fn", &disk]).ok();
    // The command that undoes a change names the partition.
    let undo = dir.text("undo");
    let before = fs::read(dir.text("whole.img")).expect("disk");
    let said = extant(&["tune", "-L", "other", "-z", &undo, &disk]).ok();
    assert!(said.contains(&format!("'extant fsck --undo {undo} {disk}' undoes it")), "{said}");
    assert!(fs::read(dir.text("whole.img")).expect("disk") != before);
    extant(&["fsck", "--undo", &undo, &disk]).ok();
    assert!(fs::read(dir.text("whole.img")).expect("disk") == before, "not as before");
}

#[test]
fn an_image_that_cannot_grow_is_left_as_it_is_with_the_reason() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"]);
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "2M"]).fails(1, &["disk.img: not shrunk", "extant mkfs --from image:"]);
    extant(&["resize", &image, "8G"]).fails(1, &["descriptors have no room for more", "extant mkfs --from image:"]);
    extant(&["resize", &image, "much"]).fails(1, &["'much' is not a size"]);
    extant(&["resize", &dir.text("none.img"), "1G"]).fails(1, &["none.img"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
    let said = tool("dumpe2fs", &[&image]);
    let (_, place) = said.split_once("Block bitmap at ").expect("a bitmap");
    let block: u64 = place.split_once(' ').expect("a number").0.parse().expect("a number");
    patch(&image, block * 1024, &[0; 64]);
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "+8M"]).fails(1, &["it is damaged", "extant fsck -fn"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}

#[test]
fn an_image_in_use_does_not_grow() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (mount, bytes) = (dir.text("mnt"), fs::metadata(&image).expect("image").len());
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop", &image, &mount]);
    let ran = extant(&["resize", &image, "+8M"]);
    crate::common::umount(&[&mount]);
    ran.fails(1, &["disk.img"]);
    assert_eq!(fs::metadata(&image).expect("image").len(), bytes);
}

#[test]
fn the_old_blocks_undo_a_growth() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "4096"]);
    let (before, record) = (fs::read(&image).expect("image"), dir.text("old.e2undo"));
    let said = extant(&["resize", "-z", &record, &image, "1G"]).ok();
    assert!(said.contains("--undo") && said.contains("1 GiB"), "{said}");
    fsck_clean(&image);
    extant(&["fsck", "--undo", &record, &image]).ok();
    assert!(fs::read(&image).expect("image").starts_with(&before), "not the old blocks");
    fsck_clean(&image);
}

#[test]
fn a_full_or_short_host_leaves_the_old_file() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "4096"]);
    let before = fs::read(&image).expect("image");
    let limited = format!("ulimit -f 100000; exec '{}' resize '{image}' 2G", crate::common::extant_path().display());
    let ran = Command::new("bash").args(["-c", &limited]).output().expect("bash runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("disk.img: "), "{said}");
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}
