//! `serve_image IMAGE DIR [WORD...]`: mounts an image for measurements, and serves it until it is unmounted.
//!
//! Words: `direct` (O_DIRECT), `uring`, `through=BYTES`, `through_all`, `nowb` (no writeback cache), `open` (OPEN and
//! RELEASE are sent), `noacl`, `workers=N`, `cache=MIB`, `ro`.

use std::path::Path;
use std::sync::Arc;

use extant_block::device::{Engine, FileDevice, IoMode, OpenOptions};
use extant_fs::{Atime, Filesystem};
use extant_fuse::{FsServer, MountOptions, ServerOptions, Session};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, dir, words @ ..] = args.as_slice() else {
        eprintln!("usage: serve_image IMAGE DIR [WORD...]");
        std::process::exit(2);
    };
    let has = |word: &str| words.iter().any(|w| w == word);
    let number = |key: &str| words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok());
    let open = OpenOptions {
        read_only: has("ro"),
        io: if has("direct") { IoMode::Direct } else { IoMode::Buffered },
        engine: if has("uring") { Engine::IoUring } else { Engine::Psync },
        ..OpenOptions::default()
    };
    let device = FileDevice::open(image, open).unwrap_or_else(|e| panic!("{e}"));
    let options = extant_fs::MountOptions {
        read_only: has("ro"),
        keep_clean: false,
        atime: Atime::Never,
        write_through_bytes: number("through"),
        cache_bytes: number("cache").unwrap_or(512) << 20,
        messages: extant_fs::Messages::to_stderr("serve_image"),
        ..extant_fs::MountOptions::default()
    };
    let fs = Filesystem::mount(Arc::new(device), options).unwrap_or_else(|e| panic!("{e}"));
    let server = ServerOptions {
        writeback_cache: !has("nowb"),
        no_open: !has("open"),
        no_opendir: !has("open"),
        posix_acl: !has("noacl"),
        ..ServerOptions::default()
    };
    let server = Arc::new(FsServer::new(fs, server).unwrap_or_else(|e| panic!("{e}")));
    let mount = MountOptions {
        fsname: image.clone().into(),
        read_only: has("ro"),
        workers: number("workers").map(|n| n as usize),
        allow_other: true,
        ..MountOptions::default()
    };
    let session = Session::mount(server.clone(), Path::new(dir), &mount).unwrap_or_else(|e| panic!("{e}"));
    server.set_notifier(session.notifier());
    let served = session.run();
    let journal = server.filesystem().statistics().journal();
    eprintln!("commits {} blocks {} handles {}", journal.commits.get(), journal.blocks.get(), journal.handles.get());
    eprintln!("served: {served:?}, unmounted: {:?}", server.unmount_result());
}
