//! `extant resize` of a mount: it grows while processes write, create and delete files. Afterwards every byte is
//! correct, according to the mount, e2fsck and the kernel.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Dir, extant, extant_path, fsck_clean, in_time, loop_mounts_work, tool};
use extant_base::rng::Rng;
use extant_base::task;
use extant_testkit::mount::{ExtantMount, Mounted, fuse_works};
use extant_testkit::oracle::mke2fs;

/// The work of each process until the file `stop` exists. It creates files of known content in its own directory,
/// compares some and deletes some. It prints a line for each difference.
const WORK: &str = r#"
mkdir "$1/d$2" || exit 1
i=0
while [ ! -e "$3/stop" ]; do
    cp "$3/blob" "$1/d$2/f$i" || exit 1
    mv "$1/d$2/f$i" "$1/d$2/g$i" || exit 1
    mkdir "$1/d$2/dir$i" && ln "$1/d$2/g$i" "$1/d$2/dir$i/link" || exit 1
    if [ $((i % 3)) = 0 ]; then
        cmp "$3/blob" "$1/d$2/dir$i/link" || exit 1
        rm -r "$1/d$2/dir$i" "$1/d$2/g$i" || exit 1
    fi
    i=$((i + 1))
done
for f in "$1/d$2"/g*; do cmp "$3/blob" "$f" || exit 1; done
"#;

fn worker(mount: &str, nr: usize, dir: &Dir) -> Child {
    let (home, nr) = (dir.path("").display().to_string(), nr.to_string());
    let mut command = Command::new("sh");
    command.args(["-c", WORK, "worker", mount, &nr, &home]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh")
}

/// Like fsx: one file, any operation, compared with a model, until the file `stop` exists.
fn random_operations(path: &Path, stop: &Path) -> Vec<u8> {
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("created");
    let (mut rng, mut model) = (Rng::new(3), Vec::new());
    while !stop.exists() {
        let at = rng.below(3_000_000) as usize;
        let len = 1 + rng.below(60_000) as usize;
        match rng.below(5) {
            0 => {
                file.set_len(at as u64).expect("truncate");
                model.resize(at, 0);
            }
            1 | 2 => {
                let bytes = vec![rng.below(255) as u8 + 1; len];
                file.write_all_at(&bytes, at as u64).expect("write");
                if model.len() < at + len {
                    model.resize(at + len, 0);
                }
                model[at..at + len].copy_from_slice(&bytes);
            }
            3 => file.sync_all().expect("fsync"),
            _ => {
                let mut bytes = vec![0; len];
                let n = file.read_at(&mut bytes, at as u64).expect("read");
                assert!(model.get(at..at + n).is_some_and(|there| there == &bytes[..n]) || n == 0, "at {at}");
            }
        }
    }
    model
}

fn unmount(mount: ExtantMount) {
    Box::new(mount).unmount().expect("unmounted");
}

fn blocks(image: &str) -> u64 {
    let said = tool("dumpe2fs", &["-h", image]);
    let line = said.lines().find_map(|line| line.strip_prefix("Block count:")).expect("a line");
    line.trim().parse().expect("a number")
}

#[test]
fn a_mount_grows_while_processes_write_make_and_delete_files() {
    if !fuse_works() {
        return;
    }
    for (kind, args) in [
        ("ext4", &["-t", "ext4", "-b", "4096"][..]),
        ("ext4 1 KiB, small groups", &["-t", "ext4", "-b", "1024", "-g", "4096"]),
        ("ext2", &["-t", "ext2", "-b", "1024"]),
    ] {
        let dir = Dir::new();
        let image = dir.text("disk.img");
        mke2fs(&image, args, "47M");
        fs::write(dir.path("blob"), &common::big()[..70_000]).expect("blob");
        let mount = dir.path("mnt");
        fs::create_dir(&mount).expect("directory");
        let mounted = ExtantMount::new(extant_path(), &[], Path::new(&image), &mount).expect("mounted");
        let at = mount.display().to_string();
        let workers: Vec<Child> = (0..16).map(|nr| worker(&at, nr, &dir)).collect();
        let (file, stop) = (mount.join("fsx"), dir.path("stop"));
        let fsx = task::spawn("fsx", move || random_operations(&file, &stop)).expect("thread");
        for (nr, size) in ["+4K", "+9M", "200M", "+128M", "900M"].into_iter().enumerate() {
            // Each process has created a file since the last growth, which it keeps.
            let made = |worker: usize| mount.join(format!("d{worker}/g{}", 3 * nr + 1)).exists();
            common::wait_until("work", || (0..16).all(made));
            let before = rustix::fs::statvfs(&mount).expect("statvfs");
            let said = in_time(&["resize", &at, size]).ok();
            let after = rustix::fs::statvfs(&mount).expect("statvfs");
            assert!(said.contains("now; it had"), "{kind}, {size}: {said}");
            assert!(after.f_blocks > before.f_blocks, "{kind}, {size}: {said}");
        }
        fs::write(dir.path("stop"), "").expect("stop");
        let model = fsx.join().expect("fsx");
        for worker in workers {
            let done = worker.wait_with_output().expect("ended");
            let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{kind}: {said}");
        }
        assert!(fs::read(mount.join("fsx")).expect("read") == model, "{kind}");
        // More than the file system could hold before.
        fs::write(mount.join("large"), vec![9; 120 << 20]).expect("written");
        unmount(mounted);
        fsck_clean(&image);
        let block = if args.contains(&"1024") { 1024 } else { 4096 };
        assert_eq!(blocks(&image) * block, 900 << 20, "{kind}");
        assert_eq!(fs::metadata(&image).expect("image").len(), 900 << 20, "{kind}");
        if loop_mounts_work() {
            kernel_reads(&dir, &image, &model);
        }
    }
}

fn kernel_reads(dir: &Dir, image: &str, model: &[u8]) {
    let mount = dir.text("kernel");
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop,ro", image, &mount]);
    assert!(fs::read(format!("{mount}/fsx")).expect("read") == model);
    let blob = fs::read(dir.path("blob")).expect("blob");
    let mut files = 0;
    for nr in 0..16 {
        for entry in fs::read_dir(format!("{mount}/d{nr}")).expect("directory") {
            let entry = entry.expect("entry");
            if entry.file_type().expect("type").is_file() {
                assert!(fs::read(entry.path()).expect("read") == blob, "{}", entry.path().display());
                files += 1;
            }
        }
    }
    assert!(files > 16, "{files}");
    common::umount(&[&mount]);
}

#[test]
fn a_mount_refuses_what_it_cannot_do_with_the_reason() {
    if !fuse_works() {
        return;
    }
    let dir = Dir::new();
    let image = dir.text("disk.img");
    mke2fs(&image, &["-t", "ext4", "-b", "4096", "-O", "^resize_inode"], "48M");
    let mount = dir.path("mnt");
    fs::create_dir(&mount).expect("directory");
    let at = mount.display().to_string();
    extant(&["resize", &at, "+1M"]).fails(1, &["neither an image nor a mount"]);
    let mounted = ExtantMount::new(extant_path(), &[], Path::new(&image), &mount).expect("mounted");
    extant(&["resize", &at, "20M"]).fails(1, &["not shrunk", "unmount it first"]);
    extant(&["resize", &at, "min"]).fails(1, &["not shrunk", "unmount it first"]);
    extant(&["resize", &at, "1T"]).fails(1, &["not grown", "no room for more than", "it is as it was"]);
    extant(&["resize", "-z", &dir.text("undo"), &at, "1G"]).fails(1, &["-z"]);
    extant(&["resize", &image, "1G"]).fails(1, &["disk.img"]);
    assert!(extant(&["resize", &at, "max"]).ok().contains("nothing to do"));
    // The file was made longer by other means.
    File::options().write(true).open(&image).expect("open").set_len(80 << 20).expect("longer");
    assert!(extant(&["resize", &at, "max"]).ok().contains("20480 blocks"));
    unmount(mounted);
    fsck_clean(&image);
    let mounted = ExtantMount::new(extant_path(), &["-o", "ro"], Path::new(&image), &mount).expect("mounted");
    extant(&["resize", &at, "+1M"]).fails(1, &["read-only"]);
    unmount(mounted);
    fsck_clean(&image);
}
