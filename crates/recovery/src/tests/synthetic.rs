//! Replay of logs made by hand: order, revokes, torn ends, wrap-around.

use std::sync::{Arc, mpsc};

use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_block::device::MemDevice;
use extant_block::{AlignedBuf, Bio, BioData, BioFlags, BlockDevice, Completion, IoStats, Limits};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{CompatFeatures, DescriptorBuilder, IncompatFeatures, JournalSuperBlock, LogCsum, Tid};

use super::disk::{Event, MemDisk};
use super::log_writer::{LogWriter, UUID, Work};
use crate::*;

const BS: u32 = 1024;
const ALL: [LogCsum; 4] = [LogCsum::None, LogCsum::V1, LogCsum::V2, LogCsum::V3];

fn data(fill: u8) -> Vec<u8> {
    vec![fill; BS as usize]
}

fn magic(fill: u8) -> Vec<u8> {
    let mut bytes = data(fill);
    bytes[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
    bytes
}

fn copies(list: &[(u64, u8)]) -> Work {
    Work { copies: list.iter().map(|(b, f)| (*b, data(*f))).collect(), ..Work::default() }
}

fn load(writer: &LogWriter) -> Replay {
    load_from(&writer.open())
}

fn load_from(journal: &JournalFile) -> Replay {
    Replay::load(journal, journal.device().as_ref(), &mut |_| {}).unwrap()
}

fn home(disk: &MemDisk, block: u64) -> Vec<u8> {
    let mut bytes = data(0);
    disk.read_at(block * u64::from(BS), &mut bytes, BioFlags::empty()).unwrap();
    bytes
}

fn apply(writer: &LogWriter) -> Replay {
    let mut journal = writer.open();
    let replay = load_from(&journal);
    replay.apply(&mut journal, writer.disk.as_ref(), Accept::WholeOnly, &mut |_| {}).unwrap();
    replay
}

#[test]
fn every_format_replays() {
    for csum in ALL {
        for wide in [false, true] {
            let mut w = LogWriter::new(BS, 1000, 1200, csum, wide);
            w.start_here();
            let full = DescriptorBuilder::capacity_of(&w.format) as u64;
            w.transaction(&copies(&[(10, 1), (11, 2)]));
            w.transaction(&Work { copies: vec![(12, magic(3)), (11, data(4))], ..Work::default() });
            w.transaction(&Work { copies: (100..100 + full).map(|b| (b, data(b as u8))).collect(), ..Work::default() });
            w.transaction(&Work { copies: (500..501 + full).map(|b| (b, data(b as u8))).collect(), ..Work::default() });
            w.body(&copies(&[(10, 99)]));
            let replay = apply(&w);
            assert_eq!(replay.damage, vec![]);
            assert_eq!(replay.transactions, 4, "{csum:?} {wide}");
            assert_eq!((replay.start, replay.end, replay.next_tid()), (Tid(1), Tid(5), Tid(6)));
            assert_eq!(replay.blocks.len() as u64, 3 + full + full + 1);
            assert_eq!(replay.commit_time, Some((1003, 7)));
            assert_eq!(home(&w.disk, 10), data(1));
            assert_eq!(home(&w.disk, 11), data(4));
            assert_eq!(home(&w.disk, 12), magic(3));
            assert_eq!(home(&w.disk, 13), data(0x11));
            for b in (100..100 + full).chain(500..501 + full) {
                assert_eq!(home(&w.disk, b), data(b as u8));
            }
            let sb = w.open().super_block().clone();
            assert_eq!((sb.start, sb.sequence), (0, Tid(6)));
            assert!(load(&w).is_empty());
        }
    }
}

/// The author of a log must not determine the memory of its reader.
#[test]
fn a_log_with_too_many_blocks_is_refused_and_findings_are_bounded() {
    for csum in ALL {
        let mut w = LogWriter::new(BS, 1000, 4000, csum, false);
        w.start_here();
        // The same hundred blocks in each of ten transactions.
        for round in 0..10 {
            w.transaction(&copies(&(0..100).map(|b| (100 + b, round)).collect::<Vec<_>>()));
        }
        let journal = w.open();
        let bounded = |max| Replay::load_bounded(&journal, journal.device().as_ref(), max, &mut |_| {});
        assert_eq!(bounded(200).unwrap().blocks.len(), 100);
        assert!(matches!(bounded(199), Err(Error::TooMuch { most: 199, .. })));
        // All of these homes are past the end of the device.
        let mut w = LogWriter::new(BS, 1000, 4000, csum, false);
        w.start_here();
        w.transaction(&copies(&(0..2000).map(|b| (1 << 20 | b, 1)).collect::<Vec<_>>()));
        let replay = load(&w);
        assert_eq!((replay.damage.len(), replay.blocks.len()), (1000, 0));
    }
}

#[test]
fn the_log_wraps_and_numbers_wrap() {
    for csum in ALL {
        let mut w = LogWriter::new(BS, 1000, 64, csum, true);
        w.tid = Tid(0xFFFF_FFF0);
        for round in 0..40u64 {
            w.transaction(&copies(&[(10 + round, round as u8), (200, round as u8), (201, 1)]));
        }
        assert!(w.tid.is_after(Tid(0xFFFF_FFFF)));
        // The last 12 transactions, of 5 blocks each: nearly a round of the log, across its end.
        (w.sb.start, w.sb.sequence) =
            (w.sb.log().advance(w.at, w.sb.log().len() - 12 * 5), Tid(w.tid.0.wrapping_sub(12)));
        w.write_super();
        let replay = apply(&w);
        assert_eq!((replay.transactions, replay.end), (12, w.tid));
        assert_eq!(home(&w.disk, 200), data(39));
        assert_eq!(home(&w.disk, 10 + 28), data(28));
        assert_eq!(home(&w.disk, 10 + 27), data(0x11));
    }
}

/// Whether a block is replayed that is copied in transaction `copy` and revoked in transaction `revoke`.
fn replayed(copy: u32, revoke: u32, revokes_last: bool) -> bool {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, false);
    w.tid = Tid(10);
    w.start_here();
    for tid in 10..14 {
        let mut work = Work { revokes_last, ..copies(&[(500 + u64::from(tid), 1)]) };
        if tid == copy {
            work.copies.push((42, data(7)));
        }
        if tid == revoke {
            work.revokes = vec![1, 42, 900];
        }
        w.transaction(&work);
    }
    let replay = apply(&w);
    assert_eq!(replay.revokes, 3);
    let yes = home(&w.disk, 42) == data(7);
    assert_eq!(replay.revoked, u64::from(!yes));
    yes
}

#[test]
fn a_revoke_hides_its_own_and_older_transactions() {
    for last in [false, true] {
        assert!(!replayed(11, 12, last), "T < R");
        assert!(!replayed(12, 12, last), "T = R");
        assert!(replayed(13, 12, last), "T > R");
    }
}

#[test]
fn a_revoke_hides_every_older_copy_but_no_newer_one() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::None, true);
    w.start_here();
    w.transaction(&copies(&[(42, 1), (43, 1)]));
    w.transaction(&copies(&[(42, 2)]));
    w.transaction(&Work { revokes: vec![42, 43], ..copies(&[(44, 1)]) });
    w.transaction(&copies(&[(42, 4)]));
    let replay = apply(&w);
    assert_eq!((home(&w.disk, 42), home(&w.disk, 43)), (data(4), data(0x11)));
    assert_eq!((replay.revokes, replay.revoked, replay.copies), (2, 1, 5));
}

#[test]
fn a_revoke_without_its_commit_does_not_count() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V2, true);
    w.start_here();
    w.transaction(&copies(&[(42, 1)]));
    w.body(&Work { revokes: vec![42], ..Work::default() });
    apply(&w);
    assert_eq!(home(&w.disk, 42), data(1));
}

#[test]
fn many_revokes_span_several_blocks() {
    let mut w = LogWriter::new(BS, 4000, 200, LogCsum::V3, true);
    w.start_here();
    w.transaction(&copies(&[(42, 1), (3000, 2)]));
    w.transaction(&Work { revokes: (1000..3001).collect(), ..Work::default() });
    let replay = apply(&w);
    assert_eq!((replay.revokes, replay.revoked, replay.transactions), (2001, 1, 2));
    assert_eq!((home(&w.disk, 42), home(&w.disk, 3000)), (data(1), data(0x11)));
}

/// Two good transactions and a third whose block `spoiled` (0 descriptor, 1 copy, 2 commit) is broken. The third is
/// committed `clock` seconds after the second.
fn third_spoiled(csum: LogCsum, incompat: IncompatFeatures, spoiled: usize, clock: i64, a_fourth: bool) -> Replay {
    let mut w = LogWriter::new(BS, 1000, 200, csum, false);
    w.sb.incompat |= incompat;
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    w.transaction(&copies(&[(11, 2)]));
    w.sec = (1001 + clock) as u64;
    w.transaction(&copies(&[(12, 3)]));
    let at = w.written[spoiled];
    w.spoil(at, 300);
    if spoiled == 2 {
        w.spoil(at, 20);
    }
    if a_fourth {
        w.transaction(&copies(&[(13, 4)]));
    }
    load(&w)
}

#[test]
fn a_broken_newer_transaction_is_damage_and_an_older_one_ends_the_log() {
    let none = IncompatFeatures::empty();
    for csum in [LogCsum::V2, LogCsum::V3] {
        for clock in [0, 5] {
            let replay = third_spoiled(csum, none, 0, clock, false);
            assert!(matches!(replay.damage[..], [Damage::Block { tid: Tid(3), .. }]));
            let replay = third_spoiled(csum, none, 2, clock, false);
            assert!(matches!(replay.damage[..], [Damage::Commit { tid: Tid(3), .. }]));
            assert_eq!((replay.end, replay.blocks.len()), (Tid(3), 2));
            assert!(matches!(replay.check(), Err(Error::Damaged { count: 1, .. })));
            let replay = third_spoiled(csum, none, 1, clock, false);
            assert!(matches!(replay.damage[..], [Damage::Copy { tid: Tid(3), block: BlockNr(12), .. }]));
            assert_eq!(replay.blocks.len(), 2);
        }
        for spoiled in [0, 2] {
            let replay = third_spoiled(csum, none, spoiled, -1, false);
            assert_eq!((replay.damage.len(), replay.end), (0, Tid(3)));
            assert!(replay.check().is_ok());
        }
    }
}

#[test]
fn v1_checksums_cover_the_transaction() {
    for spoiled in [0, 1] {
        let none = IncompatFeatures::empty();
        let replay = third_spoiled(LogCsum::V1, none, spoiled, 1, false);
        assert!(matches!(replay.damage[..], [Damage::Commit { tid: Tid(3), .. }]), "{:?}", replay.damage);
        assert_eq!(third_spoiled(LogCsum::V1, none, spoiled, -1, false).damage, vec![]);
    }
    // A commit block without a checksum is accepted.
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V1, false);
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    let at = w.written[2];
    let mut commit = w.get(at);
    commit[12..48].fill(0);
    w.put(at, &commit);
    assert_eq!(load(&w).transactions, 1);
}

#[test]
fn an_asynchronous_commit_may_overtake_its_transaction() {
    for csum in [LogCsum::V1, LogCsum::V2, LogCsum::V3] {
        // If it is the last one, it never was complete.
        let replay = third_spoiled(csum, IncompatFeatures::ASYNC_COMMIT, 1, 1, false);
        assert_eq!((replay.damage.len(), replay.end, replay.blocks.len()), (0, Tid(3), 2));
        // If another follows, it had been complete.
        let replay = third_spoiled(csum, IncompatFeatures::ASYNC_COMMIT, 1, 1, true);
        assert!(matches!(replay.damage[..], [Damage::Commit { tid: Tid(3), .. }]));
        assert_eq!((replay.end, replay.blocks.len()), (Tid(3), 2));
    }
}

#[test]
fn an_overridden_or_revoked_copy_may_be_broken() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, false);
    w.start_here();
    w.transaction(&copies(&[(10, 1), (11, 1)]));
    let (a, b) = (w.written[1], w.written[2]);
    w.spoil(a, 9);
    w.spoil(b, 9);
    w.transaction(&Work { revokes: vec![11], ..copies(&[(10, 2)]) });
    assert_eq!(apply(&w).damage, vec![]);
    assert_eq!((home(&w.disk, 10), home(&w.disk, 11)), (data(2), data(0x11)));
}

#[test]
fn a_torn_commit_block_counts() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, false);
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    let at = *w.written.last().unwrap();
    let mut commit = w.get(at);
    commit[512..].fill(0xEE);
    w.put(at, &commit);
    assert_eq!(load(&w).transactions, 1);
}

#[test]
fn homes_outside_the_file_system_are_damage() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::None, true);
    w.start_here();
    w.transaction(&copies(&[(10, 1), (1200, 2), (u64::MAX, 3), (1100, 4)]));
    let replay = load(&w);
    assert_eq!(replay.damage.len(), 3);
    assert!(replay.damage.iter().any(|d| matches!(d, Damage::HomeInJournal { block: BlockNr(1100), .. })));
    assert!(replay.damage.iter().any(|d| matches!(d, Damage::HomeOutOfRange { block: BlockNr(1200), .. })));
    let mut journal = w.open();
    let err = replay.apply(&mut journal, w.disk.as_ref(), Accept::WholeOnly, &mut |_| {}).unwrap_err();
    assert!(err.to_string().contains("3 findings"), "{err}");
    assert_eq!(home(&w.disk, 10), data(0x11));
    // A checker uses the complete transactions; the next number exceeds all those that may lie behind the damage.
    replay.apply(&mut journal, w.disk.as_ref(), Accept::Damaged, &mut |_| {}).unwrap();
    assert_eq!(home(&w.disk, 10), data(1));
    assert_eq!(w.open().super_block().sequence, Tid(2 + 200));
}

#[test]
fn the_scan_of_an_endless_log_terminates() {
    for csum in ALL {
        let mut w = LogWriter::new(BS, 1000, 64, csum, false);
        w.start_here();
        for _ in 0..70 {
            w.body(&Work { revokes: vec![5], ..Work::default() });
        }
        assert_eq!(load(&w).transactions, 0);
        let mut w = LogWriter::new(BS, 1000, 64, csum, false);
        w.start_here();
        for _ in 0..40 {
            w.body(&copies(&[(5, 5)]));
        }
        assert_eq!(load(&w).transactions, 0);
    }
}

#[test]
fn fast_commits_are_read_and_their_area_is_not_log() {
    let disk = MemDisk::new(vec![0x11; 3000 * 1024]);
    let map = JournalMap::from_runs([(BlockNr(1000), 1280)]).unwrap();
    let mut sb = JournalSuperBlock::create(BS, 1280, UUID, LogCsum::V3, false);
    sb.incompat |= IncompatFeatures::FAST_COMMIT;
    let mut w = LogWriter::over(disk, sb, map);
    w.at = 1020;
    w.start_here();
    w.transaction(&copies(&[(10, 1), (11, 2)]));
    w.transaction(&copies(&[(12, 3)]));
    assert!(w.at < 100, "wrapped at {}", w.sb.log().last);
    assert!(load(&w).check().is_ok());
    assert_eq!(load(&w).transactions, 2);
    for (tid, found) in [(2u8, false), (3, true), (4, false)] {
        w.put(1025, &fast_commit(tid));
        let replay = load(&w);
        assert_eq!(replay.fast_commits.len(), usize::from(found));
        assert!(replay.check().is_ok());
    }
    w.put(1025, &fast_commit(3));
    w.put(1026, &fast_commit(3));
    let replay = load(&w);
    assert_eq!((replay.fast_commits.len(), replay.end), (2, Tid(3)));
    // The log is not emptied while it has fast commits, and its tail can be moved without losing them.
    let mut journal = w.open();
    let before = w.disk.bytes();
    let refused = replay.apply(&mut journal, &*w.disk, Accept::WholeOnly, &mut |_| {});
    assert!(matches!(refused, Err(Error::FastCommits { tid: Tid(3) })), "{refused:?}");
    assert!(w.disk.bytes() == before);
    replay.move_tail(&mut journal, &*w.disk).unwrap();
    let again = load(&w);
    assert_eq!((again.transactions, again.end, again.head), (0, Tid(3), replay.head));
    assert_eq!(again.fast_commits, replay.fast_commits);
    assert_eq!(home(&w.disk, 10), data(1));
}

/// A block with a fast commit that changes nothing.
fn fast_commit(tid: u8) -> Vec<u8> {
    let mut block = vec![0; BS as usize];
    let tail = (BS - 16) as u16;
    block[..12].copy_from_slice(&[9, 0, 8, 0, 0, 0, 0, 0, tid, 0, 0, 0]);
    block[12..14].copy_from_slice(&[8, 0]);
    block[14..16].copy_from_slice(&tail.to_le_bytes());
    block[16] = tid;
    let crc = extant_ondisk::csum::crc32c(0, &block[..20]);
    block[20..24].copy_from_slice(&crc.to_le_bytes());
    block
}

#[test]
fn a_replay_interrupted_anywhere_can_be_repeated() {
    let mut w = LogWriter::new(BS, 1000, 400, LogCsum::V3, true);
    w.start_here();
    for t in 0..20u64 {
        let mut work = copies(&[(t * 7, t as u8), (t * 7 + 1, t as u8), (50, t as u8), (900 - t, 3)]);
        work.revokes = if t == 9 { vec![7, 14, 880] } else { Vec::new() };
        w.transaction(&work);
    }
    let whole = w.fork();
    let open = |disk: &Arc<MemDisk>| JournalFile::open(disk.clone(), BS, w.map.clone()).unwrap();
    let run = |disk: &Arc<MemDisk>| {
        let mut journal = open(disk);
        let replay = load_from(&journal);
        replay.apply(&mut journal, disk.as_ref(), Accept::WholeOnly, &mut |_| {})
    };
    run(&whole).unwrap();
    let events = whole.events();
    let writes = events.iter().filter(|e| matches!(e, Event::Write { .. })).count();
    // Home writes, a flush, then the superblock alone, as one durable sector.
    let super_at = open(&whole).super_offset();
    assert_eq!(events.last(), Some(&Event::Write { offset: super_at, len: 512, fua: true }));
    let flush = events.iter().position(|e| *e == Event::Flush).unwrap();
    assert_eq!(events[..flush].len(), writes - 1);
    for cut in 0..writes {
        let disk = w.fork();
        disk.cut_after(cut);
        assert!(matches!(run(&disk), Err(Error::Device(_))), "cut at {cut}");
        disk.cut_after(usize::MAX);
        run(&disk).unwrap();
        assert!(disk.bytes() == whole.bytes(), "cut at {cut}");
    }
    // Once more: nothing is left to do.
    let before = whole.events().len();
    run(&whole).unwrap();
    assert_eq!(whole.events().len(), before);
}

#[test]
fn blocks_in_the_log_are_data_where_the_device_has_holes() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    w.start_here();
    w.transaction(&copies(&[(10, 1), (11, 2), (999, 4)]));
    let journal = w.open();
    let replay = load_from(&journal);
    let hole = Arc::new(MemDevice::new(w.disk.size_bytes()));
    assert_eq!(hole.next_data(0).unwrap(), Some(1 << 20), "as far as the search looks ahead");
    let overlay = OverlayDevice::new(hole, journal, replay);
    let next = |at| overlay.next_data(at).unwrap();
    assert_eq!([next(0), next(10 * 1024 + 7)], [Some(10 * 1024), Some(10 * 1024 + 7)]);
    assert_eq!(next(12 * 1024), Some(999 * 1024));
}

/// Holds submitted bios until the test releases them; waiting calls go through.
struct Queue {
    below: Arc<MemDisk>,
    waiting: Mutex<Vec<Bio>>,
}

static QUEUE: LockClass = LockClass::new("test queue", 810);

impl Queue {
    /// Releases all bios, the latest first; `fail`: bios that contain this byte fail.
    fn complete_all(&self, fail: Option<u64>) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for bio in waiting.into_iter().rev() {
            match fail {
                Some(byte) if (bio.offset..bio.offset + bio.len).contains(&byte) => {
                    let error = self.below.read_at(u64::MAX, &mut [0], BioFlags::empty());
                    bio.complete(error);
                }
                _ => self.below.submit(bio),
            }
        }
    }
}

impl BlockDevice for Queue {
    fn name(&self) -> &str {
        "queue"
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        self.waiting.lock().push(bio);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        self.below.read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        self.below.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> extant_block::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> extant_block::Result<()> {
        Ok(())
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}

struct QueuedOverlay {
    log: LogWriter,
    queue: Arc<Queue>,
    overlay: OverlayDevice,
    /// The results of the reads.
    done: mpsc::Receiver<Completion>,
}

/// An overlay over a queue, and reads of `len` bytes each that cover all of it.
fn overlay_over_queue(log: LogWriter, len: usize) -> QueuedOverlay {
    let queue = Arc::new(Queue { below: log.disk.clone(), waiting: Mutex::new(&QUEUE, Vec::new()) });
    let journal = JournalFile::open(queue.clone(), BS, log.map.clone()).unwrap();
    let replay = load_from(&journal);
    let overlay = OverlayDevice::new(queue.clone(), journal, replay);
    let (send, done) = mpsc::channel();
    for at in (0..overlay.size_bytes()).step_by(len) {
        let send = send.clone();
        let end_io = Box::new(move |done| send.send(done).unwrap());
        let buf = AlignedBuf::zeroed(len.min((overlay.size_bytes() - at) as usize));
        overlay.submit(Bio::read(at, buf, BioFlags::empty(), end_io));
    }
    QueuedOverlay { log, queue, overlay, done }
}

/// A log with blocks 10, 11 and 13.
fn three_copies() -> LogWriter {
    let mut log = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    log.start_here();
    log.transaction(&Work { copies: vec![(10, magic(1)), (11, data(2)), (13, data(3))], ..Work::default() });
    log
}

#[test]
fn the_overlay_submits_all_reads_below_at_once() {
    let QueuedOverlay { queue, overlay, done, .. } = overlay_over_queue(three_copies(), 4096);
    let reads = overlay.size_bytes().div_ceil(4096) as usize;
    assert_eq!(queue.waiting.lock().len(), reads + 3);
    assert!(done.try_recv().is_err(), "nothing has been read");
    queue.complete_all(None);
    let mut shown = vec![0; overlay.size_bytes() as usize];
    overlay.read_at(0, &mut shown, BioFlags::empty()).unwrap();
    let done: Vec<Completion> = done.try_iter().collect();
    assert_eq!(done.len(), reads);
    for done in done {
        let BioData::Read(buf) = &done.data else { panic!("the read returned no memory") };
        assert!(done.result.is_ok() && buf[..] == shown[done.offset as usize..][..buf.len()], "byte {}", done.offset);
    }
}

#[test]
fn a_read_of_the_overlay_fails_if_its_copy_in_the_log_fails() {
    let QueuedOverlay { log, queue, overlay, done } = overlay_over_queue(three_copies(), 4096);
    let (at, _) = log.map.lookup(overlay.replay().blocks[&BlockNr(11)].log_block).unwrap();
    let at = at.0 * u64::from(BS);
    queue.complete_all(Some(at));
    let failed = done.try_iter().filter(|done| done.result.is_err());
    let mut failed: Vec<(u64, bool)> =
        failed.map(|done| (done.offset, matches!(done.data, BioData::Read(_)))).collect();
    failed.sort_unstable();
    // The read with that copy fails, and the read of the copy's place in the log.
    assert_eq!(failed, [(8192, true), (at / 4096 * 4096, true)]);
}

#[test]
fn a_read_of_the_overlay_with_too_many_copies_is_carried_out_inline() {
    let mut log = LogWriter::new(BS, 4000, 1500, LogCsum::V3, true);
    log.start_here();
    log.transaction(&copies(&(10..1200).map(|block| (block, block as u8)).collect::<Vec<_>>()));
    let QueuedOverlay { queue, overlay, done, .. } = overlay_over_queue(log, 4 << 20);
    let first = done.try_recv().expect("1190 KiB of copies would be in memory");
    // The second read needs no copies.
    assert_eq!((first.offset, queue.waiting.lock().len()), (0, 1));
    let mut shown = vec![0; overlay.size_bytes() as usize];
    overlay.read_at(0, &mut shown, BioFlags::empty()).unwrap();
    assert_eq!(shown[1199 * 1024..1200 * 1024], data(1199u16 as u8));
    let BioData::Read(buf) = &first.data else { panic!("the read returned no memory") };
    assert!(first.result.is_ok() && buf[..] == shown[..buf.len()]);
}

#[test]
fn the_overlay_shows_the_replayed_disk() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    w.start_here();
    w.transaction(&Work { copies: vec![(10, magic(1)), (11, data(2)), (13, data(3))], ..Work::default() });
    w.transaction(&Work { revokes: vec![13], ..copies(&[(999, 4)]) });
    let journal = w.open();
    let replay = load_from(&journal);
    let overlay = OverlayDevice::new(w.disk.clone(), journal, replay);
    let before = w.disk.events().len();
    let mut shown = vec![0; overlay.size_bytes() as usize];
    overlay.read_at(0, &mut shown, BioFlags::empty()).unwrap();
    // Odd pieces, and one through a bio.
    let mut piece = vec![0; 1500];
    overlay.read_at(10 * 1024 + 500, &mut piece, BioFlags::empty()).unwrap();
    assert_eq!(piece, shown[10 * 1024 + 500..][..1500]);
    let (send, receive) = std::sync::mpsc::channel();
    let buf = AlignedBuf::zeroed(2048);
    overlay.submit(Bio::read(10 * 1024, buf, BioFlags::empty(), Box::new(move |done| send.send(done).unwrap())));
    let done = receive.recv().unwrap();
    assert!(done.result.is_ok());
    assert!(matches!(&done.data, extant_block::BioData::Read(b) if b[..] == shown[10 * 1024..12 * 1024]));
    for result in [overlay.write_at(0, &[&[0; 512]], BioFlags::empty()), overlay.discard(0, 512)] {
        assert!(matches!(result, Err(extant_block::Error::ReadOnly { .. })));
    }
    assert!(overlay.read_only() && overlay.flush().is_ok());
    assert_eq!(w.disk.events().len(), before);
    // The journal reads as empty through the overlay, and the whole overlay equals the device after `apply`.
    let seen = JournalFile::open(Arc::new(overlay), BS, w.map.clone()).unwrap();
    assert!(!seen.super_block().is_live());
    apply(&w);
    assert!(w.disk.bytes() == shown);
}

#[test]
fn wiping_discards_transactions_and_continues_the_numbering() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    w.tid = Tid(70);
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    w.transaction(&copies(&[(11, 1)]));
    let mut journal = w.open();
    assert_eq!(wipe(&mut journal, w.disk.as_ref()).unwrap(), 2);
    let sb = w.open().super_block().clone();
    assert_eq!((sb.start, sb.sequence), (0, Tid(73)));
    assert_eq!(home(&w.disk, 10), data(0x11));
    assert_eq!(wipe(&mut journal, w.disk.as_ref()).unwrap(), 0);
}

#[test]
fn the_state_follows_from_superblock_and_flag() {
    let mut sb = JournalSuperBlock::create(BS, 1024, UUID, LogCsum::None, false);
    assert_eq!(journal_state(&sb, false), JournalState::Clean);
    assert_eq!(journal_state(&sb, true), JournalState::EmptyButFlagged);
    sb.start = 5;
    assert_eq!(journal_state(&sb, true), JournalState::Live);
    assert_eq!(journal_state(&sb, false), JournalState::LiveButUnflagged);
}

#[test]
fn errno_is_reported_and_preserved() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    w.sb.errno = -5;
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    assert_eq!(apply(&w).errno, -5);
    assert_eq!(w.open().super_block().errno, -5);
}

#[test]
fn large_sectors_are_written_whole() {
    let disk = MemDisk::with_sector(vec![0x11; 400 * 4096], 4096);
    let map = JournalMap::from_runs([(BlockNr(100), 64)]).unwrap();
    let mut sb = JournalSuperBlock::create(4096, 64, UUID, LogCsum::V3, false);
    sb.start = 1;
    let mut block = vec![0x22; 4096];
    block[..1024].copy_from_slice(&sb.encode());
    disk.write_at(100 * 4096, &[&block], BioFlags::empty()).unwrap();
    let mut journal = JournalFile::open(disk.clone(), 4096, map.clone()).unwrap();
    load_from(&journal).apply(&mut journal, disk.as_ref(), Accept::WholeOnly, &mut |_| {}).unwrap();
    let journal = JournalFile::open(disk.clone(), 4096, map).unwrap();
    assert!(!journal.super_block().is_live());
    assert_eq!(disk.bytes()[100 * 4096 + 1024..101 * 4096], [0x22; 3072]);
}

#[test]
fn external_journals_are_checked() {
    const USER: [u8; 16] = [9; 16];
    let mut bytes = vec![0; 400 * 1024];
    bytes[1024 + 0x04] = 144; // 400 blocks
    bytes[1024 + 0x05] = 1;
    bytes[1024 + 0x38..1024 + 0x3A].copy_from_slice(&[0x53, 0xEF]);
    bytes[1024 + 0x60] = 8;
    bytes[1024 + 0x68..1024 + 0x78].copy_from_slice(&UUID);
    let open = |bytes: &[u8], block_size, uuid, user| {
        JournalFile::open_external(MemDisk::new(bytes.to_vec()), block_size, uuid, user)
    };
    let refused = |bytes: &[u8], block_size, uuid, user, why: &str| {
        let Err(Error::NoJournal { detail }) = open(bytes, block_size, uuid, user) else { panic!("not {why}") };
        assert!(detail.contains(why), "{detail}");
    };
    let mut put = |sb: &JournalSuperBlock| {
        bytes[2048..3072].copy_from_slice(&sb.encode());
        bytes.clone()
    };
    let mut sb = JournalSuperBlock::create_external(BS, 400, UUID);
    refused(&put(&sb), BS, UUID, USER, "no file system uses it");
    sb.set_user(USER);
    let good = put(&sb);
    let journal = open(&good, BS, UUID, USER).unwrap();
    assert_eq!((journal.super_offset(), journal.log().first, journal.is_external()), (2048, 3, true));
    refused(&good, BS, [0; 16], USER, "another file system");
    refused(&good, BS, UUID, [8; 16], "another file system");
    refused(&good, 4096, UUID, USER, "blocks have 1024 bytes");
    refused(&good[..2000], BS, UUID, USER, "not a journal device");
    // The superblock of the device bounds the log.
    let mut short = good.clone();
    short[1024 + 0x04] = 143;
    assert!(matches!(open(&short, BS, UUID, USER), Err(Error::Map { .. })));
    assert!(matches!(open(&good[..399 * 1024], BS, UUID, USER), Err(Error::Map { .. })));
    sb.nr_users = 2;
    assert!(open(&put(&sb), BS, UUID, USER).is_err());
}

#[test]
fn damaged_external_journals_are_opened_within_their_device_or_refused() {
    const USER: [u8; 16] = [9; 16];
    let mut good = vec![0; 400 * 1024];
    good[1024 + 0x04..1024 + 0x08].copy_from_slice(&400u32.to_le_bytes());
    good[1024 + 0x38..1024 + 0x3A].copy_from_slice(&[0x53, 0xEF]);
    good[1024 + 0x60] = 8;
    good[1024 + 0x68..1024 + 0x78].copy_from_slice(&UUID);
    let mut sb = JournalSuperBlock::create_external(BS, 400, UUID);
    sb.set_user(USER);
    good[2048..3072].copy_from_slice(&sb.encode());
    let mut rng = Rng::new(7);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(3) {
            let start = [1024, 2048][rng.below(2) as usize];
            bytes[start + rng.below(0x160) as usize] = [0, 0xFF, rng.below(256) as u8][rng.below(3) as usize];
        }
        bytes.truncate(if rng.below(8) == 0 { rng.below(400 * 1024) as usize & !511 } else { bytes.len() });
        let size = bytes.len() as u64;
        match JournalFile::open_external(MemDisk::new(bytes), BS, UUID, USER) {
            Ok(journal) => {
                assert!(u64::from(journal.log().last) * u64::from(BS) <= size, "{:?}", journal.log());
                let _ = Replay::load(&journal, &**journal.device(), &mut |_| {});
                opened += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 300 && refused > 300, "{opened} opened, {refused} refused");
}

#[test]
fn maps_are_checked() {
    let open = |max_len: u32, map: JournalMap| {
        let disk = MemDisk::new(vec![0; 500 * 1024]);
        let sb = JournalSuperBlock::create(BS, max_len, UUID, LogCsum::None, false);
        disk.write_at(100 * 1024, &[&sb.encode()], BioFlags::empty()).unwrap();
        JournalFile::open(disk, BS, map).map(|_| ())
    };
    let run = |at, len| JournalMap::from_runs([(BlockNr(at), len)]).unwrap();
    assert!(open(100, run(100, 100)).is_ok());
    assert!(open(90, run(100, 100)).is_ok());
    assert!(matches!(open(101, run(100, 100)), Err(Error::Map { .. })));
    assert!(matches!(open(100, run(100, 401)), Err(Error::Map { .. })));
    assert!(matches!(open(100, JournalMap::default()), Err(Error::Map { .. })));
    assert!(matches!(open(100, run(101, 100)), Err(Error::Format(_))));
    assert!(JournalMap::from_blocks(&[BlockNr(5), BlockNr(0)]).is_err());
    assert!(JournalMap::from_blocks(&[BlockNr(5), BlockNr(6), BlockNr(5)]).is_err());
    assert!(JournalMap::from_runs([(BlockNr(u64::MAX), 2)]).is_err());
    let map = JournalMap::from_blocks(&[BlockNr(9), BlockNr(10), BlockNr(3), BlockNr(7)]).unwrap();
    assert_eq!((map.len(), map.fragments()), (4, 3));
    assert_eq!(map.lookup(0), Some((BlockNr(9), 2)));
    assert_eq!(map.lookup(2), Some((BlockNr(3), 1)));
    assert_eq!(map.lookup(4), None);
    assert!(map.contains(BlockNr(10)) && map.contains(BlockNr(3)) && !map.contains(BlockNr(8)));
    assert_eq!(map.blocks().map(|b| b.0).collect::<Vec<_>>(), [9, 10, 3, 7]);
}

#[test]
fn progress_reaches_its_total() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::V3, true);
    w.start_here();
    w.transaction(&Work { revokes: vec![1], ..copies(&[(10, 1), (12, 2)]) });
    let mut journal = w.open();
    let mut seen = Vec::new();
    let replay = Replay::load(&journal, w.disk.as_ref(), &mut |p| seen.push(p)).unwrap();
    replay.apply(&mut journal, w.disk.as_ref(), Accept::WholeOnly, &mut |p| seen.push(p)).unwrap();
    assert!(seen.iter().any(|p| p.phase == Phase::Scan) && seen.iter().any(|p| p.phase == Phase::Revoke));
    assert_eq!(seen.last(), Some(&Progress { phase: Phase::Write, done: 2, total: 2 }));
    assert!(seen.iter().all(|p| p.done <= p.total));
}

#[test]
fn random_damage_never_panics_or_hangs() {
    let mut rng = Rng::new(20);
    for csum in ALL {
        for wide in [false, true] {
            let mut w = LogWriter::new(BS, 500, 100, csum, wide);
            w.sb.incompat.set(IncompatFeatures::ASYNC_COMMIT, wide);
            w.start_here();
            for t in 0..12u64 {
                let revokes = if t % 4 == 3 { vec![t, 3 * t] } else { vec![] };
                w.transaction(&Work { revokes, ..copies(&[(t, 1), (t * 3, 2), (400, t as u8)]) });
            }
            let clean = w.disk.bytes();
            for _ in 0..400 {
                let disk = MemDisk::new(clean.clone());
                for _ in 0..=rng.below(6) {
                    // Mostly the first bytes of a block, where its structures are.
                    let block = 500 + rng.below(100);
                    let byte = if rng.one_in(2) { rng.below(64) } else { rng.below(1024) };
                    let sector = (block * 1024 + byte) / 512 * 512;
                    let mut bytes = vec![0; 512];
                    disk.read_at(sector, &mut bytes, BioFlags::empty()).unwrap();
                    let value = if rng.one_in(3) { rng.next_u32() as u8 } else { rng.below(6) as u8 };
                    bytes[(byte % 512) as usize] = value;
                    disk.write_at(sector, &[&bytes], BioFlags::empty()).unwrap();
                }
                let Ok(mut journal) = JournalFile::open(disk.clone(), BS, w.map.clone()) else { continue };
                let replay = load_from(&journal);
                let _ = replay.check();
                replay.apply(&mut journal, disk.as_ref(), Accept::Damaged, &mut |_| {}).unwrap();
                assert!(!journal.super_block().is_live());
                let mut again = JournalFile::open(disk.clone(), BS, w.map.clone()).unwrap();
                wipe(&mut again, disk.as_ref()).unwrap();
            }
        }
    }
}

#[test]
fn compat_bits_survive_replay() {
    let mut w = LogWriter::new(BS, 1000, 200, LogCsum::None, true);
    w.sb.compat |= CompatFeatures::from_bits_retain(0x4000);
    w.start_here();
    w.transaction(&copies(&[(10, 1)]));
    apply(&w);
    assert_eq!(w.open().super_block().compat.bits(), 0x4000);
}
