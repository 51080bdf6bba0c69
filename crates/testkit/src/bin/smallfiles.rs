//! `smallfiles PROCESSES COUNT BYTES DIR SYNC BATCH`: many processes that create and delete small files.
//!
//! Each process, in a directory of its own below DIR, creates COUNT files of BYTES bytes (write, fsync if SYNC is 1,
//! close) and unlinks them, BATCH files at a time. 16 processes, 22528 bytes, fsync and batches of 1 is the workload in
//! the discussion of the scalability of ext4's allocator since 2022. Prints files per second over all processes; the
//! clock starts when all processes are ready.
//!
//! # Locking
//! None.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

struct Work {
    count: usize,
    bytes: usize,
    sync: bool,
    batch: usize,
}

/// The work of one process, in `dir`.
fn work(dir: &Path, work: &Work) -> std::io::Result<()> {
    let content = vec![b'x'; work.bytes];
    let name = |i: usize| dir.join(format!("f{i}"));
    let mut done = 0;
    while done < work.count {
        let n = work.batch.min(work.count - done);
        for i in 0..n {
            let mut file = File::create(name(i))?;
            file.write_all(&content)?;
            if work.sync {
                file.sync_all()?;
            }
        }
        for i in 0..n {
            std::fs::remove_file(name(i))?;
        }
        done += n;
    }
    Ok(())
}

fn run(args: &[String]) -> Result<(), Failure> {
    let [processes, count, bytes, dir, sync, batch, rest @ ..] = args else {
        return Err("usage: smallfiles PROCESSES COUNT BYTES DIR SYNC BATCH".into());
    };
    let dir = PathBuf::from(dir);
    let (processes, count) = (processes.parse::<usize>()?, count.parse::<usize>()?);
    let share = Work { count, bytes: bytes.parse()?, sync: sync == "1", batch: batch.parse::<usize>()?.max(1) };
    if rest.first().is_some_and(|a| a == "worker") {
        // Ready; end of file on standard input starts the clock.
        println!("ready");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(work(&dir, &share)?);
    }
    let mut children: Vec<Child> = Vec::new();
    for p in 0..processes {
        let own = dir.join(format!("p{p}"));
        std::fs::create_dir_all(&own)?;
        let mut worker_args = args.to_vec();
        worker_args[3] = own.to_str().ok_or("DIR is not UTF-8")?.to_owned();
        worker_args.push("worker".into());
        let mut child = Command::new(std::env::current_exe()?)
            .args(worker_args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = [0; 6];
        child.stdout.as_mut().ok_or("no pipe")?.read_exact(&mut line)?;
        children.push(child);
    }
    let start = Instant::now();
    for child in &mut children {
        drop(child.stdin.take());
    }
    let mut failed = 0;
    for child in &mut children {
        failed += usize::from(!child.wait()?.success());
    }
    let seconds = start.elapsed().as_secs_f64();
    let files = processes * count;
    println!("files {files} seconds {seconds:.3} files/s {:.0}", files as f64 / seconds);
    if failed > 0 { Err(format!("{failed} of {processes} processes failed").into()) } else { Ok(()) }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("smallfiles: {e}");
            ExitCode::FAILURE
        }
    }
}
