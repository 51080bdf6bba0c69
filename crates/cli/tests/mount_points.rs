//! Mount points below a user's directory, which the user replaces by a symbolic link while root mounts or unmounts
//! there.

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Dir, extant, extant_path, fsck_clean, wait_until};
use extant_testkit::mount::{fuse_works, is_mount_point};
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// `a/x/vm` and `etc/vm`, to mount on. The user owns `a`.
struct Places {
    dir: Dir,
}

impl Places {
    fn new() -> Option<Places> {
        if !fuse_works() || !geteuid().is_root() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        let dir = Dir::new();
        for name in ["a/x/vm", "etc/vm"] {
            std::fs::create_dir_all(dir.path(name)).expect("directories");
        }
        Some(Places { dir })
    }

    /// Renames `a/x` to `a/y`, and makes `a/x` a link to `etc`.
    fn swap(&self) {
        std::fs::rename(self.dir.path("a/x"), self.dir.path("a/y")).expect("renamed");
        symlink("../etc", self.dir.path("a/x")).expect("link");
    }

    fn is_mounted(&self, name: &str) -> bool {
        is_mount_point(&self.dir.path(name))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for name in ["a/x/vm", "a/y/vm", "etc/vm"] {
            if self.is_mounted(name) {
                common::run("umount", &["-i", "-l", &self.dir.text(name)]);
            }
        }
    }
}

fn stat(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").map_or_else(String::new, |(_, rest)| rest.to_owned())
}

/// Stops a process while it sleeps before a retry.
fn stop_asleep(pid: u32) {
    wait_until("a retry", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).expect("runs");
        let number = call.split(' ').next().and_then(|number| number.parse().ok());
        number.is_some_and(|number: i64| [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&number))
    });
    signal(pid, Signal::STOP);
    wait_until("the stop", || stat(pid).starts_with('T'));
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).expect("a number"), signal).expect("signalled");
}

fn start(program: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn end(child: Child) -> (Option<i32>, String) {
    let done = child.wait_with_output().expect("waited");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn unmount_does_not_follow_a_link_put_in_the_place_of_the_mount_point() {
    for (helper, busy) in [(false, true), (false, false), (true, false)] {
        let Some(places) = Places::new() else { return };
        let (mine, others) = (places.dir.empty_image("mine.img", &[]), places.dir.empty_image("others.img", &[]));
        let mnt = places.dir.text("a/x/vm");
        extant(&["mount", &mine, &mnt]).ok();
        extant(&["mount", &others, &places.dir.text("etc/vm")]).ok();
        let open = std::fs::File::create(format!("{mnt}/open")).expect("created");
        let umount = places.dir.path("umount.fuse.extant");
        symlink(extant_path(), &umount).expect("link");
        let unmount = if helper { start(&umount, &[&mnt]) } else { start(extant_path(), &["unmount", &mnt]) };
        stop_asleep(unmount.id());
        places.swap();
        let open = Some(open).filter(|_| busy);
        signal(unmount.id(), Signal::CONT);
        let (code, said) = end(unmount);
        assert!(places.is_mounted("etc/vm"), "another mount was unmounted: {code:?} {said}");
        assert_eq!(
            (code, places.is_mounted("a/y/vm")),
            if busy { (Some(32), true) } else { (Some(0), false) },
            "{said}"
        );
        drop(open);
        for name in ["a/y/vm", "etc/vm"].iter().filter(|name| places.is_mounted(name)) {
            extant(&["unmount", &places.dir.text(name)]).ok();
        }
        fsck_clean(&mine);
        fsck_clean(&others);
    }
}

/// A process that has locked an image and looks like a server that is about to end, so a mount waits for it.
struct Ending(Child);

impl Ending {
    fn new(dir: &Dir, image: &str) -> Ending {
        let name = dir.path("extant-ending");
        symlink(common::python(), &name).expect("link");
        let script = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); \
                      print('locked', flush=True); sys.stdin.read()";
        let mut child = Command::new(name)
            .args(["-c", script, image])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = String::new();
        let out = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).expect("said");
        assert_eq!(said, "locked\n");
        Ending(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("waited").success());
    }
}

/// The process behind `extant mount`, once it exists.
fn server_of(mount: &Child) -> u32 {
    let children = PathBuf::from(format!("/proc/{0}/task/{0}/children", mount.id()));
    let mut server = None;
    wait_until("the server", || {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        server = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        server.is_some_and(|pid: u32| {
            let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&args).contains("--background-server")
        })
    });
    server.expect("there")
}

/// Stops a mount on `a/x/vm` while it opens its image, and resumes it after `meanwhile`.
fn mount_while(places: &Places, image: &str, foreground: bool, meanwhile: impl FnOnce()) -> Child {
    let ending = Ending::new(&places.dir, image);
    let mnt = places.dir.text("a/x/vm");
    let args = if foreground { &["mount", "-f", image, &mnt][..] } else { &["mount", image, &mnt] };
    let mount = start(extant_path(), args);
    let server = if foreground { mount.id() } else { server_of(&mount) };
    stop_asleep(server);
    meanwhile();
    ending.end();
    signal(server, Signal::CONT);
    mount
}

#[test]
fn mount_lands_on_the_directory_that_was_named_before_the_image_was_opened() {
    for foreground in [true, false] {
        let Some(places) = Places::new() else { return };
        let image = places.dir.empty_image("user.img", &[]);
        let mut mount = mount_while(&places, &image, foreground, || places.swap());
        let at = ["a/y/vm", "etc/vm"];
        wait_until("the mount", || {
            at.iter().any(|name| places.is_mounted(name)) || mount.try_wait().expect("asked").is_some()
        });
        assert_eq!(at.map(|name| places.is_mounted(name)), [true, false], "foreground: {foreground}");
        extant(&["unmount", &places.dir.text("a/y/vm")]).ok();
        assert_eq!(end(mount), (Some(0), String::new()));
        fsck_clean(&image);
    }
}

#[test]
fn mount_refuses_a_mount_point_that_has_become_a_link() {
    let Some(places) = Places::new() else { return };
    let image = places.dir.empty_image("user.img", &[]);
    let mount = mount_while(&places, &image, false, || {
        std::fs::remove_dir(places.dir.path("a/x/vm")).expect("removed");
        symlink(places.dir.path("etc/vm"), places.dir.path("a/x/vm")).expect("link");
    });
    let (code, said) = end(mount);
    assert_eq!((code, places.is_mounted("etc/vm")), (Some(32), false), "{said}");
    assert!(said.contains("a/x/vm: not a usable mount point: Not a directory"), "{said}");
    fsck_clean(&image);
}

/// A server that ends because of a signal unmounts only the mount that it has made.
#[test]
fn signal_does_not_unmount_what_a_link_leads_to() {
    let Some(places) = Places::new() else { return };
    let (mine, others) = (places.dir.empty_image("mine.img", &[]), places.dir.empty_image("others.img", &[]));
    let server = start(extant_path(), &["mount", "-f", &mine, &places.dir.text("a/x/vm")]);
    wait_until("the mount", || places.is_mounted("a/x/vm") && std::fs::read_dir(places.dir.path("a/x/vm")).is_ok());
    extant(&["mount", &others, &places.dir.text("etc/vm")]).ok();
    places.swap();
    signal(server.id(), Signal::TERM);
    // Another mount in that place would end the server at once.
    extant(&["unmount", &places.dir.text("a/y/vm")]).ok();
    let (code, said) = end(server);
    assert_eq!((code, places.is_mounted("etc/vm")), (Some(0), true), "{said}");
    extant(&["unmount", &places.dir.text("etc/vm")]).ok();
    fsck_clean(&mine);
    fsck_clean(&others);
}
