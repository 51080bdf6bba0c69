//! Inode flags through a mount, compared with the kernel's own driver on a copy of the image: the operations that
//! immutable and append-only forbid, the letters of chattr(1) that each user may set, and projects.
//!
//! Needs root (loop mounts, chattr +i) and /dev/fuse; otherwise prints a line and passes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::{Dir, extant_path, fsck_clean, run, tool};
use extant_testkit::mount::{ExtantMount, LoopMount, fuse_works, loop_mounts_work};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    XattrFlags, fallocate, ftruncate, mknodat, open, removexattr, renameat_with, setxattr, utimensat,
};

/// Two mounts of one image: the kernel's, and Extant's with these options.
fn with_both(mke2fs: &[&str], options: &str, judge: impl FnOnce(&Path, &Path)) {
    if !loop_mounts_work() || !fuse_works() {
        eprintln!("skipped: needs loop mounts and /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let (a, b) = (dir.empty_image("kernel.img", mke2fs), dir.text("extant.img"));
    std::fs::copy(&a, &b).expect("copied");
    let (at_a, at_b) = (dir.path("kernel"), dir.path("extant"));
    for at in [&at_a, &at_b] {
        std::fs::create_dir(at).expect("directory");
    }
    // Other users than root must reach both.
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("mode");
    {
        let _kernel = LoopMount::new(Path::new(&a), &at_a, "noatime").expect("loop mount");
        let options = format!("noatime,allow_other,{options}");
        let _extant = ExtantMount::new(extant_path(), &["-o", &options], Path::new(&b), &at_b).expect("mount");
        judge(&at_a, &at_b);
    }
    fsck_clean(&a);
    fsck_clean(&b);
}

/// The files of one operation, created anew for each.
struct Case {
    top: PathBuf,
    file: PathBuf,
    dir: PathBuf,
    other: PathBuf,
    /// The file, opened before the flag was set.
    before: File,
}

fn chattr(flag: &str, path: &Path) {
    tool("chattr", &[flag, path.to_str().expect("UTF-8")]);
}

impl Case {
    fn new(mount: &Path) -> Case {
        let top = mount.join("case");
        for dir in ["", "d", "d/sub", "d/full", "empty"] {
            std::fs::create_dir(top.join(dir)).expect("directory");
        }
        for file in ["f", "other", "d/x", "d/full/y"] {
            std::fs::write(top.join(file), "0123456789").expect("file");
        }
        setxattr(top.join("f"), "user.there", b"1", XattrFlags::empty()).expect("xattr");
        let before = File::options().read(true).write(true).open(top.join("f")).expect("open");
        Case { file: top.join("f"), dir: top.join("d"), other: top.join("other"), before, top }
    }

    fn end(self, flagged: &Path, flag: &str) {
        // The operation may have renamed it.
        if flagged.exists() {
            chattr(&format!("-{flag}"), flagged);
        }
        std::fs::remove_dir_all(&self.top).expect("removed");
    }
}

type Op = (&'static str, fn(&Case) -> io::Result<()>);

fn opened(path: &Path, how: OFlags) -> io::Result<()> {
    Ok(open(path, how, Mode::empty()).map(|_| ())?)
}

fn times(path: &Path, nsec: i64) -> io::Result<()> {
    let t = Timespec { tv_sec: 1_000_000, tv_nsec: nsec };
    Ok(utimensat(CWD, path, &Timestamps { last_access: t, last_modification: t }, AtFlags::empty())?)
}

fn owner(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::chown(path, Some(Uid::from_raw(7)), Some(Gid::from_raw(7)))?)
}

fn renamed(from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

const OPENS: [Op; 4] = [
    ("open to write", |c| opened(&c.file, OFlags::WRONLY)),
    ("open to read and write", |c| opened(&c.file, OFlags::RDWR)),
    ("open to append", |c| opened(&c.file, OFlags::WRONLY | OFlags::APPEND)),
    ("open to append and truncate", |c| opened(&c.file, OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC)),
];

const ON_A_FILE: [Op; 24] = [
    ("open to read", |c| opened(&c.file, OFlags::RDONLY)),
    ("open and truncate", |c| opened(&c.file, OFlags::WRONLY | OFlags::TRUNC)),
    ("append", |c| {
        use io::Write;
        File::options().append(true).open(&c.file)?.write_all(b"more")
    }),
    ("write behind the end, opened before", |c| c.before.write_all_at(b"more", 10)),
    ("truncate", |c| {
        let path = CString::new(c.file.as_os_str().as_bytes()).expect("path");
        let fd = open(path.as_c_str(), OFlags::WRONLY | OFlags::APPEND, Mode::empty())?;
        Ok(ftruncate(fd, 3)?)
    }),
    ("truncate a descriptor opened before", |c| Ok(ftruncate(&c.before, 3)?)),
    ("preallocate", |c| Ok(fallocate(&c.before, FallocateFlags::empty(), 0, 8192)?)),
    ("preallocate, same size", |c| Ok(fallocate(&c.before, FallocateFlags::KEEP_SIZE, 0, 8192)?)),
    ("punch", |c| Ok(fallocate(&c.before, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)?)),
    ("zero", |c| Ok(fallocate(&c.before, FallocateFlags::ZERO_RANGE, 0, 4096)?)),
    ("chmod", |c| std::fs::set_permissions(&c.file, PermissionsExt::from_mode(0o600))),
    ("chown", |c| owner(&c.file)),
    ("times", |c| times(&c.file, 5)),
    ("times: now", |c| times(&c.file, UTIME_NOW)),
    ("set an attribute", |c| Ok(setxattr(&c.file, "user.new", b"1", XattrFlags::empty())?)),
    ("remove an attribute", |c| Ok(removexattr(&c.file, "user.there")?)),
    ("set a trusted attribute", |c| Ok(setxattr(&c.file, "trusted.new", b"1", XattrFlags::empty())?)),
    ("link", |c| std::fs::hard_link(&c.file, c.top.join("link"))),
    ("unlink", |c| std::fs::remove_file(&c.file)),
    ("rename", |c| std::fs::rename(&c.file, c.top.join("new"))),
    ("rename over", |c| std::fs::rename(&c.other, &c.file)),
    ("exchange", |c| renamed(&c.other, &c.file, RenameFlags::EXCHANGE)),
    ("no replace", |c| renamed(&c.other, &c.file, RenameFlags::NOREPLACE)),
    ("read", |c| std::fs::read(&c.file).map(|_| ())),
];

const ON_A_DIRECTORY: [Op; 24] = [
    ("create", |c| File::create(c.dir.join("new")).map(|_| ())),
    ("mkdir", |c| std::fs::create_dir(c.dir.join("new"))),
    ("symlink", |c| symlink("x", c.dir.join("new"))),
    ("mknod", |c| Ok(mknodat(CWD, c.dir.join("new"), FileType::Fifo, Mode::RUSR, 0)?)),
    ("link into", |c| std::fs::hard_link(&c.file, c.dir.join("new"))),
    ("link onto", |c| std::fs::hard_link(&c.file, c.dir.join("x"))),
    ("link inside", |c| std::fs::hard_link(c.dir.join("x"), c.dir.join("new"))),
    ("a file without a name", |c| opened(&c.dir, OFlags::TMPFILE | OFlags::RDWR)),
    ("unlink inside", |c| std::fs::remove_file(c.dir.join("x"))),
    ("rmdir inside", |c| std::fs::remove_dir(c.dir.join("sub"))),
    ("rmdir of a full one inside", |c| std::fs::remove_dir(c.dir.join("full"))),
    ("rename inside", |c| std::fs::rename(c.dir.join("x"), c.dir.join("new"))),
    ("rename out", |c| std::fs::rename(c.dir.join("x"), c.top.join("new"))),
    ("rename in", |c| std::fs::rename(&c.file, c.dir.join("new"))),
    ("rename in over", |c| std::fs::rename(&c.file, c.dir.join("x"))),
    ("exchange", |c| renamed(&c.file, &c.dir.join("x"), RenameFlags::EXCHANGE)),
    ("rmdir", |c| std::fs::remove_dir(&c.dir)),
    ("rename", |c| std::fs::rename(&c.dir, c.top.join("new"))),
    ("rename over an empty one", |c| std::fs::rename(&c.dir, c.top.join("empty"))),
    ("chmod", |c| std::fs::set_permissions(&c.dir, PermissionsExt::from_mode(0o700))),
    ("chown", |c| owner(&c.dir)),
    ("times", |c| times(&c.dir, 5)),
    ("set an attribute", |c| Ok(setxattr(&c.dir, "user.new", b"1", XattrFlags::empty())?)),
    ("write to a file inside", |c| std::fs::write(c.dir.join("x"), "changed")),
];

/// The result of each operation with the flag on the file, or on the directory.
fn answers(mount: &Path, opens: bool) -> Vec<String> {
    let mut all = Vec::new();
    for flag in ["i", "a"] {
        let mut on = |subject: &str, ops: &[Op], path: fn(&Case) -> &PathBuf| {
            for (name, op) in ops {
                let case = Case::new(mount);
                let flagged = path(&case).clone();
                chattr(&format!("+{flag}"), &flagged);
                let answer = op(&case).map_err(|e| e.raw_os_error());
                all.push(format!("+{flag} {subject}: {name}: {answer:?}"));
                case.end(&flagged, flag);
            }
        };
        if opens {
            on("file", &OPENS, |c| &c.file);
        }
        on("file", &ON_A_FILE, |c| &c.file);
        on("directory", &ON_A_DIRECTORY, |c| &c.dir);
    }
    all
}

#[track_caller]
fn same(kernel: &[String], extant: &[String]) {
    let differ: Vec<_> = kernel.iter().zip(extant).filter(|(k, e)| k != e).collect();
    assert!(differ.is_empty() && kernel.len() == extant.len(), "(kernel, Extant): {differ:#?}");
}

#[test]
fn immutable_and_append_only_forbid_the_same_operations_as_in_the_kernel() {
    with_both(&[], "no_open=0", |kernel, extant| same(&answers(kernel, true), &answers(extant, true)));
}

/// By default the kernel sends no request when a file is opened, so a forbidden operation fails itself, not the open.
#[test]
fn immutable_and_append_only_hold_without_opens() {
    with_both(&[], "no_open=1", |kernel, extant| {
        same(&answers(kernel, false), &answers(extant, false));
        let case = Case::new(extant);
        let flagged = case.file.clone();
        chattr("+a", &flagged);
        let file = File::options().write(true).open(&flagged).expect("no request is sent");
        let wrote = file.write_all_at(b"changed", 0);
        assert_eq!(wrote.map_err(|e| e.raw_os_error()), Err(Some(1)));
        assert_eq!(std::fs::read(&flagged).expect("read"), b"0123456789");
        case.end(&flagged, "a");
    });
}

/// Status and message of chattr(1), the output of lsattr(1) after it, and whether the change time moved.
fn chattr_as(user: u32, what: &str, path: &Path) -> String {
    let before = std::fs::symlink_metadata(path).expect("stat");
    let name = path.to_str().expect("UTF-8");
    let ids = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()];
    let ran = run("setpriv", &[&ids[0], &ids[1], &ids[2], "chattr", what, name]);
    let after = std::fs::symlink_metadata(path).expect("stat");
    let moved = (before.ctime(), before.ctime_nsec()) != (after.ctime(), after.ctime_nsec());
    let shown = tool("lsattr", &["-d", name]);
    let shown = shown.split_whitespace().next().expect("flags");
    let message = ran.err.replace(name, "it");
    format!("{:?} {shown} {moved} {}", ran.code, message.lines().last().unwrap_or_default())
}

#[test]
fn every_letter_of_chattr_acts_as_in_the_kernel() {
    with_both(&[], "no_open=0", |kernel, extant| {
        let mut differ = Vec::new();
        let mut taken = 0;
        for (user, kind) in [(0, "file"), (0, "directory"), (65534, "file"), (65534, "directory"), (65533, "file")] {
            for letter in "aAcCdDeEFiIjmNPsStTuVx".chars() {
                for sign in ['+', '-'] {
                    let what = format!("{sign}{letter}");
                    let [k, e] = [kernel, extant].map(|mount| {
                        let path = mount.join(format!("{kind}-{user}-{letter}{sign}"));
                        match kind {
                            "file" => std::fs::write(&path, "content").expect("file"),
                            _ => std::fs::create_dir(&path).expect("directory"),
                        }
                        rustix::fs::chown(&path, Some(Uid::from_raw(user.min(65534) / 65534 * 65534)), None)
                            .expect("chown");
                        let said = chattr_as(user, &what, &path);
                        run("chattr", &["-i", "-a", path.to_str().expect("UTF-8")]);
                        said
                    });
                    taken += usize::from(k.starts_with("Some(0)"));
                    // The kernel's driver journals data and rewrites maps; Extant refuses both, because they would have
                    // no effect.
                    let refused = ["+j", "-e"].contains(&what.as_str()) && e.contains("Operation not supported");
                    if k != e && !refused {
                        differ.push(format!("{user} {kind} {what}: kernel {k}, Extant {e}"));
                    }
                }
            }
        }
        assert!(taken > 60, "{taken}");
        assert!(differ.is_empty(), "{differ:#?}");
    });
}

/// Further flags on a file that is immutable or append-only act as in the kernel's driver.
#[test]
fn every_letter_of_chattr_acts_as_in_the_kernel_on_flagged_files() {
    with_both(&[], "no_open=0", |kernel, extant| {
        let mut differ = Vec::new();
        for first in ["+i", "+a"] {
            for letter in "aAcCdDiPsStTu".chars() {
                for what in [format!("+{letter}"), format!("-ia+{letter}")] {
                    let [k, e] = [kernel, extant].map(|mount| {
                        let path = mount.join(format!("{first}{what}"));
                        std::fs::write(&path, "content").expect("file");
                        chattr(first, &path);
                        let said = chattr_as(0, &what, &path);
                        run("chattr", &["-i", "-a", path.to_str().expect("UTF-8")]);
                        said
                    });
                    if k != e {
                        differ.push(format!("{first} {what}: kernel {k}, Extant {e}"));
                    }
                }
            }
        }
        assert!(differ.is_empty(), "{differ:#?}");
    });
}

/// The rules of Linux's `ext4_link`, `ext4_rename` and `__ext4_new_inode`. They are stated here because not every
/// kernel can mount such an image.
#[test]
fn a_project_is_inherited_and_excludes_files_of_others() {
    if !fuse_works() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let (image, at) = (dir.empty_image("project.img", &["-O", "project"]), dir.path("mnt"));
    std::fs::create_dir(&at).expect("directory");
    let in_mount = |script: &str| run("sh", &["-c", &format!("cd {} && {script}", at.display())]);
    let moved = |from: &str, to: &str| std::fs::rename(at.join(from), at.join(to)).map_err(|e| e.raw_os_error());
    let linked = |from: &str, to: &str| std::fs::hard_link(at.join(from), at.join(to)).map_err(|e| e.raw_os_error());
    const XDEV: Result<(), Option<i32>> = Err(Some(18));
    {
        let _mount = ExtantMount::new(extant_path(), &[], Path::new(&image), &at).expect("mount");
        in_mount("mkdir p q && chattr -p 5 p && chattr +P p && touch p/f q/g q/h && mkdir p/d").ok();
        assert_eq!((linked("q/g", "p/g"), moved("q/g", "p/g")), (XDEV, XDEV));
        assert_eq!((linked("p/f", "q/f"), moved("p/f", "q/i")), (Ok(()), Ok(())));
        in_mount("chattr -p 5 q/g").ok();
        assert_eq!((linked("q/g", "p/g"), moved("q/g", "p/h")), (Ok(()), Ok(())));
        let exchanged = renamed(&at.join("p/d"), &at.join("q/h"), RenameFlags::EXCHANGE);
        assert_eq!(exchanged.map_err(|e| e.raw_os_error()), XDEV);
        let shown = in_mount("lsattr -pd p p/d p/h q q/i").ok();
        let projects: Vec<_> = shown.lines().map(|l| l.split_whitespace().next().expect("project")).collect();
        assert_eq!(projects, ["5", "5", "5", "0", "5"], "{shown}");
        assert!(shown.lines().nth(1).is_some_and(|l| l.contains('P')), "inherited: {shown}");
    }
    fsck_clean(&image);
    let plain = dir.empty_image("plain.img", &[]);
    let _mount = ExtantMount::new(extant_path(), &[], Path::new(&plain), &at).expect("mount");
    in_mount("mkdir p && chattr -p 5 p").fails(1, &["Operation not supported"]);
}

/// fallocate(2) by another user than root clears set-id bits, as in the kernel's driver (xfstests generic/683 to
/// 687).
#[test]
fn preallocation_clears_set_id_bits() {
    with_both(&[], "no_open=0", |kernel, extant| {
        let seen = [kernel, extant].map(|mount| {
            let mut seen = Vec::new();
            for (mode, group) in [(0o6755, 7), (0o2666, 7), (0o2666, 65534), (0o4644, 7), (0o2755, 65534)] {
                let path = mount.join(format!("f{mode:o}-{group}"));
                std::fs::write(&path, "content").expect("file");
                rustix::fs::chown(&path, Some(Uid::from_raw(65534)), Some(Gid::from_raw(group))).expect("chown");
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("mode");
                let name = path.to_str().expect("UTF-8");
                let ids = ["--reuid=65534", "--regid=65534", "--clear-groups", "fallocate", "-l", "8192", name];
                tool("setpriv", &ids);
                seen.push(std::fs::metadata(&path).expect("stat").mode() & 0o7777);
            }
            seen
        });
        assert_eq!(seen[0], seen[1]);
    });
}
