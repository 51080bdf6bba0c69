//! What the host knows of a process: time, context switches, memory.
//!
//! Main types: [`Cpu`], [`Switches`], [`Memory`]. Read from /proc; what is not there is absent.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};

/// Ticks a second in /proc: part of the kernel's ABI, whatever its own timer does (Linux: `USER_HZ`).
pub(super) const USER_HZ: f64 = 100.0;

/// User and system time in seconds, with the resolution of the system's clock tick.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// Seconds in user mode.
    pub user_s: f64,
    /// Seconds in the kernel.
    pub system_s: f64,
}

impl Cpu {
    /// This process, all threads; its children are not counted.
    pub fn of_self() -> Option<Cpu> {
        Cpu::read("/proc/self/stat", 11)
    }

    /// All children of this process that have ended and were waited for.
    pub fn of_ended_children() -> Option<Cpu> {
        Cpu::read("/proc/self/stat", 13)
    }

    /// `field`: position of the user time after the command's name.
    fn read(path: &str, field: usize) -> Option<Cpu> {
        let text = std::fs::read_to_string(path).ok()?;
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(field);
        let mut next = || fields.next()?.parse::<f64>().ok().map(|t| t / USER_HZ);
        Some(Cpu { user_s: next()?, system_s: next()? })
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
    /// The thread waited.
    pub voluntary: u64,
    /// Another was given the processor.
    pub involuntary: u64,
}

impl AddAssign for Switches {
    fn add_assign(&mut self, more: Switches) {
        self.voluntary += more.voluntary;
        self.involuntary += more.involuntary;
    }
}

impl Switches {
    /// The calling thread, since it was started.
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

/// The number after a line's first word.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// The threads of a process at some moment.
#[derive(Clone, Debug, Default)]
pub struct Threads(BTreeMap<u32, Switches>);

impl Threads {
    /// The threads that live now. `process`: `None` for this one.
    pub fn of(process: Option<u32>) -> Threads {
        let dir = process.map_or_else(|| "/proc/self/task".to_owned(), |pid| format!("/proc/{pid}/task"));
        let threads = std::fs::read_dir(&dir).into_iter().flatten().flatten().filter_map(|entry| {
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((id, Switches::read(&format!("{dir}/{id}/status"))?))
        });
        Threads(threads.collect())
    }

    /// Switches since `before`, of the threads that live at both moments or were started between. Threads that ended
    /// are not seen.
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
    /// Resident now.
    pub rss: Option<u64>,
    /// Resident and anonymous.
    pub anon: Option<u64>,
    /// The most that was resident.
    pub peak: Option<u64>,
    /// Proportional share of anonymous memory.
    pub pss_anon: Option<u64>,
    /// Proportional share of file memory.
    pub pss_file: Option<u64>,
}

impl Memory {
    /// `process`: `None` for this one.
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

    #[test]
    fn this_process_can_be_read() {
        assert!(Cpu::of_self().is_some() && Cpu::of_ended_children().is_some());
        let before = Threads::of(None);
        extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(2));
        assert!(Threads::of(None).since(&before).voluntary > 0, "sleeping is a switch");
        assert!(Memory::of(None).rss > Some(100_000));
    }
}
