//! Disks of virtual machines and exports of NBD servers, through the command: qemu-img and e2fsck check the disk
//! afterwards, and the server may disappear.
//!
//! Needs qemu-utils, and for mounts /dev/fuse; otherwise prints a line and passes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Dir, extant, extant_path, tool};
use extant_base::clock::Clock;
use extant_testkit::mount::{ExtantMount, fuse_works};
use extant_testkit::oracle::{e2fsck, expect_clean};

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok();
    if !found {
        eprintln!("skipped: needs {program}");
    }
    found
}

/// Checks that a raw copy of the disk is clean, and holds the tree.
fn judge(dir: &Dir, format: &str, disk: &str, tree: &str) {
    // qemu has no check for VHD.
    if format != "vpc" {
        tool("qemu-img", &["check", "-q", "-f", format, disk]);
    }
    let raw = dir.text("raw.img");
    tool("qemu-img", &["convert", "-f", format, "-O", "raw", disk, &raw]);
    expect_clean(&raw).unwrap_or_else(|e| panic!("{format}: {e}"));
    let out = dir.text("out");
    let _ = std::fs::remove_dir_all(&out);
    extant(&["cp", "-r", &format!("{raw}:/tree"), &out]).ok();
    tool("diff", &["-r", tree, &out]);
}

fn make_tree(dir: &Dir) -> String {
    let tree = dir.text("tree");
    for i in 0..40 {
        let at = Path::new(&tree).join(format!("d{}", i % 5));
        std::fs::create_dir_all(&at).expect("directory");
        std::fs::write(at.join(format!("f{i}")), vec![i as u8; 1 << (i % 18)]).expect("file");
    }
    tree
}

#[test]
fn disks_of_virtual_machines_are_written_and_their_base_is_not() {
    if !has("qemu-nbd") || !has("qemu-img") {
        return;
    }
    let dir = Dir::new();
    let tree = make_tree(&dir);
    for format in ["qcow2", "vmdk", "vpc", "vhdx", "vdi"] {
        let disk = dir.text(&format!("disk, with: {format}"));
        tool("qemu-img", &["create", "-q", "-f", format, &disk, "64M"]);
        extant(&["mkfs", "-q", &disk]).ok();
        let disk = if format == "qcow2" {
            let top = dir.text("top.qcow2");
            tool("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &disk, "-F", "qcow2", &top]);
            top
        } else {
            disk
        };
        let base = std::fs::read(dir.path("disk, with: qcow2")).expect("base");
        extant(&["cp", "-r", &tree, &format!("{disk}:/")]).ok();
        assert!(extant(&["ls", &disk]).ok().contains("tree"));
        extant(&["fsck", "-fn", &disk]).ok();
        judge(&dir, format, &disk, &tree);
        assert!(std::fs::read(dir.path("disk, with: qcow2")).expect("base") == base, "{format}: the base has changed");
        // A second file system needs -F, as on any disk.
        extant(&["mkfs", "-q", &disk]).fails(1, &["-F"]);
    }
}

#[test]
fn a_mount_of_a_disk_keeps_what_was_synced_and_ends_the_server() {
    if !has("qemu-nbd") || !fuse_works() {
        return;
    }
    let dir = Dir::new();
    let tree = make_tree(&dir);
    let disk = dir.text("disk.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &disk, "64M"]);
    extant(&["mkfs", "-q", &disk]).ok();
    let at = dir.path("mnt");
    std::fs::create_dir(&at).expect("directory");
    let mount = ExtantMount::new(extant_path(), &[], Path::new(&disk), &at).expect("mounted");
    tool("cp", &["-r", &tree, at.to_str().expect("UTF-8")]);
    // Another process may not use the disk meanwhile.
    extant(&["cp", &dir.text("tree/d0/f0"), &format!("{disk}:/x")]).fails(8, &["in use"]);
    drop(mount);
    judge(&dir, "qcow2", &disk, &tree);
}

/// A server that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(socket: &str, args: &[&str]) -> Server {
    let mut command = Command::new("qemu-nbd");
    command.args(["-t", "-e", "4", "-f", "raw", "-k", socket]).args(args);
    let server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("qemu-nbd"));
    let clock = Clock::real();
    while !Path::new(socket).exists() {
        assert!(clock.now_ns() < 10_000_000_000, "qemu-nbd does not listen");
        clock.sleep(Duration::from_millis(5));
    }
    server
}

#[test]
fn a_server_that_dies_is_an_error_and_loses_nothing_fsynced() {
    if !has("qemu-nbd") || !fuse_works() {
        return;
    }
    let dir = Dir::new();
    let (image, socket) = (dir.empty_image("disk.img", &[]), dir.text("socket"));
    let server = serve(&socket, &[&image]);
    let export = format!("nbd+unix:///?socket={socket}");
    std::fs::write(dir.path("hello"), "hello").expect("file");
    extant(&["cp", &dir.text("hello"), &format!("{export}:/")]).ok();
    assert_eq!(extant(&["cat", &format!("{export}:/hello")]).ok(), "hello");
    let at = dir.path("mnt");
    std::fs::create_dir(&at).expect("directory");
    let mount = ExtantMount::new(extant_path(), &[], Path::new(&export), &at).expect("mounted");
    let file = std::fs::File::create(at.join("synced")).expect("created");
    std::io::Write::write_all(&mut &file, b"durable").expect("written");
    file.sync_all().expect("synced");
    drop(server);
    let late = std::fs::write(at.join("late"), "late").and_then(|()| std::fs::File::open(at.join("late"))?.sync_all());
    let late = late.expect_err("the server is gone").raw_os_error();
    assert!(matches!(late, Some(5 | 30)), "{late:?}");
    drop(file);
    drop(mount);
    let fsck = e2fsck(&image, &["-fy"]).expect("e2fsck runs");
    assert!(matches!(fsck.code, 0 | 1), "{}", fsck.output);
    assert_eq!(extant(&["cat", &image, "/synced"]).ok(), "durable");
    // Nothing listens any more.
    extant(&["ls", &export]).fails(8, &["onnection refused"]);
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    if !has("qemu-img") {
        return;
    }
    let dir = Dir::new();
    let disk = dir.text("disk.qcow2");
    tool("qemu-img", &["create", "-q", "-f", "qcow2", &disk, "16M"]);
    let done = Command::new(extant_path()).args(["ls", &disk]).env("PATH", dir.path(".")).output().expect("runs");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(8), "{said}");
    assert!(said.contains("qemu-utils") && said.contains("qemu-img convert"), "{said}");
    // The error for a disk that qemu-nbd refuses has the reason.
    std::fs::write(&disk, [b"QFI\xfb".as_slice(), &[0xff; 4096]].concat()).expect("written");
    if has("qemu-nbd") {
        extant(&["ls", &disk]).fails(8, &["disk.qcow2", "qemu-nbd"]);
    }
}
