//! Measures how long one thread has kept the baton because of its own code.
//!
//! Main type: [`Observations`]. A thread that waits for something unknown to the scheduler, or computes without end,
//! must be reported. A thread that has not begun, or waits for a processor or a disk, must not, because a busy machine
//! may let it wait longer than any limit.
//!
//! What it does not do: end or report any thread.
//!
//! # Locking
//! None: the state belongs to the watchdog thread.

use std::path::PathBuf;
use std::time::Duration;

/// A thread of the operating system, as other threads find it: its directory in /proc, if there is one.
pub(super) struct Watched(Option<PathBuf>);

impl Watched {
    pub(super) fn current() -> Watched {
        Watched(std::fs::read_link("/proc/thread-self").ok())
    }

    /// The thread's state and its computing time (proc_pid_stat(5); the first number of `schedstat`, in nanoseconds).
    fn seen(&self) -> Option<(char, Duration)> {
        let directory = PathBuf::from("/proc").join(self.0.as_ref()?);
        let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
        let computed = std::fs::read_to_string(directory.join("schedstat")).ok()?;
        let ns = computed.split_ascii_whitespace().next()?.parse().ok()?;
        Some((state(&stat)?, Duration::from_nanos(ns)))
    }
}

/// The state, which follows the name. The name is in parentheses and may itself contain parentheses.
fn state(stat: &str) -> Option<char> {
    stat[stat.rfind(')')? + 1..].trim_start().chars().next()
}

/// Observations of the thread with the baton, since the last call of the scheduler.
#[derive(Default)]
pub(super) struct Observations {
    progress: u64,
    /// The thread's computing time at the last observation.
    computed: Option<Duration>,
    time: Duration,
}

impl Observations {
    /// Observes the holder of the baton again, `after` the last observation. Returns how long the holder has computed
    /// or waited. `progress` is a count that changes with each call of the scheduler. The holder is `None` before it
    /// has begun.
    pub(super) fn look(&mut self, progress: u64, holder: Option<&Watched>, after: Duration) -> Duration {
        if progress != self.progress {
            *self = Observations { progress, ..Observations::default() };
        } else if let Some(holder) = holder {
            // If /proc is unavailable, the real time is used instead.
            self.count(holder.seen().unwrap_or(('S', Duration::ZERO)), after);
        }
        self.time
    }

    fn count(&mut self, (state, computed): (char, Duration), after: Duration) {
        if let Some(before) = self.computed.replace(computed) {
            self.time += match state {
                'S' => after,
                'R' => computed.saturating_sub(before),
                _ => Duration::ZERO,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(looks: &[(char, u32)]) -> Duration {
        let mut kept = Observations::default();
        looks.iter().for_each(|&(state, computed)| kept.count((state, computed * SECOND), SECOND));
        kept.time
    }

    #[test]
    fn only_waits_and_computing_time_count() {
        assert_eq!(after(&[('S', 0); 5]), 4 * SECOND, "it sleeps: the looks count");
        assert_eq!(after(&[('R', 0); 50]), Duration::ZERO, "it waits for a processor");
        assert_eq!(after(&[('D', 0); 50]), Duration::ZERO, "it waits for a disk");
        assert_eq!(after(&[('R', 2), ('R', 2), ('R', 5), ('S', 6)]), 4 * SECOND, "it computed, then slept");
    }

    #[test]
    fn progress_resets_the_time_and_an_unstarted_thread_has_none() {
        let mut kept = Observations::default();
        let me = Watched::current();
        kept.count(('S', Duration::ZERO), SECOND);
        kept.count(('S', Duration::ZERO), SECOND);
        assert_eq!(kept.look(0, None, SECOND), SECOND);
        assert_eq!(kept.look(1, Some(&me), SECOND), Duration::ZERO);
        assert_eq!(kept.look(1, None, SECOND), Duration::ZERO);
    }

    #[test]
    fn the_state_of_a_thread_is_parsed() {
        assert_eq!(state("7 (a) R (b) S 1 1"), Some('S'));
        assert_eq!(state("cut off"), None);
        assert_eq!(Watched::current().seen().expect("seen").0, 'R');
    }
}
