//! Exit statuses and messages for images that cannot be used.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::Command;

use common::{Dir, extant, loop_mounts_work, patch, tool, umount, whole_disk};
use extant_block::device::{Engine, FileDevice, OpenOptions};

/// Checks that every reading tool fails with these words and status 8, and a mount with status 32.
#[track_caller]
fn all_fail(dir: &Dir, image: &str, words: &[&str]) {
    for args in [&["ls", image][..], &["cat", image, "/x"], &["stat", image, "/x"], &["tree", image], &["info", image]]
    {
        extant(args).fails(8, words);
    }
    extant(&["cp", &format!("{image}:/x"), &dir.text("out")]).fails(8, words);
    let mnt = dir.path("mnt");
    let _ = std::fs::create_dir(&mnt);
    extant(&["mount", image, mnt.to_str().expect("UTF-8")]).fails(32, words);
}

/// Checks that names and attributes are listed, with a warning that names the users of the image, while its content
/// and a mount are refused.
#[track_caller]
fn content_fails(dir: &Dir, image: &str, who: &[&str]) {
    for args in [&["ls", image][..], &["stat", image, "/etc"], &["tree", image], &["info", image]] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        assert!(who.iter().all(|word| ran.err.contains(word)), "{args:?}: {}", ran.err);
    }
    let words = [&["disk.img: in use: "], who].concat();
    extant(&["cat", image, "/etc/passwd"]).fails(8, &words);
    extant(&["cp", &format!("{image}:/etc/passwd"), &dir.text("out")]).fails(8, &words);
    let mnt = dir.path("mnt");
    let _ = std::fs::create_dir(&mnt);
    extant(&["mount", image, mnt.to_str().expect("UTF-8")]).fails(32, &words);
}

#[test]
fn files_that_are_not_images_are_refused() {
    let dir = Dir::new();
    let file = dir.text("zeroes.img");
    std::fs::write(&file, "text").expect("file");
    all_fail(&dir, &file, &["zeroes.img: no ext2/3/4 file system", "no backup superblock, no partition table"]);
    std::fs::write(&file, "").expect("file");
    let make = format!("the file is empty; 'extant mkfs {file} SIZE' makes a file system in it");
    all_fail(&dir, &file, &["extant: ", "zeroes.img: no ext2/3/4 file system", &make]);
    std::fs::File::options().write(true).open(&file).expect("file").set_len(1 << 20).expect("a hole");
    all_fail(&dir, &file, &[&format!("'extant mkfs {file}' makes a file system in it")]);
    let missing = dir.text("missing.img");
    all_fail(&dir, &missing, &["missing.img: No such file or directory"]);
    let directory = dir.text("a.dir");
    std::fs::create_dir(&directory).expect("directory");
    all_fail(&dir, &directory, &["a.dir: neither a file nor a block device"]);
}

/// Zeros at the start of a file may be accidental: the rest may be the only copy of the data.
#[test]
fn no_overwriting_command_is_proposed_while_the_file_has_data() {
    let dir = Dir::new();
    let (image, file) = (dir.image("ext4", &[]), dir.text("hurt.img"));
    let whole = std::fs::read(&image).expect("image");
    let fails = |args: &[&str], words: &[&str]| {
        let said = extant(args).fails(8, words);
        assert!(!said.contains("mke2fs"), "{said}");
    };
    // A file of written zeros; a file system at an offset without a partition table; a disk whose partition table is
    // zeroed, and one of its partitions while the table is intact.
    std::fs::write(&file, vec![0; 4 << 20]).expect("file");
    let searched = ["no superblock at byte 1024", "'-o offset=BYTES'", "extant info", "testdisk"];
    for verb in ["ls", "info", "tree"] {
        fails(&[verb, &file], &searched);
    }
    for start in [1 << 20, 63 * 512, 3 << 20] {
        std::fs::write(&file, [&vec![0; start], &whole[..]].concat()).expect("file");
        let found = format!("begins at byte {start}: 'extant mount -o ro,offset={start} {file} DIR' mounts it");
        fails(&["ls", &file], &[&found]);
    }
    std::fs::write(&file, [&vec![0; (1 << 20) + 4096], &whole[..]].concat()).expect("file");
    fails(&["ls", &file], &searched);
    whole_disk(&file, &image);
    patch(&file, 0, &[0; 512]);
    fails(&["ls", &file], &["no partition table"]);
    whole_disk(&file, &image);
    fails(&["ls", &format!("{file}@1")], &["hurt.img@1: no ext2/3/4 file system: no superblock at byte 1024"]);
    assert!(!extant(&["ls", &format!("{file}@1")]).err.contains("no partition table"), "there is one");
}

#[test]
fn partitions_are_found_in_the_backup_gpt() {
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("disk.gpt"));
    let whole = std::fs::read(&image).expect("image");
    let file = std::fs::File::create(&disk).expect("disk");
    file.set_len(160 << 20).expect("size");
    let table = dir.text("table");
    std::fs::write(&table, "label: gpt\nstart=2048,size=131072,name=one\nstart=133120,size=131072,name=two\n")
        .expect("table");
    tool("sh", &["-c", &format!("PATH=$PATH:/usr/sbin:/sbin sfdisk -q {disk} < {table}")]);
    for start in [2048, 133120] {
        patch(&disk, start * 512, &whole);
    }
    // Damages the whole table at the start, and then only its first sector.
    let (_, healthy) = (extant(&["info", "--json", &disk]).ok(), extant(&["info", &disk]).ok());
    assert!(!healthy.contains("damaged"), "{healthy}");
    for (sectors, said) in [(1, false), (34, true)] {
        patch(&disk, 0, &vec![0; sectors * 512]);
        let info = extant(&["info", &disk]).ok();
        assert!(info.contains("\"one\"") && info.contains("\"two\""), "{info}");
        assert_eq!(info.contains("using its backup at the end of the disk"), said, "{info}");
        assert_eq!(extant(&["cat", &format!("{disk}@2"), "/etc/passwd"]).ok(), "root:x:0:0::/root:/bin/sh\n");
    }
    assert!(extant(&["info", "--json", &disk]).ok().contains("\"backup-gpt\""));
    extant(&["ls", &disk]).fails(8, &["using its backup at the end of the disk", "2 ext2/3/4 file systems"]);
}

/// A format that users mistake for an image is named, with the next command.
#[test]
fn foreign_formats_are_named_with_the_next_command() {
    let dir = Dir::new();
    let file = dir.text("a.img");
    let make = |program: &str, args: &[&str]| {
        std::fs::write(&file, vec![1; 100_000]).expect("file");
        tool(program, args);
    };
    make("gzip", &["-kf", &file]);
    all_fail(
        &dir,
        &format!("{file}.gz"),
        &["a.img.gz: no ext2/3/4 file system, but compressed with gzip", "gunzip -k"],
    );
    make("xz", &["-kf", &file]);
    all_fail(&dir, &format!("{file}.xz"), &["compressed with xz: unpack it with 'unxz -k "]);
    make("mkswap", &[&file]);
    all_fail(&dir, &file, &["but swap space: "]);
    for (at, magic, words) in [
        (3, &b"NTFS    "[..], ["an NTFS file system", "mount it with"]),
        (0, b"LUKS\xba\xbe", ["encrypted with LUKS", "cryptsetup open"]),
        (32769, b"CD001", ["an ISO 9660 file system", "-o loop"]),
        (0, b"\x3a\xff\x26\xed", ["an Android sparse image", "simg2img"]),
    ] {
        std::fs::write(&file, vec![0; 1 << 20]).expect("file");
        patch(&file, at, magic);
        // As in a boot sector.
        patch(&file, 510, &[0x55, 0xaa]);
        all_fail(&dir, &file, &words);
    }
    // The same in a partition.
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    patch(&disk, 2048 * 512, b"XFSB");
    extant(&["ls", "--partition", "1", &disk])
        .fails(8, &["whole.img", "no ext2/3/4 file system, but an XFS file system"]);
}

#[test]
fn the_only_ext_partition_needs_no_number() {
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    let two = "whole.img: a whole disk with 2 ext2/3/4 file systems; choose a partition";
    extant(&["ls", &disk]).fails(8, &[two, "   5 "]);
    // Partition 5 loses its superblock.
    let logical = 512 * (4096 + (64 << 20) / 512 + 2048);
    patch(&disk, logical + 1024 + 56, &[0, 0]);
    assert_eq!(extant(&["cat", &disk, "/etc/passwd"]).ok(), "root:x:0:0::/root:/bin/sh\n");
    extant(&["cp", &dir.text("src/empty"), &format!("{disk}:/new")]).ok();
    assert!(extant(&["ls", &format!("{disk}@2")]).out.windows(5).any(|w| w == b"\nnew\n"));
    patch(&disk, 512 * 4096 + 1024 + 56, &[0, 0]);
    extant(&["ls", &disk])
        .fails(8, &["whole.img: a whole disk, but none of its partitions has an ext2/3/4 superblock"]);
}

#[test]
fn a_read_only_device_is_reported_as_such() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop devices");
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let device = tool("losetup", &["-r", "-f", "--show", &image]).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        let words = [&format!("{device}: may only be read; 'extant mount -o ro {device} DIR' mounts it read-only")[..]];
        extant(&["cp", &dir.text("src/empty"), &format!("{device}:/new")]).fails(8, &words);
        assert_eq!(extant(&["ls", &device]).code, Some(0));
    });
    tool("losetup", &["-d", &device]);
    tried.unwrap();
}

#[test]
fn a_missing_helper_is_named_with_its_package() {
    if !rustix::process::geteuid().is_root() || !extant_testkit::mount::fuse_works() {
        eprintln!("skipped: needs root, to become nobody, and FUSE");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::new();
    let (image, mnt, program) = (dir.image("ext4", &[]), dir.text("mnt"), dir.text("extant"));
    std::fs::create_dir(&mnt).expect("directory");
    common::copy_program(&program);
    for path in [&dir.text(""), &image, &mnt] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("mode");
    }
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "PATH=/none"];
    common::run("setpriv", &[&nobody[..], &[&program, "mount", &image, &mnt]].concat())
        .fails(32, &["there is no program fusermount3 (on Debian: apt install fuse3)"]);
}

#[test]
fn a_truncated_image_is_read_with_a_warning() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    std::fs::File::options().write(true).open(&image).expect("open").set_len(40 << 20).expect("cut");
    // The rest is read, with a warning; files after the end fail, and nothing is written.
    for args in [&["ls", &image][..], &["stat", &image, "/"], &["tree", &image]] {
        let ran = extant(args);
        assert!(ran.code == Some(0) && ran.err.contains("behind the device's end is lost"), "{args:?}: {ran:?}");
    }
    extant(&["cp", &dir.text("src/empty"), &format!("{image}:/x")]).fails(8, &["disk.img: ", "on a device of"]);
    // `info` shows its superblock.
    assert_eq!(extant(&["info", &image]).code, Some(0));
}

#[test]
fn a_damaged_superblock_is_replaced_by_a_backup_for_reading() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    patch(&image, 1024 + 120, b"x");
    let info = extant(&["info", &image]);
    assert!(String::from_utf8_lossy(&info.out).contains("the primary is damaged"), "{info:?}");
    // Reads continue with a backup; writes do not.
    let ls = extant(&["ls", &image]);
    assert_eq!(ls.code, Some(0), "{}", ls.err);
    assert!(ls.err.contains("using the backup superblock"), "{}", ls.err);
    let file = dir.text("src/empty");
    extant(&["cp", &file, &format!("{image}:/x")]).fails(8, &["disk.img: superblock at byte 1024: checksum", "backup"]);
}

#[test]
fn unknown_features_are_refused() {
    let dir = Dir::new();
    // Without checksums, so that the test can set a bit.
    let image = dir.image("ext4", &["-O", "^metadata_csum"]);
    // s_feature_incompat, s_feature_ro_compat.
    let set = |at: u64, bit: u32| {
        let file = std::fs::File::options().read(true).write(true).open(&image).expect("open");
        let mut word = [0; 4];
        file.read_exact_at(&mut word, 1024 + at).expect("read");
        patch(&image, 1024 + at, &(u32::from_le_bytes(word) | bit).to_le_bytes());
        word
    };
    let before = set(0x60, 1 << 21);
    all_fail(&dir, &image, &["disk.img: unsupported: feature FEATURE_I21"]);
    patch(&image, 1024 + 0x60, &before);
    let before = set(0x64, 0x4000);
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    let info = extant(&["info", &image]).ok();
    assert!(info.contains("Extant:      read-only (shared_blocks)"), "{info}");
    patch(&image, 1024 + 0x64, &before);

    set(0x64, 1 << 28);
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    let source = dir.text("src/empty");
    let refused = ["disk.img: cannot be mounted for writing because of: FEATURE_R28"];
    extant(&["cp", &source, &format!("{image}:/x")]).fails(8, &refused);
    extant(&["mount", &image, &dir.text("mnt")]).fails(32, &refused);
}

#[test]
fn an_image_in_use_is_refused() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let device = |read_only| {
        let options = OpenOptions { read_only, engine: Engine::Psync, ..OpenOptions::default() };
        FileDevice::open(&image, options).expect("opened")
    };
    let lock = device(false);
    let me = format!("process {} (", std::process::id());
    // A process that has the image open for writing, and that will not end soon.
    content_fails(&dir, &image, &[&me]);
    drop(lock);
    // Several readers are allowed.
    let _lock = device(true);
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    extant(&["cp", &dir.text("src/empty"), &format!("{image}:/x")]).fails(8, &["disk.img: in use: ", &me]);
}

#[test]
fn an_image_mounted_by_the_kernel_is_refused() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (image, kernel) = (dir.image("ext4", &[]), dir.text("kernel"));
    std::fs::create_dir(&kernel).expect("directory");
    tool("mount", &["-o", "loop,ro", &image, &kernel]);
    let tried = std::panic::catch_unwind(|| {
        content_fails(&dir, &image, &["mounted by the kernel through /dev/loop", &kernel]);
    });
    umount(&[&kernel]);
    tried.unwrap();
}

/// Invalid UTF-8, in an unrelated mount point and in the image's own name, hides no mount.
#[test]
fn odd_names_hide_no_mount_of_the_kernel() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (image, kernel) = (dir.image("ext4", &[]), dir.text("kernel"));
    let odd = |name: &[u8]| dir.path("").join(OsStr::from_bytes(name)).into_os_string();
    let (bystander, odd_image) = (odd(b"by\xffstander"), odd(b"odd\xff.img"));
    for path in [OsStr::new(&kernel), &bystander] {
        std::fs::create_dir(path).expect("directory");
    }
    let did = |program: &str, args: &[&OsStr]| {
        assert!(Command::new(program).args(args).status().expect("started").success(), "{program} {args:?}");
    };
    // `extant rm` refuses an image that the kernel has mounted and names the mount, whatever the image is called.
    let refused = |image: &OsStr| {
        let mut place = image.to_owned();
        place.push(":/etc/passwd");
        let done = Command::new(common::extant_path()).arg("rm").arg(&place).output().expect("started");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(8), "{said}");
        assert!(said.contains("in use: mounted by the kernel through /dev/loop") && said.contains(&kernel), "{said}");
    };
    did("mount", &["-t".as_ref(), "tmpfs".as_ref(), "none".as_ref(), &bystander]);
    tool("mount", &["-o", "loop,ro", &image, &kernel]);
    let tried = std::panic::catch_unwind(|| {
        refused(OsStr::new(&image));
        content_fails(&dir, &image, &["mounted by the kernel through /dev/loop", &kernel]);
    });
    umount(&[&kernel]);
    did("umount", &[&bystander]);
    tried.unwrap();
    std::fs::rename(&image, &odd_image).expect("renamed");
    did("mount", &["-o".as_ref(), "loop,ro".as_ref(), &odd_image, kernel.as_ref()]);
    let tried = std::panic::catch_unwind(|| refused(&odd_image));
    umount(&[&kernel]);
    tried.unwrap();
}

/// Without /proc, an image on a loop device may be mounted; an image without a loop device cannot be.
#[test]
fn images_of_loop_devices_are_not_written_where_the_mounts_are_unknown() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs mounts");
        return;
    }
    let dir = Dir::new();
    let (image, kernel) = (dir.image("ext4", &[]), dir.text("kernel"));
    let program = common::extant_path().to_str().expect("UTF-8");
    let blind = |args: &str| {
        let line = format!("mount -t tmpfs none /proc && exec {program} {args}");
        common::run("unshare", &["-m", "sh", "-c", &line])
    };
    blind(&format!("rm {image}:/big")).ok();
    blind(&format!("stat {image} /etc")).ok();
    std::fs::create_dir(&kernel).expect("directory");
    tool("mount", &["-o", "loop", &image, &kernel]);
    let ran = blind(&format!("rm {image}:/empty"));
    umount(&[&kernel]);
    ran.fails(8, &["disk.img: in use: attached to /dev/loop", "it is unknown whether it is mounted"]);
    common::fsck_clean(&image);
}

#[test]
fn invalid_mount_options_are_refused() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    let try_options = |options: &str| extant(&["mount", "-o", options, &image, &mnt]);
    try_options("ro,frobnicate").fails(1, &["unknown mount option 'frobnicate'; 'extant help mount' lists them"]);
    try_options("cache=lots").fails(1, &["mount option 'cache=lots': 'lots' is not a size"]);
    try_options("data=none").fails(1, &["'none' is none of ordered, writeback, journal"]);
    try_options("mb_policy=best").fails(1, &["'best' is none of vanilla, "]);
    try_options("offset=1M,partition=1").fails(1, &["exclude each other"]);
    try_options("offset=1G").fails(32, &["disk.img: offset 1073741824 is past the end"]);
    try_options("offset=1M").fails(32, &["no ext2/3/4 file system"]);
    try_options("partition=1").fails(32, &["no partition table"]);
    extant(&["mount", &image]).fails(1, &["DIR"]);
    extant(&["mount", &image, &dir.text("none")]).fails(32, &["none", "not a usable mount point"]);
    extant(&["mount", &image, &image]).fails(32, &["not a usable mount point"]);
    // A failed mount leaves nothing to recover.
    common::fsck_clean(&image);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    extant(&["mount", &disk, &mnt]).fails(32, &["whole.img: a whole disk", "-o partition=N", "   5 "]);
    extant(&["unmount", &mnt]).fails(32, &["mnt: not mounted"]);
    extant(&["unmount", "/proc"]).fails(32, &["/proc: mounted, but not by extant (type proc)"]);
}

/// As mount(8) calls it.
#[test]
fn the_mount_helper_mounts() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let helper = dir.text("mount.fuse.extant");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_extant"), &helper).expect("link");
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    common::run(&helper, &[&image, &mnt, "-o", "rw,frobnicate"]).fails(1, &["unknown mount option 'frobnicate'"]);
    common::run(&helper, &[&image, &mnt, "-f", "-n", "-o", "rw,noauto,user,nofail,x-systemd.idle-timeout=1"]).ok();
    common::run(&helper, &[&image, &mnt, "-f", "-s", "-o", "frobnicate"]).ok();
}
