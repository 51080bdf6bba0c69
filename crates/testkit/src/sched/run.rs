//! Runs one plan.
//!
//! Main types: [`PlanResult`] (the result of a run), [`PlanFailure`] (a failure). A run on a device that lies
//! ([`Trick`]) must not pass.
//!
//! # Locking
//! None of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;
use extant_block::device::{CrashDevice, Crowded, Fault, FaultyDevice, LateDevice};
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, Wrapper};
use extant_fs::{Filesystem, JournalDevice, MountOptions};

use crate::sched::acks::Coverage;
use crate::sched::check::{self, FinalState};
use crate::sched::client::{Client, Record, Shared};
use crate::sched::plan::{Plan, Trick};

/// A failure.
#[derive(Clone, Debug)]
pub struct PlanFailure {
    /// The first line, without the parts that differ between runs.
    pub kind: String,
    pub text: String,
}

impl PlanFailure {
    pub fn new(text: String) -> PlanFailure {
        let first = text.lines().next().unwrap_or_default();
        // Removes the parts that name a file or a cut.
        let words = first.split(' ').filter(|w| !w.starts_with('[')).map(|w| match w.starts_with('t') {
            true if w[1..].starts_with(|c: char| c.is_ascii_digit()) => "FILE",
            _ => w,
        });
        let text_of = words.collect::<Vec<_>>().join(" ");
        let mut kind: String = text_of.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        for (many, one) in [("##", "#"), ("#, #", "#")] {
            while kind.contains(many) {
                kind = kind.replace(many, one);
            }
        }
        PlanFailure { kind, text }
    }
}

impl fmt::Display for PlanFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The result of a plan.
#[derive(Debug)]
pub struct PlanResult {
    pub result: Result<(), PlanFailure>,
    pub steps: u64,
    pub switches: u64,
    pub events: usize,
    pub cuts: usize,
    /// Steps in which the journal checkpointed while clients were running.
    pub homeward: u64,
    pub fingerprint: u64,
    /// The end of the trace.
    pub trace: sim::Trace,
}

/// Fails a data write that is in progress together with others, once, while `armed`.
fn bus_reset(armed: Arc<AtomicBool>, faulty: Arc<FaultyDevice>) -> Crowded {
    Box::new(move |bio: &Bio| {
        let hit = bio.op == BioOp::Write && !bio.flags.contains(BioFlags::META) && sim::choose(3) == 0;
        if hit && armed.swap(false, Ordering::Relaxed) {
            faulty.inject(Fault::eio().op(BioOp::Write).data().range(bio.offset..bio.offset + bio.len).once());
        }
    })
}

/// Runs the plan and checks its result.
pub fn try_plan(plan: &Plan, trick: Trick, whole_trace: bool) -> PlanResult {
    let details = plan.details();
    let (config, seed) = (plan.config, plan.seed);
    config.base();
    let options = sim::Options { trace: whole_trace, ..details.sim.clone() };
    let clients = details.clients.clone();
    let crowded = details.crowded;
    let (rest_ms, focus, fault, lateness) = (details.rest_ms, details.focus, details.fault, details.lateness);
    let (queue_depth, tag_policy) = (details.queue_depth, details.tag_policy);
    let (sync_policy, dirty_bytes) = (details.sync_policy, details.dirty_bytes);
    let (checkpoint_blocks, settles) = (details.checkpoint_blocks, details.settles);
    let outcome = sim::run(&options, move || {
        let options = config.options(seed);
        let mount_options =
            MountOptions { queue_depth, tag_policy, sync_policy, dirty_bytes, checkpoint_blocks, ..options };
        let base = config.base();
        let device = Arc::new(CrashDevice::from_image(&base.device));
        crate::crash::image::declare_atomic(&device, &config.image);
        let (disk, journal) = crate::crash::workload::disks(&device, &config.image);
        let below: Arc<dyn BlockDevice> = match trick {
            Trick::None | Trick::AnswerOneEarly | Trick::AnswerManyEarly => disk,
            _ => Arc::new(Liar { below: disk, trick }),
        };
        let faulty = Arc::new(FaultyDevice::new(below));
        let armed = Arc::new(AtomicBool::new(false));
        let reset = crowded.then(|| bus_reset(armed.clone(), faulty.clone()));
        let late = Arc::new(LateDevice::new(faulty.clone(), lateness, reset).expect("threads"));
        // Its requests complete late as well, in an order of their own.
        let late_journal = journal.map(|disk| Arc::new(LateDevice::new(disk, lateness, None).expect("threads")));
        let journal_device = late_journal.clone().map(|disk| JournalDevice(disk));
        let mount_options = MountOptions { journal_device, ..mount_options };
        let fs = Filesystem::mount(late.clone(), mount_options).expect("mount");
        let mounted = device.write_log();
        let shared = Shared::new(config, device.clone(), faulty.clone(), late.clone(), clients.len(), trick);
        armed.store(true, Ordering::Relaxed);
        if config.faults && !crowded {
            let rule = Fault::eio().op(BioOp::Write).after(fault.0).times(fault.1);
            faulty.inject(if fault.2 { rule } else { rule.data() });
        }
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(nr, cmds)| {
                let client = Client::new(nr, fs.clone(), shared.clone(), base, focus);
                task::spawn("client", move || client.run(&cmds)).expect("a thread")
            })
            .collect();
        let records: Vec<Record> = threads.into_iter().map(|t| t.join().expect("joined")).collect();
        if rest_ms > 0 {
            Clock::real().sleep(Duration::from_millis(rest_ms));
        }
        shared.forget_files();
        let upto = shared.ended();
        let journal = fs.statistics().journal();
        let homeward = journal.checkpoints.get() - journal.checkpoints_waited.get();
        // Not in every run, because an unmount must also find dirty data.
        if settles {
            settle(&fs, &shared);
        }
        let result = fs.unmount();
        drop(fs);
        let unmounted = result.is_ok();
        match result {
            Ok(()) => shared.acknowledge(upto, Coverage::Everything, "unmount"),
            Err(e) => assert!(shared.struck(), "unmount: {e}"),
        }
        late.stop();
        if let Some(late) = late_journal {
            late.stop();
        }
        FinalState {
            acks: shared.acks(),
            told: shared.told(),
            struck: shared.struck(),
            device,
            records,
            mounted,
            unmounted,
            homeward,
            shared,
        }
    });
    judge(plan, outcome, details.cuts)
}

/// Syncs everything; afterwards no dirty data may remain.
fn settle(fs: &Filesystem, shared: &Shared) {
    let given = shared.given();
    let settled = fs.sync().or_else(|_| {
        // A caller that got the error of a lost write does not get it again.
        shared.tell_of_any(given);
        fs.sync()
    });
    if settled.is_ok() {
        // A sync does not wait for the data of deleted files.
        for _ in 0..100 {
            if fs.statistics().delayed() != (0, 0) {
                Clock::real().sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(fs.statistics().delayed(), (0, 0), "left over: bytes that are dirty, blocks that are promised");
    }
}

/// Checks the state after a run, and returns the result.
fn judge(plan: &Plan, outcome: sim::Outcome<FinalState>, mut cuts: Rng) -> PlanResult {
    let mut ran = PlanResult {
        result: Ok(()),
        steps: outcome.steps,
        switches: outcome.switches,
        events: 0,
        cuts: 0,
        homeward: 0,
        fingerprint: outcome.trace.fingerprint(),
        trace: outcome.trace,
    };
    match outcome.result {
        Err(failure) => ran.result = Err(PlanFailure::new(failure.to_string())),
        Ok(left) => {
            ran.events = left.device.write_log();
            ran.homeward = left.homeward;
            match check::check(plan, left, &mut cuts) {
                Ok(n) => ran.cuts = n,
                Err(e) => ran.result = Err(PlanFailure::new(e)),
            }
        }
    }
    ran
}

/// A device that lies.
struct Liar {
    below: Arc<CrashDevice>,
    trick: Trick,
}

impl Liar {
    fn lies(&self) -> bool {
        self.trick == Trick::LoseFlushes && sim::choose(2) == 0
    }

    fn flags(&self, flags: BioFlags) -> BioFlags {
        if self.lies() { flags.difference(BioFlags::PREFLUSH | BioFlags::FUA) } else { flags }
    }
}

impl Wrapper for Liar {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }

    fn name(&self) -> &str {
        "a device that lies"
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        if self.trick == Trick::LoseWrites && !flags.intersects(BioFlags::META | BioFlags::FUA) {
            return Ok(());
        }
        self.below.write_at(offset, pieces, self.flags(flags))
    }
    fn flush(&self) -> extant_block::Result<()> {
        if self.lies() { Ok(()) } else { self.below.flush() }
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.below.write_zeroes(offset, len, self.flags(flags))
    }
}
