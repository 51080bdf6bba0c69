//! Images that a server shows: what was fsynced survives a server that loses what was not flushed, and a server that
//! goes away is an error.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant::{Image, OpenOptions};
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;

static CLASS: LockClass = LockClass::new("test server", 0);

/// The content of a server: as clients see it, and as a power cut leaves it.
struct Disk {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Places that have been written and not flushed.
    dirty: Vec<(usize, usize)>,
    counts: Counts,
}

/// The requests of all clients.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    bytes: u64,
    flushes: u64,
}

/// An NBD server with a volatile cache, of simple replies and without FUA.
struct Server {
    socket: PathBuf,
    disk: Arc<Mutex<Disk>>,
    down: Arc<AtomicBool>,
}

impl Server {
    fn start(dir: &Path, name: &str, content: Vec<u8>) -> Server {
        let socket = dir.join(name);
        let listener = UnixListener::bind(&socket).expect("bound");
        let disk = Disk { durable: content.clone(), live: content, dirty: Vec::new(), counts: Counts::default() };
        let disk = Arc::new(Mutex::new(&CLASS, disk));
        let down = Arc::new(AtomicBool::new(false));
        let server = Server { socket, disk: disk.clone(), down: down.clone() };
        task::spawn("nbd-server", move || {
            for stream in listener.incoming() {
                let (Ok(stream), disk, down) = (stream, disk.clone(), down.clone()) else { return };
                // A client that goes away ends its own thread only.
                let _ = task::spawn("nbd-client", move || drop(serve(stream, &disk, &down)));
            }
        })
        .expect("a thread");
        server
    }

    fn image(&self) -> Image {
        Image::open(format!("nbd+unix:///disk?socket={}", self.socket.display()))
    }

    /// The power goes: no request is answered any more. Returns what a restart finds.
    fn cut(&self) -> Vec<u8> {
        let disk = self.disk.lock();
        self.down.store(true, Ordering::SeqCst);
        disk.durable.clone()
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn serve(mut stream: UnixStream, disk: &Mutex<Disk>, down: &AtomicBool) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    take::<4>(&mut stream)?;
    loop {
        let head: [u8; 16] = take(&mut stream)?;
        let (option, len) = (number::<4>(&head, 8) as u32, number::<4>(&head, 12));
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        let reply = |kind: u32, data: &[u8]| {
            let magic = 0x0003_e889_0455_65a9u64.to_be_bytes();
            let len = (data.len() as u32).to_be_bytes();
            [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len, data].concat()
        };
        if option != 7 {
            stream.write_all(&reply(1 << 31 | 1, b""))?;
            continue;
        }
        // It has flags, and can flush; several connections are permitted.
        let size = disk.lock().live.len() as u64;
        let info = [&[0, 0][..], &size.to_be_bytes(), &0b1_0000_0101u16.to_be_bytes()].concat();
        stream.write_all(&[reply(3, &info), reply(1, b"")].concat())?;
        break;
    }
    loop {
        let head: [u8; 28] = take(&mut stream)?;
        let (command, cookie) = (number::<2>(&head, 6), number::<8>(&head, 8));
        let (at, len) = (number::<8>(&head, 16) as usize, number::<4>(&head, 24) as usize);
        let mut data = vec![0; if command == 1 { len } else { 0 }];
        stream.read_exact(&mut data)?;
        let mut answer = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
        let mut disk = disk.lock();
        if down.load(Ordering::SeqCst) {
            return Ok(());
        }
        disk.counts.requests += 1;
        disk.counts.bytes += if command < 2 { len as u64 } else { 0 };
        disk.counts.flushes += u64::from(command == 3);
        match command {
            0 => answer.extend_from_slice(&disk.live[at..at + len]),
            1 => {
                disk.live[at..at + len].copy_from_slice(&data);
                disk.dirty.push((at, len));
            }
            3 => {
                let Disk { live, durable, dirty, .. } = &mut *disk;
                for (at, len) in dirty.drain(..) {
                    durable[at..at + len].copy_from_slice(&live[at..at + len]);
                }
            }
            _ => return Ok(()),
        }
        drop(disk);
        stream.write_all(&answer)?;
    }
}

/// The bytes of an empty file system.
fn formatted(bytes: usize) -> Vec<u8> {
    let disk = extant::device::memory(bytes as u64);
    Image::device(disk.clone()).format().expect("formatted");
    let mut content = vec![0; bytes];
    disk.read_at(0, &mut content, extant::device::BioFlags::empty()).expect("read");
    content
}

/// An image of these bytes in memory.
fn in_memory(content: &[u8]) -> Image {
    let disk = extant::device::memory(content.len() as u64);
    disk.write_at(0, &[content], extant::device::BioFlags::empty()).expect("written");
    Image::device(disk)
}

#[test]
fn nothing_fsynced_is_lost_with_a_server_that_drops_what_was_not_flushed() {
    let dir = tempfile::tempdir().expect("directory");
    let empty = formatted(16 << 20);
    for rounds in 1..24 {
        let server = Server::start(dir.path(), &format!("s{rounds}"), empty.clone());
        let fs = server.image().mount().expect("mounted");
        let content = |i: usize| vec![i as u8; 5000 + 700 * i];
        for i in 0..rounds {
            let (new, name) = (format!("/new{i}"), format!("/file{}", i % 7));
            let mut file = OpenOptions::new().write(true).create_new(true).open(&fs, &new).expect("created");
            file.write_all(&content(i)).expect("written");
            file.sync_all().expect("durable");
            fs.rename(&new, &name).expect("renamed");
            if i % 3 == 0 {
                fs.sync().expect("synced");
            }
        }
        let left = server.cut();
        // The mount learns of it, and reports it.
        let gone = fs.write("/late", "late").and_then(|()| fs.sync()).expect_err("the server is gone");
        assert!([5, 30].contains(&gone.raw_os_error()), "{gone}");
        assert!(fs.unmount().is_err());
        let image = in_memory(&left);
        let fs = image.mount().expect("replayed");
        for i in 0..rounds {
            let (new, name) = (format!("/new{i}"), format!("/file{}", i % 7));
            // Under one of its names, unless a later file has replaced it.
            let read = fs.read(&new).or_else(|_| fs.read(&name)).unwrap_or_else(|e| panic!("round {rounds}: {e}"));
            let is_whole = (i..rounds).step_by(7).any(|j| read == content(j));
            assert!(is_whole, "round {rounds}: file {i} has {} bytes of {:?}", read.len(), read.first());
        }
        fs.unmount().expect("unmounted");
        let report = image.check().expect("checked");
        assert!(report.complete && report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Counted, not timed: each request is a round trip, each flush waits for the disk, and neither is more than for a
/// device in the process.
#[test]
fn small_files_cost_no_more_requests_through_a_server_than_raw() {
    let work = |image: &Image| {
        let fs = image.mount().expect("mounted");
        for i in 0..2000 {
            let dir = format!("/d{}", i / 100);
            fs.create_dir_all(&dir).expect("a directory");
            fs.write(format!("{dir}/{i}"), vec![i as u8; 1000 + i]).expect("a file");
        }
        fs.sync().expect("synced");
        for i in (0..2000).step_by(40) {
            assert_eq!(fs.read(format!("/d{}/{i}", i / 100)).expect("read").len(), 1000 + i);
        }
        fs.unmount().expect("unmounted");
    };
    let empty = formatted(32 << 20);
    let disk = extant::device::memory(empty.len() as u64);
    disk.write_at(0, &[&empty], extant::device::BioFlags::empty()).expect("written");
    let before = disk.stats();
    work(&Image::device(disk.clone()));
    let after = disk.stats();
    let raw = Counts {
        requests: after.reads + after.writes + after.flushes - before.reads - before.writes - before.flushes,
        bytes: after.read_bytes + after.write_bytes - before.read_bytes - before.write_bytes,
        flushes: after.flushes - before.flushes,
    };

    let dir = tempfile::tempdir().expect("directory");
    let server = Server::start(dir.path(), "socket", empty);
    work(&server.image());
    let remote = server.disk.lock().counts;
    println!("raw {raw:?}, through the server {remote:?}");
    let within = |of: fn(&Counts) -> u64| of(&remote) * 4 <= of(&raw) * 5;
    assert!(within(|c| c.requests) && within(|c| c.bytes) && within(|c| c.flushes), "{raw:?} {remote:?}");
    // Most files share a request with their neighbours.
    assert!(raw.requests < 2000 && raw.bytes > 2000 * 1000, "{raw:?}");
}

#[test]
fn partitions_and_names_of_exports_work_as_those_of_files() {
    let dir = tempfile::tempdir().expect("directory");
    let server = Server::start(dir.path(), "socket", formatted(16 << 20));
    let fs = server.image().mount().expect("mounted");
    fs.write("/a", "text").expect("written");
    fs.unmount().expect("unmounted");
    assert_eq!(server.image().read_only().mount().expect("mounted").read("/a").expect("read"), b"text");
    let error = server.image().partition(2).mount().expect_err("no table");
    assert_eq!(error.raw_os_error(), 22, "{error}");
    assert!(error.to_string().contains("nbd+unix:///disk"), "{error}");
    let missing = Image::open("nbd+unix:///disk?socket=/no/such/socket").mount().expect_err("no server");
    assert_eq!(missing.raw_os_error(), 2, "{missing}");
    assert_eq!(Image::open("nbd://").mount().expect_err("no host").raw_os_error(), 22);
}
