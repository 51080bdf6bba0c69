//! Replies in flight to the kernel while the attributes in them change.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use extant_base::clock::Clock;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Atime, Filesystem, MountOptions as FsOptions};
use extant_testkit::kinds::kind;
use extant_testkit::mount::{fuse_works, loop_mounts_work};
use extant_testkit::oracle::make_image;
use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags, setxattr, stat, statx};

use super::{FsServer, ServerOptions};
use crate::transport::reply::*;
use crate::types::*;
use crate::{Config, InitOffer, MountOptions, Server, Session};

static CLASS: LockClass = LockClass::new("test slow answer", 900);

/// How long to wait, on a busy machine, for the end of an attribute's validity of one second.
const GENEROUS: u64 = 20_000_000_000;

/// Delays the reply to the next GETATTR for an inode: it is computed on arrival and sent late.
struct Slow {
    ino: u64,
    computed: Sender<()>,
    go: Receiver<()>,
}

struct Late {
    inner: FsServer,
    slow: Mutex<Option<Slow>>,
}

impl Server for Late {
    fn init(&self, offer: &InitOffer) -> Config {
        self.inner.init(offer)
    }

    fn negotiated(&self, granted: &Config) {
        self.inner.negotiated(granted);
    }

    fn destroy(&self) {
        self.inner.destroy();
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8], reply: ReplyEntry) {
        self.inner.lookup(req, parent, name, reply);
    }

    fn forget(&self, batch: &[Forget]) {
        self.inner.forget(batch);
    }

    fn getattr(&self, req: &Request, ino: u64, fh: Option<u64>, reply: ReplyAttr) {
        let slow = {
            let mut slow = self.slow.lock();
            if slow.as_ref().is_some_and(|s| s.ino == ino) { slow.take() } else { None }
        };
        let Some(slow) = slow else { return self.inner.getattr(req, ino, fh, reply) };
        let inode = self.inner.node(ino).expect("known");
        let (attr, valid) = (self.inner.attr(&inode), self.inner.attr_valid(&inode));
        slow.computed.send(()).expect("awaited");
        slow.go.recv().expect("told");
        reply.ok(&attr, valid);
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        self.inner.mknod(req, parent, name, args, reply);
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        self.inner.mkdir(req, parent, name, args, reply);
    }

    fn setattr(&self, req: &Request, ino: u64, set: &SetAttr, reply: ReplyAttr) {
        self.inner.setattr(req, ino, set, reply);
    }

    fn setxattr(&self, req: &Request, ino: u64, name: &[u8], value: &[u8], args: &SetxattrArgs, reply: ReplyEmpty) {
        self.inner.setxattr(req, ino, name, value, args, reply);
    }

    fn getxattr(&self, req: &Request, ino: u64, name: &[u8], reply: ReplyXattr) {
        self.inner.getxattr(req, ino, name, reply);
    }
}

/// Sends a request to the server, regardless of the kernel's cache.
fn ask(path: &Path) {
    statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).expect("statx");
}

/// Runs `test` with the mount and a function that runs `change` while a reply about `path` is in flight.
fn mounted(test: impl FnOnce(&Late, &Path, &dyn Fn(&Path, &dyn Fn()))) {
    if !(loop_mounts_work() && fuse_works()) {
        eprintln!("SKIPPED: mounting needs root and /dev/fuse");
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let image = make_image(dir.path(), &kind("ext4", "", None, 4096).options).expect("image");
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).expect("mount point");
    let device = Arc::new(FileDevice::open(&image, OpenOptions::default()).expect("image opened"));
    let options = FsOptions { seed: Some(7), atime: Atime::Never, ..FsOptions::default() };
    let fs = Filesystem::mount(device, options).unwrap_or_else(|e| panic!("{e}"));
    let inner = FsServer::new(fs, ServerOptions::default()).expect("root");
    let late = Arc::new(Late { inner, slow: Mutex::new(&CLASS, None) });
    let session = Session::mount(late.clone(), &mnt, &MountOptions::default()).expect("mounted");
    late.inner.set_notifier(session.notifier());
    let unmounter = session.unmounter();
    let thread = task::spawn("session", move || session.run()).expect("thread");
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        test(&late, &mnt, &|path, change| {
            let (computed, wait) = channel();
            let (tell, go) = channel();
            *late.slow.lock() = Some(Slow { ino: stat(path).expect("stat").st_ino, computed, go });
            std::thread::scope(|s| {
                s.spawn(|| ask(path));
                wait.recv().expect("asked");
                change();
                tell.send(()).expect("awaited");
            });
        });
    }));
    let clock = Clock::real();
    let end = clock.now_ns() + GENEROUS;
    while unmounter.unmount(false).is_err() && clock.now_ns() < end {
        clock.sleep(std::time::Duration::from_millis(10));
    }
    let _ = unmounter.unmount(true);
    thread.join().expect("no panic").expect("served");
    if let Err(e) = done {
        std::panic::resume_unwind(e);
    }
}

/// An ACL with only the three classes of a mode is stored as that mode. If this removed a right, a concurrent request
/// for the attributes must not restore it.
#[test]
fn a_reply_from_before_an_acl_does_not_restore_the_old_mode() {
    const ACL: &str = "system.posix_acl_access";
    // Version 2; then tag, permissions and an unused id: rw for the owner, r for the group.
    let entry = |tag: u16, may: u16| [tag.to_le_bytes(), may.to_le_bytes(), [0xff; 2], [0xff; 2]].concat();
    let acl = |others| [2u32.to_le_bytes().to_vec(), entry(1, 6), entry(4, 4), entry(0x20, others)].concat();
    mounted(|_, mnt, meanwhile| {
        let f = mnt.join("f");
        drop(std::fs::File::create(&f).expect("created"));
        std::fs::set_permissions(&f, PermissionsExt::from_mode(0o666)).expect("chmod");
        meanwhile(&f, &|| setxattr(&f, ACL, &acl(0), XattrFlags::empty()).expect("setxattr"));
        assert_eq!(stat(&f).expect("stat").st_mode & 0o7777, 0o640);
    });
}

#[test]
fn a_reply_from_before_a_new_name_does_not_stay_valid_for_the_directory() {
    mounted(|late, mnt, meanwhile| {
        let d = mnt.join("d");
        std::fs::create_dir(&d).expect("mkdir");
        meanwhile(&d, &|| std::fs::create_dir(d.join("sub")).expect("mkdir"));
        let inode = late.inner.node(std::fs::metadata(&d).expect("stat").ino()).expect("known");
        let is = late.inner.attr(&inode);
        assert_eq!(is.nlink, 3);
        let clock = Clock::real();
        let end = clock.now_ns() + GENEROUS;
        loop {
            let seen = stat(&d).expect("stat");
            let seen = (seen.st_nlink, seen.st_mtime, seen.st_mtime_nsec);
            if seen == (3, is.mtime.sec, i64::from(is.mtime.nsec)) {
                return;
            }
            assert!(clock.now_ns() < end, "the kernel shows {seen:?} instead of {is:?}");
            clock.sleep(std::time::Duration::from_millis(50));
        }
    });
}
