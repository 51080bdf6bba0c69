//! A draft: after a power cut at any moment of its commit, all of it is there or nothing.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::BlockDevice;
use extant_block::device::{CrashDevice, CrashMode, MemDevice};
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Cred, Draft, Error, Filesystem, MountOptions, NewNode, RenameFlags, SetAttr, WriteFlags};

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

/// An image with something to change in it.
fn image(args: &[&str]) -> MemDevice {
    let dev = Arc::new(tools::made(args, "16M"));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    let root = fs.root().expect("root");
    for name in [&b"old"[..], b"kept", b"gone"] {
        let file = fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("file");
        fs.write(&file, 0, &[name[0]; 30_000], WriteFlags::default()).expect("written");
    }
    drop(root);
    fs.unmount().expect("unmounted");
    drop(fs);
    dev.snapshot()
}

fn change(fs: &Filesystem) {
    let root = fs.root().expect("root");
    let old = fs.lookup(&root, b"old").expect("old");
    fs.write(&old, 5_000, b"overwritten in place", WriteFlags::default()).expect("written");
    fs.setattr(&old, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("mode");
    fs.unlink(&root, b"gone").expect("unlinked");
    let dir = fs.make_dirs(b"/a/b/c", 0o755, Cred::default()).expect("directories");
    let new = fs.create(&dir, b"new", NewNode::file(0o644), Cred::default()).expect("file");
    // It begins like a block of the journal.
    let magic = [0xC0, 0x3B, 0x39, 0x98].repeat(50_000);
    fs.write(&new, 0, &magic, WriteFlags::default()).expect("written");
    fs.rename(&root, b"kept", &dir, b"moved", RenameFlags::default()).expect("renamed");
}

/// A second write of the log would lose its content.
#[test]
fn a_draft_is_committed_once() {
    let base = Arc::new(image(&["-t", "ext4"]));
    let draft = Arc::new(Draft::new(base.clone(), Arc::new(MemDevice::new(base.size_bytes())), Clock::real()));
    let fs = Filesystem::mount(draft.clone(), options()).expect("mounted");
    change(&fs);
    fs.unmount().expect("unmounted");
    drop(fs);
    draft.commit().expect("committed");
    let committed = base.snapshot();
    assert!(matches!(draft.commit(), Err(Error::Invalid(_))));
    let mut blocks = [vec![0; base.size_bytes() as usize], vec![0; base.size_bytes() as usize]];
    for (dev, all) in [&committed, &*base].into_iter().zip(&mut blocks) {
        dev.read_at(0, all, extant_block::BioFlags::empty()).expect("memory");
    }
    assert!(blocks[0] == blocks[1], "the log was written again");
}

fn hash(content: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    hasher.finish()
}

/// Every path with its kind, size, mode and content.
fn fingerprint(fs: &Filesystem) -> Vec<String> {
    let mut all = Vec::new();
    let mut walk = Walk::new(fs, b"/", fs.root().expect("root"));
    while let Some(visit) = walk.next() {
        let Visit::Name(inode) = visit.expect("readable") else { continue };
        let attr = fs.getattr(&inode);
        let mut content = vec![0; if inode.is_dir() { 0 } else { attr.size as usize }];
        let n = if inode.is_dir() { 0 } else { fs.read(&inode, 0, &mut content).expect("read") };
        let path = String::from_utf8_lossy(walk.path()).into_owned();
        all.push(format!("{path} {:o} {} {n} {:x}", attr.mode, attr.nlink, hash(&content)));
    }
    all
}

/// e2fsck finds nothing, or repairs everything.
fn e2fsck(dev: &MemDevice, args: &str) -> bool {
    (0..2).contains(&tools::e2fsck(dev, &[args]).0)
}

fn committed(base: Arc<dyn BlockDevice>) -> Result<(), Error> {
    let side = Arc::new(MemDevice::new(base.size_bytes()));
    let draft = Arc::new(Draft::new(base, side, Clock::real()));
    let fs = Filesystem::mount(draft.clone(), options()).expect("mounted");
    change(&fs);
    fs.unmount().expect("unmounted");
    drop(fs);
    draft.commit()
}

#[test]
fn a_power_cut_leaves_all_or_nothing() {
    for args in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "1024", "-O", "^metadata_csum,^64bit"]] {
        let base = image(args);
        let crash = Arc::new(CrashDevice::from_image(&base));
        // The superblock, which every implementation of ext assumes to be atomic; a mount writes it alone.
        crash.declare_atomic(1024, 1024);
        let old = fingerprint(
            &Filesystem::mount(crash.clone(), MountOptions { read_only: true, ..options() }).expect("mounted"),
        );
        committed(crash.clone()).expect("committed");
        // The next mount replays it: everything is there.
        let new = {
            let dev = Arc::new(crash.live());
            let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
            let new = fingerprint(&fs);
            fs.unmount().expect("unmounted");
            assert!(e2fsck(&dev, "-fn"));
            new
        };
        assert_ne!(old, new);
        // The replay may be interrupted as well.
        Filesystem::mount(crash.clone(), options()).expect("mounted").unmount().expect("unmounted");
        assert!(new.iter().any(|l| l.starts_with("/a/b/c/new ")) && !new.iter().any(|l| l.starts_with("/gone ")));
        let mut rng = Rng::new(7);
        let (mut before, mut after) = (0, 0);
        for n in 0..=crash.write_log() {
            for mode in [CrashMode::InOrder, CrashMode::RandomSubset, CrashMode::Torn] {
                let state = Arc::new(crash.state_after(n, &mut rng, mode).expect("state"));
                // e2fsck replays the log itself, for a sample of states.
                if n % 64 == 0 {
                    assert!(e2fsck(&state, "-fp"), "{args:?}: e2fsck after event {n}, {mode:?}");
                }
                let fs = Filesystem::mount(state.clone(), options()).expect("mounted");
                let found = fingerprint(&fs);
                fs.unmount().expect("unmounted");
                assert!(found == old || found == new, "{args:?}: half of it after event {n}, {mode:?}: {found:?}");
                if found == old { before += 1 } else { after += 1 }
            }
        }
        assert!(before > 0 && after > 0, "{before} states before, {after} after");
    }
}

#[test]
fn a_draft_too_large_for_the_log_changes_nothing() {
    let base = Arc::new(image(&["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "4096", "-I", "1024"]));
    let side = Arc::new(MemDevice::new(base.size_bytes()));
    let draft = Arc::new(Draft::new(base.clone(), side, Clock::real()));
    let fs = Filesystem::mount(draft.clone(), options()).expect("mounted");
    let old = fs.lookup(&fs.root().expect("root"), b"old").expect("old");
    for round in 0..3u8 {
        fs.write(&old, 0, &vec![round; 2 << 20], WriteFlags::default()).expect("written");
        for n in 0..1200 {
            let name = format!("{round}-{n}");
            let dir = fs.make_dirs(name.as_bytes(), 0o755, Cred::default()).expect("directory");
            drop(dir);
        }
    }
    drop(old);
    fs.unmount().expect("unmounted");
    drop(fs);
    // New directories are in free blocks; the inode tables are not.
    let e = draft.commit().expect_err("too much");
    assert!(e.to_string().contains("blocks of the journal would be needed"), "{e}");
    let fs = Filesystem::mount(base.clone(), options()).expect("mounted");
    assert_eq!(fingerprint(&fs).len(), 4);
    fs.unmount().expect("unmounted");
    assert!(e2fsck(&base, "-fn"));
    // An image without a journal has no drafts.
    let plain = Arc::new(image(&["-t", "ext2"]));
    assert!(matches!(committed(plain), Err(Error::Unsupported(_))));
}
