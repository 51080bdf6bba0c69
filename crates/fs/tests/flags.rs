//! Inode flags that ask for durability: `S` and `D` of chattr(1). One thread that works, the mount's own threads beside
//! it, production's configuration, a power cut right after each operation.

mod common;

use common::*;
use extant_fs::{Cred, NewNode, RenameFlags, SetFlags};
use extant_ondisk::inode::InodeFlags;

fn set(scene: &Scene, inode: &extant_fs::InodeRef, flags: InodeFlags) {
    let flags = scene.getattr(inode).flags & InodeFlags::USER_VISIBLE.bits() | flags.bits();
    scene.set_flags(inode, SetFlags { flags: Some(flags), ..SetFlags::default() }).expect("chattr");
}

#[test]
fn what_is_written_to_a_synchronous_file_is_durable() {
    for options in [production(), production_through()] {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(options.clone());
            let f = create(&scene, "f");
            scene.sync().expect("sync");
            if synchronous {
                set(&scene, &f, InodeFlags::SYNC);
            }
            put(&scene, &f, 0, b"written");
            let cut = scene.disk.after_cut();
            let there = content_of(&cut, "f").expect("there") == b"written";
            assert_eq!(there, synchronous, "{:?}", options.write_through_bytes);
        }
    }
}

#[test]
fn what_changes_in_a_synchronous_directory_is_durable() {
    bounded(|| {
        for synchronous in [true, false] {
            let scene = Disk::new(64, EXT4).mount(production());
            let root = scene.root().expect("root");
            let d = scene.create(&root, b"d", NewNode::directory(0o755), Cred::default()).expect("mkdir");
            scene.sync().expect("sync");
            if synchronous {
                set(&scene, &d, InodeFlags::DIRSYNC);
            }
            let names = || {
                let cut = scene.disk.after_cut();
                let d = cut.lookup(&cut.root().expect("root"), b"d").expect("directory");
                let mut all = Vec::new();
                cut.read_dir(&d, 0, |e| {
                    all.push(String::from_utf8_lossy(e.name).into_owned());
                    true
                })
                .expect("listed");
                all.retain(|name| !name.starts_with('.'));
                all.sort();
                all.join(" ")
            };
            let mut seen = Vec::new();
            let f = scene.create(&d, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            seen.push(names());
            scene.link(&f, &d, b"g").expect("link");
            seen.push(names());
            scene.rename(&d, b"g", &d, b"h", RenameFlags::default()).expect("rename");
            seen.push(names());
            scene.unlink(&d, b"f").expect("unlink");
            seen.push(names());
            scene.rename(&d, b"h", &root, b"h", RenameFlags::default()).expect("rename");
            seen.push(names());
            let durable = if synchronous { ["f", "f g", "f h", "h", ""] } else { [""; 5] };
            assert_eq!(seen, durable);
        }
    });
}
