//! `extant mkfs` that fails, is ended by a signal or collides with another mkfs: the exit status agrees with the
//! content of the file.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Dir, debugfs, extant, extant_path, fsck_clean, loop_mounts_work, run};
use extant_base::clock::Clock;

fn start(args: &[&str]) -> Child {
    let quiet = || (Stdio::null(), Stdio::null());
    let (out, err) = quiet();
    Command::new(extant_path()).args(args).stdout(out).stderr(err).spawn().expect("extant")
}

/// Whether a command can read a file system from the image. If it can, the file system must be complete.
#[track_caller]
fn is_read(image: &str, what: &str) -> bool {
    let listed = run(extant_path(), &["ls", &format!("{image}:/src")]);
    let scanned = extant(&["info", "--scan", "--json", image]);
    let found: serde_json::Value = serde_json::from_slice(&scanned.out).expect("JSON");
    let there = listed.code == Some(0);
    let superblocks = found["filesystems"].as_array().expect("a list").len();
    assert_eq!(usize::from(there), superblocks, "{what}: {}{found}", listed.err);
    if there {
        fsck_clean(image);
        assert_eq!(listed.out.iter().filter(|byte| **byte == b'\n').count(), 40, "{what}");
        assert!(debugfs(image, "cat /src/39").starts_with("39 "), "{what}");
    }
    there
}

/// A tree for an image of a few groups.
fn source(dir: &Dir) -> String {
    let top = dir.path("top/src");
    fs::create_dir_all(&top).expect("directory");
    for number in 0..40 {
        fs::write(top.join(number.to_string()), format!("{number} ").repeat(20_000)).expect("file");
    }
    dir.text("top")
}

#[test]
fn commands_on_one_new_file_leave_it_to_the_one_that_succeeds() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let mut wins = 0;
    for round in 0..60 {
        let _ = fs::remove_file(&image);
        // A command that starts late finds a file system when it has claimed the image, and must not remove another
        // command's file.
        let mut all: Vec<Child> = (0..3).map(|_| start(&["mkfs", "-q", &image, "8M"])).collect();
        let codes: Vec<_> = all.iter_mut().map(|child| child.wait().expect("ended").code()).collect();
        assert!(codes.iter().all(|code| matches!(code, Some(0 | 1))), "{round}: {codes:?}");
        let won = codes.contains(&Some(0));
        assert_eq!(Path::new(&image).exists(), won, "{round}: {codes:?}");
        if won {
            wins += 1;
            fsck_clean(&image);
            assert_eq!(fs::metadata(&image).expect("image").len(), 8 << 20);
        }
    }
    assert!(wins > 30, "{wins} of 60");
}

#[test]
fn a_signal_and_the_exit_status_agree_with_the_image() {
    let dir = Dir::new();
    let source = source(&dir);
    let (image, clock) = (dir.text("disk.img"), Clock::real());
    let args = ["mkfs", "-q", "-F", "-b", "1024", "-g", "1024", "-d", &source, &image, "64M"];
    let begun = clock.now_ns();
    extant(&args).ok();
    // About the duration of a whole run, which varies with the load of the machine.
    let mut whole = clock.now_ns() - begun;
    let (mut ended, mut completed) = (0, 0);
    for round in 0..150u64 {
        let exists = round % 2 == 0;
        if exists {
            fs::write(&image, [b"old".as_slice(), &[7; 5000]].concat()).expect("image");
        } else {
            let _ = fs::remove_file(&image);
        }
        let mut child = start(&args);
        clock.sleep(Duration::from_nanos(whole * (round % 15 + 1) / 14));
        let signal = ["-INT", "-TERM", "-HUP"][round as usize % 3];
        run("kill", &[signal, &child.id().to_string()]);
        let code = child.wait().expect("ended").code();
        let what = format!("round {round}: status {code:?}");
        match code {
            Some(0) => {
                completed += 1;
                whole -= whole / 10;
                assert!(is_read(&image, &what), "{what}: no image");
            }
            Some(129 | 130 | 143) => {
                ended += 1;
                whole += whole / 20;
                assert_eq!(Path::new(&image).exists(), exists, "{what}");
                assert!(!exists || !is_read(&image, &what), "{what}: an image");
            }
            // The signal arrived before the handler was installed.
            None => assert!(!Path::new(&image).exists() || !is_read(&image, &what), "{what}: an image"),
            other => panic!("round {round}: status {other:?}"),
        }
    }
    assert!(ended > 20 && completed > 5, "{ended} ended, {completed} completed");
}

#[test]
fn a_host_disk_that_fills_leaves_nothing_to_read() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let source = source(&dir);
    for round in 0..6 {
        for format in ["raw", "android-sparse"] {
            // The smallest file system fills up within the tables, the largest in the last file.
            let script = format!(
                "set -e; cd {}; rm -rf t out.img; mkdir t; mount -t tmpfs -o size={}k none t; truncate -s 64M t/e.img; \
                 printf old | dd of=t/e.img bs=1 seek=9000 conv=notrunc status=none; \
                 code=0; {} mkfs -q -F -b 1024 -g 1024 -d {source} --format {format} t/e.img 2> said || code=$?; \
                 cp --sparse=always t/e.img out.img; ls -A t > left; umount t; exit $code",
                dir.text("."),
                150 + round * 350,
                extant_path().display(),
            );
            let done = run("unshare", &["-m", "sh", "-c", &script]);
            let said = fs::read_to_string(dir.path("said")).expect("said");
            let what = format!("{format}, round {round}: {said}{}", done.err);
            assert_eq!(done.code, Some(1), "{what}");
            assert!(said.contains("No space left on device; free some space"), "{what}");
            assert_eq!(fs::read_to_string(dir.path("left")).expect("left"), "e.img\n", "{what}");
            assert!(!is_read(&dir.text("out.img"), &what), "{what}");
            let lost = said.contains("what it held is lost");
            let old = fs::read(dir.path("out.img")).expect("image").get(9000..9003) == Some(b"old");
            assert_eq!(lost, !old, "{what}");
        }
    }
}
