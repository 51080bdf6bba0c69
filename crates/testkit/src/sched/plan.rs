//! The plan of a run: everything that follows from a configuration, a seed and a list of operations that are kept.
//!
//! Main types: [`Plan`] (prints as, and is read from, the line that repeats it), [`Cmd`] (an operation before its
//! client has chosen a target).
//!
//! # Locking
//! None.

use std::fmt;
use std::str::FromStr;

use extant_base::rng::Rng;
use extant_base::sim::{Options, Strategy};
use extant_block::device::Lateness;
use extant_block::queue::TagPolicyKind;
use extant_fs::SyncPolicyKind;

use crate::sched::config::{CLIENTS_MAX, CONFIGS, Config};

/// The kind of lie, and the layer that tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trick {
    #[default]
    None,
    /// Every other flush does nothing and reports success.
    LoseFlushes,
    /// Data writes are dropped.
    LoseWrites,
    /// Asynchronous fsyncs are answered when they are called.
    AnswerOneEarly,
    /// fsyncs of many files are answered when they are called.
    AnswerManyEarly,
}

/// An operation of a client, drawn before the run; `draw` determines the rest (which file, where, how much).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cmd {
    pub verb: Verb,
    pub draw: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Mkdir,
    Symlink,
    Link,
    Rename,
    Replace,
    Unlink,
    Append,
    AppendLarge,
    Overwrite,
    /// Writes eight bytes at some offset, as writeback of a shared mapping would.
    Poke,
    /// Writes eight bytes into each of several pages.
    PokeRun,
    Truncate,
    Allocate,
    Punch,
    ZeroRange,
    Mode,
    Times,
    Attribute,
    /// Makes each later change of the file durable when the call returns, or stops that.
    Synchronous,
    Read,
    /// Reads a little from the start; readahead reads more.
    ReadStart,
    /// Evicts everything that need not be in memory.
    Reclaim,
    Fsync,
    Fdatasync,
    /// fsync of another client's file.
    FsyncOther,
    /// fsync of several files at once, including those of others.
    FsyncMany,
    Sync,
    SyncAsync,
    /// Freezes and thaws.
    Freeze,
    Nap,
    /// Sleeps for longer than data may stay dirty.
    Sleep,
    /// Makes every small file dirty.
    DirtyMany,
}

use Verb::*;

/// Kinds of workload: the relative frequency of each operation.
const KINDS: &[&[(Verb, u64)]] = &[
    // All operations.
    &[
        (Create, 4),
        (Mkdir, 1),
        (Symlink, 1),
        (Link, 1),
        (Rename, 2),
        (Replace, 2),
        (Unlink, 2),
        (Append, 5),
        (AppendLarge, 2),
        (Overwrite, 5),
        (Poke, 4),
        (PokeRun, 2),
        (Truncate, 3),
        (Allocate, 2),
        (Punch, 2),
        (ZeroRange, 1),
        (Mode, 1),
        (Times, 1),
        (Attribute, 2),
        (Synchronous, 1),
        (Read, 3),
        (ReadStart, 2),
        (Reclaim, 1),
        (Fsync, 4),
        (Fdatasync, 2),
        (FsyncOther, 2),
        (FsyncMany, 2),
        (Sync, 2),
        (SyncAsync, 1),
        (Freeze, 1),
        (Nap, 2),
        (Sleep, 2),
    ],
    // Records in preallocated files.
    &[
        (Allocate, 2),
        (Poke, 8),
        (PokeRun, 6),
        (Overwrite, 2),
        (Read, 4),
        (ReadStart, 3),
        (Reclaim, 2),
        (Fsync, 4),
        (Fdatasync, 4),
        (FsyncOther, 5),
        (FsyncMany, 3),
        (Sync, 2),
        (Freeze, 1),
        (Sleep, 3),
        (Nap, 2),
    ],
    // Growing logs.
    &[(Append, 12), (AppendLarge, 2), (Read, 2), (Fsync, 3), (Fdatasync, 2), (FsyncOther, 6), (Sync, 3), (Sleep, 3)],
    // New files that replace others, one after the other.
    &[
        (Create, 8),
        (Append, 6),
        (Fsync, 8),
        (Fdatasync, 2),
        (FsyncMany, 4),
        (Freeze, 1),
        (Rename, 1),
        (Unlink, 1),
        (Sleep, 1),
    ],
    // Overwrites, without changes that need a transaction.
    &[
        (Overwrite, 6),
        (Poke, 6),
        (Synchronous, 1),
        (Read, 2),
        (Reclaim, 1),
        (Fsync, 1),
        (FsyncOther, 2),
        (Sync, 5),
        (SyncAsync, 3),
        (Nap, 2),
        (Sleep, 2),
    ],
    // Names.
    &[
        (Create, 6),
        (Mkdir, 2),
        (Symlink, 2),
        (Link, 4),
        (Rename, 6),
        (Replace, 5),
        (Unlink, 6),
        (Append, 3),
        (Attribute, 3),
        (Mode, 2),
        (Fsync, 4),
        (Sync, 2),
        (Nap, 1),
    ],
    // A few files per client, synced while the flusher writes expired data.
    &[(Create, 3), (Append, 6), (Overwrite, 3), (Sleep, 5), (Nap, 2), (Sync, 5), (SyncAsync, 2)],
    // Truncation during writeback.
    &[
        (Append, 5),
        (AppendLarge, 3),
        (Truncate, 8),
        (Punch, 5),
        (ZeroRange, 3),
        (Allocate, 3),
        (Overwrite, 4),
        (Read, 4),
        (Reclaim, 1),
        (Fsync, 2),
        (FsyncOther, 4),
        (Sync, 2),
        (Sleep, 2),
    ],
];

/// For failing requests: records and overwrites of one file, while other clients sync it.
const FAILING: &[(Verb, u64)] = &[
    (Poke, 5),
    (PokeRun, 5),
    (Overwrite, 2),
    (Allocate, 1),
    (Synchronous, 1),
    (Read, 1),
    (Fsync, 4),
    (Fdatasync, 2),
    (FsyncOther, 8),
    (FsyncMany, 3),
    (Freeze, 1),
];

/// For at least as many dirty inodes as fit into a transaction.
const MANY: &[(Verb, u64)] =
    &[(DirtyMany, 4), (Sleep, 4), (Nap, 2), (Sync, 1), (Create, 1), (Append, 1), (Fsync, 1), (Unlink, 1)];

/// One plan.
#[derive(Clone, Debug)]
pub struct Plan {
    pub config: &'static Config,
    pub seed: u64,
    /// Selects another schedule of the same operations.
    pub salt: u64,
    /// The operations of each client that are kept; None for all.
    pub keep: Option<Vec<Vec<usize>>>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "config={} seed={}", self.config.name, self.seed)?;
        if self.salt != 0 {
            write!(f, " salt={}", self.salt)?;
        }
        let Some(keep) = &self.keep else { return Ok(()) };
        let one = |ops: &Vec<usize>| ops.iter().map(usize::to_string).collect::<Vec<_>>().join(".");
        write!(f, " keep={}", keep.iter().map(one).collect::<Vec<_>>().join("/"))
    }
}

impl FromStr for Plan {
    type Err = String;
    fn from_str(s: &str) -> Result<Plan, String> {
        let mut plan = Plan { config: &CONFIGS[0], seed: 0, salt: 0, keep: None };
        for word in s.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not like key=value"))?;
            let bad = || format!("'{word}' says nothing");
            match key {
                "config" => plan.config = Config::find(value).ok_or_else(bad)?,
                "seed" => plan.seed = value.parse().map_err(|_| bad())?,
                "salt" => plan.salt = value.parse().map_err(|_| bad())?,
                "keep" => {
                    let number = |n: &str| n.parse::<usize>().map_err(|_| bad());
                    let client = |ops: &str| ops.split('.').filter(|n| !n.is_empty()).map(number).collect();
                    plan.keep = Some(value.split('/').map(client).collect::<Result<_, _>>()?);
                }
                _ => return Err(bad()),
            }
        }
        Ok(plan)
    }
}

/// The values that follow from a plan.
#[derive(Clone, Debug)]
pub struct Details {
    pub clients: Vec<Vec<Cmd>>,
    pub sim: Options,
    /// How long to sleep between the end of the clients and the unmount.
    pub rest_ms: u64,
    /// How many of ten operations use the preallocated file.
    pub focus: u64,
    /// For failing writes: the first one, how many, and whether they may be metadata writes.
    pub fault: (u64, u64, bool),
    /// Instead, fail a request that is in progress together with others, as when a bus is reset.
    pub crowded: bool,
    /// The completion delays of the device.
    pub lateness: Lateness,
    /// For the mount: the number of concurrent requests, and the policy for the next one.
    pub queue_depth: u32,
    pub tag_policy: TagPolicyKind,
    pub sync_policy: SyncPolicyKind,
    pub dirty_bytes: Option<u64>,
    pub checkpoint_blocks: Option<u32>,
    /// Whether everything is synced before the unmount, so that no dirty data may remain.
    pub settles: bool,
    /// Random numbers for the cuts.
    pub cuts: Rng,
}

impl Plan {
    /// The `n`th plan of a series: configurations are chosen by weight.
    pub fn nth(series: u64, n: u64, only: Option<&str>) -> Plan {
        let mut rng = Rng::new(series.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n);
        let seed = rng.next_u64() >> 16;
        let chosen = |c: &&Config| only.map_or(c.weight > 0, |only| c.name == only);
        let all: Vec<&'static Config> = CONFIGS.iter().filter(chosen).collect();
        let mut at = rng.below(all.iter().map(|c| c.weight.max(1)).sum());
        let config = all.iter().find(|c| {
            let here = at < c.weight.max(1);
            at = at.saturating_sub(c.weight.max(1));
            here
        });
        Plan { config: config.expect("a configuration of that name"), seed, salt: 0, keep: None }
    }

    /// All operations, including those that are not kept.
    pub fn all(&self) -> Vec<Vec<Cmd>> {
        let mut rng = Rng::new(self.seed ^ 0x0B5E_55ED);
        let most = match self.config {
            c if c.many || c.faults => 3,
            _ if rng.one_in(5) => CLIENTS_MAX as u64,
            _ => 4,
        };
        let clients = 2 + rng.below(most - 1);
        let kind = match self.config {
            c if c.many => MANY,
            c if c.faults && rng.one_in(2) => FAILING,
            _ => KINDS[rng.below(KINDS.len() as u64) as usize],
        };
        let mixed = rng.one_in(3);
        // Everything is dirty when the file system is unmounted.
        let at_last = self.config.many && rng.one_in(2);
        (0..clients)
            .map(|_| {
                let kind =
                    if mixed && !self.config.many { KINDS[rng.below(KINDS.len() as u64) as usize] } else { kind };
                let ops = if at_last { rng.below(3) } else { 2 + rng.below((24 / clients).max(3)) };
                let verbs = (0..ops).map(|_| draw(kind, &mut rng)).collect::<Vec<_>>();
                let verbs = verbs.into_iter().chain(at_last.then_some(DirtyMany));
                verbs.map(|verb| Cmd { verb, draw: rng.next_u64() }).collect()
            })
            .collect()
    }

    pub fn details(&self) -> Details {
        let mut clients = self.all();
        if let Some(keep) = &self.keep {
            for (i, ops) in clients.iter_mut().enumerate() {
                let kept = keep.get(i).map_or(&[][..], Vec::as_slice);
                *ops = kept.iter().filter_map(|k| ops.get(*k).copied()).collect();
            }
        }
        let mut rng = Rng::new(self.seed ^ 0x5C4E_D01E ^ self.salt.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let strategy = match rng.below(10) {
            0..6 => Strategy::Random { preempt_permille: [5, 20, 60, 150, 400][rng.below(5) as usize] },
            _ => Strategy::Priorities { changes: 1 + rng.below(6) as u32, steps: 500 + rng.below(20_000) },
        };
        let leap_permille = [0, 1, 4, 20][rng.below(4) as usize];
        let sim = Options { strategy, leap_permille, steps_max: 500_000, ..Options::new(self.seed ^ self.salt << 48) };
        // The flusher runs every half second: some sleeps end at the same time, and some at other times.
        let due = 5000 + rng.below(4) * 500;
        let rest_ms =
            if self.config.many { due } else { [0, 0, rng.below(7000), rng.below(15) * 500][rng.below(4) as usize] };
        let focus = if self.config.faults { [3, 6, 8, 9, 10] } else { [0, 0, 3, 6, 9] }[rng.below(5) as usize];
        let few = 1 + rng.below(12);
        let fault = (rng.below(few), 1 + rng.below(3), rng.one_in(5));
        let lateness = Lateness {
            threads: self.config.lateness.threads + rng.below(3) as usize,
            held_permille: [self.config.lateness.held_permille, 50, 600][rng.below(3) as usize],
            // A ring completes nothing inline, so bios may wait for tags there without occupying a thread.
            inline_permille: match self.config.lateness.inline_permille {
                1000 => 1000,
                some => [0, some][rng.below(2) as usize],
            },
            ..self.config.lateness
        };
        let crowded = self.config.faults && rng.one_in(2);
        // So few that bios often wait for tags; mostly with the default policies.
        let queue_depth = [1, 2, 4, 128][rng.below(4) as usize];
        let others = TagPolicyKind::ALL;
        let tag_policy =
            if rng.one_in(4) { others[rng.below(others.len() as u64) as usize] } else { TagPolicyKind::default() };
        let sync_policy = if rng.one_in(4) { SyncPolicyKind::Vanilla } else { SyncPolicyKind::default() };
        // So little that writers wait for the flusher, and the flusher waits for pending batches.
        let dirty_bytes = [None, None, Some(16 << 10), Some(64 << 10)][rng.below(4) as usize];
        // So little that checkpoints run all the time.
        let checkpoint_blocks = [None, Some(1), Some(rng.below(32) as u32)][rng.below(3) as usize];
        let settles = !self.config.many && rng.one_in(2);
        Details {
            clients,
            sim,
            rest_ms,
            focus,
            fault,
            crowded,
            lateness,
            queue_depth,
            tag_policy,
            sync_policy,
            dirty_bytes,
            checkpoint_blocks,
            settles,
            cuts: rng,
        }
    }
}

fn draw(kind: &[(Verb, u64)], rng: &mut Rng) -> Verb {
    let mut at = rng.below(kind.iter().map(|(_, w)| w).sum());
    for (verb, weight) in kind {
        if at < *weight {
            return *verb;
        }
        at -= weight;
    }
    kind[0].0
}
