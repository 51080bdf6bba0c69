//! The host's figures of a process: time, context switches, memory.
//!
//! Main types: [`Cpu`], [`Switches`], [`Memory`]. They are read from getrusage(2) and /proc; missing values are left
//! out.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// User and system time in seconds. The sum is as precise as the scheduler's clock and given in microseconds. Its split
/// is the kernel's estimate: without `CONFIG_VIRT_CPU_ACCOUNTING`, the kernel samples at each tick in which mode the
/// thread is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// Seconds in user mode.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
}

impl Cpu {
    /// The time of this process, all threads; its children are not counted.
    pub fn of_self() -> Option<Cpu> {
        Cpu::of(UsageWho::RUSAGE_SELF)
    }

    /// The time of all children of this process that have ended and been waited for.
    pub fn of_ended_children() -> Option<Cpu> {
        Cpu::of(UsageWho::RUSAGE_CHILDREN)
    }

    fn of(who: UsageWho) -> Option<Cpu> {
        let usage = getrusage(who).ok()?;
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Some(Cpu { user_s: seconds(usage.user_time()), system_s: seconds(usage.system_time()) })
    }
}

impl Sub for Cpu {
    type Output = Cpu;
    fn sub(self, before: Cpu) -> Cpu {
        Cpu { user_s: self.user_s - before.user_s, system_s: self.system_s - before.system_s }
    }
}

impl AddAssign for Cpu {
    fn add_assign(&mut self, more: Cpu) {
        self.user_s += more.user_s;
        self.system_s += more.system_s;
    }
}

/// Context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Switches because the thread waited.
    pub voluntary: u64,
    /// Switches because another thread got the processor.
    pub involuntary: u64,
}

impl AddAssign for Switches {
    fn add_assign(&mut self, more: Switches) {
        self.voluntary += more.voluntary;
        self.involuntary += more.involuntary;
    }
}

impl Switches {
    /// The switches of the calling thread, since it was started.
    pub fn of_this_thread() -> Switches {
        Switches::read("/proc/thread-self/status").unwrap_or_default()
    }

    fn read(path: &str) -> Option<Switches> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(Switches {
            voluntary: field(&text, "voluntary_ctxt_switches:")?,
            involuntary: field(&text, "nonvoluntary_ctxt_switches:")?,
        })
    }
}

/// The number after the first word of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// The threads of a process at one time.
#[derive(Clone, Debug, Default)]
pub struct Threads(BTreeMap<u32, Switches>);

impl Threads {
    /// The present threads. `process`: `None` for this process.
    pub fn of(process: Option<u32>) -> Threads {
        let dir = process.map_or_else(|| "/proc/self/task".to_owned(), |pid| format!("/proc/{pid}/task"));
        let threads = std::fs::read_dir(&dir).into_iter().flatten().flatten().filter_map(|entry| {
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((id, Switches::read(&format!("{dir}/{id}/status"))?))
        });
        Threads(threads.collect())
    }

    /// Switches since `before`, of threads that existed at both times or were started between. Threads that have ended
    /// are not counted.
    pub fn since(&self, before: &Threads) -> Switches {
        let mut sum = Switches::default();
        for (id, now) in &self.0 {
            let then = before.0.get(id).copied().unwrap_or_default();
            sum += Switches {
                voluntary: now.voluntary.saturating_sub(then.voluntary),
                involuntary: now.involuntary.saturating_sub(then.involuntary),
            };
        }
        sum
    }
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident memory now.
    pub rss: Option<u64>,
    /// Resident anonymous memory.
    pub anon: Option<u64>,
    /// The maximum resident memory.
    pub peak: Option<u64>,
    /// Proportional share of anonymous memory.
    pub pss_anon: Option<u64>,
    /// Proportional share of file memory.
    pub pss_file: Option<u64>,
}

impl Memory {
    /// The memory of a process. `process`: `None` for this process.
    pub fn of(process: Option<u32>) -> Memory {
        let dir = process.map_or_else(|| "/proc/self".to_owned(), |pid| format!("/proc/{pid}"));
        let status = std::fs::read_to_string(format!("{dir}/status")).unwrap_or_default();
        let smaps = std::fs::read_to_string(format!("{dir}/smaps_rollup")).unwrap_or_default();
        let kib = |text: &str, name: &str| field(text, name).map(|n| n << 10);
        Memory {
            rss: kib(&status, "VmRSS:"),
            anon: kib(&status, "RssAnon:"),
            peak: kib(&status, "VmHWM:"),
            pss_anon: kib(&smaps, "Pss_Anon:"),
            pss_file: kib(&smaps, "Pss_File:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest step of `reading` that is observed while this thread works, in seconds.
    fn finest(reading: impl Fn() -> Option<Cpu>, work: impl Fn()) -> f64 {
        let mut finest = f64::INFINITY;
        let total = || reading().map(|cpu| cpu.user_s + cpu.system_s).expect("a reading");
        let mut last = total();
        for _ in 0..50 {
            work();
            let now = total();
            assert!(now >= last, "{now} after {last}");
            if now > last {
                finest = finest.min(now - last);
            }
            last = now;
        }
        finest
    }

    #[test]
    fn processor_time_is_finer_than_a_tick() {
        let burn = || {
            std::hint::black_box((0..200_000u64).fold(1, |a: u64, b| std::hint::black_box(a.wrapping_mul(b | 1))));
        };
        assert!(finest(Cpu::of_self, burn) < 0.009);
        let child = || assert!(std::process::Command::new("true").status().expect("true").success());
        assert!(finest(Cpu::of_ended_children, child) < 0.009);
    }

    #[test]
    fn this_process_can_be_read() {
        let before = Threads::of(None);
        extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(2));
        assert!(Threads::of(None).since(&before).voluntary > 0, "sleeping is a switch");
        assert!(Memory::of(None).rss > Some(100_000));
    }
}
