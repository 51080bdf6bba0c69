//! A thread for jobs that wait for the kernel, which in turn may wait for the workers.
//!
//! Main type: [`Helper`]. The thread starts with the first job and ends when there has been no job for a while. If a
//! job panics, the thread continues: the job's reply is dropped, which answers EIO.
//!
//! # Locking
//! `fuse helper` (3), a leaf: jobs run outside of it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

static CLASS: LockClass = LockClass::new("fuse helper", 3);
const IDLE: Duration = Duration::from_secs(2);

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// The processors that the thread may use: the parent thread may be a worker that is bound to one.
    processors: Option<CpuSet>,
}

#[derive(Clone)]
pub(super) struct Helper(Arc<Shared>);

impl Helper {
    pub(super) fn new() -> Helper {
        let processors = sched_getaffinity(None).ok();
        Helper(Arc::new(Shared { queue: Mutex::new(&CLASS, Queue::default()), work: Condvar::new(), processors }))
    }

    /// Runs `job` soon. If no thread can be started, it drops the job.
    pub(super) fn submit(&self, job: Job) {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back(job);
        if queue.running {
            self.0.work.notify_one();
            return;
        }
        let me = self.clone();
        queue.running = task::spawn("fuse-helper", move || me.run()).is_ok();
        let dropped = if queue.running { VecDeque::new() } else { std::mem::take(&mut queue.jobs) };
        drop(queue);
        drop(dropped);
    }

    fn run(&self) {
        if let Some(processors) = &self.0.processors {
            let _ = sched_setaffinity(None, processors);
        }
        loop {
            let job = {
                let mut queue = self.0.queue.lock();
                if queue.jobs.is_empty() {
                    self.0.work.wait_for(&mut queue, IDLE);
                }
                let job = queue.jobs.pop_front();
                queue.running = job.is_some();
                job
            };
            match job {
                Some(job) => drop(catch_unwind(AssertUnwindSafe(job))),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_thread_survives_a_job_that_panics() {
        let helper = Helper::new();
        let (done, wait) = channel();
        helper.submit(Box::new(|| panic!("on purpose")));
        helper.submit(Box::new(move || done.send(()).expect("heard")));
        assert_eq!(wait.recv(), Ok(()), "the job was dropped; otherwise this would wait forever");
        // The same for a job that arrives when no other job would wake the thread.
        let (before, started) = channel();
        helper.submit(Box::new(move || {
            before.send(()).expect("heard");
            panic!("on purpose");
        }));
        started.recv().expect("started");
        let (done, wait) = channel();
        helper.submit(Box::new(move || done.send(()).expect("heard")));
        assert_eq!(wait.recv_timeout(Duration::from_secs(60)), Ok(()));
    }
}
