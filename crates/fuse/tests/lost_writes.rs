//! A lost write on a real mount: every open file reports it once, even after another one has reported it (Linux:
//! `errseq_t`).

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{Served, Setup, can_mount};
use extant_block::device::{Catch, HeldDevice, MemDevice};
use extant_fuse::ServerOptions;
use extant_testkit::kinds::kind;
use extant_testkit::oracle::make_image;
use rustix::io::Errno;

const EIO: i32 = 5;

/// A mount on a device whose data writes can be made to fail.
fn serve(dir: &tempfile::TempDir) -> (Served, Arc<HeldDevice>) {
    let image = make_image(dir.path(), &kind("ext4", "", None, 4096).options).expect("image");
    let disk = Arc::new(HeldDevice::new(Arc::new(MemDevice::load(&image).expect("loaded"))).expect("thread"));
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("mount point");
    // Without OPEN requests the server cannot tell open files apart.
    let server = ServerOptions { no_open: false, ..ServerOptions::default() };
    (Setup { server, ..Setup::default() }.serve_device(disk.clone(), &mnt), disk)
}

fn fsync(f: &File) -> Result<(), i32> {
    f.sync_all().map_err(|e| e.raw_os_error().expect("an errno"))
}

#[test]
fn every_open_file_reports_a_lost_write_once() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let (mut m, disk) = serve(&dir);
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.at("f")).expect("open");
    let (a, b) = (open(), open());
    a.write_all_at(&[1; 50_000], 0).expect("write");
    assert_eq!((fsync(&a), fsync(&b)), (Ok(()), Ok(())));
    disk.catch(Catch::fail(EIO).writes().data());
    a.write_all_at(&[2; 50_000], 50_000).expect("write");
    let first = fsync(&a);
    disk.clear();
    let answers = [first, fsync(&b), fsync(&a), fsync(&b)];
    drop((a, b));
    // The unmount reports the lost write, too.
    let _ = m.end();
    let eio = Err(Errno::IO.raw_os_error());
    assert_eq!(answers, [eio, eio, Ok(()), Ok(())], "fsync of a, of b, of a again, of b again");
}
