//! Two writes of one block are never in flight at once, since the device could let the older one win; and a read
//! meanwhile never returns older data.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::device::MemDevice;
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, Result, Wrapper};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};

static CLASS: LockClass = LockClass::new("test late", 0);
const THREADS: usize = 4;
const BLOCK: usize = 4096;

/// Completes requests late, the newest first.
struct Late {
    inner: MemDevice,
    waiting: Mutex<Vec<Bio>>,
    in_flight: Mutex<Vec<(u64, u64)>>,
    overlaps: Mutex<Vec<(u64, u64)>>,
    over: AtomicBool,
}

impl Late {
    fn begin(&self, offset: u64, len: u64) {
        let mut flying = self.in_flight.lock();
        if flying.iter().any(|(o, l)| offset < o + l && *o < offset + len) {
            self.overlaps.lock().push((offset, len));
        }
        flying.push((offset, len));
    }

    fn end(&self, offset: u64, len: u64) {
        let mut flying = self.in_flight.lock();
        let at = flying.iter().position(|f| *f == (offset, len)).expect("in flight");
        flying.swap_remove(at);
    }

    fn complete_all(&self) {
        let clock = Clock::real();
        loop {
            let over = self.over.load(Ordering::Acquire);
            let waiting = std::mem::take(&mut *self.waiting.lock());
            if over && waiting.is_empty() {
                return;
            }
            waiting.into_iter().rev().for_each(|bio| self.inner.submit(bio));
            clock.sleep(std::time::Duration::from_micros(300));
        }
    }
}

struct Shared(Arc<Late>);

impl Wrapper for Shared {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0.inner
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Write && bio.len > 0 {
            let (late, offset, len) = (self.0.clone(), bio.offset, bio.len);
            late.begin(offset, len);
            let end_io = bio.end_io;
            bio.end_io = Box::new(move |c| {
                late.end(offset, len);
                end_io.end_io(c);
            });
        }
        self.0.waiting.lock().push(bio);
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        let len = pieces.iter().map(|p| p.len() as u64).sum();
        self.0.begin(offset, len);
        let result = self.0.inner.write_at(offset, pieces, flags);
        self.0.end(offset, len);
        result
    }
}

/// Each thread owns its part of every block, and knows its content.
fn rewrite(fs: &Filesystem, me: usize, rounds: u64) -> Vec<(u64, Vec<u8>)> {
    let file = fs.lookup(&fs.root().expect("root"), b"shared").expect("shared");
    let mut rng = Rng::new(me as u64);
    let part = BLOCK / THREADS;
    let mut mine = vec![vec![0u8; part]; 8];
    let place = |block: usize| (block * BLOCK + me * part) as u64;
    for round in 0..rounds {
        let block = rng.below(mine.len() as u64) as usize;
        mine[block].fill(round as u8 | 1);
        assert_eq!(fs.write(&file, place(block), &mine[block], WriteFlags::default()).expect("write"), part);
        if rng.one_in(2) {
            fs.fsync(&file, rng.one_in(2)).expect("fsync");
        }
        let mut buf = vec![0; part];
        let block = rng.below(mine.len() as u64) as usize;
        let n = fs.read(&file, place(block), &mut buf).expect("read");
        assert_eq!(buf[..n], mine[block][..n], "thread {me}, round {round}, block {block}");
    }
    mine.into_iter().enumerate().map(|(block, bytes)| (place(block), bytes)).collect()
}

#[test]
fn writes_of_a_block_do_not_overlap() {
    for kind in ["ext4", "ext2"] {
        let late = Arc::new(Late {
            inner: tools::made(&["-b", "4096", "-t", kind], "32M"),
            waiting: Mutex::new(&CLASS, Vec::new()),
            in_flight: Mutex::new(&CLASS, Vec::new()),
            overlaps: Mutex::new(&CLASS, Vec::new()),
            over: AtomicBool::new(false),
        });
        let device = late.clone();
        let completer = task::spawn("late", move || device.complete_all()).expect("thread");
        let mount = || Filesystem::mount(Arc::new(Shared(late.clone())), MountOptions::default()).expect("mounted");
        let fs = mount();
        drop(fs.create(&fs.root().expect("root"), b"shared", NewNode::file(0o644), Cred::default()).expect("create"));
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let fs = fs.clone();
                task::spawn("writer", move || rewrite(&fs, me, 300)).expect("thread")
            })
            .collect();
        let expected: Vec<_> = threads.into_iter().flat_map(|t| t.join().expect("joined")).collect();
        fs.unmount().expect("unmounted");
        drop(fs);
        // From the device.
        let fs = mount();
        let file = fs.lookup(&fs.root().expect("root"), b"shared").expect("shared");
        for (place, bytes) in expected {
            let mut buf = vec![0; bytes.len()];
            fs.read(&file, place, &mut buf).expect("read");
            assert!(buf == bytes, "{kind}: at {place}");
        }
        drop(file);
        fs.unmount().expect("unmounted");
        drop(fs);
        late.over.store(true, Ordering::Release);
        completer.join().expect("joined");
        assert_eq!(*late.overlaps.lock(), Vec::new(), "{kind}: writes that overlapped others in flight");
    }
}
