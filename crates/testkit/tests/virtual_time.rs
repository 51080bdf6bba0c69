//! In virtual time nothing sleeps: background work depends only on the clock.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::CrashDevice;
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};
use extant_testkit::crash::workload::EPOCH_S;
use extant_testkit::crash::{IMAGES, state_files};

/// A transaction is committed when it is five seconds old, and delayed data is written when it has waited that long.
#[test]
fn the_commit_interval_passes() {
    for image in IMAGES {
        let dir = state_files();
        let base = image.build(dir.path()).expect("image");
        let device = Arc::new(CrashDevice::from_image(&base));
        let clock = Clock::virtual_at(EPOCH_S);
        let options = MountOptions { threads: false, seed: Some(3), clock: clock.clone(), ..MountOptions::default() };
        let fs = Filesystem::mount(device.clone(), options.clone()).expect("mounted");
        fs.step();
        let commits = || fs.statistics().journal().commits.get();
        let before = commits();
        let root = fs.root().expect("root");
        let file = fs.create(&root, b"file", NewNode::file(0o644), Cred::default()).expect("created");
        fs.write(&file, 0, b"content", WriteFlags::default()).expect("written");
        for ms in [0, 1_000, 3_999] {
            clock.advance(Duration::from_millis(ms));
            fs.step();
            assert_eq!(commits(), before, "{}: {ms} ms later", image.name);
        }
        clock.advance(Duration::from_millis(2));
        fs.step();
        assert_eq!(commits(), before + 1, "{}: after five seconds", image.name);
        // The data expired in the same round, before or after the commit; after one more interval everything is
        // written.
        clock.advance(Duration::from_millis(5_001));
        fs.step();
        let settled = commits();
        clock.advance(Duration::from_secs(3_600));
        fs.step();
        assert_eq!(commits(), settled, "{}: nothing changed, nothing was committed", image.name);
        let durable = device.durable().expect("state");
        let clock = Clock::virtual_at(EPOCH_S + 10_000);
        if image.has_journal() {
            let again = Filesystem::mount(Arc::new(durable), MountOptions { clock, ..options }).expect("mounted again");
            let found = again.walk(b"/file", true).expect("the name is durable");
            let mut buf = [0; 16];
            let n = again.read(&found, 0, &mut buf).expect("read");
            assert_eq!(&buf[..n], b"content", "{}", image.name);
        }
    }
}
