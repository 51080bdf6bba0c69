//! Multi-mount protection: signs of life of another host refuse a mount, and one that is mounted gives them.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_block::device::MemDevice;
use extant_block::{Bio, BioFlags, BlockDevice, Wrapper};
use extant_fs::{Cred, Error, Filesystem, MountOptions, NewNode};
use extant_ondisk::mmp::{Mmp, SEQ_CLEAN, SEQ_FSCK};
use extant_ondisk::superblock::SuperBlock;

const MMP: &[&str] = &["-t", "ext4", "-b", "4096", "-O", "mmp"];

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), clock: Clock::virtual_at(1_800_000_000), ..MountOptions::default() }
}

fn sb(dev: &dyn BlockDevice) -> SuperBlock {
    let mut bytes = [0; 1024];
    dev.read_at(1024, &mut bytes, BioFlags::empty()).expect("read");
    SuperBlock::decode(&bytes, 1024).expect("a superblock")
}

fn sign(dev: &dyn BlockDevice) -> Mmp {
    let sb = sb(dev);
    let mut block = vec![0; 4096];
    dev.read_at(sb.raw().s_mmp_block.get() << 12, &mut block, BioFlags::empty()).expect("read");
    Mmp::parse(&sb, &block).expect("sound")
}

fn set_sign(dev: &dyn BlockDevice, change: impl FnOnce(&mut Mmp)) {
    let (sb, mut found) = (sb(dev), sign(dev));
    change(&mut found);
    let mut block = vec![0; 4096];
    found.encode(&sb, &mut block);
    dev.write_at(sb.raw().s_mmp_block.get() << 12, &[&block], BioFlags::empty()).expect("written");
}

#[test]
fn a_mount_gives_signs_of_life_and_a_last_one() {
    let dev = Arc::new(tools::made(MMP, "32M"));
    assert_eq!(sign(&*dev).seq, SEQ_CLEAN);
    let options = options();
    let clock = options.clock.clone();
    let before = clock.now_ns();
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    assert!(clock.now_ns() - before >= 11_000_000_000, "it did not wait for another host");
    let first = sign(&*dev);
    assert!(first.seq != SEQ_CLEAN && !first.host.is_empty());
    // Its thread gives another one soon after the interval.
    clock.advance(std::time::Duration::from_secs(6));
    let mut changed = false;
    for _ in 0..500 {
        Clock::real().sleep(std::time::Duration::from_millis(10));
        changed = sign(&*dev).seq == first.seq + 1;
        if changed {
            break;
        }
    }
    assert!(changed, "no second sign");
    fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default()).expect("created");
    fs.unmount().expect("unmounted");
    assert_eq!(sign(&*dev).seq, SEQ_CLEAN);
    tools::assert_clean(&dev);
}

/// Another host, which gives a sign between any two looks.
struct Alive {
    below: Arc<MemDevice>,
    signs: AtomicU32,
    writes: AtomicU32,
}

impl Wrapper for Alive {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }
    fn submit(&self, bio: Bio) {
        self.below.submit(bio);
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        if offset == sb(&*self.below).raw().s_mmp_block.get() << 12 {
            let seq = 100 + self.signs.fetch_add(1, Ordering::Relaxed);
            set_sign(&*self.below, |sign| (sign.seq, sign.host) = (seq, b"other".to_vec()));
        }
        self.below.read_at(offset, buffer, flags)
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.write_at(offset, pieces, flags)
    }
    fn flush(&self) -> extant_block::Result<()> {
        self.below.flush()
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.below.write_zeroes(offset, len, flags)
    }
}

#[test]
fn an_image_that_another_host_has_is_not_written() {
    let below = Arc::new(tools::made(MMP, "32M"));
    let dev = Arc::new(Alive { below, signs: AtomicU32::new(0), writes: AtomicU32::new(0) });
    let refused = Filesystem::mount(dev.clone(), options()).err().expect("refused");
    assert_eq!(refused.errno(), 16);
    assert!(refused.to_string().contains("another host has it mounted (host 'other'"), "{refused}");
    assert_eq!(dev.writes.load(Ordering::Relaxed), 0);
    // It can be read.
    let fs = Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options() }).expect("for reading");
    fs.unmount().expect("unmounted");
    assert_eq!(dev.writes.load(Ordering::Relaxed), 0);
}

#[test]
fn an_image_after_a_crash_is_waited_for_and_one_under_check_is_refused() {
    let dev = Arc::new(tools::made(MMP, "32M"));
    Filesystem::mount(dev.clone(), options()).expect("mounted").abandon();
    assert_ne!(sign(&*dev).seq, SEQ_CLEAN);
    let options_after = options();
    let clock = options_after.clock.clone();
    let before = clock.now_ns();
    Filesystem::mount(dev.clone(), options_after).expect("mounted").unmount().expect("unmounted");
    assert!(clock.now_ns() - before >= 22_000_000_000, "{} ns", clock.now_ns() - before);
    set_sign(&*dev, |sign| sign.seq = SEQ_FSCK);
    let refused = Filesystem::mount(dev.clone(), options()).err().expect("refused");
    assert!(matches!(&refused, Error::Mount { .. }) && refused.to_string().contains("a checker uses it"), "{refused}");
    assert_eq!(sign(&*dev).seq, SEQ_FSCK);
}

/// A mount that gave no sign for too long does not take another host's away.
#[test]
fn a_mount_that_lost_the_image_leaves_the_sign_of_the_other_host() {
    let dev = Arc::new(tools::made(MMP, "32M"));
    let options = options();
    let clock = options.clock.clone();
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    set_sign(&*dev, |sign| (sign.seq, sign.host) = (4711, b"other".to_vec()));
    clock.advance(std::time::Duration::from_secs(60));
    for _ in 0..500 {
        if fs.is_read_only() {
            break;
        }
        Clock::real().sleep(std::time::Duration::from_millis(10));
    }
    let late = fs.create(&fs.root().expect("root"), b"f", NewNode::file(0o644), Cred::default());
    assert!(matches!(late, Err(Error::ReadOnly | Error::Aborted { .. })), "{late:?}");
    assert!(fs.unmount().is_err(), "the unmount of a lost mount says so");
    assert_eq!((sign(&*dev).seq, sign(&*dev).host), (4711, b"other".to_vec()));
}
