//! How many requests per second the transport carries: a file system that does nothing, and a client that sends
//! requests.
//!
//! `null_server [SECONDS]` mounts in a temporary directory, runs every test with 1 and 2 clients, and prints a table.
//! `null_server mount DIR dev|ring` only serves. Client and server run on one machine and share its processors.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::task;
use extant_fuse::abi::ROOT_ID;
use extant_fuse::*;

const FILES: u64 = 1000;
const FILE_BYTES: u64 = 1 << 30;
const O_DIRECT: i32 = 0o40_000;

/// A directory of `f0` … `f999`, each 1 GiB of zeros that accepts any write.
struct Null {
    config: Config,
    valid: Duration,
}

impl Null {
    fn new(config: Config, valid: Duration) -> Arc<Null> {
        Arc::new(Null { config, valid })
    }

    fn attr(&self, ino: u64) -> Attr {
        let (mode, size) = if ino == ROOT_ID { (0o040_755, 4096) } else { (0o100_644, FILE_BYTES) };
        Attr { ino, mode, size, blocks: size / 512, nlink: 1, blksize: 4096, ..Attr::default() }
    }
}

impl Server for Null {
    fn init(&self, _: &InitOffer) -> Config {
        self.config
    }

    fn lookup(&self, _: &Request, _: u64, name: &[u8], reply: ReplyEntry) {
        let number = std::str::from_utf8(name).ok().and_then(|n| n.strip_prefix('f')?.parse::<u64>().ok());
        match number {
            Some(n) if n < FILES => {
                let nodeid = n + 2;
                let valid = self.valid;
                let attr = self.attr(nodeid);
                let _ = reply.ok(&Entry { nodeid, generation: 0, attr, entry_valid: valid, attr_valid: valid });
            }
            _ => reply.error(Errno::NOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        reply.ok(&self.attr(ino), self.valid);
    }

    fn setattr(&self, _: &Request, ino: u64, _: &SetAttr, reply: ReplyAttr) {
        reply.ok(&self.attr(ino), self.valid);
    }

    fn open(&self, _: &Request, _: u64, _: u32, _: bool, reply: ReplyOpen) {
        let _ = reply.ok(0, OpenFlags::KEEP_CACHE);
    }

    fn read(&self, _: &Request, _: u64, args: &ReadArgs, reply: ReplyData) {
        reply.fill(|buffer| Ok(buffer.len().min(args.size as usize)));
    }

    fn write(&self, _: &Request, _: u64, _: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        reply.ok(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Page-aligned memory, as O_DIRECT requires.
#[repr(align(4096))]
struct Aligned([u8; 1 << 20]);

/// Sends one kind of request until the time is over; returns how many it sent.
fn client(dir: &Path, test: &str, number: u64, time: Duration) -> u64 {
    let mut memory = Box::new(Aligned([0; 1 << 20]));
    let open = |flags: i32| -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(dir.join(format!("f{number}")))
            .expect("open")
    };
    let mut n = 0;
    let start = Instant::now();
    let mut each = |job: &mut dyn FnMut(u64)| {
        while start.elapsed() < time {
            for _ in 0..16 {
                job(n);
                n += 1;
            }
        }
    };
    match test {
        "stat" => {
            let paths: Vec<_> = (0..64).map(|i| dir.join(format!("f{}", number * 64 + i))).collect();
            each(&mut |i| assert!(fs::metadata(&paths[i as usize % 64]).is_ok()));
        }
        "open" => each(&mut |_| drop(open(0))),
        "read4k" | "read1m" | "write4k" | "write1m" => {
            let file = open(O_DIRECT);
            let size = if test.ends_with("4k") { 4096 } else { 1 << 20 };
            let at = |i: u64| i * size as u64 % FILE_BYTES;
            if test.starts_with("read") {
                each(&mut |i| file.read_exact_at(&mut memory.0[..size], at(i)).expect("read"));
            } else {
                each(&mut |i| file.write_all_at(&memory.0[..size], at(i)).expect("write"));
            }
        }
        "buffered-read1m" => {
            let file = open(0);
            each(&mut |i| {
                let at = (i << 20) % FILE_BYTES;
                if at == 0 {
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                }
                file.read_exact_at(&mut memory.0, at).expect("read");
            });
        }
        other => panic!("no test {other}"),
    }
    n
}

fn measure(dir: &Path, test: &str, clients: u64, seconds: f64) -> f64 {
    let me = std::env::current_exe().expect("path");
    let start = Instant::now();
    let out = Command::new(me)
        .args(["client", dir.to_str().expect("UTF-8"), test, &clients.to_string(), &seconds.to_string()])
        .output()
        .expect("client");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let rate: f64 = String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number");
    assert!(start.elapsed().as_secs_f64() >= seconds);
    rate
}

fn bench(name: &str, config: Config, valid: Duration, options: &MountOptions, tests: &[&str], seconds: f64) {
    let dir = tempfile::tempdir().expect("directory");
    let session = Session::mount(Null::new(config, valid), dir.path(), options).expect("mounted");
    let unmounter = session.unmounter();
    let server = task::spawn("server", move || session.run()).expect("thread");
    for test in tests {
        let rates: Vec<String> = [1, 2]
            .iter()
            .map(|clients| {
                let rate = measure(dir.path(), test, *clients, seconds);
                let gib =
                    if test.ends_with("1m") { format!(" ({:.1} GB/s)", rate * 1.048_576e-3) } else { String::new() };
                format!("{rate:>9.0}/s{gib}")
            })
            .collect();
        println!("{name:<28} {test:<16} {}", rates.join("   "));
    }
    while unmounter.unmount(false).is_err() {
        extant_base::clock::Clock::real().sleep(Duration::from_millis(10));
    }
    server.join().expect("no panic").expect("served");
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args.iter().skip(1).map(String::as_str).collect();
    match words[..] {
        ["client", dir, test, clients, seconds] => {
            let (dir, test) = (dir.to_owned(), test.to_owned());
            let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            let threads: Vec<_> = (0..clients.parse().expect("clients"))
                .map(|i| {
                    let (dir, test) = (dir.clone(), test.clone());
                    task::spawn("client", move || client(Path::new(&dir), &test, i, time)).expect("thread")
                })
                .collect();
            let n: u64 = threads.into_iter().map(|t| t.join().expect("no panic")).sum();
            println!("{}", n as f64 / time.as_secs_f64());
        }
        ["mount", dir, transport] => {
            let transport = if transport == "ring" { Transport::Ring } else { Transport::Device };
            let options = MountOptions { transport, ..MountOptions::default() };
            let session = Session::mount(Null::new(Config::default(), FOREVER), Path::new(dir), &options);
            session.expect("mounted").run().expect("served");
        }
        _ => {
            let seconds = words.first().map_or(2.0, |s| s.parse().expect("seconds"));
            let all = ["stat", "open", "read4k", "write4k", "read1m", "write1m", "buffered-read1m"];
            println!("{:<28} {:<16} {:>11}   {:>11}", "mount", "test", "1 client", "2 clients");
            let (config, options) =
                (Config::default(), MountOptions { transport: Transport::Device, ..MountOptions::default() });
            let ring = MountOptions { transport: Transport::Ring, ..options.clone() };
            bench("io_uring, valid 0", config, Duration::ZERO, &ring, &all, seconds);
            bench("cloned fds, valid 0", config, Duration::ZERO, &options, &all, seconds);
            let shared = MountOptions { clone_fd: false, ..options.clone() };
            bench("shared fd, valid 0", config, Duration::ZERO, &shared, &all, seconds);
            bench("cloned fds, valid forever", config, FOREVER, &options, &["stat", "open"], seconds);
            let closed = Config { no_open: true, no_opendir: true, ..config };
            bench("no_open, valid forever", closed, FOREVER, &options, &["open"], seconds);
        }
    }
}
