//! A mount's cache gives way when its control group is short of memory, and comes back.
//!
//! Main types: [`Regulator`] (how large the cache may be, from what the group has left), [`Watch`] (the thread that
//! looks). The kernel's killer does not ask first, and its pressure stall information comes late: without privilege its
//! window is two seconds. So the thread looks ten times a second at what is left, in files that were opened before the
//! sandbox.
//!
//! What it does not do: it takes no memory from what is in use (dirty data, the journal's transactions).
//!
//! # Locking
//! `headroom` (963), a leaf: the thread waits on it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task::{self, JoinHandle};
use extant_fs::Filesystem;

use crate::allocator;
use crate::cgroup::{Group, LEAST, Room};

static CLASS: LockClass = LockClass::new("headroom", 963);

const PERIOD: Duration = Duration::from_millis(100);
/// Percent of the group's limit. With less left the cache shrinks, …
const SHORT: u64 = 15;
/// … and with more it grows. Between the two it stays: else it would do both in turn.
const AMPLE: u64 = 30;

/// A cache whose size can be changed while it is in use.
pub trait Resizable {
    /// Bytes in use.
    fn used(&self) -> u64;

    /// From now on, in bytes. What is above goes as far as it can, at once.
    fn resize(&self, bytes: u64);
}

/// Decides on the size of a cache.
pub struct Regulator {
    /// The size that the mount was given.
    most: u64,
    now: u64,
}

impl Regulator {
    pub fn new(most: u64) -> Regulator {
        Regulator { most, now: most }
    }

    /// The size that the cache is to have from now on, if that is another one. `room`: what the group has left; none of
    /// a group without limit.
    pub fn step(&mut self, room: Option<Room>, used: u64) -> Option<u64> {
        let before = self.now;
        self.now = match room {
            None => self.most,
            Some(room) => {
                let part = |percent: u64| room.limit / 100 * percent;
                let (lacking, spare) = (part(SHORT).saturating_sub(room.left), room.left.saturating_sub(part(AMPLE)));
                if lacking > 0 {
                    // From what it has: what it may have helps nobody. A small cache that was asked for stays.
                    self.now.min(used).saturating_sub(lacking).max(LEAST).min(self.now)
                } else {
                    // Half of it, because the others may want it, too.
                    self.most.min(self.now + spare / 2)
                }
            }
        };
        (self.now != before).then_some(self.now)
    }
}

/// One look.
pub fn look(group: &Group, regulator: &mut Regulator, cache: &impl Resizable) {
    if let Some(size) = regulator.step(group.room(), cache.used()) {
        cache.resize(size);
    }
}

/// The cache of a mount.
struct MountCache(Weak<Filesystem>);

impl Resizable for MountCache {
    fn used(&self) -> u64 {
        self.0.upgrade().map_or(0, |fs| fs.budget().used())
    }

    fn resize(&self, bytes: u64) {
        if let Some(fs) = self.0.upgrade() {
            fs.budget().set_limit(bytes);
            allocator::give_back();
        }
    }
}

/// The thread that looks; dropping this ends it.
pub struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(group: Group, fs: &Arc<Filesystem>) -> std::io::Result<Watch> {
        let stop = Arc::new((Mutex::new(&CLASS, false), Condvar::new()));
        let (told, weak) = (stop.clone(), Arc::downgrade(fs));
        let mut regulator = Regulator::new(fs.budget().limit());
        let thread = task::spawn("extant-headroom", move || {
            let (stop, changed) = &*told;
            let cache = MountCache(weak);
            loop {
                {
                    let mut stop = stop.lock();
                    if !*stop {
                        changed.wait_for(&mut stop, PERIOD);
                    }
                    if *stop {
                        return;
                    }
                }
                look(&group, &mut regulator, &cache);
            }
        })?;
        Ok(Watch { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::Path;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A cache that takes all that it may have.
    struct Greedy(Cell<u64>);

    impl Resizable for Greedy {
        fn used(&self) -> u64 {
            self.0.get()
        }

        fn resize(&self, bytes: u64) {
            self.0.set(bytes);
        }
    }

    /// A group of 200 MiB in which others have `others`.
    fn group(top: &Path, cache: &Greedy, others: u64) -> Group {
        let dir = top.join("g");
        std::fs::create_dir_all(&dir).expect("directory");
        let write = |name: &str, bytes: u64| std::fs::write(dir.join(name), format!("{bytes}\n")).expect("written");
        write("memory.max", 200 * MIB);
        write("memory.current", others + cache.0.get());
        Group::find("0::/g\n", top).expect("files")
    }

    /// Ten looks a second, with files of a group as the kernel has them.
    #[test]
    fn a_cache_gives_way_to_a_neighbour_that_grows_and_comes_back() {
        let top = tempfile::tempdir().expect("directory");
        let cache = Greedy(Cell::new(128 * MIB));
        let mut regulator = Regulator::new(128 * MIB);
        let mut sizes = Vec::new();
        // 50 MiB a second.
        for others in (0..=150).step_by(5).map(|n| n * MIB) {
            look(&group(top.path(), &cache, others), &mut regulator, &cache);
            let all = others + cache.0.get();
            assert!(all <= 170 * MIB + 5 * MIB, "{all} bytes of 200 MiB with {others} of the neighbour's");
            sizes.push(cache.0.get());
        }
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), (128 * MIB, 20 * MIB));
        // It has gone.
        for _ in 0..100 {
            look(&group(top.path(), &cache, 0), &mut regulator, &cache);
        }
        assert_eq!(cache.0.get(), 128 * MIB);
    }

    #[test]
    fn between_short_and_ample_a_cache_stays() {
        let room = |left: u64| Some(Room { left: left * MIB, limit: 1000 * MIB });
        let mut regulator = Regulator::new(500 * MIB);
        assert_eq!(regulator.step(room(100), 300 * MIB), Some(250 * MIB), "what is lacking, of what is used");
        for left in [150, 200, 300] {
            assert_eq!(regulator.step(room(left), 250 * MIB), None, "{left} MiB left");
        }
        assert_eq!(regulator.step(room(400), 250 * MIB), Some(300 * MIB));
        assert_eq!(regulator.step(None, 300 * MIB), Some(500 * MIB), "the limit is gone");
        assert_eq!(regulator.step(room(1000), 0), None, "never more than it was given");
    }

    #[test]
    fn a_mount_keeps_the_least_that_it_needs() {
        let none = Some(Room { left: 0, limit: 1000 * MIB });
        assert_eq!(Regulator::new(100 * MIB).step(none, 100 * MIB), Some(LEAST));
        assert_eq!(Regulator::new(100 * MIB).step(none, 0), Some(LEAST));
        assert_eq!(Regulator::new(MIB).step(none, MIB), None, "asked for less");
    }

    #[test]
    fn the_cache_of_a_mount_shrinks_at_once() {
        let dir = tempfile::tempdir().expect("directory");
        let image = extant_testkit::oracle::make_image(
            dir.path(),
            &extant_testkit::kinds::kind("ext4", "", None, 4096).options,
        )
        .expect("image");
        let device = extant_block::device::MemDevice::load(&image).expect("loaded");
        let options = extant_fs::MountOptions { seed: Some(7), cache_bytes: 32 * MIB, ..Default::default() };
        let fs = Filesystem::mount(Arc::new(device), options).unwrap_or_else(|e| panic!("{e}"));
        let root = fs.root().expect("root");
        let cred = extant_fs::Cred { uid: 0, gid: 0, umask: 0 };
        let file = fs.create(&root, b"f", extant_fs::NewNode::file(0o644), cred).expect("created");
        let write = || fs.write(&file, 0, &vec![1; 24 << 20], extant_fs::WriteFlags::default());
        extant_fs::Caller::ROOT.run(write).expect("written");
        fs.sync().expect("synced");
        let cache = MountCache(Arc::downgrade(&fs));
        let before = cache.used();
        assert!(before > 20 * MIB, "{before}");
        cache.resize(12 * MIB);
        let after = cache.used();
        assert!(after <= 12 * MIB, "{after} of {before} bytes are left");
        cache.resize(32 * MIB);
        assert_eq!(fs.budget().limit(), 32 * MIB, "it may grow again");
    }
}
