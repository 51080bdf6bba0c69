//! Checks the images that power cuts leave of a run against the promises.
//!
//! Each run gets a few cuts, most of them just after an acknowledgement, when the device has the least data. The image
//! at the end of the run is checked as well. Extant recovers each image, and the check compares it with every client's
//! history. A sample also goes through `e2fsck -fn`.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::CrashDevice;
use extant_block::device::{CrashMode, MemDevice};
use extant_fs::{Filesystem, JournalDevice, MountOptions, Mounted, WriteFlags};

use crate::crash::explore::{TwoDisks, state_files};
use crate::crash::history::{Cut, Floor, NodeKind};
use crate::crash::oracle;
use crate::crash::pattern;
use crate::crash::seen::{self, SeenTree};
use crate::oracle::{debugfs_write, e2fsck, expect_clean};
use crate::sched::acks::{Ack, Coverage};
use crate::sched::client::{Record, Shared};
use crate::sched::config::{Config, STRIPED};
use crate::sched::plan::Plan;

/// The state after a run, to which cuts are applied.
pub struct FinalState {
    pub device: Arc<CrashDevice>,
    pub records: Vec<Record>,
    pub acks: Vec<Ack>,
    /// The clients and nodes for which a caller got the error of a lost write.
    pub told: Vec<(usize, u32)>,
    /// Events of the mount.
    pub mounted: usize,
    pub unmounted: bool,
    pub struck: bool,
    pub homeward: u64,
    /// For the changes of stripes.
    pub shared: Arc<Shared>,
}

/// A time after the end of any run.
const LATER_S: i64 = 1_800_000_000;
/// One image in this many is written to after recovery.
const GROW_EVERY: u64 = 8;
/// One image in this many goes through e2fsck. Without a journal every image needs it, so only some of those runs are
/// cut.
const FSCK_EVERY: u64 = 300;
const TWO_WAVES_EVERY: u64 = 20;

/// How an image was made; part of every message.
#[derive(Clone, Copy, Debug)]
enum CutKind {
    /// With everything durable and nothing else.
    Least,
    Mode(CrashMode),
    During(CrashMode),
    /// The image at the end of the run.
    End,
}

/// Checks a few cuts, and returns their number.
pub fn check(plan: &Plan, mut left: FinalState, rng: &mut Rng) -> Result<usize, String> {
    let total = left.device.write_log();
    apply_acks(&mut left);
    let mut cuts = vec![(total, CutKind::End)];
    let journal = plan.config.image.has_journal();
    if journal || rng.one_in(TWO_WAVES_EVERY) {
        for _ in 0..if journal { 3 } else { 1 } {
            let floors = &left.acks;
            let events = if !floors.is_empty() && rng.below(10) < 7 {
                floors[rng.below(floors.len() as u64) as usize].events + rng.below(3) as usize
            } else {
                left.mounted + rng.below((total - left.mounted) as u64 + 1) as usize
            };
            let how = match rng.below(8) {
                0..4 => CutKind::Least,
                4 => CutKind::Mode(CrashMode::InOrder),
                5 => CutKind::Mode(CrashMode::RandomSubset),
                6 => CutKind::Mode(CrashMode::Torn),
                _ => CutKind::During(CrashMode::Torn),
            };
            cuts.push((events.min(total), how));
        }
    }
    // After a successful unmount, the image must be complete, without any write that was not flushed.
    if left.unmounted {
        cuts.push((total, CutKind::Least));
    }
    let count = cuts.len();
    for (events, how) in cuts {
        let then = (rng.one_in(GROW_EVERY), rng.one_in(FSCK_EVERY));
        check_cut(plan, &left, events, how, then, rng).map_err(|e| {
            let (first, rest) = e.split_once('\n').unwrap_or((&e, ""));
            let acks: String =
                left.acks.iter().filter(|a| a.events <= events).map(|a| format!("    {a:?}\n")).collect();
            format!("{first}\n  {how:?} after {events} of {total} events\n{rest}\n  acknowledged before:\n{acks}")
        })?;
    }
    Ok(count)
}

/// `then`: whether to extend the files, and whether e2fsck checks the image.
fn check_cut(
    plan: &Plan,
    left: &FinalState,
    events: usize,
    how: CutKind,
    (grow, fsck): (bool, bool),
    rng: &mut Rng,
) -> Result<(), String> {
    let device = &left.device;
    let image = match how {
        CutKind::Least => device.state_keeping(events, |_| false),
        CutKind::Mode(mode) => device.state_after(events, rng, mode),
        CutKind::During(mode) => device.state_during(events, rng, mode),
        CutKind::End => Ok(device.live()),
    };
    let image = image.map_err(|e| e.to_string())?;
    let cut = Cut { events, in_flight: matches!(how, CutKind::During(_)) };
    let config = plan.config;
    let ended = left.unmounted && events == device.write_log();
    let two_waves = !config.image.has_journal() && !ended;
    let image = if two_waves { mended(image)? } else { image };
    let image = Arc::new(image);
    let fs = mounted(&image, config).map_err(|e| format!("recovery: mount: {e}"))?;
    let clients = left.records.len();
    let taking_part = |path: &str| (0..clients).any(|c| path.starts_with(&format!("t{c}")));
    let seen = seen::by_extant_where(&fs, &taking_part).map_err(|e| format!("recovery: {e}"))?;
    for record in &left.records {
        let mine = of_client(&seen, record.client);
        // With any kind of journal, blocks are mapped only once their data has been written.
        no_poison(record, &mine)?;
        let told: Vec<u32> = left.told.iter().filter(|(c, _)| *c == record.client).map(|(_, n)| *n).collect();
        let result = if left.struck || record.broken {
            oracle::check_acknowledged(&record.history, &mine, cut)
        } else {
            oracle::check(&record.history, &mine, cut, two_waves.then_some(config.image.block_size))
        };
        result.map_err(|e| by_whom(left, record.client, cut, &e))?;
        if !two_waves {
            stats(left, record, &mine, cut, &told).map_err(|e| by_whom(left, record.client, cut, &e))?;
        }
    }
    if config.stripes && !left.struck {
        let content = whole(&fs, &config.path(STRIPED))?;
        let block = config.image.block_size.into();
        left.shared.stripes.check(&content, block, clients, events, &left.acks)?;
    }
    let grown = if grow { grow_files(&fs, &seen, config)? } else { Vec::new() };
    drop(seen);
    fs.unmount().map_err(|e| format!("recovery: unmount: {e}"))?;
    drop(fs);
    if !grown.is_empty() {
        grown_as_expected(&image, config, &grown)?;
    }
    // A failed request marks the file system as damaged, and only e2fsck clears that mark.
    if (fsck && !left.struck) || two_waves {
        let dir = state_files();
        if config.image.external {
            return TwoDisks::save(&config.image, &image, dir.path(), "state")?.clean("after recovery");
        }
        let file = dir.path().join("state");
        image.save(&file).map_err(|e| e.to_string())?;
        if !config.image.edits.is_empty() {
            // e2fsck takes the pair for a fault, and counts otherwise because of it.
            debugfs_write(&file, &config.image.without.join("\n")).map_err(|e| format!("after recovery: {e}"))?;
        }
        expect_clean(&file).map_err(|e| format!("after recovery: {e}"))?;
    }
    Ok(())
}

/// The mount of one thread, of the disks of a state.
fn mounted(image: &Arc<MemDevice>, config: &Config) -> extant_fs::Result<Mounted> {
    let (disk, journal) = config.image.disks(image.clone());
    let options = MountOptions { journal_device: journal.map(JournalDevice), ..config.quiet(LATER_S) };
    Filesystem::mount(disk, options)
}

/// The content of a file.
fn whole(fs: &Filesystem, path: &str) -> Result<Vec<u8>, String> {
    let failed = |e: extant_fs::Error| format!("after recovery: {path}: {e}");
    let file = fs.walk(path.as_bytes(), false).map_err(failed)?;
    let mut content = vec![0; fs.getattr(&file).size as usize];
    let n = fs.read(&file, 0, &mut content).map_err(failed)?;
    content.truncate(n);
    Ok(content)
}

/// How far beyond the end a file is written to.
const GAP: usize = 5000;

/// Writes a byte far beyond the end of each file, whose content is known; returns the expected content.
fn grow_files(fs: &Filesystem, seen: &SeenTree, config: &Config) -> Result<Vec<(String, Vec<u8>)>, String> {
    let (mut grown, mut done) = (Vec::new(), BTreeSet::new());
    // Each file once, however many names it has.
    for (path, node) in seen.iter().filter(|(_, n)| n.kind == NodeKind::File && done.insert(n.ino)) {
        let whole = config.path(path);
        let file = fs.walk(whole.as_bytes(), false).map_err(|e| format!("after recovery: {path}: {e}"))?;
        let at = node.content.len() + GAP;
        match fs.write(&file, at as u64, b"!", WriteFlags::default()) {
            Ok(_) => {}
            Err(e) if e.is_no_space() => continue,
            Err(e) => return Err(format!("after recovery: writing {path}: {e}")),
        }
        let mut content = node.content.clone();
        content.resize(at, 0);
        content.push(b'!');
        grown.push((path.clone(), content));
    }
    Ok(grown)
}

/// Checks that after a remount, the files have the expected content: zeros between the old end and the new byte.
fn grown_as_expected(image: &Arc<MemDevice>, config: &Config, grown: &[(String, Vec<u8>)]) -> Result<(), String> {
    let fs = mounted(image, config).map_err(|e| format!("mount again: {e}"))?;
    for (path, content) in grown {
        let whole = config.path(path);
        let file = fs.walk(whole.as_bytes(), false).map_err(|e| format!("after recovery: {path}: {e}"))?;
        let mut found = vec![0xEE; content.len() + 1];
        let n = fs.read(&file, 0, &mut found).map_err(|e| format!("after recovery: {path}: {e}"))?;
        found.truncate(n);
        if found != *content {
            let at = found.iter().zip(content).take_while(|(a, b)| a == b).count();
            return Err(format!("made longer after recovery: {path} differs at {at} of {}", content.len()));
        }
    }
    fs.unmount().map_err(|e| format!("recovery: unmount: {e}"))
}

/// The failure with a shorter first line, and with the newest acknowledgement that it may violate.
fn by_whom(left: &FinalState, client: usize, cut: Cut, e: &str) -> String {
    // The node that the failure concerns, according to its text.
    let place = e.find("\n    node ").map(|at| at + 10).or_else(|| e.find("(node ").map(|at| at + 6));
    let digits = |at: usize| e[at..].chars().take_while(char::is_ascii_digit).collect::<String>();
    let of = place.and_then(|at| digits(at).parse::<u32>().ok());
    let newest = left
        .acks
        .iter()
        .filter(|a| a.events <= cut.events)
        .filter(|a| match a.what {
            Coverage::Everything => true,
            Coverage::File { client: c, node, .. } => c == client && of.is_none_or(|of| of == node),
        })
        .max_by_key(|a| a.upto[client]);
    let (first, rest) = e.split_once('\n').unwrap_or((e, ""));
    let (what, more) = first.split_once(';').unwrap_or((first, ""));
    let by = newest.map_or("no call".to_owned(), |a| {
        format!("{}{}", a.by, if a.in_flight > 0 { ", with requests in flight" } else { "" })
    });
    format!("acknowledged by {by}: client {client}: {what}\n  {more}\n{rest}")
}

/// The image after e2fsck has repaired it.
fn mended(image: MemDevice) -> Result<MemDevice, String> {
    let dir = state_files();
    let file = dir.path().join("state");
    image.save(&file).map_err(|e| e.to_string())?;
    let fsck = e2fsck(&file, &["-fy"]).map_err(|e| e.to_string())?;
    if fsck.code > 2 {
        return Err(format!("e2fsck -fy: {}\n{}", fsck.code, fsck.output));
    }
    MemDevice::load(&file).map_err(|e| e.to_string())
}

/// Adds all acknowledgements to each client's history, as floors.
fn apply_acks(left: &mut FinalState) {
    for ack in &left.acks {
        match ack.what {
            Coverage::Everything => {
                for record in &mut left.records {
                    let op = ack.upto[record.client];
                    record.history.floors.push(Floor { events: ack.events, op });
                    for (id, node) in record.history.nodes.iter_mut().enumerate() {
                        if node.born <= op && !left.told.contains(&(record.client, id as u32)) {
                            node.durable.push((ack.events, op));
                        }
                    }
                }
            }
            Coverage::File { client, node, data } => {
                if left.told.contains(&(client, node)) {
                    continue;
                }
                let record = &mut left.records[client];
                let op = ack.upto[client];
                let touched = record.touches.iter().filter(|(n, o)| *n == node && *o <= op).map(|(_, o)| *o).max();
                let n = &mut record.history.nodes[node as usize];
                n.durable.push((ack.events, op));
                let named = if data { n.born } else { named_by(n.born, touched) };
                record.history.floors.push(Floor { events: ack.events, op: named });
            }
        }
    }
}

fn named_by(born: usize, touched: Option<usize>) -> usize {
    touched.unwrap_or(born).max(born)
}

fn of_client(seen: &SeenTree, client: usize) -> SeenTree {
    let prefix = format!("t{client}");
    seen.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(p, n)| (p.clone(), n.clone())).collect()
}

/// Checks that no byte that was never written is visible, whichever requests failed.
fn no_poison(record: &Record, seen: &SeenTree) -> Result<(), String> {
    for (path, node) in seen.iter().filter(|(_, n)| n.kind == NodeKind::File) {
        for (i, word) in node.content.as_chunks::<8>().0.iter().enumerate() {
            if word == pattern::POISON {
                let at = i as u64 * 8;
                let id = node.generation.and_then(|g| record.history.find(node.ino, g));
                let ops = &record.history.ops;
                let reserved = id.is_some_and(|id| record.was_preallocated(id, at));
                let what = if reserved { "in a preallocated block" } else { "in a block that was not preallocated" };
                return Err(format!(
                    "foreign: bytes that were never written {what}: {path} at {at}\n{}",
                    record.history.around(ops.len() - 1, 25)
                ));
            }
        }
    }
    Ok(())
}

/// Checks sizes, modes, owners, times and blocks of files that were acknowledged and not changed since.
fn stats(left: &FinalState, record: &Record, seen: &SeenTree, cut: Cut, told: &[u32]) -> Result<(), String> {
    let history = &record.history;
    // fdatasync makes no times durable, and only an fsync of the file itself makes lazy times durable.
    let floor_of = |id: u32| {
        let counts = |w: Coverage| match w {
            Coverage::Everything => true,
            Coverage::File { client, node, data } => client == record.client && node == id && !data,
        };
        let acks = left.acks.iter().filter(|a| a.events <= cut.events && counts(a.what));
        acks.map(|a| a.upto[record.client]).max()
    };
    let last = history.last_possible(cut);
    let mut last_look: BTreeMap<u32, &crate::sched::client::Observation> = BTreeMap::new();
    for look in &record.looks {
        let Some(floor) = floor_of(look.node) else { continue };
        if look.op <= floor {
            last_look.insert(look.node, look);
        }
    }
    for (path, node) in seen {
        let Some(id) = node.generation.and_then(|g| history.find(node.ino, g)) else { continue };
        let (Some(look), Some(stat)) = (last_look.get(&id), &node.stat) else { continue };
        let floor = floor_of(id).unwrap_or(0);
        let changed = record.touches.iter().any(|(n, op)| *n == id && *op > look.op && *op <= last);
        if changed || told.contains(&id) || node.kind != NodeKind::File {
            continue;
        }
        let key = |a: &extant_fs::Attr| (a.size, a.mode, a.uid, a.gid, a.nlink, a.mtime);
        if key(stat) != key(&look.attr) {
            return Err(format!(
                "attributes of {path} (node {id}): {:?}, acknowledged as {:?}, as of op {} (floor {floor})\n{}",
                key(stat),
                key(&look.attr),
                look.op,
                history.around(last, 25)
            ));
        }
        if look.settled && stat.blocks != look.attr.blocks {
            return Err(format!(
                "blocks of {path} (node {id}): {}, acknowledged as {}, as of op {}\n{}",
                stat.blocks,
                look.attr.blocks,
                look.op,
                history.around(last, 25)
            ));
        }
    }
    Ok(())
}
