//! Images in use by a mount: commands may read names and attributes, but not read or write the content of files.

use std::io::Read;

use crate::common::{Dir, Unmounted, debugfs, extant, fsck_clean, in_time, loop_mounts_work, tool, umount, whole_disk};
use extant_testkit::mount::fuse_works;

fn skipped() -> bool {
    let skipped = !fuse_works();
    if skipped {
        eprintln!("skipped: needs /dev/fuse");
    }
    skipped
}

/// Asserts success, and a message that names the users of the image.
#[track_caller]
fn answers(args: &[&str], who: &[&str]) -> String {
    let ran = extant(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
    assert!(who.iter().all(|word| ran.err.contains(word)), "{args:?}: {}", ran.err);
    String::from_utf8(ran.out).expect("UTF-8")
}

#[test]
fn a_mounted_image_is_listed_with_a_warning_about_its_mount() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let mnt = Unmounted::at(&dir, "mnt");
    let said = extant(&["mount", "-v", "-o", "commit=600", &image, &mnt.0]).ok();
    let pid = said.lines().next().and_then(|line| line.rsplit(' ').next()).expect("a number").to_owned();
    assert!(said.contains("\nits messages go "), "{said}");
    let file = format!("{}/new", mnt.0);
    std::fs::write(&file, "new").expect("written");
    tool("sync", &[&file]);
    let server = format!("served by process {pid} (extant)");
    let who = ["disk.img: mounted on ", &mnt.0, &server, "uncommitted changes are not shown"];
    let path = format!("{image}:/new");
    for args in [&["ls", &image][..], &["ls", "-l", &image], &["tree", &image], &["find", &image]] {
        assert!(answers(args, &who).contains("new"), "{args:?}");
    }
    assert!(answers(&["stat", &path], &who).contains("Size: 3"));
    for args in [["df", &image], ["du", &image]] {
        assert!(!answers(&args, &who).is_empty());
    }
    let info = answers(&["info", &image], &who);
    assert!(info.contains(&format!("State:       in use: mounted on {}, {server}", mnt.0)), "{info}");
    let json = answers(&["info", "--json", &image], &who);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let holder = &json["in_use"];
    assert_eq!((&holder["mounted_on"], &holder["by_kernel"]), (&mnt.0.as_str().into(), &false.into()), "{json}");
    assert_eq!(holder["processes"][0]["pid"].to_string(), pid);
    // The content of files is accessible only through the mount.
    let out = dir.text("out");
    for args in [&["cat", &path][..], &["cp", &path, &out], &["cp", &out, &path], &["rm", &path]] {
        std::fs::write(&out, "out").expect("written");
        extant(args).fails(8, &["disk.img: in use: mounted on ", &mnt.0, "use it there"]);
    }
    extant(&["unmount", &mnt.0]).ok();
    let info = extant(&["info", &image]).ok();
    assert!(info.contains("State:       clean"), "{info}");
    fsck_clean(&image);
}

/// The search for the users of an image examines the open files of every process, including those on a mount that
/// hangs.
#[test]
fn a_server_that_does_not_answer_keeps_nobody_from_looking() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let mnt = Unmounted::at(&dir, "mnt");
    let said = extant(&["mount", "-v", &image, &mnt.0]).ok();
    let pid = said.lines().next().and_then(|line| line.rsplit(' ').next()).expect("a number");
    // After a write, the kernel would request the file's attributes.
    let script = format!("exec 3>{}/file; echo x >&3; echo ready; exec sleep 600", mnt.0);
    let mut user = std::process::Command::new("sh");
    let mut user = user.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().expect("sh");
    let mut ready = [0; 6];
    user.stdout.take().expect("piped").read_exact(&mut ready).expect("ready");
    tool("kill", &["-STOP", pid]);
    let info = in_time(&["info", &image]);
    tool("kill", &["-CONT", pid]);
    user.kill().expect("killed");
    user.wait().expect("ended");
    assert_eq!(info.code, Some(0), "{}", info.err);
    assert!(String::from_utf8_lossy(&info.out).contains("in use: mounted on "), "{}", info.err);
    extant(&["unmount", &mnt.0]).ok();
}

#[test]
fn info_of_a_disk_says_which_of_its_partitions_are_mounted() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, disk) = (dir.empty_image("disk.img", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    let mnt = Unmounted::at(&dir, "mnt");
    extant(&["mount", &format!("{disk}@5"), &mnt.0]).ok();
    let info = extant(&["info", &disk]).ok();
    let line = |number: u32| {
        let start = format!("Partition {number}: ");
        info.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{info}"))
    };
    assert_eq!(line(2), "Partition 2: ext4, clean");
    assert!(line(5).contains(&format!("mounted on {}, served by process ", mnt.0)), "{info}");
    let json: serde_json::Value = serde_json::from_str(&extant(&["info", "--json", &disk]).ok()).expect("JSON");
    let in_use = |number: u64| {
        let all = json["partitions"].as_array().expect("partitions");
        all.iter().find(|p| p["number"] == number).expect("there")["in_use"]["mounted_on"].clone()
    };
    assert_eq!((in_use(2), in_use(5)), (serde_json::Value::Null, mnt.0.as_str().into()));
    extant(&["unmount", &mnt.0]).ok();
}

#[test]
fn an_image_mounted_by_the_kernel_is_listed_with_a_warning() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs root and loop devices");
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let mnt = Unmounted::at(&dir, "mnt");
    tool("mount", &["-o", "loop", &image, &mnt.0]);
    std::fs::write(format!("{}/new", mnt.0), "new").expect("written");
    tool("sync", &["-f", &mnt.0]);
    let who = ["disk.img: mounted by the kernel through /dev/loop", &mnt.0];
    assert!(answers(&["ls", &image], &who).contains("new"));
    let json: serde_json::Value = serde_json::from_str(&answers(&["info", "--json", &image], &who)).expect("JSON");
    let holder = &json["in_use"];
    assert_eq!((&holder["mounted_on"], &holder["by_kernel"]), (&mnt.0.as_str().into(), &true.into()), "{json}");
    extant(&["cat", &image, "new"]).fails(8, &["in use: mounted by the kernel through /dev/loop"]);
    umount(&[&mnt.0]);
    assert!(debugfs(&image, "ls /").contains("new"));
}

/// Writes the superblock of an md 0.90 array into the last 64 KiB of a device.
fn mark_as_raid(image: &str) {
    let words = [0xa92b_4efc_u32, 0, 90, 0, 0, 0x1122_3344, 1_600_000_000, 1, 0, 2, 2, 0, 0, 0x5566_7788, 1, 2];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let size = std::fs::metadata(image).expect("image").len();
    crate::common::patch(image, (size & !65535) - 65536, &bytes);
}

#[test]
fn half_of_a_mirror_is_read_with_a_warning_and_not_written() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &image, "63M"]);
    std::fs::File::options().write(true).open(&image).and_then(|file| file.set_len(64 << 20)).expect("longer");
    mark_as_raid(&image);
    assert!(tool("blkid", &["-p", &image]).contains("linux_raid_member"));
    let whose = ["disk.img: ", "a member of a Linux software RAID", "mdadm"];
    let listed = extant(&["ls", &image]);
    assert_eq!((listed.code, &*listed.out), (Some(0), &b"lost+found\n"[..]));
    listed.fails(0, &whose);
    let before = std::fs::read(&image).expect("image");
    extant(&["mkdir", &format!("{image}:/d")]).fails(8, &[&whose[..], &["not written", "--write-member"]].concat());
    assert!(before == std::fs::read(&image).expect("image"), "written to");
    if fuse_works() {
        let mnt = Unmounted::at(&dir, "mnt");
        extant(&["mount", &image, &mnt.0]).fails(32, &["a member of", "-o write_member"]);
        for options in ["ro", "write_member"] {
            extant(&["mount", "-o", options, &image, &mnt.0]).fails(0, &whose);
            assert_eq!(std::fs::create_dir(format!("{}/d", mnt.0)).is_ok(), options != "ro");
            extant(&["unmount", &mnt.0]).ok();
        }
    }
    extant(&["mkdir", "--write-member", &format!("{image}:/e")]).fails(0, &whose);
    fsck_clean(&image);
    // Also without a file system on the member.
    crate::common::patch(&image, 0, &[0; 65536]);
    extant(&["mkfs", "-q", &image, "60M"]).fails(1, &["is a member of a Linux software RAID; -F overwrites it"]);
    extant(&["mkfs", "-q", "-F", &image, "60M"]).ok();
}

/// The superblock of the array is behind the last partition.
#[test]
fn partitions_of_a_raid_disk_are_not_written() {
    let dir = Dir::new();
    let disk = dir.text("disk.img");
    whole_disk(&disk, &dir.empty_image("part.img", &[]));
    let part = format!("{disk}@2:/d");
    extant(&["mkdir", &part]).ok();
    mark_as_raid(&disk);
    extant(&["chmod", "700", &part]).fails(8, &["disk.img@2: ", "a member of a Linux software RAID"]);
}
