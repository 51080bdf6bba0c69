//! A device that fails: blocks that cannot be read are listed and never written, nothing that they may refer to is
//! freed, and the rest is repaired. The error of a failed write names the state that it leaves.

use std::sync::Arc;

use crate::judge::options;
use extant_block::device::{CowDevice, Fault, FaultyDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_check::Problem;
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::{Accept, Replay};
use extant_repair::{
    Action, Decision, End, Error, ImageState, Outcome, RecordMaker, Stamp, Undo, commit, prove, undo, unfinished,
};
use extant_testkit::crash::state_files;
use extant_testkit::damage::{Edit, Image, census, fsck};

const STAMP: Stamp = Stamp { sec: 2_000_000_000, nsec: 0 };
const RECORD_BYTES: u64 = 8 << 20;

/// An image whose file has one link too few, which every repair here mends.
fn damaged(image: Image) -> MemDevice {
    let mut edit = Edit::new(image.made());
    edit.inode("/file", |inode| inode.i_links_count.set(1));
    edit.finish()
}

fn planned(device: &Arc<dyn BlockDevice>) -> extant_repair::Result<Outcome> {
    prove(Arc::new(CowDevice::new(device.clone())), &options(), &mut |_, _| Decision::Yes)
}

fn written(device: &Arc<dyn BlockDevice>, outcome: &Outcome, make: &mut RecordMaker<'_>) -> extant_repair::Result<()> {
    commit(device, outcome, 0, STAMP, Undo::IfNeeded(make)).map(|_| ())
}

fn bytes(device: &dyn BlockDevice, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    device.read_at(at, &mut bytes, BioFlags::META).expect("memory");
    bytes
}

/// One block after the other cannot be read, every `step`th with something in it.
fn read_errors(image: Image, step: usize) -> (usize, usize) {
    let damaged = damaged(image);
    let size = u64::from(read_super(&damaged).expect("a superblock").block_size);
    let before = census::take(&damaged);
    let (mut partial, mut none) = (0, 0);
    let used =
        (0..damaged.size_bytes() / size).filter(|at| bytes(&damaged, at * size, size).iter().any(|byte| *byte != 0));
    for number in used.step_by(step) {
        let name = format!("{image:?}, block {number}");
        let memory = Arc::new(damaged.snapshot());
        let faulty = Arc::new(FaultyDevice::new(memory.clone()));
        let range = number * size..(number + 1) * size;
        faulty.inject(Fault::eio().op(BioOp::Read).range(range.clone()));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let outcome = match planned(&device) {
            Ok(outcome) => outcome,
            Err(e) => {
                assert!(range.contains(&1024), "{name}: {e}");
                none += 1;
                continue;
            }
        };
        let lists = outcome.report.findings.iter().any(|finding| finding.problem == Problem::Unreadable);
        let mends = outcome.steps.iter().any(|step| matches!(step.action, Action::Links(..)));
        if !matches!(outcome.end, End::Proved | End::Partial) {
            println!("{name}: {:?}", outcome.end);
            outcome.left.iter().for_each(|(finding, why)| println!("  {finding}: {why}"));
            none += 1;
            continue;
        }
        let old = bytes(&*memory, range.start, size);
        let mut make = |len| Ok((Arc::new(MemDevice::new(len)) as Arc<dyn BlockDevice>, b"record".to_vec()));
        written(&device, &outcome, &mut make).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(bytes(&*memory, range.start, size), old, "{name} was written");
        // When the device reads it again, everything is there.
        let difference = census::compare(&before, &before, &census::take(&memory));
        let steps: Vec<String> = outcome.steps.iter().map(|step| format!("{step} <- {}", step.cause)).collect();
        assert!(
            difference.gone.is_empty() && difference.attributes.is_empty(),
            "{name}: {:?}: {steps:#?}",
            difference.gone
        );
        let again = crate::judge::proved(&memory).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(matches!(again.end, End::Sound | End::Proved) && again.losses.is_empty(), "{name}: {:?}", again.end);
        partial += usize::from(lists && mends);
    }
    (partial, none)
}

#[test]
fn blocks_that_cannot_be_read_are_listed_and_never_written() {
    for image in [Image::Ext4, Image::Ext2] {
        let (partial, none) = read_errors(image, 9);
        println!("{image:?}: {partial} repaired in part, {none} not");
        assert!(partial > 20 && none <= 2, "{image:?}: {partial} repaired in part, {none} not");
    }
}

/// The log of the ext4 image.
const LOG_BYTES: u64 = 4 << 20;

/// One broken file among many costs two checks more: that of its repair, and that of the end. The log is read once, for
/// older copies of what is damaged.
#[test]
fn one_broken_file_costs_a_bounded_number_of_checks() {
    for image in [Image::Ext4, Image::Ext2] {
        let (checked, repaired) = (damaged(image), damaged(image));
        let shared: Arc<dyn BlockDevice> = Arc::new(checked.snapshot());
        extant_check::examine(&shared, &options().check).expect("checked");
        let one = shared.stats().read_bytes;
        let shared: Arc<dyn BlockDevice> = Arc::new(repaired.snapshot());
        let outcome = planned(&shared).expect("planned");
        let all = shared.stats().read_bytes;
        println!("{image:?}: {one} bytes read by a check, {all} by a repair, {} rounds", outcome.rounds);
        assert_eq!((outcome.end, outcome.rounds), (End::Proved, 1));
        let log = if image == Image::Ext4 { LOG_BYTES } else { 0 };
        assert!(one > 0 && all <= 3 * one + log, "{image:?}: {one} bytes read by a check, {all} by a repair");
    }
}

/// Every write of a repair fails, one after the other, and all that follow.
fn write_errors(image: Image, seen: &mut Vec<ImageState>) {
    let damaged = damaged(image);
    let dir = state_files();
    for after in 0.. {
        let name = format!("{image:?}, after {after} writes");
        let memory = Arc::new(damaged.snapshot());
        let faulty = Arc::new(FaultyDevice::new(memory.clone()));
        let device: Arc<dyn BlockDevice> = faulty.clone();
        let outcome = planned(&device).expect("planned");
        let record = Arc::new(MemDevice::new(RECORD_BYTES));
        let mut make = |_| Ok((record.clone() as Arc<dyn BlockDevice>, b"record".to_vec()));
        faulty.inject(Fault::eio().op(BioOp::Write).after(after));
        let Err(error) = written(&device, &outcome, &mut make) else { break };
        let Error::Write { stands, .. } = error else { panic!("{name}: {error}") };
        seen.push(stands);
        match stands {
            ImageState::Old => assert_eq!(memory.first_difference(&damaged).expect("compared"), None, "{name}"),
            ImageState::Recorded => {
                let is_marked = unfinished(&*memory).is_some_and(|name| name == b"record");
                assert!(is_marked || memory.first_difference(&damaged).expect("compared").is_none(), "{name}");
                undo(&*record, &*memory, false).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(memory.first_difference(&damaged).expect("compared"), None, "{name}");
            }
            ImageState::Log => {
                let shared: Arc<dyn BlockDevice> = memory.clone();
                let sb = read_super(&*shared).expect("a superblock");
                if sb.needs_recovery() {
                    let mut journal = open_journal(shared.clone(), &sb).expect("opened").expect("a journal");
                    let replay = Replay::load(&journal, &*shared, &mut |_| {}).expect("a log");
                    replay.apply(&mut journal, &*shared, Accept::WholeOnly, &mut |_| {}).expect("replayed");
                }
            }
            ImageState::Mixture => panic!("{name}: a mixture"),
        }
        // The next run completes the repair.
        let again = crate::judge::proved(&memory).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(matches!(again.end, End::Sound | End::Proved) && again.losses.is_empty(), "{name}: {:?}", again.end);
        let end = crate::judge::result(&memory, &again);
        assert_eq!(fsck::judged(&end, dir.path()).code, Some(0), "{name}");
    }
}

#[test]
fn a_write_that_fails_says_what_stands_and_the_next_run_goes_on() {
    let mut seen = Vec::new();
    write_errors(Image::Ext4, &mut seen);
    assert!(seen.contains(&ImageState::Log) && !seen.contains(&ImageState::Recorded), "{seen:?}");
    seen.clear();
    write_errors(Image::Ext2, &mut seen);
    assert!(seen.contains(&ImageState::Recorded) && !seen.contains(&ImageState::Log), "{seen:?}");
}

#[test]
fn without_room_for_the_record_nothing_is_written() {
    let damaged = damaged(Image::Ext2);
    let memory = Arc::new(damaged.snapshot());
    let device: Arc<dyn BlockDevice> = memory.clone();
    let outcome = planned(&device).expect("planned");
    let full = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(RECORD_BYTES))));
    full.inject(Fault::eio().op(BioOp::Write).after(1));
    let mut make = |_| Ok((full.clone() as Arc<dyn BlockDevice>, b"record".to_vec()));
    let error = written(&device, &outcome, &mut make).expect_err("no room");
    assert!(matches!(error, Error::Write { stands: ImageState::Old, .. }), "{error}");
    assert_eq!(memory.first_difference(&damaged).expect("compared"), None);
}
