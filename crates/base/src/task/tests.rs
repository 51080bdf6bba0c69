//! Tests that watched threads announce a sleep, and that threads with their own settings undo them before they start
//! others.

use super::*;
use crate::sync::{Condvar, LockClass, Mutex};
use std::time::Duration;

static CLASS: LockClass = LockClass::new("test watched", 0);

#[test]
fn a_watched_thread_makes_one_call_before_it_sleeps() {
    let told = Rc::new(Cell::new(0));
    let count = told.clone();
    watched(Some(Rc::new(move || count.set(count.get() + 1))));
    let (lock, ready) = (Mutex::new(&CLASS, ()), Condvar::new());
    drop(lock.lock());
    let wait = || {
        let mut guard = lock.lock();
        ready.wait_for(&mut guard, Duration::from_millis(1));
    };
    wait();
    assert_eq!(told.get(), 0, "not watched yet");
    watch_sleep(true);
    drop(lock.lock());
    assert_eq!(told.get(), 0, "a free lock is no sleep");
    wait();
    wait();
    assert_eq!(told.get(), 1);
    assert!(!watch_sleep(false), "the call switched it off");
}

#[test]
fn a_contended_lock_counts_as_sleep() {
    let lock = std::sync::Arc::new(Mutex::new(&CLASS, ()));
    let held = lock.lock();
    let (other, told) = (lock.clone(), std::sync::Arc::new(AtomicUsize::new(0)));
    let count = told.clone();
    let thread = spawn("contender", move || {
        let mine = count.clone();
        watched(Some(Rc::new(move || {
            mine.fetch_add(1, Ordering::SeqCst);
        })));
        watch_sleep(true);
        drop(other.lock());
    });
    while told.load(Ordering::SeqCst) == 0 {
        yield_now();
    }
    drop(held);
    thread.expect("thread").join().expect("joined");
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn together_runs_on_each_thread_and_waits_for_all() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    together("together", 4, || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 4);
}

#[test]
fn together_passes_on_a_panic_after_all_have_ended() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        together("together", 3, || {
            assert!(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) != 1, "the second one panics");
        });
    }));
    assert!(result.is_err());
    assert_eq!(count.into_inner(), 3);
}

#[test]
fn a_thread_undoes_its_own_settings_before_it_starts_another() {
    let undone = Rc::new(Cell::new(0));
    let count = undone.clone();
    has_own_settings(Some(Rc::new(move || count.set(count.get() + 1))));
    spawn("child", || ()).expect("thread").join().expect("joined");
    assert_eq!(undone.get(), 1);
    together("together", 2, || ());
    assert_eq!(undone.get(), 2);
    has_own_settings(None);
    before_child();
    assert_eq!(undone.get(), 2);
}
