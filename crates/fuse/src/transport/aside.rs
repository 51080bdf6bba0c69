//! Threads that step aside for the client that they serve.
//!
//! A thread on its client's processor ([`follow`](super::follow) says why it is there) has the policy SCHED_IDLE: the
//! scheduler then treats that processor as idle. So a reply wakes the client there instead of on another processor, and
//! the client runs at once. The thread stays aside from one request to the next. Changing the policy twice per request
//! would cost as much as the rest of a small request.
//!
//! The scheduler prefers every other program to a thread with this policy. Three rules keep clients from waiting for a
//! thread that does not get its processor back:
//! - At each [`LOOK`] the thread compares how long it was ready without running with how long its client ran meanwhile.
//!   If other programs took the rest, it leaves, and no thread of the mount steps aside for a while ([`Penalty`]). The
//!   thread looks when it reads a request, so the first delayed request is noticed.
//! - Every [`TICK`] another thread restores the normal priority of threads that have read no request since its last
//!   look ([`Asides::look`]). If such a thread was ready while its client was not, that counts as a delay, too.
//! - A thread leaves before it sleeps in the server. It also leaves before it starts a thread, which would inherit the
//!   policy.
//!
//! Main types: [`Asides`], of all threads of a mount; [`Stay`], of one thread; [`Penalty`].
//!
//! What it does not do: it chooses neither clients nor processors.
//!
//! # Locking
//! None: counters. A [`Stay`] belongs to its thread.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::task;
use rustix::thread::{Pid, gettid, sched_getaffinity};

use crate::sys;

/// How often a thread checks how long it has waited for its processor.
pub(super) const LOOK: Duration = Duration::from_millis(4);
/// How often another thread checks whether the threads that are aside serve requests.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// A thread that waited for its processor for this long since the last look, and for a quarter of the time, is
/// delayed. Interrupts and the kernel's own threads take less.
const WAITED: Duration = Duration::from_millis(1);
/// How long no thread steps aside after a delay. The time doubles if the last penalty ended less than [`PENALTY_MAX`]
/// ago.
const PENALTY_MIN: Duration = Duration::from_millis(50);
const PENALTY_MAX: Duration = Duration::from_secs(2);

/// Whether a thread may enter and leave SCHED_IDLE, and /proc shows how long a thread waited for a processor. Its
/// thread IDs must also be those of the requests. Tried once, in a thread that ends afterwards.
pub(super) fn can_step_aside() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let tried = task::spawn("fuse-try", || {
            let me = std::fs::read_to_string("/proc/thread-self/stat").ok();
            let me = me.and_then(|s| s.split(' ').next()?.parse().ok());
            me == Some(gettid().as_raw_nonzero().get())
                // Another policy was chosen on purpose: do not change it.
                && sys::has_policy(None, libc::SCHED_OTHER)
                && sys::set_idle_policy(None, true).is_ok()
                && sys::set_idle_policy(None, false).is_ok()
                && sched_getaffinity(None).is_ok()
                && Times::open("thread-self").is_some_and(|times| times.get().is_some())
        });
        tried.is_ok_and(|t| t.join().unwrap_or(false))
    })
}

/// The file `schedstat` of a thread (Linux: `proc_pid_schedstat`).
struct Times(File);

impl Times {
    /// `thread`: its directory in /proc.
    fn open(thread: &str) -> Option<Times> {
        File::open(format!("/proc/{thread}/schedstat")).ok().map(Times)
    }

    /// How long the thread has run, and how long it was ready without running. None if it has ended.
    fn get(&self) -> Option<[Duration; 2]> {
        let mut text = [0; 64];
        let len = self.0.read_at(&mut text, 0).ok()?;
        let mut numbers = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace();
        let mut next = || numbers.next()?.parse().ok().map(Duration::from_nanos);
        Some([next()?, next()?])
    }
}

/// Whether a thread is running or waiting for a processor.
fn is_ready(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat"));
    // The second field is a name in parentheses, which may contain anything; the third follows the last parenthesis.
    stat.is_ok_and(|s| s.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('R')))
}

/// For how long no thread steps aside after a delay.
pub(super) struct Penalty {
    began: Instant,
    /// The end of the penalty, in nanoseconds since `began`.
    until: AtomicU64,
    /// The length of the last penalty, in nanoseconds.
    last: AtomicU64,
}

impl Penalty {
    fn new() -> Penalty {
        Penalty { began: Instant::now(), until: AtomicU64::new(0), last: AtomicU64::new(0) }
    }

    /// Begins a penalty: of [`PENALTY_MIN`], or twice as long as the last one if that ended recently.
    pub fn give(&self, now: Instant) {
        let now = now.duration_since(self.began).as_nanos() as u64;
        let (least, most) = (PENALTY_MIN.as_nanos() as u64, PENALTY_MAX.as_nanos() as u64);
        let again = now < self.until.load(Ordering::Relaxed) + most;
        let last = self.last.load(Ordering::Relaxed);
        let penalty = if again { (2 * last).clamp(least, most) } else { least };
        self.last.store(penalty, Ordering::Relaxed);
        self.until.store(now + penalty, Ordering::Relaxed);
    }

    pub fn is_running(&self, now: Instant) -> bool {
        (now.duration_since(self.began).as_nanos() as u64) < self.until.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn began(&self) -> Instant {
        self.began
    }
}

/// One thread's part of [`Asides`]. On its own cache lines, because it is written at every request.
#[derive(Default)]
#[repr(align(128))]
struct Turn {
    /// The thread, and the client for which it last stepped aside.
    thread: AtomicU32,
    client: AtomicU32,
    /// Odd while the thread is aside. The other bits count the requests that it has served there.
    count: AtomicU32,
}

/// Which threads of a mount are aside.
pub(super) struct Asides {
    turns: Vec<Turn>,
    penalty: Penalty,
}

impl Asides {
    /// For threads with numbers below `threads`.
    pub fn new(threads: usize) -> Asides {
        Asides { turns: (0..threads).map(|_| Turn::default()).collect(), penalty: Penalty::new() }
    }

    pub fn penalty(&self) -> &Penalty {
        &self.penalty
    }

    /// Restores the normal priority of threads that are aside and have served no request since the last look. `seen` is
    /// the state at the last look; empty before the first. Returns false if no thread is aside, and none was since the
    /// last look.
    pub fn look(&self, seen: &mut Vec<u32>, now: Instant) -> bool {
        seen.resize(self.turns.len(), 0);
        let mut any = false;
        for (me, last) in seen.iter_mut().enumerate() {
            let count = self.turns[me].count.load(Ordering::SeqCst);
            any |= count != *last || count % 2 == 1;
            if count == *last {
                self.end(me, now);
            }
            *last = count;
        }
        any
    }

    /// Restores the normal priority of thread `me`, if it is aside.
    pub fn end(&self, me: usize, now: Instant) {
        let turn = &self.turns[me];
        let count = turn.count.load(Ordering::SeqCst);
        let ended = || turn.count.compare_exchange(count, count.wrapping_add(1), Ordering::SeqCst, Ordering::SeqCst);
        if count.is_multiple_of(2) || ended().is_err() {
            return;
        }
        let thread = turn.thread.load(Ordering::SeqCst);
        if is_ready(thread) && !is_ready(turn.client.load(Ordering::SeqCst)) {
            self.penalty.give(now);
        }
        let _ = sys::set_idle_policy(Pid::from_raw(thread as i32), false);
    }
}

/// The times of a thread that is aside, and of its client. It outlives the stay: most stays are for the same client as
/// the previous one, and opening the files costs more than a request.
struct Watch {
    /// The client's thread.
    of: u32,
    times: Times,
    client: Times,
    at: Instant,
    /// How long the thread had waited, and how long the client had run, at the last look.
    waited: Duration,
    ran: Duration,
}

impl Watch {
    fn begin(of: u32, now: Instant) -> Option<Watch> {
        let (times, client) = (Times::open("thread-self")?, Times::open(&of.to_string())?);
        let mut watch = Watch { of, times, client, at: now, waited: Duration::ZERO, ran: Duration::ZERO };
        watch.is_delayed(now).map(|_| watch)
    }

    /// Whether programs other than the client have taken the processor since the last look. None if that can no longer
    /// be determined.
    fn is_delayed(&mut self, now: Instant) -> Option<bool> {
        let ([_, waited], [ran, _]) = (self.times.get()?, self.client.get()?);
        let passed = now.saturating_duration_since(self.at);
        let delayed = by_others(waited.saturating_sub(self.waited), ran.saturating_sub(self.ran), passed);
        (self.at, self.waited, self.ran) = (now, waited, ran);
        Some(delayed)
    }
}

/// Whether others delayed a thread that waited this long for its processor, given the time that its client ran and the
/// time that passed.
fn by_others(waited: Duration, ran: Duration, passed: Duration) -> bool {
    let others = waited.saturating_sub(ran);
    others > WAITED && others > passed / 4
}

/// The stay of one thread; used by that thread only.
pub(super) struct Stay {
    all: Arc<Asides>,
    me: usize,
    watch: RefCell<Option<Watch>>,
    /// Whether the thread believes that it is aside.
    aside: Cell<bool>,
}

impl Stay {
    /// For the calling thread, which is number `me`.
    pub fn new(all: Arc<Asides>, me: usize) -> Stay {
        Stay { all, me, watch: RefCell::new(None), aside: Cell::new(false) }
    }

    /// Steps aside for `client`, or stays aside for one more of its requests. `watched` is called before the thread
    /// steps aside: afterwards it may not run, and another thread must watch it.
    pub fn go_on(&self, client: u32, now: Instant, watched: impl FnOnce()) {
        let turn = &self.all.turns[self.me];
        if self.aside.get() {
            let count = turn.count.load(Ordering::SeqCst);
            let next = count.wrapping_add(2);
            let stays = count % 2 == 1
                && turn.client.load(Ordering::SeqCst) == client
                && turn.count.compare_exchange(count, next, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if !stays {
                return self.leave();
            }
            if let Some(watch) = &mut *self.watch.borrow_mut() {
                if now.saturating_duration_since(watch.at) < LOOK {
                    return;
                }
                let delayed = watch.is_delayed(now);
                if delayed == Some(true) {
                    self.all.penalty.give(now);
                }
                if delayed == Some(false) {
                    // The call that ended an earlier stay may have arrived after this stay began.
                    let _ = sys::set_idle_policy(None, true);
                    return;
                }
            }
            return self.leave();
        }
        if !can_step_aside() || self.all.penalty.is_running(now) {
            return;
        }
        if !self.watch_client(client, now) {
            return;
        }
        turn.thread.store(gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
        turn.client.store(client, Ordering::SeqCst);
        self.aside.set(true);
        turn.count.fetch_add(1, Ordering::SeqCst);
        watched();
        let _ = sys::set_idle_policy(None, true);
    }

    /// Starts to measure how long the thread waits and `client` runs. False if that cannot be determined.
    fn watch_client(&self, client: u32, now: Instant) -> bool {
        let mut watch = self.watch.borrow_mut();
        // Reading the times of a client that has ended fails, even if another thread has its ID by now.
        let goes_on = watch.as_mut().is_some_and(|w| w.of == client && w.is_delayed(now).is_some());
        if !goes_on {
            *watch = Watch::begin(client, now);
        }
        watch.is_some()
    }

    /// Returns to normal priority.
    pub fn leave(&self) {
        if !self.aside.replace(false) {
            return;
        }
        let count = &self.all.turns[self.me].count;
        let now = count.load(Ordering::SeqCst);
        if now % 2 == 1 {
            // If this fails, another thread has just ended the stay.
            let _ = count.compare_exchange(now, now.wrapping_add(1), Ordering::SeqCst, Ordering::SeqCst);
        }
        let _ = sys::set_idle_policy(None, false);
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;

    /// Runs a test in a thread of its own; skips it without the privilege.
    fn alone(body: impl FnOnce() + Send + 'static) {
        if !can_step_aside() {
            eprintln!("skipped: needs the privilege to come back from SCHED_IDLE");
            return;
        }
        task::spawn("aside", body).expect("thread").join().expect("joined");
    }

    fn me() -> u32 {
        gettid().as_raw_nonzero().get() as u32
    }

    fn is_aside() -> bool {
        sys::has_policy(None, libc::SCHED_IDLE)
    }

    #[test]
    fn a_thread_stays_aside_from_one_request_of_its_client_to_the_next() {
        alone(|| {
            let asides = Arc::new(Asides::new(1));
            let stay = Stay::new(asides.clone(), 0);
            let (now, steps) = (Instant::now(), Cell::new(0));
            let go_on = |client| stay.go_on(client, now, || steps.set(steps.get() + 1));
            go_on(me());
            go_on(me());
            assert_eq!((is_aside(), steps.get()), (true, 1));
            go_on(std::process::id());
            assert_eq!((is_aside(), steps.get()), (false, 1), "another client");
            go_on(u32::MAX >> 1);
            assert_eq!((is_aside(), steps.get()), (false, 1), "the client has ended");
            asides.penalty.give(now);
            go_on(me());
            assert_eq!((is_aside(), steps.get()), (false, 1), "a penalty runs");
            asides.penalty.end();
            go_on(me());
            assert_eq!((is_aside(), steps.get()), (true, 2));
            drop(stay);
            assert!(!is_aside());
        });
    }

    #[test]
    fn a_thread_without_requests_gets_its_priority_back() {
        alone(|| {
            let asides = Arc::new(Asides::new(2));
            let stay = Stay::new(asides.clone(), 1);
            let (mut seen, now) = (Vec::new(), Instant::now());
            assert!(!asides.look(&mut seen, now), "none is aside");
            stay.go_on(me(), now, || ());
            assert!(asides.look(&mut seen, now) && is_aside(), "new since the last look");
            stay.go_on(me(), now, || ());
            assert!(asides.look(&mut seen, now) && is_aside(), "it has served one");
            assert!(asides.look(&mut seen, now) && !is_aside());
            assert!(!asides.penalty.is_running(now), "its client was ready, too: it is the same thread");
            assert!(asides.look(&mut seen, now), "the end is a change");
            assert!(!asides.look(&mut seen, now));
            stay.go_on(me(), now, || ());
            assert!(!is_aside(), "the stay is over");
            stay.go_on(me(), now, || ());
            assert!(is_aside());
        });
    }

    #[test]
    fn a_thread_that_others_delay_leaves_at_its_next_request() {
        alone(|| {
            let asides = Arc::new(Asides::new(1));
            let stay = Stay::new(asides.clone(), 0);
            // The client sleeps all the time.
            let (number, client) = channel();
            let over = Arc::new(AtomicBool::new(false));
            let sleeps = over.clone();
            let sleeper = task::spawn("client", move || {
                number.send(me()).expect("the test waits");
                while !sleeps.load(Ordering::SeqCst) {
                    std::thread::park_timeout(Duration::from_secs(1));
                }
            });
            let client = client.recv().expect("its number");
            // Every processor is busy, including this one.
            let busy: Vec<_> = (0..task::processors())
                .map(|_| {
                    let over = over.clone();
                    task::spawn("busy", move || while !over.load(Ordering::SeqCst) {}).expect("thread")
                })
                .collect();
            let deadline = Instant::now() + Duration::from_secs(60);
            stay.go_on(client, Instant::now(), || ());
            while is_aside() && Instant::now() < deadline {
                stay.go_on(client, Instant::now(), || ());
            }
            let delayed = asides.penalty.is_running(Instant::now());
            let left = !is_aside();
            over.store(true, Ordering::SeqCst);
            sleeper.expect("thread").join().expect("joined");
            busy.into_iter().for_each(|t| t.join().expect("joined"));
            assert!(left && delayed);
        });
    }

    #[test]
    fn time_that_the_client_ran_is_no_delay() {
        let ms = Duration::from_millis;
        let delayed = |waited, ran, passed| by_others(ms(waited), ms(ran), ms(passed));
        assert!(!delayed(40, 40, 50) && !delayed(40, 39, 50), "it computed");
        assert!(delayed(40, 20, 50) && delayed(4, 0, 4));
        assert!(!delayed(1, 0, 4), "an interrupt");
        assert!(!delayed(4, 0, 100), "a small share");
    }

    #[test]
    fn a_penalty_grows_each_time_and_starts_anew_after_a_while_without_one() {
        let penalty = Penalty::new();
        let last = || Duration::from_nanos(penalty.last.load(Ordering::Relaxed));
        let mut at = penalty.began + 10 * PENALTY_MAX;
        for times in 0..10 {
            penalty.give(at);
            assert_eq!(last(), (PENALTY_MIN * (1 << times)).min(PENALTY_MAX));
            at += last();
        }
        penalty.give(at + 2 * PENALTY_MAX);
        assert_eq!(last(), PENALTY_MIN);
    }
}
