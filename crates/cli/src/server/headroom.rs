//! Shrinks a mount's cache when its control group is short of memory, and grows it again later.
//!
//! Main types: [`Regulator`] (the size of the cache, computed from the group's free memory), [`Watch`] (the thread that
//! checks). The kernel's OOM killer gives no warning, and its pressure stall information arrives late: without
//! privilege its window is two seconds. So the thread checks the free memory ten times a second, in files that were
//! opened before the sandbox was entered.
//!
//! What it does not do: it frees no memory that is in use (dirty data, the journal's transactions).
//!
//! # Locking
//! `headroom` (963), a leaf: the thread waits on it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task::{self, JoinHandle};
use extant_fs::Filesystem;

use crate::server::allocator;
use crate::server::cgroup::{Group, LEAST, Room};

static CLASS: LockClass = LockClass::new("headroom", 963);

const PERIOD: Duration = Duration::from_millis(100);
/// If less than this percentage of the group's limit is free, the cache shrinks.
const SHORT: u64 = 15;
/// If more than this percentage is free, the cache grows. Between the two thresholds it does not change, so that it
/// does not oscillate.
const AMPLE: u64 = 30;

/// A cache whose size can be changed while it is in use.
pub trait Resizable {
    /// Bytes in use.
    fn used(&self) -> u64;

    /// Sets the limit, in bytes, and immediately frees as much memory above it as possible.
    fn resize(&self, bytes: u64);
}

/// Decides on the size of a cache.
pub struct Regulator {
    /// The initial size of the cache.
    most: u64,
    now: u64,
}

impl Regulator {
    pub fn new(most: u64) -> Regulator {
        Regulator { most, now: most }
    }

    /// The new size of the cache, if it changes. `room`: the group's free memory; None for a group without a limit.
    pub fn step(&mut self, room: Option<Room>, used: u64) -> Option<u64> {
        let before = self.now;
        self.now = match room {
            None => self.most,
            Some(room) => {
                let part = |percent: u64| room.limit / 100 * percent;
                let (lacking, spare) = (part(SHORT).saturating_sub(room.left), room.left.saturating_sub(part(AMPLE)));
                if lacking > 0 {
                    // Starts from the used size, because lowering an unused limit frees nothing. A cache that was
                    // configured smaller than the minimum keeps its size.
                    self.now.min(used).saturating_sub(lacking).max(LEAST).min(self.now)
                } else {
                    // Takes half of it, because other processes may need memory, too.
                    self.most.min(self.now + spare / 2)
                }
            }
        };
        (self.now != before).then_some(self.now)
    }
}

/// Performs one check.
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

/// The thread that checks; it ends when this value is dropped.
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

    /// A cache that always uses its whole limit.
    struct Greedy(Cell<u64>);

    impl Resizable for Greedy {
        fn used(&self) -> u64 {
            self.0.get()
        }

        fn resize(&self, bytes: u64) {
            self.0.set(bytes);
        }
    }

    /// A group of 200 MiB in which other processes use `others`.
    fn group(top: &Path, cache: &Greedy, others: u64) -> Group {
        let dir = top.join("g");
        std::fs::create_dir_all(&dir).expect("directory");
        let write = |name: &str, bytes: u64| std::fs::write(dir.join(name), format!("{bytes}\n")).expect("written");
        write("memory.max", 200 * MIB);
        write("memory.current", others + cache.0.get());
        Group::find("0::/g\n", top).expect("files")
    }

    /// Ten checks a second, with files of a group in the kernel's format.
    #[test]
    fn a_cache_shrinks_for_a_growing_neighbour_and_grows_again() {
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
        // The other process has ended.
        for _ in 0..100 {
            look(&group(top.path(), &cache, 0), &mut regulator, &cache);
        }
        assert_eq!(cache.0.get(), 128 * MIB);
    }

    #[test]
    fn a_cache_keeps_its_size_between_short_and_ample() {
        let room = |left: u64| Some(Room { left: left * MIB, limit: 1000 * MIB });
        let mut regulator = Regulator::new(500 * MIB);
        assert_eq!(
            regulator.step(room(100), 300 * MIB),
            Some(250 * MIB),
            "the shortage, subtracted from the used size"
        );
        for left in [150, 200, 300] {
            assert_eq!(regulator.step(room(left), 250 * MIB), None, "{left} MiB left");
        }
        assert_eq!(regulator.step(room(400), 250 * MIB), Some(300 * MIB));
        assert_eq!(regulator.step(None, 300 * MIB), Some(500 * MIB), "the limit is gone");
        assert_eq!(regulator.step(room(1000), 0), None, "never more than the configured size");
    }

    #[test]
    fn a_mount_keeps_its_minimum() {
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
