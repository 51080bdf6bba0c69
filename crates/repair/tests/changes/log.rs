//! Older copies in the log: metadata blocks that were overwritten come back from it after a clean unmount.
//!
//! `EXTANT_ONLY=NUMBER:BLOCK` overwrites one block, and prints the plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Facts, examine};
use extant_ondisk::{BlockNr, GroupNr};
use extant_recovery::Newest;
use extant_recovery::locate::{open_journal, read_super};
use extant_repair::{Action, Decision, End};
use extant_testkit::crash::workload::{EPOCH_S, options_for};
use extant_testkit::crash::{IMAGES, record, state_files};
use extant_testkit::damage::census::{self, Census};

/// The number of blocks that are overwritten, one in each image.
const BLOCKS: usize = 100;
/// The least number of these that have to come back.
const BACK_MIN: usize = 60;

/// A file system after a workload and a clean unmount, and its log.
struct Unmounted {
    name: &'static str,
    device: MemDevice,
    census: Census,
    history: Newest,
    facts: Facts,
}

/// The workload of one of the first three images with a seed.
fn unmounted(at: usize, seed: u64) -> Unmounted {
    let dir = state_files();
    let image = IMAGES[at];
    let base = image.build(dir.path()).expect("an image");
    let options = options_for(&image, Clock::virtual_at(EPOCH_S));
    let recording = record(&image, &base, seed, 500, options, &|device| device).expect("a workload");
    let device = recording.device.live();
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let sb = read_super(&*shared).expect("a superblock");
    let journal = open_journal(shared.clone(), &sb).expect("opened").expect("a journal");
    assert!(!journal.super_block().is_live(), "the log is empty after an unmount");
    let history = Newest::load(journal, &*shared).expect("read");
    let checked = examine(&shared, &crate::judge::options().check).expect("checked");
    let census = census::take(&device);
    Unmounted { name: image.name, device, census, history, facts: checked.facts.expect("facts") }
}

fn bytes(device: &MemDevice, block: BlockNr, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    device.read_at(block.0 * size as u64, &mut bytes, BioFlags::META).expect("memory");
    bytes
}

impl Unmounted {
    fn size(&self) -> usize {
        self.facts.geometry().block_size as usize
    }

    /// The blocks of tables, maps, directories and attributes whose present contents the log has. Bitmaps and the
    /// superblock need no copy.
    fn copied(&self) -> Vec<BlockNr> {
        let geo = self.facts.geometry();
        let descs = self.facts.descs();
        let first = geo.super_location(GroupNr(0)).0;
        let mut known: BTreeSet<BlockNr> =
            descs.iter().flat_map(|desc| [desc.block_bitmap, desc.inode_bitmap]).collect();
        known.insert(first);
        let is_same = |block: &BlockNr| {
            let copy = self.history.read(*block).expect("read");
            copy.is_some_and(|copy| copy == bytes(&self.device, *block, self.size()))
        };
        let in_use = |block: &BlockNr| self.facts.is_claimed(self.facts.clusters(*block, 1));
        self.history.blocks().filter(|block| !known.contains(block)).filter(in_use).filter(is_same).collect()
    }

    /// The image with a block overwritten: by zeros, or by random bytes.
    fn overwritten(&self, block: BlockNr, zeros: bool) -> MemDevice {
        let device = self.device.snapshot();
        let mut rng = Rng::new(block.0);
        let fill: Vec<u8> = (0..self.size()).map(|_| if zeros { 0 } else { rng.next_u32() as u8 }).collect();
        device.write_at(block.0 * self.size() as u64, &[&fill], BioFlags::META).expect("memory");
        device
    }
}

fn is_damaged(image: &MemDevice) -> bool {
    let shared: Arc<dyn BlockDevice> = Arc::new(image.snapshot());
    examine(&shared, &crate::judge::options().check)
        .is_ok_and(|checked| checked.report.is_damaged() || !checked.report.complete)
}

#[test]
fn overwritten_blocks_come_back_from_the_log() {
    let images: Vec<Unmounted> = (0..6).map(|at| unmounted(at % 3, 40 + at as u64)).collect();
    let mut all: Vec<(usize, BlockNr, bool)> = Vec::new();
    for (at, image) in images.iter().enumerate() {
        let copied = image.copied();
        let mut own = copied.iter().enumerate().map(|(n, block)| (at, *block, n % 2 == 0)).collect::<Vec<_>>();
        own.retain(|(_, block, zeros)| is_damaged(&image.overwritten(*block, *zeros)));
        println!("{}: {} blocks with a copy, {} of which matter", image.name, copied.len(), own.len());
        all.extend(own);
    }
    assert!(all.len() >= BLOCKS, "{} blocks", all.len());
    if let Ok(only) = std::env::var("EXTANT_ONLY") {
        all.retain(|(at, block, _)| format!("{at}:{}", block.0) == only);
    } else {
        let step = all.len() as f64 / BLOCKS as f64;
        all = (0..BLOCKS).map(|n| all[(n as f64 * step) as usize]).collect();
    }
    let verdicts = crate::judge::all(&all, |(at, block, zeros), dir| {
        let image = &images[*at];
        let what = if *zeros { "zeros" } else { "random bytes" };
        let name = format!("{at}:{} ({}): {what}", block.0, image.name);
        crate::judge::judge(name, &image.census, &image.overwritten(*block, *zeros), dir)
    });
    let is_back = |one: &crate::judge::Verdict| {
        let d = &one.difference;
        one.end == Some(End::Proved) && one.is_clean() && d.after == d.paths && d.attributes.is_empty()
    };
    let from_log =
        |one: &crate::judge::Verdict| one.steps.iter().any(|step| matches!(step.action, Action::LogCopy { .. }));
    let shows_all = std::env::var_os("EXTANT_ONLY").is_some();
    verdicts.iter().filter(|one| shows_all || !is_back(one)).for_each(|one| println!("{}", one.text()));
    let (back, from) = (verdicts.iter().filter(|one| is_back(one)), verdicts.iter().filter(|one| from_log(one)));
    let (back, from) = (back.count(), from.count());
    println!("{back} of {} blocks come back, {from} with a copy of the log", verdicts.len());
    assert!(verdicts.iter().all(|one| one.unnamed.is_empty()), "losses that the plan does not name");
    assert!(verdicts.iter().all(|one| one.end != Some(End::Proved) || one.is_clean()), "e2fsck finds damage");
    assert!(shows_all || back >= BACK_MIN, "{back} of {} blocks come back", verdicts.len());
}

/// A copy that is older than what was damaged may be without new names: then it is not taken.
#[test]
fn an_old_copy_does_not_replace_newer_bytes() {
    let image = unmounted(0, 40);
    let blocks = image.copied();
    let size = image.size();
    let mut declined = 0;
    for block in blocks.iter().take(40) {
        // The copy says less than the block at home, which only has a wrong last byte.
        let mut now = bytes(&image.device, *block, size);
        now[size - 1] ^= 0x55;
        let device = image.device.snapshot();
        device.write_at(block.0 * size as u64, &[&now], BioFlags::META).expect("memory");
        if !is_damaged(&device) {
            continue;
        }
        // Every step that takes a copy is declined: the rest of the plan repairs the image without it.
        let base: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
        let outcome = extant_repair::prove(
            Arc::new(extant_block::device::CowDevice::new(base)),
            &crate::judge::options(),
            &mut |step, _| match step.action {
                Action::LogCopy { .. } => Decision::No,
                _ => Decision::Yes,
            },
        );
        let outcome = outcome.expect("planned");
        assert!(outcome.steps.iter().all(|step| !matches!(step.action, Action::LogCopy { .. })));
        declined += usize::from(outcome.end == End::Proved);
    }
    assert!(declined > 0, "no image was repaired without its copy");
}
