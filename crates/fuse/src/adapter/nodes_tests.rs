//! The inodes that the kernel knows, tested without a kernel: inodes in all states, held or not, under memory pressure.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Barrier};

use extant_block::device::MemDevice;
use extant_fs::{Caller, Cred, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, WriteFlags};
use extant_testkit::kinds::kind;
use extant_testkit::oracle::make_image;

use super::*;
use crate::Errno;
use crate::adapter::{FsServer, ServerOptions};

const NOBODY: Cred = Cred { uid: 0, gid: 0, umask: 0 };
const MIB: u64 = 1 << 20;

fn mount(image: &Path, cache_bytes: u64) -> Mounted {
    let options = MountOptions { seed: Some(7), cache_bytes, keep_clean: false, ..MountOptions::default() };
    let device = MemDevice::load(image).expect("loaded");
    Filesystem::mount(Arc::new(device), options).unwrap_or_else(|e| panic!("{e}"))
}

/// A server on an image of 64 MiB.
struct Scene {
    server: FsServer,
    root: InodeRef,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new(cache_bytes: u64) -> Scene {
        let dir = tempfile::tempdir().expect("directory");
        let image = make_image(dir.path(), &kind("ext4", "", None, 4096).options).expect("image");
        let server = FsServer::new(mount(&image, cache_bytes), ServerOptions::default()).expect("root");
        let root = server.fs.root().expect("root");
        Scene { server, root, _dir: dir }
    }

    fn fs(&self) -> &Filesystem {
        &self.server.fs
    }

    /// Gives the kernel a reference to `inode`; returns its nodeid.
    fn tell(&self, inode: &InodeRef) -> u64 {
        let nodeid = self.server.nodes.nodeid_of(inode.ino).expect("has one");
        self.server.nodes.add(nodeid, inode, self.server.most_held());
        nodeid
    }

    /// A new file that the kernel knows.
    fn create(&self, name: &str) -> u64 {
        let file = self.fs().create(&self.root, name.as_bytes(), NewNode::file(0o644), NOBODY).expect("created");
        self.tell(&file)
    }

    fn write(&self, nodeid: u64, pos: u64, data: &[u8]) {
        let inode = self.server.node(nodeid).expect("known");
        let write = || self.fs().write(&inode, pos, data, WriteFlags::default());
        assert_eq!(Caller::ROOT.run(write).expect("written"), data.len());
    }

    fn content(&self, nodeid: u64) -> Result<Vec<u8>, Errno> {
        let inode = self.server.node(nodeid)?;
        let mut content = vec![0; inode.size() as usize];
        let n = self.fs().read(&inode, 0, &mut content).expect("read");
        content.truncate(n);
        Ok(content)
    }

    /// Makes everything durable, and evicts everything that may leave memory.
    fn empty_caches(&self) {
        self.fs().sync().expect("synced");
        // Recently used inodes are spared for two rounds.
        for _ in 0..3 {
            self.fs().budget().shrink_all();
        }
    }

    fn in_memory(&self) -> usize {
        self.fs().statistics().inodes().0
    }

    /// Does the same as the request FORGET.
    fn forget(&self, nodeid: u64, count: u64) {
        self.server.nodes.forget(nodeid, count);
        self.fs().serving().reap();
    }

    /// Ends the mount and checks its image.
    fn end(self) {
        drop(self.root);
        self.server.destroy_now();
        self.server.unmount_result().expect("ended").unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Memory of a hash table of the standard library: a power of two of slots, an eighth of them free, and one control
/// byte per slot.
fn table_bytes(nodes: &Nodes) -> usize {
    let of = |slot: &Slot| {
        let places = (slot.0.lock().known.capacity() * 8 / 7).next_power_of_two();
        places * (size_of::<(u32, KnownNode)>() + 1)
    };
    nodes.shards.iter().map(of).sum::<usize>() + nodes.shards.len() * size_of::<Slot>()
}

#[test]
fn a_known_name_costs_at_most_48_bytes() {
    let scene = Scene::new(8 * MIB);
    let nodes = &scene.server.nodes;
    for id in 100..1_000_100u32 {
        nodes.tell(id, id ^ 0x5555);
        if id.is_multiple_of(10_000) {
            let (bytes, known) = (table_bytes(nodes), nodes.counts().0);
            // Shards fill up unevenly while they are small.
            assert!(known < 50_000 || bytes <= 48 * known, "{bytes} bytes for {known} names");
        }
    }
    assert_eq!((nodes.counts(), nodes.held()), ((1_000_001, 1_000_000), 1));
    for id in 100..1_000_100u64 {
        nodes.forget(id, 1);
    }
    assert_eq!(nodes.counts(), (1, 0));
    let bytes = table_bytes(nodes);
    assert!(bytes <= 256 << 10, "{bytes} bytes for no names");
}

#[test]
fn a_known_inode_leaves_memory_and_is_read_again() {
    let scene = Scene::new(8 * MIB);
    let files: Vec<u64> = (0..500).map(|n| scene.create(&format!("f{n}"))).collect();
    scene.write(files[7], 0, b"content");
    scene.empty_caches();
    // The first round spares inodes that were used.
    (0..3).for_each(|_| files.iter().for_each(|nodeid| scene.server.nodes.look(*nodeid as u32)));
    scene.empty_caches();
    let in_memory = scene.in_memory();
    assert!(in_memory < 16, "{in_memory} inodes in memory, {} of them held", scene.server.held_count());
    assert_eq!(scene.content(files[7]).expect("known"), b"content");
    assert_eq!(scene.server.node_counts(), (501, 500));
    scene.end();
}

type Step = fn(&Scene);

/// One case for each operation that removes a last name.
#[test]
fn an_unlinked_inode_lives_until_the_kernel_forgets_it() {
    let takes: [(&str, Step); 3] = [
        ("unlink", |s| s.fs().unlink(&s.root, b"victim").expect("unlinked")),
        ("rename", |s| {
            let file = s.fs().create(&s.root, b"other", NewNode::file(0o644), NOBODY).expect("created");
            drop(file);
            s.fs().rename(&s.root, b"other", &s.root, b"victim", RenameFlags::default()).expect("renamed");
        }),
        ("link and two unlinks", |s| {
            let file = s.fs().lookup(&s.root, b"victim").expect("found");
            s.fs().link(&file, &s.root, b"second").expect("linked");
            drop(file);
            s.fs().unlink(&s.root, b"victim").expect("unlinked");
            s.fs().unlink(&s.root, b"second").expect("unlinked");
        }),
    ];
    for (how, take) in takes {
        let scene = Scene::new(8 * MIB);
        let victim = scene.create("victim");
        scene.write(victim, 0, &[7; 100_000]);
        scene.empty_caches();
        scene.server.nodes.look(victim as u32);
        scene.server.nodes.look(victim as u32);
        scene.empty_caches();
        assert_eq!(scene.server.held_count(), 1, "{how}: the root");
        let orphans = scene.fs().statistics().inodes().1;
        take(&scene);
        scene.empty_caches();
        assert_eq!(scene.server.held_count(), 2, "{how}");
        assert_eq!(scene.fs().statistics().inodes().1, orphans + 1, "{how}");
        assert_eq!(scene.content(victim).expect("known"), vec![7; 100_000], "{how}");
        // No number of rounds drops it.
        (0..4).for_each(|_| scene.server.nodes.look(victim as u32));
        assert_eq!(scene.content(victim).expect("known"), vec![7; 100_000], "{how}");
        scene.forget(victim, 1);
        assert_eq!((scene.server.held_count(), scene.fs().statistics().inodes().1), (1, orphans), "{how}");
        assert_eq!(scene.content(victim), Err(Errno::STALE), "{how}");
        scene.end();
    }
}

#[test]
fn a_removed_directory_lives_until_the_kernel_forgets_it() {
    let scene = Scene::new(8 * MIB);
    let dir = scene.fs().create(&scene.root, b"d", NewNode::directory(0o755), NOBODY).expect("created");
    let nodeid = scene.tell(&dir);
    drop(dir);
    scene.empty_caches();
    scene.fs().rmdir(&scene.root, b"d").expect("removed");
    scene.empty_caches();
    let dir = scene.server.node(nodeid).expect("known");
    let refused = scene.fs().create(&dir, b"f", NewNode::file(0o644), NOBODY).map(drop);
    assert!(matches!(refused, Err(extant_fs::Error::NotFound)), "{refused:?}");
    drop(dir);
    scene.forget(nodeid, 1);
    assert_eq!(scene.fs().statistics().inodes().1, 0);
    scene.end();
}

#[test]
fn an_inode_without_a_name_is_held_until_it_has_one() {
    let scene = Scene::new(8 * MIB);
    let file = scene.fs().tmpfile(&scene.root, 0o644, NOBODY).expect("created");
    let nodeid = scene.tell(&file);
    drop(file);
    scene.write(nodeid, 0, b"content");
    scene.empty_caches();
    (0..4).for_each(|_| scene.server.nodes.look(nodeid as u32));
    assert_eq!(scene.server.held_count(), 2);
    scene.fs().link(&scene.server.node(nodeid).expect("known"), &scene.root, b"named").expect("linked");
    scene.empty_caches();
    (0..2).for_each(|_| scene.server.nodes.look(nodeid as u32));
    assert_eq!(scene.server.held_count(), 1);
    assert_eq!(scene.content(nodeid).expect("known"), b"content");
    scene.end();
}

#[test]
fn an_old_nodeid_of_a_reused_number_is_stale() {
    let scene = Scene::new(8 * MIB);
    let first = scene.create("first");
    let generation = scene.server.node(first).expect("known").generation;
    scene.fs().unlink(&scene.root, b"first").expect("unlinked");
    scene.forget(first, 1);
    // Creates files until one gets the same inode number.
    let second = (0..20_000).map(|n| {
        let name = format!("again{n}");
        scene.fs().create(&scene.root, name.as_bytes(), NewNode::file(0o644), NOBODY).expect("created")
    });
    let second = second.into_iter().find(|file| u64::from(file.ino.0) == first).expect("the number is used again");
    assert_ne!(second.generation, generation);
    // The kernel still has its reference to the first inode.
    scene.server.nodes.tell(first as u32, generation);
    assert_eq!(scene.server.node(first).map(drop), Err(Errno::STALE));
    // After a reply that names the second inode, the nodeid refers to that one, and the counts of both add up.
    assert_eq!(scene.tell(&second), first);
    assert_eq!(scene.server.node(first).expect("known").generation, second.generation);
    scene.forget(first, 1);
    assert!(scene.server.node(first).is_ok());
    scene.forget(first, 1);
    assert_eq!(scene.server.node(first).map(drop), Err(Errno::STALE));
    drop(second);
    scene.end();
}

#[test]
fn forgetting_more_than_the_count_stops_at_zero() {
    let scene = Scene::new(8 * MIB);
    let file = scene.create("f");
    scene.forget(file, u64::MAX);
    assert_eq!(scene.server.node_counts(), (1, 0));
    scene.forget(file, 1);
    assert_eq!(scene.content(file), Err(Errno::STALE));
    // FORGET of the root, or of an impossible nodeid, has no effect.
    scene.forget(ROOT_ID, u64::MAX);
    scene.forget(1 << 40, 1);
    assert!(scene.server.node(ROOT_ID).is_ok());
    assert_eq!(scene.server.node((1 << 32) + 1).map(drop), Err(Errno::STALE), "not the root");
    scene.end();
}

const STEP: u64 = 16 << 10;

/// The extents of files that grow in parallel, one write at a time. Each write is on the device before the next one
/// begins.
fn pieces(scene: &Scene, mut append: impl FnMut(u64, u64)) -> Vec<usize> {
    let files: Vec<u64> = (0..6).map(|n| scene.create(&format!("f{n}"))).collect();
    for at in 0..64 {
        for nodeid in &files {
            append(*nodeid, at * STEP);
            scene.fs().sync().expect("synced");
        }
    }
    let count = |nodeid: &u64| {
        let mut count = 0;
        scene.fs().extents(&scene.server.node(*nodeid).expect("known"), |_| count += 1).expect("mapped");
        count
    };
    files.iter().map(count).collect()
}

#[test]
fn a_file_that_grows_by_writes_keeps_its_preallocated_blocks() {
    const DATA: [u8; STEP as usize] = [1; STEP as usize];
    let scene = Scene::new(8 * MIB);
    let held = pieces(&scene, |nodeid, at| scene.write(nodeid, at, &DATA));
    scene.end();
    // The same layout as when the inodes stayed in use.
    let scene = Scene::new(8 * MIB);
    let mut users = BTreeMap::new();
    let used = pieces(&scene, |nodeid, at| {
        users.entry(nodeid).or_insert_with(|| scene.server.node(nodeid).expect("known").clone());
        scene.write(nodeid, at, &DATA);
    });
    drop(users);
    scene.end();
    assert_eq!(held, used);
    // A different layout when the inodes are dropped between two writes.
    let scene = Scene::new(8 * MIB);
    let loose = pieces(&scene, |nodeid, at| {
        scene.write(nodeid, at, &DATA);
        let gone = scene.server.nodes.shard(nodeid as u32).lock().held.remove(&(nodeid as u32));
        drop(gone);
    });
    scene.end();
    assert!(loose.iter().sum::<usize>() > 2 * held.iter().sum::<usize>(), "{loose:?}, held {held:?}");
}

#[test]
fn held_inodes_are_dropped_when_there_are_many() {
    let scene = Scene::new(8 * MIB);
    let most = scene.server.most_held();
    assert_eq!(most, 806);
    let files: Vec<u64> = (0..4 * most).map(|n| scene.create(&format!("f{n}"))).collect();
    for (n, nodeid) in files.iter().enumerate() {
        scene.write(*nodeid, 0, b"x");
        if n.is_multiple_of(most) {
            scene.fs().sync().expect("synced");
        }
        let held = scene.server.held_count();
        // Dirty inodes are held in any case.
        assert!(held <= 2 * most + 2 * 64, "{held} held after {n}");
    }
    scene.fs().sync().expect("synced");
    // Each new reference of the kernel drops a few others.
    for nodeid in &files {
        let inode = scene.server.node(*nodeid).expect("known").clone();
        scene.tell(&inode);
    }
    let held = scene.server.held_count();
    assert!(held <= most + 64, "{held}");
    assert_eq!(scene.content(files[0]).expect("known"), b"x");
    scene.end();
}

/// One thread reads the inode from its table while another removes its last name.
#[test]
fn a_request_for_an_inode_that_is_being_unlinked_finds_it() {
    let scene = Scene::new(8 * MIB);
    for round in 0..300 {
        let nodeid = scene.create("f");
        scene.empty_caches();
        let start = Barrier::new(2);
        std::thread::scope(|threads| {
            let request = threads.spawn(|| {
                start.wait();
                scene.server.node(nodeid).map(drop)
            });
            start.wait();
            scene.fs().unlink(&scene.root, b"f").expect("unlinked");
            assert_eq!(request.join().expect("no panic"), Ok(()), "round {round}");
        });
        assert!(scene.server.node(nodeid).is_ok(), "round {round}");
        scene.forget(nodeid, 1);
        assert_eq!(scene.fs().statistics().inodes().1, 0, "round {round}");
    }
    scene.end();
}
