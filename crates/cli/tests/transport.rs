//! The transport of requests: `transport=` with io_uring switched on and off in the kernel.
//!
//! This file has one test, because it switches a parameter of the whole kernel and restores it.
//!
//! # Locking
//! None.

mod common;

use std::fs;

use common::{Dir, Unmounted, extant, fsck_clean};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Restores the parameter when dropped.
struct Restore(String);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, &self.0);
    }
}

/// The names of the threads of the process that serves `image`.
fn threads_of_server(image: &str) -> Vec<String> {
    let text = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let server = processes.map(|p| p.path()).find(|p| {
        let line = text(&p.join("cmdline"));
        line.contains(image) && line.contains("--background-server")
    });
    let tasks = fs::read_dir(server.expect("a server").join("task")).expect("threads").flatten();
    tasks.map(|t| text(&t.path().join("comm")).trim().to_owned()).collect()
}

#[test]
fn requests_come_through_io_uring_only_where_the_kernel_offers_it() {
    let Ok(before) = fs::read_to_string(PARAMETER) else {
        eprintln!("skipped: the kernel has no FUSE over io_uring");
        return;
    };
    let _restore = Restore(before.trim().to_owned());
    if fs::write(PARAMETER, "N").is_err() {
        eprintln!("skipped: only root may switch io_uring");
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mount = Unmounted::at(&dir, "mnt");
    let at = |name: &str| format!("{}/{name}", mount.0);
    let mounted = |transport: &str| {
        extant(&["mount", "-o", transport, &image, &mount.0]).ok();
        // More data than one request can carry, and more files than a queue has entries.
        let large: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7) as u8).collect();
        fs::write(at("large"), &large).expect("written");
        let names: Vec<String> = (0..200).map(|n| at(&format!("f{n}"))).collect();
        names.iter().for_each(|name| fs::write(name, name).expect("written"));
        fs::File::open(at("large")).expect("opened").sync_all().expect("durable");
        let rings = threads_of_server(&image).iter().filter(|name| name.starts_with("fuse-ring-")).count();
        extant(&["unmount", &mount.0]).ok();
        extant(&["mount", "-o", transport, &image, &mount.0]).ok();
        assert!(fs::read(at("large")).expect("read") == large, "{transport}");
        for name in &names {
            assert_eq!(&fs::read_to_string(name).expect("read"), name, "{transport}");
            fs::remove_file(name).expect("removed");
        }
        extant(&["unmount", &mount.0]).ok();
        fsck_clean(&image);
        rings
    };
    let refused = extant(&["mount", "-o", "transport=uring", &image, &mount.0]);
    refused.fails(32, &[&image, "cannot come through io_uring", PARAMETER]);
    assert_eq!(mounted("transport=auto"), 0);
    fs::write(PARAMETER, "Y").expect("switched");
    assert_eq!(mounted("transport=dev"), 0);
    assert!(mounted("transport=auto") > 0);
    assert!(mounted("transport=uring") > 0);
    extant(&["mount", "-o", "transport=pigeon", &image, &mount.0]).fails(1, &["transport=pigeon", "auto, dev, uring"]);
}
