//! Tests the device with qemu-nbd and nbdkit, if they are installed, and with servers that break the protocol.
//!
//! # Locking
//! None.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use extant_base::clock::Clock;

use super::*;
use crate::bio::{BioVec, Completion};
use crate::queue::submit_and_wait;

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that listens on a socket; `None` if it is not installed.
fn serve(socket: &Path, program: &str, args: &[&str]) -> Option<Server> {
    let mut command = Command::new(program);
    let child = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let server = Server(child);
    let clock = Clock::real();
    while !socket.exists() {
        assert!(clock.now_ns() < 10_000_000_000, "{program} does not listen");
        clock.sleep(Duration::from_millis(5));
    }
    Some(server)
}

fn at(socket: &Path) -> NbdAddress {
    NbdAddress { server: NbdServer::Unix(socket.to_path_buf()), export: String::new() }
}

fn quick() -> NbdOptions {
    let limit = Duration::from_millis(300);
    NbdOptions { connect_limit: limit, answer_limit: limit, shown_as: Some("nbd".into()), ..NbdOptions::default() }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

/// Written bytes are read back, by each kind of request, and holes are found.
fn exercise(device: &NbdDevice) {
    let data = pattern(3 << 20, 7);
    device.write_at(1 << 20, &[&data[..512], &data[512..]], BioFlags::FUA).expect("written");
    let mut back = vec![0; data.len()];
    device.read_at(1 << 20, &mut back, BioFlags::empty()).expect("read");
    assert!(back == data);
    let mut few = [0; 100];
    device.read_at((1 << 20) + 1000, &mut few, BioFlags::empty()).expect("unaligned");
    assert_eq!(few, data[1000..1100]);
    device.write_zeroes((1 << 20) + 4096, 8192, BioFlags::PREFLUSH | BioFlags::FUA).expect("zeroed");
    device.read_at(1 << 20, &mut back, BioFlags::empty()).expect("read");
    assert!(back[4096..12288].iter().all(|b| *b == 0) && back[12288..] == data[12288..]);
    let bios = (0..64u64).map(|i| {
        let buf = Arc::new(AlignedBuf::from_slice(&pattern(8192, i as u8)));
        let flags = if i % 8 == 0 { BioFlags::FUA | BioFlags::PREFLUSH } else { BioFlags::empty() };
        Bio::write(i * 8192, vec![BioVec { buf, offset: 0, len: 8192 }], flags, Box::new(|_| {}))
    });
    submit_and_wait(device, bios.collect()).expect("a batch");
    submit_and_wait(device, vec![Bio::flush(Box::new(|_| {}))]).expect("flushed");
    for i in 0..64u64 {
        let mut back = vec![0; 8192];
        device.read_at(i * 8192, &mut back, BioFlags::empty()).expect("read");
        assert!(back == pattern(8192, i as u8), "{i}");
    }
    device.discard(32 << 20, 1 << 20).expect("discarded");
    assert!(matches!(device.read_at(device.size_bytes(), &mut few, BioFlags::empty()), Err(Error::OutOfRange { .. })));
    let readers: Vec<_> = (0..8)
        .map(|i| {
            let core = device.core.clone();
            let read = move || {
                for round in 0..50u64 {
                    let mut back = vec![0; 8192];
                    let at = (i + round) % 64;
                    core.read_at(at * 8192, &mut back, BioFlags::empty()).expect("read");
                    assert!(back == pattern(8192, at as u8));
                }
            };
            task::spawn("reader", read).expect("a thread")
        })
        .collect();
    readers.into_iter().for_each(|thread| thread.join().expect("a reader"));
}

#[test]
fn qemu_and_nbdkit_serve_every_kind_of_request() {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("disk");
    for threads in [false, true] {
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("image");
        let socket = dir.path().join(format!("qemu{threads}"));
        let (s, i) = (socket.to_str().expect("UTF-8"), image.to_str().expect("UTF-8"));
        let Some(server) = serve(&socket, "qemu-nbd", &["-t", "-e", "4", "-f", "raw", "-k", s, i]) else {
            eprintln!("no qemu-nbd: skipped");
            return;
        };
        let device = NbdDevice::open(&at(&socket), &NbdOptions { threads, ..quick() }).expect("opened");
        assert_eq!((device.size_bytes(), device.completes_later()), (64 << 20, threads));
        exercise(&device);
        assert!(device.core.export.context.is_some());
        assert_eq!(device.next_data(8 << 20).expect("asked"), None);
        device.write_at(40 << 20, &[&[1; 4096]], BioFlags::empty()).expect("written");
        assert_eq!(device.next_data(8 << 20).expect("asked"), Some(40 << 20));
        drop(device);
        drop(server);
        let socket = dir.path().join(format!("kit{threads}"));
        let s = socket.to_str().expect("UTF-8");
        let Some(server) = serve(&socket, "nbdkit", &["-f", "-U", s, "memory", "64M"]) else { continue };
        let device = NbdDevice::open(&at(&socket), &NbdOptions { threads, ..quick() }).expect("opened");
        exercise(&device);
        // The server has gone: each request fails.
        drop(server);
        let gone = device.write_at(0, &[&[0; 512]], BioFlags::empty()).expect_err("gone");
        assert!(matches!(gone, Error::Io { .. }), "{gone}");
        assert!(device.flush().is_err() && device.read_at(0, &mut [0; 512], BioFlags::empty()).is_err());
        let bio = Bio::write(0, Vec::new(), BioFlags::FUA, Box::new(|_| {}));
        assert!(submit_and_wait(&device, vec![bio]).is_err());
        assert!(submit_and_wait(&device, vec![Bio::flush(Box::new(|_| {}))]).is_err());
    }
}

/// A server that a function simulates.
fn played(dir: &Path, name: &str, play: impl FnOnce(UnixStream) + Send + 'static) -> PathBuf {
    let socket = dir.join(name);
    let listener = UnixListener::bind(&socket).expect("bound");
    task::spawn("server", move || {
        if let Ok((stream, _)) = listener.accept() {
            play(stream);
        }
    })
    .expect("a thread");
    socket
}

/// Answers the handshake like a server with simple replies: an export of 1 MiB that can flush.
fn greet(stream: &mut UnixStream) {
    let option_reply = |option: u32, kind: u32, data: &[u8]| {
        [
            &0x0003_e889_0455_65a9u64.to_be_bytes()[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            data,
        ]
        .concat()
    };
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").expect("greeted");
    let mut flags = [0; 4];
    stream.read_exact(&mut flags).expect("flags");
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head).expect("an option");
        let (option, len) = (wire::be32(&head, 8), wire::be32(&head, 12));
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).expect("its data");
        if option != 7 {
            stream.write_all(&option_reply(option, 1 << 31 | 1, b"")).expect("refused");
            continue;
        }
        let info = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &0b101u16.to_be_bytes()].concat();
        stream.write_all(&option_reply(7, 3, &info)).expect("info");
        stream.write_all(&option_reply(7, 1, b"")).expect("agreed");
        return;
    }
}

fn reply_to(stream: &mut UnixStream, answer: impl FnOnce(u64) -> Vec<u8>) {
    let mut request = [0; 28];
    if stream.read_exact(&mut request).is_ok() {
        let _ = stream.write_all(&answer(wire::be64(&request, 8)));
    }
}

#[test]
fn a_server_that_breaks_the_protocol_is_an_error_within_the_time_limit() {
    let dir = tempfile::tempdir().expect("directory");
    let fail = |name: &str, play: fn(UnixStream)| {
        let clock = Clock::real();
        let error = NbdDevice::open(&at(&played(dir.path(), name, play)), &quick()).err();
        assert!(clock.now_ns() < 5_000_000_000, "{name}");
        error.unwrap_or_else(|| panic!("{name}: opened")).to_string()
    };
    assert!(fail("http", |mut s| drop(s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))).contains("no NBD server"));
    assert!(fail("old", |mut s| drop(s.write_all(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0"))).contains("oldest"));
    assert!(fail("closed", drop).contains("closed"));
    assert!(
        fail("silent", |s| {
            Clock::real().sleep(Duration::from_secs(2));
            drop(s);
        })
        .contains("not answered")
    );
    assert!(
        fail("drip", |mut s| {
            // It sends one byte at a time, each within the limit.
            for byte in b"NBDMAGICIHAVEOPT\0\x03".iter().cycle().take(40) {
                if s.write_all(&[*byte]).is_err() {
                    return;
                }
                Clock::real().sleep(Duration::from_millis(60));
            }
        })
        .contains("not answered")
    );
    let lost = |name: &str, answer: fn(u64) -> Vec<u8>| {
        let socket = played(dir.path(), name, move |mut s| {
            greet(&mut s);
            reply_to(&mut s, answer);
            Clock::real().sleep(Duration::from_secs(1));
        });
        let device = NbdDevice::open(&at(&socket), &quick()).expect("opened");
        let error = device.read_at(0, &mut [0; 512], BioFlags::empty()).expect_err(name);
        assert!(device.write_at(0, &[&[0; 512]], BioFlags::empty()).is_err(), "{name}: the connection has ended");
        error.to_string()
    };
    assert!(lost("garbage", |_| vec![7; 64]).contains("not NBD"));
    assert!(
        lost("stranger", |cookie| {
            [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &(cookie + 9).to_be_bytes()].concat()
        })
        .contains("was not asked")
    );
    assert!(
        lost("half", |cookie| {
            [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &[1; 100]].concat()
        })
        .contains("not answered")
    );
    assert!(
        lost("chunk", |cookie| {
            let head = [&0x668e_33efu32.to_be_bytes()[..], &[0, 1, 0, 1], &cookie.to_be_bytes()].concat();
            [&head[..], &u32::MAX.to_be_bytes(), &[0xff; 8]].concat()
        })
        .contains("not asked for")
    );
    assert!(
        lost("short", |cookie| {
            let head = [&0x668e_33efu32.to_be_bytes()[..], &[0, 1, 0, 1], &cookie.to_be_bytes()].concat();
            [&head[..], &16u32.to_be_bytes(), &[0; 8], &[5; 8]].concat()
        })
        .contains("leaves out")
    );
}

#[test]
fn an_error_of_the_server_fails_the_request_and_not_the_connection() {
    let dir = tempfile::tempdir().expect("directory");
    let socket = played(dir.path(), "full", |mut s| {
        greet(&mut s);
        reply_to(&mut s, |cookie| {
            [&0x6744_6698u32.to_be_bytes()[..], &28u32.to_be_bytes(), &cookie.to_be_bytes()].concat()
        });
        reply_to(&mut s, |cookie| {
            [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &[9; 512]].concat()
        });
        Clock::real().sleep(Duration::from_secs(1));
    });
    let device = NbdDevice::open(&at(&socket), &quick()).expect("opened");
    let error = device.flush().expect_err("full");
    assert!(matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull), "{error}");
    let mut back = [0; 512];
    device.read_at(0, &mut back, BioFlags::empty()).expect("read");
    assert_eq!(back, [9; 512]);
}

/// A completion runs on the thread that fails the remaining requests of the dead connection, and submits more.
#[test]
fn a_request_that_the_failure_of_another_one_submits_fails_too() {
    let dir = tempfile::tempdir().expect("directory");
    let socket = played(dir.path(), "gone", |mut s| {
        greet(&mut s);
        let mut request = [0; 28];
        let _ = s.read_exact(&mut request);
    });
    let options = NbdOptions { threads: true, ..quick() };
    let device = Arc::new(NbdDevice::open(&at(&socket), &options).expect("opened"));
    let (sender, answers) = std::sync::mpsc::channel();
    let (again, second) = (device.clone(), sender.clone());
    device.submit(Bio::flush(Box::new(move |first: Completion| {
        sender.send(first.result.is_err()).expect("received");
        again.submit(Bio::flush(Box::new(move |next: Completion| {
            second.send(next.result.is_err()).expect("received");
        })));
    })));
    for _ in 0..2 {
        assert_eq!(answers.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}
