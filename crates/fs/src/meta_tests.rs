//! The published part of an inode equals the locked one after every change.

use extant_base::rng::Rng;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::time::Timestamp;

use super::*;
use crate::mount::super_block::read_super_at;

struct Desc(InodeDesc);

impl HasDesc for Desc {
    fn desc(&self) -> &InodeDesc {
        &self.0
    }
}

fn geometry() -> Geometry {
    read_super_at(&crate::tools::made(&["-t", "ext4"], "4M"), 1024).expect("a superblock").geometry().clone()
}

/// The rule of `relatime`, in other words than the module's: the access time is the newest, and less than a day old.
fn is_recent(desc: &InodeDesc, now_sec: i64) -> bool {
    let is_newest = [desc.mtime, desc.ctime].iter().all(|other| desc.atime > *other);
    is_newest && now_sec - desc.atime.seconds < 86_400
}

#[test]
fn each_end_of_a_change_publishes_flags_and_recency() {
    let meta = MetaLock::new(Desc(InodeDesc::new(0o100644, &geometry())));
    let mut rng = Rng::new(20_261_201);
    let mut seen = [0; 2];
    for _ in 0..2000 {
        {
            let mut m = meta.write();
            let time = Timestamp { seconds: 1_000_000 + rng.below(4) as i64 * 50_000, nanos: rng.below(2) as u32 };
            match rng.below(5) {
                0 => m.0.atime = time,
                1 => m.0.mtime = time,
                2 => m.0.ctime = time,
                3 => m.0.flags = InodeFlags::from_bits_retain(rng.next_u32()),
                _ => m.0.uid += 1,
            }
        }
        let m = meta.read();
        assert_eq!(meta.flags(), m.0.flags);
        for now_sec in [0, 1_086_399, 1_086_400, 1_150_000, 1_300_000] {
            let recent = meta.has_recent_atime(now_sec);
            assert_eq!(recent, is_recent(&m.0, now_sec), "{:?} at {now_sec}", m.0);
            seen[usize::from(recent)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}

#[test]
fn a_change_that_panics_publishes_what_it_left() {
    let meta = MetaLock::new(Desc(InodeDesc::new(0o100644, &geometry())));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        meta.write().0.flags = InodeFlags::IMMUTABLE;
        let mut m = meta.write();
        m.0.flags |= InodeFlags::APPEND;
        panic!("as an operation may");
    }));
    assert!(panics.is_err());
    assert_eq!(meta.flags(), InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    assert_eq!(meta.read().0.flags, meta.flags());
}

/// An access time at the end of time does not overflow.
#[test]
fn the_latest_access_time_is_recent() {
    let mut desc = InodeDesc::new(0o100644, &geometry());
    desc.atime = Timestamp { seconds: i64::MAX, nanos: 0 };
    let meta = MetaLock::new(Desc(desc));
    assert!(meta.has_recent_atime(i64::MAX - 1));
}
