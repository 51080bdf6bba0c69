//! Mounting and unmounting through the kernel: when each returns, and the effects of signals and crashes.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{
    CommandResult, Dir, copy_program, extant, extant_path, fsck_clean, run, tool, umount, wait_until, whole_disk,
};
use extant_base::clock::Clock;
use extant_testkit::mount::{fuse_works, is_mount_point};
use rustix::mount::UnmountFlags;

/// Mounts of the test, which end with it.
struct Place {
    dir: Dir,
    image: String,
    mnt: String,
}

impl Place {
    /// `None` if FUSE does not work.
    fn new(fs_type: &str, extra: &[&str]) -> Option<Place> {
        if !fuse_works() {
            eprintln!("skipped: needs /dev/fuse");
            return None;
        }
        let dir = Dir::new();
        let (image, mnt) = (dir.image(fs_type, extra), dir.text("mnt"));
        std::fs::create_dir(&mnt).expect("directory");
        Some(Place { dir, image, mnt })
    }

    fn mount(&self, options: &[&str]) -> CommandResult {
        extant(&[&["mount"], options, &[&self.image, &self.mnt]].concat())
    }

    fn unmount(&self) -> CommandResult {
        extant(&["unmount", &self.mnt])
    }

    fn mounted(&self) -> bool {
        is_mount_point(Path::new(&self.mnt))
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.mnt)
    }

    /// Starts a server in the foreground, and waits for its mount.
    fn foreground(&self) -> Child {
        self.foreground_to(Stdio::piped())
    }

    /// As [`Place::foreground`], with its messages going to `stderr`.
    fn foreground_to(&self, stderr: Stdio) -> Child {
        let child = Command::new(extant_path())
            .args(["mount", "-f", &self.image, &self.mnt])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("spawn");
        // In this order: a mount whose server has died counts as mounted until the new server removes it, and the
        // directory beneath can be read until the new mount covers it.
        wait_until("the mount", || std::fs::read_dir(&self.mnt).is_ok() && self.mounted());
        child
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for _ in 0..3 {
            if self.mounted() {
                run("umount", &["-l", &self.mnt]);
            }
        }
    }
}

/// A [`Place`] on a loop device with the image.
struct OnDevice {
    place: Place,
    /// None after the device has been detached.
    device: Option<String>,
}

impl OnDevice {
    fn new(kind: &str, args: &[&str]) -> Option<(OnDevice, String)> {
        if !common::loop_mounts_work() {
            eprintln!("skipped: needs loop devices");
            return None;
        }
        let place = Place::new(kind, args)?;
        let device = tool("losetup", &["-f", "--show", &place.image]).trim().to_owned();
        Some((OnDevice { place, device: Some(device.clone()) }, device))
    }

    /// Detaches the device; its data is then in the image.
    fn let_go(&mut self) {
        if self.place.mounted() {
            run("umount", &["-l", &self.place.mnt]);
        }
        if let Some(device) = self.device.take() {
            tool("losetup", &["-d", &device]);
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn signal(child: &Child, name: &str) {
    tool("kill", &["-s", name, &child.id().to_string()]);
}

fn write_durably(path: &str, content: &str) {
    let mut file = std::fs::File::create(path).expect("create");
    file.write_all(content.as_bytes()).expect("write");
    file.sync_all().expect("fsync");
}

#[test]
fn a_mount_is_usable_at_once_and_an_unmount_leaves_it_clean() {
    for (fs_type, extra) in [("ext2", &["-b", "1024"][..]), ("ext3", &[]), ("ext4", &[])] {
        let Some(place) = Place::new(fs_type, extra) else { return };
        for round in 0..5 {
            // `ok` reads the pipes to their end, so the server must not keep them open.
            assert_eq!(place.mount(&[]).ok(), "");
            assert_eq!(std::fs::read(place.at("big")).expect("read"), common::big());
            std::fs::write(place.at(&format!("new{round}")), "new").expect("write");
            place.unmount().ok();
            assert!(!place.mounted());
            fsck_clean(&place.image);
            assert_eq!(extant(&["cat", &place.image, &format!("new{round}")]).ok(), "new");
        }
        let info = extant(&["info", &place.image]).ok();
        assert!(info.contains("State:       clean") && info.contains(&format!(" on {}\n", place.mnt)), "{info}");
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    let before = std::fs::read(&place.image).expect("image");
    for options in ["ro", "ro,io=direct,engine=psync", "norecovery"] {
        place.mount(&["-o", options]).ok();
        let refused = std::fs::write(place.at("new"), "x").expect_err("read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(std::fs::read_to_string(place.at("etc/deep/er/file")).expect("read"), "deep\n");
        place.unmount().ok();
    }
    assert!(before == std::fs::read(&place.image).expect("image"));
}

#[test]
fn options_and_partitions() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    let disk = place.dir.text("whole.img");
    whole_disk(&disk, &place.image);
    let offset = format!("offset={}", 4096 * 512);
    let tries = [
        (&["-o", "partition=5"][..], disk.clone()),
        (&["-o", &offset], disk.clone()),
        (&["-o", "noatime,cache=16M"], format!("{disk}@2")),
        (&["-o", "no_writeback_cache,no_open=0,workers=1,commit=1"], place.image.clone()),
        (&["-o", "io=direct,engine=io_uring,mb_policy=vanilla,es_policy=vanilla,data=writeback"], place.image.clone()),
        (&["-s", "-o", "frobnicate,uid=77,gid=88,no_xattr"], place.image.clone()),
    ];
    for (options, image) in tries {
        extant(&[&["mount"], options, &[&image, &place.mnt]].concat()).ok();
        std::fs::write(place.at("new"), "new").expect("write");
        assert_eq!(std::fs::read(place.at("big")).expect("read"), common::big());
        if options.contains(&"-s") {
            let meta = std::fs::metadata(place.at("big")).expect("stat");
            assert_eq!((meta.uid(), meta.gid()), (77, 88));
            let refused = rustix::fs::lgetxattr(place.at("big"), "user.any", &mut [0u8; 8][..]);
            assert_eq!(refused, Err(rustix::io::Errno::OPNOTSUPP));
        }
        place.unmount().ok();
    }
    fsck_clean(&place.image);
    assert_eq!(extant(&["cat", &format!("{disk}@5"), "new"]).ok(), "new");
}

#[test]
fn an_image_has_one_writer() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    place.mount(&[]).ok();
    let other = place.dir.text("other");
    std::fs::create_dir(&other).expect("directory");
    extant(&["mount", &place.image, &other]).fails(32, &["disk.img: in use: mounted on "]);
    extant(&["mount", "-o", "ro", &place.image, &other]).fails(32, &["disk.img: in use: mounted on "]);
    extant(&["cat", &place.image, "big"]).fails(8, &["disk.img: in use: mounted on "]);
    // Unmounted by the image's name.
    extant(&["unmount", &place.image]).ok();
    place.mount(&["-o", "ro"]).ok();
    assert_eq!(extant(&["cat", &place.image, "etc/deep/er/file"]).ok(), "deep\n");
    place.unmount().ok();
    fsck_clean(&place.image);
}

/// A process that has locked an image, through a descriptor opened with `mode`.
struct Locker(Child);

impl Locker {
    fn new(user: &str, image: &str, mode: &str, command: &str) -> Locker {
        let script = "import fcntl, struct, sys; f = open(sys.argv[1], sys.argv[2]); \
                      lock = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0); F_OFD_SETLK = 37; \
                      fcntl.fcntl(f, F_OFD_SETLK if sys.argv[3] == 'ofd' else fcntl.F_SETLK, lock); \
                      print('locked', flush=True); sys.stdin.read()";
        let mut child = Command::new("setpriv")
            .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", common::python()])
            .args(["-c", script, image, mode, command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = [0; 7];
        child.stdout.take().expect("piped").read_exact(&mut said).expect("locked");
        Locker(child)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn read_locks_of_users_without_write_access_do_not_block_a_mount() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let modes = |dir: u32, image: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.dir.path("."), PermissionsExt::from_mode(dir)).expect("mode");
        std::fs::set_permissions(&place.image, PermissionsExt::from_mode(image)).expect("mode");
    };
    modes(0o755, 0o644);
    let other = place.dir.text("other");
    std::fs::create_dir(&other).expect("directory");
    let file = place.dir.text("file");
    std::fs::write(&file, "text").expect("written");
    for command in ["posix", "ofd"] {
        let _stranger = Locker::new("65534", &place.image, "rb", command);
        place.mount(&[]).ok();
        std::fs::write(place.at(command), "new").expect("written");
        // All other uses are still refused.
        extant(&["mount", &place.image, &other]).fails(32, &["disk.img: in use: mounted on "]);
        extant(&["mount", "-o", "ro", &place.image, &other]).fails(32, &["disk.img: in use: mounted on "]);
        extant(&["cat", &place.image, "big"]).fails(8, &["disk.img: in use: mounted on "]);
        extant(&["cp", &file, &format!("{}:/", place.image)]).fails(8, &["disk.img: in use: mounted on "]);
        place.unmount().ok();
        extant(&["cp", &file, &format!("{}:/", place.image)]).ok();
        fsck_clean(&place.image);
        assert_eq!(extant(&["cat", &place.image, command]).ok(), "new");
    }
    // The lock of a process counts if it may write the file: by its descriptor, or as the file's owner.
    modes(0o755, 0o666);
    for (user, mode) in [("65534", "r+b"), ("0", "rb"), ("0", "r+b")] {
        for command in ["posix", "ofd"] {
            let _holder = Locker::new(user, &place.image, mode, command);
            place.mount(&[]).fails(32, &["disk.img: in use"]);
            assert!(!place.mounted());
        }
    }
}

#[test]
fn unmount_finds_an_image_whose_name_is_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let Some(place) = Place::new("ext4", &[]) else { return };
    let image = place.dir.path("").join(std::ffi::OsStr::from_bytes(b"od\xffd, \\name.img"));
    std::fs::rename(&place.image, &image).expect("renamed");
    let extant = |args: &[&std::ffi::OsStr]| Command::new(extant_path()).args(args).output().expect("started");
    let mounted = extant(&["mount".as_ref(), image.as_ref(), place.mnt.as_ref()]);
    assert_eq!((mounted.status.code(), &*mounted.stderr), (Some(0), &b""[..]));
    std::fs::write(place.at("new"), "new").expect("written");
    let unmounted = extant(&["unmount".as_ref(), image.as_ref()]);
    let said = String::from_utf8_lossy(&unmounted.stderr);
    assert_eq!((unmounted.status.code(), place.mounted()), (Some(0), false), "{said}");
    std::fs::rename(&image, &place.image).expect("renamed");
    fsck_clean(&place.image);
}

#[test]
fn a_busy_mount_stays() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    place.mount(&[]).ok();
    let file = std::fs::File::open(place.at("big")).expect("open");
    place.unmount().fails(32, &["mnt: busy: "]);
    assert!(place.mounted());
    drop(file);
    place.unmount().ok();
    place.unmount().fails(32, &["mnt: not mounted"]);
    fsck_clean(&place.image);
}

#[test]
fn signals_unmount() {
    for name in ["TERM", "INT"] {
        let Some(place) = Place::new("ext4", &[]) else { return };
        let mut server = place.foreground();
        std::fs::write(place.at("new"), "new").expect("write");
        signal(&server, name);
        assert_eq!(server.wait().expect("wait").code(), Some(0));
        assert!(!place.mounted());
        fsck_clean(&place.image);
        assert_eq!(extant(&["cat", &place.image, "new"]).ok(), "new");
    }
}

/// A log that is full, or a terminal that has closed, does not end the mount.
#[test]
fn a_mount_survives_the_loss_of_its_log() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    tool("debugfs", &["-w", "-R", "sif /etc/passwd block[0] 0", &place.image]);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut server = place.foreground_to(full.into());
    std::fs::read(place.at("etc/passwd")).expect_err("damaged");
    write_durably(&place.at("new"), "new");
    signal(&server, "TERM");
    assert_eq!(server.wait().expect("wait").code(), Some(0));
    assert_eq!(extant(&["cat", &place.image, "new"]).out, b"new");
    assert!(tool("dumpe2fs", &["-h", &place.image]).contains("FS Error count:           1"));
}

#[test]
fn a_signal_detaches_a_busy_mount_and_serves_its_last_user() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    let mut server = place.foreground();
    let mut file = std::fs::File::create(place.at("new")).expect("create");
    signal(&server, "TERM");
    wait_until("the end of the mount", || !place.mounted());
    assert!(server.try_wait().expect("wait").is_none());
    file.write_all(b"written after the signal").expect("write");
    drop(file);
    assert_eq!(server.wait().expect("wait").code(), Some(0));
    fsck_clean(&place.image);
    assert_eq!(extant(&["cat", &place.image, "new"]).ok(), "written after the signal");
}

/// A frozen mount whose writer waits for the thaw is busy. After a detach, no process could thaw it.
#[test]
fn a_signal_ends_a_frozen_mount_with_a_waiting_writer() {
    for lazily in [false, true] {
        let Some(place) = Place::new("ext4", &[]) else { return };
        ends_frozen(&place, lazily);
    }
}

/// `lazily`: another process has already detached the mount.
fn ends_frozen(place: &Place, lazily: bool) {
    let mut server = place.foreground();
    extant(&["freeze", &place.mnt]).ok();
    // The open file makes it busy, whether or not the write has reached the server.
    let script = format!("exec 3>> {} && echo opened && echo late >&3", place.at("etc/passwd"));
    let mut writer =
        Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("spawn");
    let mut said = [0; 7];
    writer.stdout.take().expect("piped").read_exact(&mut said).expect("opened");
    if lazily {
        run("umount", &["-l", &place.mnt]).ok();
    }
    signal(&server, "TERM");
    let mut ended = None;
    for _ in 0..400 {
        ended = server.try_wait().expect("wait");
        if ended.is_some() {
            break;
        }
        Clock::real().sleep(Duration::from_millis(50));
    }
    if ended.is_none() {
        signal(&server, "KILL");
        signal(&writer, "KILL");
    }
    let written = writer.wait().expect("wait");
    assert!(ended.is_some_and(|status| status.success()) && written.success(), "{ended:?} {written:?}");
    fsck_clean(&place.image);
    assert!(extant(&["cat", &place.image, "etc/passwd"]).ok().ends_with("\nlate\n"));
}

#[test]
fn a_dead_mount_is_replaced_and_recovered() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    for round in 0..3 {
        let mut server = place.foreground();
        write_durably(&place.at(&format!("durable{round}")), "durable");
        std::fs::write(place.at("fleeting"), "fleeting").expect("write");
        signal(&server, "KILL");
        server.wait().expect("wait");
        assert!(place.mounted(), "the kernel keeps a dead mount");
        if round == 1 {
            place.unmount().fails(2, &["disk.img: the server had died; the next mount recovers"]);
            assert!(!place.mounted());
        }
    }
    // First mounted with a replay in memory, then in the image.
    let info = extant(&["info", &place.image]).ok();
    assert!(info.contains("State:       needs recovery"), "{info}");
    assert_eq!(extant(&["cat", &place.image, "durable2"]).ok(), "durable");
    place.mount(&[]).ok();
    for round in 0..3 {
        assert_eq!(std::fs::read_to_string(place.at(&format!("durable{round}"))).expect("read"), "durable");
    }
    place.unmount().ok();
    fsck_clean(&place.image);
}

/// The image is stored on a file system that is too small for it: an unmount with lost writes must not report success.
#[test]
fn an_unmount_that_loses_data_fails() {
    if !common::loop_mounts_work() {
        eprintln!("skipped: needs root");
        return;
    }
    let Some(place) = Place::new("ext4", &[]) else { return };
    let small = place.dir.text("small");
    std::fs::create_dir(&small).expect("directory");
    tool("mount", &["-t", "tmpfs", "-o", "size=12M", "tmpfs", &small]);
    let image = format!("{small}/sparse.img");
    let tried = std::panic::catch_unwind(|| {
        tool("mke2fs", &["-q", "-F", "-t", "ext4", &image, "64M"]);
        extant(&["mount", &image, &place.mnt]).ok();
        // The mount's page cache accepts all the data; the error appears at writeback.
        let _ = std::fs::write(place.at("data"), vec![7; 24 << 20]);
        extant(&["unmount", &place.mnt]).fails(2, &["sparse.img: "]);
        assert!(!place.mounted());
    });
    umount(&[&small]);
    tried.unwrap();
}

/// Root mounts a block device as fuseblk; then even umount(8) waits for the server.
#[test]
fn a_block_device_is_mounted_as_fuseblk() {
    let Some((mut on, device)) = OnDevice::new("ext4", &[]) else { return };
    let place = &on.place;
    for round in 0..3 {
        extant(&["mount", &device, &place.mnt]).ok();
        let mounts = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("mounts");
        let line = mounts.lines().find(|l| l.contains(&place.mnt)).expect("the mount").to_owned();
        assert!(line.starts_with(&format!("{device} {} fuseblk.extant ", place.mnt)), "{line}");
        extant(&["cat", &device, "big"]).fails(8, &[&device, "in use: mounted on "]);
        std::fs::write(place.at(&format!("new{round}")), "new").expect("write");
        tool("sync", &["-f", &place.at("big")]);
        if round == 0 {
            umount(&[&place.mnt]);
        } else {
            extant(&["unmount", &place.mnt]).ok();
        }
        fsck_clean(&device);
        assert_eq!(extant(&["cat", &device, &format!("new{round}")]).ok(), "new");
    }
    extant(&["mount", "-o", "ro", &device, &place.mnt]).ok();
    extant(&["unmount", &device]).ok();
    on.let_go();
    fsck_clean(&on.place.image);
}

/// The kernel refuses a block size of more than a page for fuseblk.
#[test]
fn a_device_with_blocks_larger_than_a_page_is_mounted() {
    let Some((mut on, device)) = OnDevice::new("ext4", &["-b", "8192"]) else { return };
    extant(&["mount", &device, &on.place.mnt]).ok();
    std::fs::write(on.place.at("new"), "new").expect("write");
    extant(&["unmount", &on.place.mnt]).ok();
    fsck_clean(&device);
    assert_eq!(extant(&["cat", &device, "new"]).ok(), "new");
    on.let_go();
}

/// Unmounts with MNT_FORCE. A process that another test is just starting may hold this test's files open until its
/// exec. Then the mount stays, dead, until its server detaches it.
fn force(mnt: &str, flags: UnmountFlags) {
    let forced = rustix::mount::unmount(mnt, UnmountFlags::FORCE | flags);
    assert!(matches!(forced, Ok(()) | Err(rustix::io::Errno::BUSY)), "{forced:?}");
}

/// Checks that a mount of a block device writes all its data after `off` has ended it by force. The result of `off` is
/// dropped afterwards.
fn is_written_all_the_same<T>(off: impl FnOnce(&Place) -> T) {
    let Some((mut on, device)) = OnDevice::new("ext4", &[]) else { return };
    let place = &on.place;
    let args = ["mount", "-f", &device, &place.mnt];
    let mut server = Command::new(extant_path()).args(args).stdin(Stdio::null()).spawn().expect("started");
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("the mount", || place.mounted());
        std::fs::write(place.at("new"), vec![7; 3 << 20]).expect("write");
        off(place)
    }));
    // The server always ends with the mount.
    if tried.is_err() && place.mounted() {
        run("umount", &["-l", &place.mnt]);
    }
    let ended = server.wait().expect("ended");
    drop(tried.unwrap());
    run("umount", &["-l", &place.dir.text("other")]);
    on.let_go();
    let place = &on.place;
    assert!(ended.success(), "{ended:?}");
    fsck_clean(&place.image);
    assert!(extant(&["cat", &place.image, "new"]).out == vec![7; 3 << 20]);
}

/// MNT_FORCE ends the kernel's part, including its exclusive open of the device. The server opens the device again, and
/// writes its data.
#[test]
fn a_forced_unmount_still_writes_all_data() {
    is_written_all_the_same(|place| force(&place.mnt, UnmountFlags::empty()));
}

/// After a forced unmount, the mount is dead where it is also bound, or where it is not visible. There the kernel still
/// has the device open.
#[test]
fn a_forced_unmount_of_a_busy_device_still_writes_all_data() {
    is_written_all_the_same(|place| {
        let other = place.dir.text("other");
        std::fs::create_dir(&other).expect("directory");
        tool("mount", &["--bind", &place.mnt, &other]);
        force(&place.mnt, UnmountFlags::empty());
    });
    let connections = "/sys/fs/fuse/connections";
    let mounted = !is_mount_point(Path::new(connections))
        && run("mount", &["-t", "fusectl", "none", connections]).code == Some(0);
    if is_mount_point(Path::new(connections)) {
        is_written_all_the_same(|place| {
            let in_use = std::fs::File::open(place.at("big")).expect("open");
            force(&place.mnt, UnmountFlags::DETACH);
            in_use
        });
    } else {
        eprintln!("skipped: without fusectl a mount that is not visible cannot be found");
    }
    if mounted {
        umount(&[connections]);
    }
}

/// Data that other programs read from the device during the mount: the label, and the blocks of a file, which becomes
/// a swap file.
#[test]
fn a_mounted_device_shows_its_label_and_the_blocks_of_a_swap_file() {
    let Some((mut on, device)) = OnDevice::new("ext4", &["-b", "4096"]) else { return };
    let place = &on.place;
    let (swap, holes) = (place.at("swap"), place.at("holes"));
    let tried = std::panic::catch_unwind(|| {
        extant(&["mount", &device, &place.mnt]).ok();
        let before = tool("e2label", &[&device]);
        // FS_IOC_SETFSLABEL, as btrfs(8) and xfs_io(8) send it.
        let set = "import fcntl,os,sys; f=os.open(sys.argv[1],os.O_RDONLY); fcntl.ioctl(f,0x41009432,b'seen'.ljust(256,b'\\0'))";
        tool("python3", &["-c", set, &place.mnt]);
        assert_ne!(before.trim(), "seen");
        assert_eq!(tool("e2label", &[&device]).trim(), "seen");

        std::fs::write(&swap, vec![0; 4 << 20]).expect("written");
        std::fs::File::create(&holes).and_then(|file| file.set_len(4 << 20)).expect("made");
        for path in [&swap, &holes] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(path, mode).expect("for root only");
            run("mkswap", &[path]);
        }
        // FIBMAP, block by block.
        let ask = "import fcntl,struct,sys; f=open(sys.argv[1]); \
                   [print(*struct.unpack('i', fcntl.ioctl(f,1,struct.pack('i',n)))) for n in range(1025)]";
        let told = tool("python3", &["-c", ask, &swap]);
        assert!(tool("python3", &["-c", ask, &holes]).lines().skip(1).all(|block| block == "0"));
        let on = run("swapon", &[&swap]);
        let refused = run("swapon", &[&holes]);
        if on.code == Some(0) {
            // The kernel now writes to it, and no other process may.
            assert!(std::fs::OpenOptions::new().write(true).open(&swap).and_then(|mut f| f.write(b"x")).is_err());
            tool("swapoff", &[&swap]);
        } else {
            assert!(on.err.contains("not permitted"), "{}", on.err);
        }
        assert_ne!(refused.code, Some(0), "there are holes in it");
        extant(&["unmount", &place.mnt]).ok();
        told
    });
    run("swapoff", &[&swap]);
    let told = tried.unwrap();
    on.let_go();
    let place = &on.place;
    let blocks = tool("debugfs", &["-R", "blocks /swap", &place.image]);
    // There are no blocks after the end.
    let blocks: Vec<&str> = blocks.split_whitespace().chain(["0"]).collect();
    assert_eq!(told.lines().collect::<Vec<_>>(), blocks);
    fsck_clean(&place.image);
}

#[test]
fn mount_helper_mounts() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    let helper = place.dir.text("mount.fuse.extant");
    std::os::unix::fs::symlink(extant_path(), &helper).expect("link");
    run(&helper, &[&place.image, &place.mnt, "-n", "-o", "rw,noatime,user,_netdev"]).ok();
    std::fs::write(place.at("new"), "new").expect("write");
    place.unmount().ok();
    fsck_clean(&place.image);
}

/// Without root: the caller owns everything, the image keeps its owners, and fusermount3 mounts.
#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let Some(place) = Place::new("ext4", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs to change from root to another user");
        return;
    }
    let top = Path::new(&place.image).parent().expect("directory").to_str().expect("UTF-8").to_owned();
    tool("chown", &["-R", "65534:65534", &top]);
    // Other users may not be able to enter the binary's directory.
    let binary = place.dir.text("extant");
    copy_program(&binary);
    tool("chmod", &["755", &binary, &top]);
    let somebody = |script: &str| {
        let script = format!("export PATH=$PATH:/usr/bin:/sbin; umask 022; {script}");
        run(
            "setpriv",
            &["--reuid=65534", "--regid=65534", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR", "sh", "-c", &script],
        )
    };
    if somebody(&format!("{binary} --version && command -v fusermount3 && : <> /dev/fuse")).code != Some(0) {
        eprintln!("skipped: no setpriv, no fusermount3, or /dev/fuse is closed to others");
        return;
    }
    let (image, mnt) = (&place.image, &place.mnt);
    let script = format!(
        "set -e; {binary} mount {image} {mnt}; stat -c '%u:%g' {mnt}/etc/passwd; echo mine > {mnt}/etc/new; \
         stat -c '%u:%g %a' {mnt}/etc/new; cat {mnt}/etc/passwd; {binary} unmount {mnt}"
    );
    assert_eq!(somebody(&script).ok(), "65534:65534\n65534:65534 644\nroot:x:0:0::/root:/bin/sh\n");
    fsck_clean(image);
    let stat = extant(&["stat", image, "/etc/new"]).ok();
    assert!(stat.contains("Uid: 0  Gid: 0"), "{stat}");
    let script =
        format!("{binary} mount -o fakeroot {image} {mnt} && stat -c '%u:%g' {mnt}/etc/passwd; {binary} unmount {mnt}");
    assert_eq!(somebody(&script).ok(), "0:0\n");
    let mut busy = somebody(&format!("{binary} mount {image} {mnt} && cd {mnt} && {binary} unmount {mnt}"));
    busy.out.clear();
    busy.fails(32, &["mnt: busy"]);
    somebody(&format!("{binary} unmount {mnt}")).ok();
    // Root may also unmount it, and then waits, too.
    somebody(&format!("{binary} mount {image} {mnt}")).ok();
    extant(&["unmount", mnt]).ok();
    fsck_clean(image);
    let _ = std::fs::remove_dir_all("/tmp/extant-65534");
}

/// A bind mount of a file in the mount (xfstests generic/306): its unmount does not end the server, and does not wait
/// for it.
#[test]
fn a_bind_mount_ends_by_itself() {
    if !common::loop_mounts_work() {
        eprintln!("skipped: needs root");
        return;
    }
    let Some(place) = Place::new("ext4", &[]) else { return };
    place.mount(&[]).ok();
    let bound = place.dir.text("bound");
    std::fs::write(&bound, "").expect("file");
    tool("mount", &["--bind", &place.at("big"), &bound]);
    let unmounted = extant(&["unmount", "-v", &bound]);
    let whole = std::fs::read(place.at("big")).map(|content| content.len());
    place.unmount().ok();
    let said = unmounted.ok();
    assert!(said.contains("still mounted on"), "{said}");
    assert_eq!(whole.expect("still there"), common::big().len());
}
