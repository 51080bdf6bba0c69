//! Journals on devices of their own: made, given to file systems, written through, replayed, checked and refused. The
//! kernel, e2fsck and mke2fs work on the same pairs of files.

use std::fs::{self, File};
use std::io::Write;

use crate::common::{Dir, debugfs, extant, patch, run, tool, umount};
use extant_testkit::differential::{Plan, alternates, extant as extant_mount, reads, writes};
use extant_testkit::kinds::kind;
use extant_testkit::mount::{AttachedFile, fuse_works, loop_mounts_work};
use extant_testkit::oracle::run_command;
use extant_testkit::tests_of_cases;

const UUID: &str = "11111111-2222-4333-8444-555555555555";
const SEED: &str = "hash_seed=99999999-8888-4777-8666-555555555555";

/// A file system and its journal, in files.
struct Pair {
    dir: Dir,
    journal: String,
    image: String,
    mnt: String,
}

impl Pair {
    fn new(mkfs: &[&str], journal: &[&str]) -> Pair {
        let dir = Dir::new();
        let (log, image, mnt) = (dir.text("log.img"), dir.text("fs.img"), dir.text("mnt"));
        fs::create_dir(&mnt).expect("directory");
        extant(&[&["mkfs", "-q", "-O", "journal_dev"], journal, &[&log, "16M"]].concat()).ok();
        let device = format!("device={log}");
        extant(&[&["mkfs", "-q", "-J", &device], mkfs, &[&image, "64M"]].concat()).ok();
        Pair { dir, journal: log, image, mnt }
    }

    fn mount(&self, image: &str, journal: &str) {
        extant(&["mount", "-o", &format!("journal_path={journal}"), image, &self.mnt]).ok();
    }

    /// Copies of both while they are mounted: what a power cut leaves.
    fn cut(&self, name: &str) -> (String, String) {
        let (image, journal) = (self.dir.text(&format!("{name}.img")), self.dir.text(&format!("{name}-log.img")));
        fs::copy(&self.image, &image).expect("copied");
        fs::copy(&self.journal, &journal).expect("copied");
        (image, journal)
    }

    /// The kernel's mount of both, and what `f` finds there.
    fn by_kernel<T>(&self, image: &str, journal: &str, f: impl FnOnce(&str) -> T) -> T {
        let log = AttachedFile::new(journal.as_ref()).expect("loop device");
        let options = format!("loop,journal_path={}", log.path());
        let mounted = run("mount", &["-o", &options, image, &self.mnt]);
        assert_eq!(mounted.code, Some(0), "{}{}", mounted.err, tool("sh", &["-c", "dmesg | tail -5"]));
        let found = f(&self.mnt);
        umount(&[&self.mnt]);
        found
    }
}

fn clean(image: &str, journal: &str) {
    let (code, said) = run_command("e2fsck", &["-fn", "-j", journal, image]).expect("e2fsck");
    assert_eq!(code, Some(0), "{said}");
    let said = extant(&["fsck", "-fn", "-j", journal, image]);
    assert_eq!(said.code, Some(0), "{} {}", String::from_utf8_lossy(&said.out), said.err);
}

fn works() -> bool {
    let works = crate::common::loop_mounts_work() && loop_mounts_work() && fuse_works();
    if !works {
        eprintln!("skipped: needs loop mounts and /dev/fuse");
    }
    works
}

fn write_synced(path: &str, content: &str) {
    let mut file = File::create(path).expect("created");
    file.write_all(content.as_bytes()).expect("written");
    file.sync_all().expect("synced");
}

/// Byte for byte, apart from the count of written bytes, which mke2fs gets from the kernel.
#[test]
fn mkfs_makes_the_journal_that_mke2fs_makes() {
    let dir = Dir::new();
    for (words, mke2fs) in [
        (&["-b", "4096"][..], &["-O", "journal_dev"][..]),
        (&["-b", "1024", "-L", "a log"], &["-O", "journal_dev"]),
        (&["-b", "4096"], &["-O", "journal_dev,metadata_csum"]),
    ] {
        let (ours, theirs) = (dir.text("ours"), dir.text("theirs"));
        let common = [words, mke2fs, &["-q", "-F", "-U", UUID, "-E", SEED]].concat();
        let fake = |file: &str, program: &str| {
            let args = [&["E2FSPROGS_FAKE_TIME=1700000000", program][..], &common, &[file, "16M"]].concat();
            assert_eq!(run("env", &args).code, Some(0), "{program} {common:?}");
            let mut bytes = fs::read(file).expect("made");
            bytes[1024 + 0x178..1024 + 0x180].fill(0);
            bytes[1024 + 0x3fc..1024 + 0x400].fill(0);
            bytes
        };
        let program = dir.text("mke2fs-of-extant");
        fs::write(&program, format!("#!/bin/sh\nexec {} mkfs \"$@\"\n", crate::common::extant_path().display()))
            .expect("script");
        tool("chmod", &["+x", &program]);
        let (ours, theirs) = (fake(&ours, &program), fake(&theirs, "mke2fs"));
        let differs = ours.iter().zip(&theirs).position(|(one, other)| one != other);
        assert_eq!((differs, ours.len()), (None, theirs.len()), "{common:?}");
        for name in ["ours", "theirs"] {
            fs::remove_file(dir.path(name)).expect("removed");
        }
    }
    let image = dir.text("small");
    extant(&["mkfs", "-O", "journal_dev", &image, "1M"]).fails(1, &["it must have 1025 to"]);
    assert!(!dir.path("small").exists());
}

/// Written through FUSE, cut, and replayed by Extant, e2fsck and the kernel.
fn survive_a_cut(mkfs: &[&str]) {
    if !works() {
        return;
    }
    let journal: &[&str] = if mkfs.contains(&"1024") { &["-b", "1024"] } else { &[] };
    let pair = Pair::new(mkfs, journal);
    clean(&pair.image, &pair.journal);
    pair.mount(&pair.image, &pair.journal);
    fs::create_dir(format!("{}/d", pair.mnt)).expect("directory");
    write_synced(&format!("{}/d/f", pair.mnt), "in the log");
    let (image, log) = pair.cut("cut");
    assert!(!debugfs(&image, "ls /").contains(") d "), "it is in the log alone");
    // A second user is refused, whichever file it names.
    extant(&["mount", "-o", &format!("journal_path={}", pair.journal), &image, &pair.mnt])
        .fails(32, &[&pair.journal, "in use"]);
    extant(&["unmount", &pair.mnt]).ok();
    clean(&pair.image, &pair.journal);
    let read = |mnt: &str| fs::read_to_string(format!("{mnt}/d/f")).expect("there");
    // The kernel finds it after our unmount, and writes.
    pair.by_kernel(&pair.image, &pair.journal, |mnt| {
        assert_eq!(read(mnt), "in the log");
        write_synced(&format!("{mnt}/kernel"), "by the kernel");
    });
    clean(&pair.image, &pair.journal);
    // A cut, for each of the three.
    let copy = |name: &str| {
        let (to, to_log) = (pair.dir.text(&format!("{name}.img")), pair.dir.text(&format!("{name}-log.img")));
        fs::copy(&image, &to).expect("copied");
        fs::copy(&log, &to_log).expect("copied");
        (to, to_log)
    };
    let (one, one_log) = copy("kernel");
    assert_eq!(pair.by_kernel(&one, &one_log, read), "in the log");
    clean(&one, &one_log);
    let (one, one_log) = copy("e2fsck");
    let (code, said) = run_command("e2fsck", &["-p", "-j", &one_log, &one]).expect("e2fsck");
    assert!(code <= Some(1), "{said}");
    assert_eq!(extant(&["cat", &one, "/d/f"]).ok(), "in the log");
    clean(&one, &one_log);
    let (one, one_log) = copy("extant");
    pair.mount(&one, &one_log);
    assert_eq!(read(&pair.mnt), "in the log");
    extant(&["unmount", &pair.mnt]).ok();
    clean(&one, &one_log);
    let (one, one_log) = copy("fsck");
    let said = extant(&["fsck", "-p", "-j", &one_log, &one]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let said = String::from_utf8(said.out).expect("text");
    assert!(said.contains("transactions of the log on") && said.contains("no damage"), "{said}");
    assert_eq!(extant(&["cat", &one, "/d/f"]).ok(), "in the log");
    clean(&one, &one_log);
}

tests_of_cases!(
    transactions_in_a_journal_on_another_device_survive_a_cut,
    survive_a_cut,
    ext4: &["-b", "4096"],
    ext3: &["-t", "ext3", "-b", "1024"],
);

/// The kernel wrote, and both were copied during its mount.
#[test]
fn a_log_of_the_kernel_on_another_device_is_replayed() {
    if !works() {
        return;
    }
    let dir = Dir::new();
    let (log, image, at) = (dir.text("log.img"), dir.text("fs.img"), dir.text("mnt"));
    fs::create_dir(&at).expect("directory");
    tool("mke2fs", &["-q", "-F", "-b", "4096", "-O", "journal_dev", &log, "16M"]);
    let device = AttachedFile::new(log.as_ref()).expect("loop device");
    let journal = format!("device={}", device.path());
    let made = run_command("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-J", &journal, &image, "64M"]);
    let made = made.expect("mke2fs");
    let mounted = run("mount", &["-o", "loop", &image, &at]);
    let (crashed_log, crashed) = (dir.text("log2.img"), dir.text("fs2.img"));
    let worked = fs::create_dir(format!("{at}/d"))
        .and_then(|()| fs::write(format!("{at}/d/f"), "in the log"))
        .and_then(|()| File::open(format!("{at}/d/f"))?.sync_all());
    fs::copy(&log, &crashed_log).expect("copied");
    fs::copy(&image, &crashed).expect("copied");
    if mounted.code == Some(0) {
        umount(&[&at]);
    }
    drop(device);
    assert_eq!((made.0, mounted.code), (Some(0), Some(0)), "{} {}", made.1, mounted.err);
    worked.expect("written");

    extant(&["mount", "-o", "ro", &crashed, &at]).fails(32, &["on another device", "journal_path="]);
    extant(&["mount", &crashed, &at]).fails(32, &["on another device", "journal_path=", "-o ro"]);
    extant(&["cat", &crashed, "/d/f"]).fails(8, &["on another device", "--journal DEVICE"]);
    extant(&["fsck", "-p", &crashed]).fails(8, &["on another device", "fsck -j DEVICE"]);
    let (before, log_before) = (fs::read(&crashed).expect("read"), fs::read(&crashed_log).expect("read"));
    extant(&["mount", "-o", &format!("ro,journal_path={crashed_log}"), &crashed, &at]).ok();
    assert_eq!(fs::read(format!("{at}/d/f")).expect("replayed in memory"), b"in the log");
    extant(&["unmount", &at]).ok();
    assert_eq!(extant(&["cat", "--journal", &crashed_log, &crashed, "/d/f"]).ok(), "in the log");
    let said = extant(&["fsck", "-fn", "-j", &crashed_log, &crashed]);
    assert_eq!(said.code, Some(0), "{}", String::from_utf8_lossy(&said.out));
    assert!(fs::read(&crashed).expect("read") == before, "nothing is written");
    assert!(fs::read(&crashed_log).expect("read") == log_before, "nothing is written");
    // Writing replays it, and the verbs write through it.
    extant(&["mkdir", "--journal", &crashed_log, &format!("{crashed}:/new")]).ok();
    clean(&crashed, &crashed_log);
    assert_eq!(extant(&["cat", &crashed, "/d/f"]).ok(), "in the log");
    // A clean image is read without its journal.
    extant(&["mount", "-o", "ro", &image, &at]).ok();
    assert_eq!(fs::read(format!("{at}/d/f")).expect("there"), b"in the log");
    extant(&["unmount", &at]).ok();
}

/// The kernel and Extant do the same operations on the same kind of image, and read each other's.
#[test]
fn operations_with_a_journal_on_another_device_are_those_of_the_kernel() {
    if !works() {
        return;
    }
    for (fs_type, block_size) in [("ext4", 4096), ("ext3", 1024)] {
        let mut kind = kind(fs_type, "", None, block_size);
        kind.options.external_journal = 8 << 20;
        let ours = extant_mount(crate::common::extant_path(), &["-o", "noatime"]);
        let plan = Plan::new(71, 80, 2);
        writes(&ours, &kind, &plan).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
        reads(&ours, &kind, &plan).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
        alternates(&ours, &kind, &plan).unwrap_or_else(|e| panic!("{}: {e}", kind.name));
    }
}

#[test]
fn journals_that_do_not_fit_are_refused_and_nothing_changes() {
    let pair = Pair::new(&["-b", "4096"], &[]);
    let other = Pair::new(&["-b", "4096"], &[]);
    let write = |journal: &str, words: &[&str]| {
        let before = fs::read(&pair.image).expect("read");
        let log_before = fs::read(journal).expect("read");
        let said = extant(&["mkdir", "--journal", journal, &format!("{}:/d", pair.image)]).fails(8, words);
        assert!(said.contains(&pair.image), "{said}");
        assert!(fs::read(&pair.image).expect("read") == before, "{said}");
        assert!(fs::read(journal).expect("read") == log_before, "{said}");
    };
    extant(&["mkdir", &format!("{}:/d", pair.image)]).fails(8, &[&pair.image, "on another device", "--journal DEVICE"]);
    write(&other.journal, &[&other.journal, "the journal of another file system"]);
    write(&other.image, &[&other.image, "not a journal device"]);
    // The same journal, of a copy of the file system with another UUID.
    let copy = pair.dir.text("copy.img");
    fs::copy(&pair.image, &copy).expect("copied");
    patch(&copy, 1024 + 0x68, &[0x42; 16]);
    extant(&["mkdir", "--journal", &pair.journal, &format!("{copy}:/d")]).fails(8, &[&copy]);
    let variant = |name: &str, change: &dyn Fn(&str)| {
        let path = pair.dir.text(name);
        fs::copy(&pair.journal, &path).expect("copied");
        change(&path);
        path
    };
    let short =
        variant("short", &|path| File::options().write(true).open(path).expect("open").set_len(8 << 20).expect("cut"));
    write(&short, &[&short, "claims 4096 blocks"]);
    let damaged = variant("damaged", &|path| patch(path, 4096, &[0; 4]));
    write(&damaged, &[&damaged]);
    extant(&["fsck", "-p", "-j", &damaged, &pair.image]).fails(8, &[&damaged, "not checked"]);
    let unused = variant("unused", &|path| patch(path, 4096 + 0x40, &[0; 4]));
    write(&unused, &[&unused, "no file system uses it"]);
    extant(&["fsck", "-fn", "-j", &other.journal, &pair.image]).fails(8, &["another file system"]);
    // mkfs takes no journal from its owner, unless it is told to.
    let new = pair.dir.text("new.img");
    let device = format!("device={}", pair.journal);
    extant(&["mkfs", "-J", &device, &new, "16M"]).fails(1, &["it is the journal of the file system", "-F takes it"]);
    extant(&["mkfs", "-J", &format!("device={}", pair.image), &new, "16M"]).fails(1, &["not a journal device"]);
    extant(&["mkfs", "-b", "1024", "-J", &device, "-F", &new, "16M"])
        .fails(1, &["blocks of the journal have 4096 bytes"]);
    assert!(!pair.dir.path("new.img").exists());
    extant(&["mkfs", "-q", "-F", "-J", &device, &new, "16M"]).ok();
    clean(&new, &pair.journal);
    extant(&["mkdir", "--journal", &pair.journal, &format!("{}:/d", pair.image)]).fails(8, &["another file system"]);
    extant(&["mkdir", "--journal", &pair.journal, &format!("{new}:/d")]).ok();
    clean(&new, &pair.journal);
}

/// The users that the journal's superblock lists, as dumpe2fs prints them.
fn users(journal: &str) -> String {
    let (_, said) = run_command("dumpe2fs", &[journal]).expect("dumpe2fs");
    // It prints the number only if it is not 1.
    let line = said.lines().find_map(|line| line.strip_prefix("Journal number of users:"));
    let number = line.map_or("1", str::trim);
    let named = said.lines().find_map(|line| line.strip_prefix("Journal users:")).unwrap_or("").trim();
    format!("{number} {named}").trim().to_owned()
}

fn uuid_of(image: &str) -> String {
    let (_, said) = run_command("dumpe2fs", &["-h", image]).expect("dumpe2fs");
    let line = said.lines().find_map(|line| line.strip_prefix("Filesystem UUID:"));
    line.unwrap_or_else(|| panic!("{said}")).trim().to_owned()
}

/// Beside tune2fs, which does the same if the journal is a block device.
#[test]
fn tune_gives_a_file_system_a_journal_on_another_device_and_takes_it_away() {
    let dir = Dir::new();
    let (log, image, other) = (dir.text("log.img"), dir.text("fs.img"), dir.text("other.img"));
    extant(&["mkfs", "-q", "-O", "journal_dev", &log, "16M"]).ok();
    for file in [&image, &other] {
        extant(&["mkfs", "-q", "-O", "^has_journal", "-b", "4096", file, "64M"]).ok();
    }
    extant(&["mkdir", &format!("{image}:/d")]).ok();
    let device = format!("device={log}");
    let before = fs::read(&image).expect("read");
    // A journal that does not fit is refused, and nothing changes.
    let small = dir.text("small.img");
    extant(&["mkfs", "-q", "-O", "^has_journal", "-b", "1024", &small, "16M"]).ok();
    extant(&["tune", "-J", &device, &small]).fails(1, &["blocks of the journal have 4096 bytes"]);
    extant(&["tune", "-J", &format!("device={other}"), &image]).fails(1, &["not a journal device"]);
    assert_eq!(users(&log), "0");
    assert!(fs::read(&image).expect("read") == before);

    extant(&["tune", "-j", "-J", &device, &image]).ok();
    assert_eq!(users(&log), format!("1 {}", uuid_of(&image)));
    clean(&image, &log);
    extant(&["mkdir", &format!("{image}:/e")]).fails(8, &["on another device", "--journal DEVICE"]);
    extant(&["mkdir", "--journal", &log, &format!("{image}:/e")]).ok();
    clean(&image, &log);
    extant(&["tune", "-J", &device, &image]).fails(1, &["it has a journal already"]);
    // Another file system takes it only by force.
    extant(&["tune", "-J", &device, &other]).fails(1, &["it is the journal of the file system", "-f takes it"]);
    assert_eq!(users(&log), format!("1 {}", uuid_of(&image)));

    extant(&["tune", "-O", "^has_journal", &image]).fails(1, &["on another device", "-J device=DEVICE", "-f"]);
    let foreign = dir.text("foreign.img");
    extant(&["mkfs", "-q", "-O", "journal_dev", &foreign, "16M"]).ok();
    extant(&["tune", "-O", "^has_journal", "-J", &format!("device={foreign}"), &image])
        .fails(1, &["of another file system"]);
    assert_eq!(users(&log), format!("1 {}", uuid_of(&image)));
    extant(&["tune", "-O", "^has_journal", "-J", &device, &image]).ok();
    assert_eq!(users(&log), "0");
    let (code, said) = run_command("e2fsck", &["-fn", &image]).expect("e2fsck");
    assert_eq!(code, Some(0), "{said}");
    let (_, said) = run_command("dumpe2fs", &["-h", &image]).expect("dumpe2fs");
    assert!(
        !said.contains("has_journal") && !said.contains("Journal UUID") && !said.contains("Journal device"),
        "{said}"
    );
    assert!(debugfs(&image, "ls /").contains(") e "), "the files are there");

    // A lost device is left by force, and the journal's next owner takes it by force.
    extant(&["tune", "-J", &device, &image]).ok();
    extant(&["tune", "-f", "-O", "^has_journal", &image]).ok();
    assert_eq!(users(&log), format!("1 {}", uuid_of(&image)));
    extant(&["tune", "-f", "-J", &device, &other]).ok();
    assert_eq!(users(&log), format!("1 {}", uuid_of(&other)));
    clean(&other, &log);
    extant(&["mkdir", "--journal", &log, &format!("{other}:/d")]).ok();
    clean(&other, &log);
}

/// A log that has to be replayed keeps its file system.
#[test]
fn tune_takes_no_journal_away_whose_log_has_to_be_replayed() {
    if !works() {
        return;
    }
    let pair = Pair::new(&["-b", "4096"], &[]);
    pair.mount(&pair.image, &pair.journal);
    fs::create_dir(format!("{}/d", pair.mnt)).expect("directory");
    write_synced(&format!("{}/d/f", pair.mnt), "in the log");
    let (image, log) = pair.cut("cut");
    extant(&["unmount", &pair.mnt]).ok();
    let before = (fs::read(&image).expect("read"), fs::read(&log).expect("read"));
    let device = format!("device={log}");
    extant(&["tune", "-O", "^has_journal", "-J", &device, &image]).fails(1, &["cannot be checked"]);
    extant(&["tune", "-f", "-O", "^has_journal", &image]).fails(1, &["cannot be checked"]);
    assert!((fs::read(&image).expect("read"), fs::read(&log).expect("read")) == before);
    extant(&["fsck", "-p", "-j", &log, &image]);
    extant(&["tune", "-O", "^has_journal", "-J", &device, &image]).ok();
    assert_eq!((extant(&["cat", &image, "/d/f"]).ok().as_str(), users(&log).as_str()), ("in the log", "0"));
}
