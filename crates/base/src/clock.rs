//! The time: the machine's clocks, or a virtual clock that moves only on request.
//!
//! Main type: [`Clock`], cheap to clone. It has monotonic nanoseconds for intervals, and wall-clock time for timestamps
//! of inodes. Virtual time is for tests and the lab: a background `step()` that reads [`Clock::now_ns`] behaves the
//! same way in both.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::sim;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Seconds since 1970 (may be negative) and nanoseconds (0..1e9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: u32,
}

#[derive(Clone, Debug)]
enum Source {
    Real { start: Instant },
    Virtual { ns: Arc<AtomicU64>, epoch_sec: i64 },
}

/// A source of time. Clones share the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

/// The virtual nanoseconds and wall-clock time of the run to which the thread belongs.
#[inline]
fn simulated() -> Option<(u64, Timespec)> {
    if sim::active() { sim::now() } else { None }
}

impl Clock {
    /// The machine's clocks, or those of the run on a thread of a [`crate::sim`] run.
    pub fn real() -> Clock {
        Clock(Source::Real { start: Instant::now() })
    }

    /// A clock that stays at `epoch_sec` until [`Clock::advance`] moves it.
    pub fn virtual_at(epoch_sec: i64) -> Clock {
        Clock(Source::Virtual { ns: Arc::new(AtomicU64::new(0)), epoch_sec })
    }

    /// The number of nanoseconds since this clock was created.
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Real { start } => match simulated() {
                Some((ns, _)) => ns,
                None => start.elapsed().as_nanos() as u64,
            },
            Source::Virtual { ns, .. } => ns.load(Ordering::Acquire),
        }
    }

    /// Wall-clock time.
    pub fn wall(&self) -> Timespec {
        match &self.0 {
            Source::Real { .. } if simulated().is_some() => simulated().map(|(_, wall)| wall).unwrap_or_default(),
            Source::Real { .. } => match SystemTime::now().duration_since(UNIX_EPOCH) {
                Ok(d) => Timespec { sec: d.as_secs() as i64, nsec: d.subsec_nanos() },
                Err(before) => {
                    let d = before.duration();
                    let (sec, nsec) = (d.as_secs() as i64, d.subsec_nanos());
                    if nsec == 0 {
                        Timespec { sec: -sec, nsec: 0 }
                    } else {
                        Timespec { sec: -sec - 1, nsec: 1_000_000_000 - nsec }
                    }
                }
            },
            Source::Virtual { ns, epoch_sec } => {
                let ns = ns.load(Ordering::Acquire);
                Timespec { sec: epoch_sec + (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as u32 }
            }
        }
    }

    /// Moves a virtual clock forward; a real clock ignores it.
    pub fn advance(&self, by: Duration) {
        if let Source::Virtual { ns, .. } = &self.0 {
            ns.fetch_add(by.as_nanos() as u64, Ordering::AcqRel);
        }
    }

    /// Waits. In virtual time, advances the clock instead.
    pub fn sleep(&self, d: Duration) {
        match &self.0 {
            #[allow(clippy::disallowed_methods)] // the only place that may
            Source::Real { .. } => {
                if sim::active() && sim::sleep(d) {
                    return;
                }
                crate::task::before_sleep();
                std::thread::sleep(d);
            }
            Source::Virtual { .. } => self.advance(d),
        }
    }

    pub fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Virtual { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_on_request() {
        let c = Clock::virtual_at(1_000);
        let d = c.clone();
        assert_eq!(c.now_ns(), 0);
        d.sleep(Duration::from_millis(1500));
        assert_eq!(c.now_ns(), 1_500_000_000);
        assert_eq!(c.wall(), Timespec { sec: 1_001, nsec: 500_000_000 });
    }
}
