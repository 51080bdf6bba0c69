//! `reaim-disk`: the mix of the regression that was reported in 2022, by a growing number of processes.
//!
//! AIM7's disk workfile is a mix of jobs on small files: written, read, copied, with and without syncing, created and
//! closed, looked up. Each process runs the jobs in a different order.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;
use crate::vfs::Worker;

pub(super) struct ReaimDisk;

/// The number of jobs; each is equally frequent.
const JOBS: u64 = 8;

impl Workload for ReaimDisk {
    fn name(&self) -> &'static str {
        "reaim-disk"
    }

    fn summary(&self) -> &'static str {
        "1 to 321 processes: small files written, read, copied, synced, created, looked up, removed"
    }

    fn source(&self) -> &'static str {
        "mmtests reaim, workfile.disk, disk-1 to disk-321 (Jan Kara's mballoc series of 2022)"
    }

    fn headline(&self) -> &'static str {
        "disk-321"
    }

    fn counted(&self, _: &str) -> &'static str {
        "jobs"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with_list("processes", &[1, 41, 81, 161, 321])
            .with("jobs_per_process", scaled(40, scale, 1))
            .with("bytes", 10 << 10)
            .with("files_looked_up", 20)
    }

    fn small_scale(&self) -> f64 {
        0.1
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let processes = p.list("processes").iter().copied().max().unwrap_or(0);
        let files = processes.saturating_mul(4 + p.get("files_looked_up"));
        Needs { bytes: files.saturating_mul(p.get("bytes").next_multiple_of(4096)) * 4, files, ..Needs::default() }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (jobs, bytes) = (context.get("jobs_per_process"), context.get("bytes"));
        let looked_up = context.get("files_looked_up");
        for processes in context.parameters().list("processes") {
            let root = format!("disk-{processes}");
            context.prepare(1, |w, _| w.mkdir(&root))?;
            context.prepare(processes, |w, process| {
                let dir = format!("{root}/p{process}");
                w.mkdir(&dir)?;
                for i in 0..looked_up {
                    let file = w.create(&format!("{dir}/s{i}"))?;
                    w.close(file)?;
                }
                put(w, &format!("{dir}/data"), bytes, false)
            })?;
            context.phase(&root, processes, |w, process| {
                let dir = format!("{root}/p{process}");
                for job in 0..jobs {
                    one(w, &dir, job, bytes, looked_up)?;
                    w.done(1);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn one(w: &mut Worker<'_>, dir: &str, job: u64, bytes: u64, looked_up: u64) -> Result<()> {
    let name = format!("{dir}/t{job}");
    match w.rng.below(JOBS) {
        // disk_wrt, sync_disk_wrt
        0 => {
            put(w, &name, bytes, false)?;
            w.unlink(&name)
        }
        1 => {
            put(w, &name, bytes, true)?;
            w.unlink(&name)
        }
        // disk_rd
        2 => get(w, &format!("{dir}/data"), bytes),
        // disk_cp, sync_disk_cp
        3 | 4 => {
            get(w, &format!("{dir}/data"), bytes)?;
            let sync = w.rng.one_in(2);
            put(w, &name, bytes, sync)?;
            w.unlink(&name)
        }
        // sync_disk_rw
        5 => {
            let file = w.open(&format!("{dir}/data"))?;
            let at = w.rng.below(bytes.max(1));
            w.read(&file, 0, bytes as usize)?;
            w.write(&file, at, (bytes - at).min(4096))?;
            w.fsync(&file)?;
            w.close(file)
        }
        // creat-clo
        6 => {
            for _ in 0..10 {
                let file = w.create(&name)?;
                w.close(file)?;
                w.unlink(&name)?;
            }
            Ok(())
        }
        // disk_src
        _ => {
            for i in 0..looked_up {
                w.stat(&format!("{dir}/s{i}"))?;
            }
            w.readdir(dir).map(drop)
        }
    }
}

fn put(w: &mut Worker<'_>, name: &str, bytes: u64, sync: bool) -> Result<()> {
    let file = w.create(name)?;
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(1024);
        w.write(&file, at, n)?;
        at += n;
    }
    if sync {
        w.fsync(&file)?;
    }
    w.close(file)
}

fn get(w: &mut Worker<'_>, name: &str, bytes: u64) -> Result<()> {
    let file = w.open(name)?;
    let mut at = 0;
    while at < bytes {
        at += match w.read(&file, at, 1024)? {
            0 => break,
            n => n as u64,
        };
    }
    w.close(file)
}
