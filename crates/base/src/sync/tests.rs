//! Tests that the order of locks is checked, and that waits are counted.

use super::*;

static LOW: LockClass = LockClass::new("test low", 1);
static HIGH: LockClass = LockClass::new("test high", 2);

#[test]
#[cfg(debug_assertions)]
fn a_wrong_order_panics_with_both_names() {
    let (low, high) = (Mutex::new(&LOW, ()), RwLock::new(&HIGH, ()));
    {
        let _a = low.lock();
        let _b = high.write();
    }
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _b = high.read();
        let _a = low.lock();
    }));
    let what = *r.expect_err("must panic").downcast::<String>().expect("a message");
    assert!(what.contains("test low") && what.contains("test high"), "{what}");
    // The failed attempt must not be recorded as holding the lock.
    let _a = low.lock();
    let _b = high.read();
}

#[test]
#[cfg(debug_assertions)]
fn two_locks_of_a_class_need_a_nested_call() {
    let (a, b) = (Mutex::new(&LOW, 1), Mutex::new(&LOW, 2));
    let ga = a.lock();
    let gb = b.lock_nested();
    assert_eq!(*ga + *gb, 3);
    drop(gb);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(b.lock()))).is_err());
}

#[test]
fn contention_is_counted() {
    static CLASS: LockClass = LockClass::new("test contended", 3);
    let m = std::sync::Arc::new(Mutex::new(&CLASS, 0));
    set_lock_stats(true);
    let g = m.lock();
    let n = m.clone();
    let t = crate::task::spawn("waiter", move || *n.lock() += 1).expect("thread");
    while lock_table().iter().find(|r| r.name == "test contended").is_none_or(|r| r.contended == 0) {
        crate::task::yield_now();
    }
    drop(g);
    t.join().expect("joined");
    set_lock_stats(false);
    let row = lock_table().into_iter().find(|r| r.name == "test contended").expect("row");
    assert_eq!((row.acquired, row.contended), (2, 1));
    assert!(row.wait_ns_total > 0 && row.wait_ns_max >= row.wait_ns_min);
}
