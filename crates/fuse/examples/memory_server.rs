//! `memory_server DIR [dev|uring]`: the file system of the tests, in memory, mounted as `extant mount` does.
//!
//! It answers each request at once, so that `scripts/bench.py` can separate FUSE's share of a time from Extant's. It
//! prints "mounted" after each mount and "unmounted" when that mount ends. Each line on standard input then mounts the
//! same tree again. The program exits at end of file.

#[path = "../tests/memfs/mod.rs"]
mod memfs;

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use extant_fuse::{Config, MountOptions, ServerOptions, Session, Transport, kernel_uid};

use memfs::MemFs;

/// The negotiation of an `FsServer` with default options.
fn config() -> Config {
    let o = ServerOptions::default();
    Config {
        writeback_cache: o.writeback_cache,
        no_open: o.no_open,
        no_opendir: o.no_opendir,
        readdirplus: o.readdirplus,
        posix_acl: o.posix_acl,
        export_support: o.export_support,
        max_write: o.max_write,
        max_background: o.max_background,
        congestion_threshold: o.max_background / 4 * 3,
        ..Config::default()
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (dir, transport) = match words[..] {
        [dir] => (dir, Transport::Auto),
        [dir, "dev"] => (dir, Transport::Device),
        [dir, "uring"] => (dir, Transport::Ring),
        _ => {
            eprintln!("usage: memory_server DIR [dev|uring]");
            std::process::exit(2);
        }
    };
    let options = MountOptions {
        fsname: "memory".into(),
        subtype: "memory".into(),
        allow_other: kernel_uid().is_root(),
        transport,
        ..MountOptions::default()
    };
    let mut fs = MemFs::new(config());
    fs.from_threads = false;
    let fs = Arc::new(fs);
    let mut lines = std::io::stdin().lock().lines();
    loop {
        let session = Session::mount(fs.clone(), Path::new(dir), &options).unwrap_or_else(|e| panic!("{dir}: {e}"));
        println!("mounted");
        session.run().unwrap_or_else(|e| panic!("{dir}: {e}"));
        println!("unmounted");
        if lines.next().is_none_or(|line| line.is_err()) {
            return;
        }
    }
}
