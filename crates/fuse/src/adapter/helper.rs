//! A thread for work that waits for the kernel, which in turn may wait for the workers.
//!
//! Main type: [`Helper`]. The thread starts with the first job and ends when there was none for a while.
//!
//! # Locking
//! `fuse helper` (3), a leaf: jobs run outside of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;

static CLASS: LockClass = LockClass::new("fuse helper", 3);
const IDLE: Duration = Duration::from_secs(2);

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

#[derive(Clone)]
pub(super) struct Helper(Arc<(Mutex<Queue>, Condvar)>);

impl Helper {
    pub(super) fn new() -> Helper {
        Helper(Arc::new((Mutex::new(&CLASS, Queue::default()), Condvar::new())))
    }

    /// Runs `job` soon. Without a thread to be had it is dropped.
    pub(super) fn submit(&self, job: Job) {
        let mut queue = self.0.0.lock();
        queue.jobs.push_back(job);
        if queue.running {
            self.0.1.notify_one();
            return;
        }
        let me = self.clone();
        queue.running = task::spawn("fuse-helper", move || me.run()).is_ok();
        let dropped = if queue.running { VecDeque::new() } else { std::mem::take(&mut queue.jobs) };
        drop(queue);
        drop(dropped);
    }

    fn run(&self) {
        let (lock, work) = &*self.0;
        loop {
            let job = {
                let mut queue = lock.lock();
                if queue.jobs.is_empty() {
                    work.wait_for(&mut queue, IDLE);
                }
                let job = queue.jobs.pop_front();
                queue.running = job.is_some();
                job
            };
            match job {
                Some(job) => job(),
                None => return,
            }
        }
    }
}
