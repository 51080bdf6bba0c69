//! The command lines with which image builders call mke2fs, under its names: each makes the same image as mke2fs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{CommandResult, Dir, debugfs, extant, extant_path, fsck_clean, loop_mounts_work, run, tool};

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// Names of mke2fs that link to extant, for programs that search PATH.
fn names(dir: &Dir) -> String {
    let bin = dir.text("bin");
    fs::create_dir(&bin).expect("directory");
    for name in ["mke2fs", "mkfs.ext2", "mkfs.ext3", "mkfs.ext4"] {
        symlink(extant_path(), format!("{bin}/{name}")).expect("a link");
    }
    bin
}

/// The fields of a superblock that a builder chooses, and the files in the root directory.
fn look(image: &str) -> Vec<String> {
    let fields = [
        "Filesystem features",
        "Filesystem volume name",
        "Filesystem OS type",
        "Filesystem UUID",
        "Filesystem revision",
        "Last mounted on",
        "Directory Hash Seed",
        "Errors behavior",
        "Inode count",
        "Block count",
        "Reserved block count",
        "Block size",
        "Fragment size",
        "Blocks per group",
        "Inode size",
        "Flex block group size",
        "RAID",
        "Total journal size",
        "Group descriptor size",
    ];
    let superblock = tool("dumpe2fs", &["-h", image]);
    let is_chosen = |line: &&str| fields.iter().any(|field| line.starts_with(field));
    let mut lines: Vec<String> = superblock.lines().filter(is_chosen).map(str::to_owned).collect();
    let list = debugfs(image, "ls -p /etc");
    // Inode numbers and times differ between the programs.
    let of = |line: &str| line.split('/').skip(2).map(str::to_owned).collect::<Vec<_>>().join("/");
    let mut names: Vec<String> = list.lines().filter(|line| line.len() > 3).map(of).collect();
    names.retain(|line| !line.contains("/./") && !line.contains("/../"));
    names.sort();
    lines.extend(names);
    lines
}

/// The builder, the size of the file that it creates first (0: none), and its command line. In it, `@` is the image,
/// `src` the tree.
const LINES: &[(&str, u64, &str)] = &[
    (
        "systemd-repart",
        64,
        "mkfs.ext4 -q -L root -U UUID -I 256 -m 0 -O verity -E nodiscard,lazy_itable_init=1,hash_seed=UUID -b 4096 -T default -d src @",
    ),
    ("Buildroot", 0, "mkfs.ext4 -d src -r 1 -N 0 -m 5 -L rootfs -I 256 -O ^64bit @ 60M"),
    ("Yocto", 60, "mkfs.ext4 -F -i 4096 @ -d src -U UUID"),
    (
        "OpenWrt",
        64,
        "mke2fs -F -t ext4 -L rootfs -O ^dir_index,^metadata_csum,^64bit -d src -b 4096 -m 0 -J size=4 -N 6000 @ -U UUID",
    ),
    ("pi-gen", 300, "mkfs.ext4 -L rootfs -O ^metadata_csum,^64bit -U UUID @"),
    ("Armbian", 300, "mkfs.ext4 -q -m 2 -O ^64bit,^metadata_csum -L armbi_root -U UUID @"),
    ("genimage", 0, "mke2fs -t ext4 -E root_owner=0:0 -L system -U UUID -I 256 -m 0 -d src @ 32768k"),
    ("Kata Containers", 128, "mkfs.ext4 -q -F -b 4096 -U UUID @"),
    ("diskimage-builder", 600, "mkfs.ext4 -t ext4 -i 4096 -J size=64 -L cloudimg-rootfs -U UUID -q @"),
    ("ubuntu-image", 200, "mkfs.ext4 -L writable -O -metadata_csum -T default -O uninit_bg @ -d src -U UUID"),
    ("snapd", 64, "mkfs.ext4 -T default -O -metadata_csum,uninit_bg -L ubuntu-save -U UUID -d src @"),
    ("libguestfs", 64, "mke2fs -t ext2 -F -U UUID @"),
    ("PiShrink and others", 64, "mkfs.ext4 -q -q -F -F -b -4096 -K -U UUID @"),
    ("GNU/Hurd", 64, "mke2fs -F -o hurd -b 4096 -d src -U UUID @"),
    (
        "Android",
        0,
        "mke2fs -t ext4 -b 4096 -O ^has_journal,^resize_inode,^metadata_csum,^64bit,uninit_bg -L system -M /system -m 0 -I 256 -U UUID -E hash_seed=UUID @ 16384",
    ),
];

#[test]
fn builders_get_what_mke2fs_makes_of_their_lines() {
    let dir = Dir::new();
    let bin = names(&dir);
    fs::create_dir_all(dir.path("src/etc")).expect("directory");
    for number in 0..40 {
        fs::write(dir.path(&format!("src/etc/f{number}")), number.to_string()).expect("file");
    }
    for (builder, mib, line) in LINES {
        let [own, theirs] = ["own.img", "theirs.img"].map(|name| {
            let image = dir.text(name);
            let _ = fs::remove_file(&image);
            if *mib > 0 {
                fs::File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("file");
            }
            let word = |word: &str| word.replace('@', &image).replace("src", &dir.text("src")).replace("UUID", UUID);
            let words: Vec<String> = line.split(' ').map(word).collect();
            let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            if name == "theirs.img" {
                tool(&words[0], &args);
            } else {
                let CommandResult { code, out, err } = run(format!("{bin}/{}", words[0]), &args);
                assert_eq!(code, Some(0), "{builder}: {}{err}", String::from_utf8_lossy(&out));
            }
            image
        });
        fsck_clean(&own);
        // If the command line specifies none, both are random.
        let is_given = |found: &String| match found {
            found if found.starts_with("Filesystem UUID") => line.contains("-U UUID"),
            found if found.starts_with("Directory Hash Seed") => line.contains("hash_seed"),
            _ => true,
        };
        let [own, theirs] = [own, theirs].map(|image| look(&image).into_iter().filter(is_given).collect::<Vec<_>>());
        assert_eq!(own, theirs, "{builder}: {line}");
    }
}

#[test]
fn a_program_that_calls_mke2fs_makes_its_image_with_extant() {
    let dir = Dir::new();
    let path = format!("{}:{}", names(&dir), std::env::var("PATH").expect("PATH"));
    fs::create_dir_all(dir.path("root/etc")).expect("directory");
    fs::write(dir.path("root/etc/hostname"), "here\n").expect("file");
    let here = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).current_dir(dir.path(".")).env("PATH", &path).output();
        match done {
            Ok(done) => assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr)),
            Err(e) => panic!("{program}: {e}"),
        }
    };
    let has = |program: &str| {
        let has = Command::new(program).arg("--version").output().is_ok();
        if !has {
            eprintln!("skipped in part: needs {program}");
        }
        has
    };
    if has("systemd-repart") && loop_mounts_work() {
        fs::create_dir(dir.path("defs")).expect("directory");
        let root = dir.text("root/etc");
        let text = format!(
            "[Partition]\nType=linux-generic\nFormat=ext4\nLabel=data\nSizeMinBytes=32M\nSizeMaxBytes=32M\nCopyFiles={root}:/etc\n"
        );
        fs::write(dir.path("defs/10.conf"), text).expect("file");
        let defs = format!("--definitions={}", dir.text("defs"));
        let args = ["--empty=create", "--size=64M", "--dry-run=no", "--no-pager", &defs, "repart.img"];
        here("systemd-repart", &args);
        assert_eq!(extant(&["cat", &dir.text("repart.img@1"), "/etc/hostname"]).ok(), "here\n");
        extant(&["fsck", "-fn", &dir.text("repart.img@1")]).ok();
    }
    if has("genimage") {
        let text = "image g.ext4 {\n ext4 { use-mke2fs = true label = \"system\" extraargs = \"-O -metadata_csum\" }\n size = 32M\n}\n";
        fs::write(dir.path("genimage.cfg"), text).expect("file");
        let args = ["--config", "genimage.cfg", "--rootpath", "root", "--tmppath", "tmp", "--inputpath", "."];
        here("genimage", &[&args[..], &["--outputpath", "out"]].concat());
        assert_eq!(extant(&["cat", &dir.text("out/g.ext4"), "/etc/hostname"]).ok(), "here\n");
        fsck_clean(&dir.text("out/g.ext4"));
    }
}

#[test]
fn words_of_newer_mke2fs_have_their_meaning() {
    let dir = Dir::new();
    let (tree, image) = (dir.tree(), dir.text("disk.img"));
    tool("setfattr", &["-n", "user.a", "-v", "b", &format!("{tree}/big")]);
    let root = |image: &str| debugfs(image, "stat /");
    let words = "root_owner=5:6,root_perms=1711,root_selinux=system_u:object_r:root_t:s0";
    for source in [&["-d", &tree][..], &[]] {
        extant(&[&["mkfs", "-qF", "-E", words], source, &[&image, "64M"]].concat()).ok();
        fsck_clean(&image);
        let said = root(&image);
        assert!(said.contains("Mode:  01711") && said.contains("User:     5   Group:     6"), "{said}");
        assert!(said.contains(r#"security.selinux (28) = "system_u:object_r:root_t:s0\000""#), "{said}");
    }
    extant(&["mkfs", "-qF", "-d", &tree, &image, "64M"]).ok();
    assert!(debugfs(&image, "stat /big").contains("user.a"));
    extant(&["mkfs", "-qF", "-E", "no_copy_xattrs", "-d", &tree, &image, "64M"]).ok();
    assert!(!debugfs(&image, "stat /big").contains("user.a"));
    extant(&["mkfs", "-qF", "-E", "revision=0", "-t", "ext2", "-O", "none", &image, "8M"]).ok();
    assert!(tool("dumpe2fs", &["-h", &image]).contains("0 (original)"));
    // Old options warn, and work.
    let said = extant(&["mkfs", "-qF", "-K", "-R", "stride=8", &image, "64M"]);
    assert_eq!((said.code, &*said.err), (Some(0), "extant: -K: it is out of date; use -E nodiscard\n"));
    assert!(tool("dumpe2fs", &["-h", &image]).contains("RAID stride:              8"));
    for (args, words) in [
        (&["-z", "undo"][..], "-z: Extant writes no undo file"),
        (&["-o", "plan9"], "-o plan9: unknown operating system; use linux, hurd"),
        (&["-o", "hurd", "-O", "filetype"], "-O filetype: the Hurd does not support it"),
        (&["-E", "root_perms=8"], "-E root_perms=8: it takes octal digits"),
        (&["-E", "root_perms=+7"], "-E root_perms=+7: it takes octal digits"),
        (&["-E", "root_perms=100755"], "-E root_perms=100755: it takes octal digits"),
        (&["-E", "root_selinux="], "-E root_selinux: it takes a label"),
        (&["-E", "desc_size=64", "-O", "^64bit"], "-E desc_size: it needs the feature 64bit"),
        (&["-E", "desc_size=48"], "-E desc_size=48: it takes a power of two from 64 to 1024"),
        (&["-b", "-512"], "-b 512: it takes a power of two from 1024"),
        (&["-m", "-1"], "-m -1: it takes a percentage"),
    ] {
        let new = dir.text("new.img");
        extant(&[&["mkfs"][..], args, &[&new, "64M"]].concat()).fails(1, &[words]);
        assert!(!Path::new(&new).exists(), "{args:?} left a file");
    }
}

#[test]
fn android_sparse_is_a_word_of_mke2fs_too() {
    let dir = Dir::new();
    let bin = names(&dir);
    let (by_word, by_option) = (dir.text("word.img"), dir.text("option.img"));
    let common = ["-q", "-t", "ext4", "-b", "4096", "-O", "^has_journal", "-L", "vendor", "-m", "0", "-M", "/vendor"];
    let seed = format!("android_sparse,hash_seed={UUID}");
    let dated = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).env("SOURCE_DATE_EPOCH", "1000000000").output().expect("it runs");
        assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    dated(&format!("{bin}/mke2fs"), &[&common[..], &["-U", UUID, "-E", &seed, &by_word, "4096"]].concat());
    let extant = extant_path().to_str().expect("UTF-8");
    let format = ["--format", "android-sparse", "-U", UUID, "-E", &seed["android_sparse,".len()..], &by_option, "4096"];
    dated(extant, &[&["mkfs"], &common[..], &format].concat());
    let packed = fs::read(&by_word).expect("image");
    assert!(packed.starts_with(b"\x3a\xff\x26\xed") && packed == fs::read(&by_option).expect("image"));
}
