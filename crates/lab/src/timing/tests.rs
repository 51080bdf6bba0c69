//! Traces that are valid, cut off or of other formats; and the same requests in both formats.

use extant_block::BioOp;
use extant_block::device::{Arrival, DeviceModel, Timer};

use super::{Trace, replay_on};

fn parse(text: &str, only: Option<&str>) -> Result<Trace, String> {
    Trace::from_lines("t", text.as_bytes(), only).map_err(|e| {
        assert!(e.is_usage(), "{e}");
        e.to_string()
    })
}

/// The operation, offset and length of each request.
fn requests(text: &str) -> Vec<(BioOp, u64, u64)> {
    let trace = parse(text, None).expect("good");
    trace.requests.iter().map(|r| (r.op, r.offset, r.len)).collect()
}

#[test]
fn every_form_of_strace_is_read() {
    use BioOp::Read;
    let plain = "pread64(3, \"\\0\\0) = 7, 1, 2\"..., 4096, 1024) = 4096\n\
                 pread64(3, \"\", 4096, 409600)        = 0\n\
                 pread64(3, 0x7ffd, 4096, 8192) = -1 EIO (Input/output error)\n\
                 fadvise64(3, 0, 4096, POSIX_FADV_WILLNEED) = 0\n\
                 pread64(3, \"x\"..., 4096, 12288) = 512\n\
                 exit_group(0)                           = ?\n\
                 +++ exited with 0 +++\n";
    assert_eq!(requests(plain), [(Read, 1024, 4096), (Read, 12288, 512)]);
    let threads = "100 10:00:00.123456 pread64(3, \"\"..., 512, 0) = 512 <0.000009>\n\
                   [pid 101] pread64(3,  <unfinished ...>\n\
                   102 futex(0x1, FUTEX_WAIT, 1, NULL <unfinished ...>\n\
                   100 1700000000.000001 pread64(3, \"\"..., 512, 1024) = 512\n\
                   [pid 101] <... pread64 resumed>\"\"..., 512, 2048) = 512\n\
                   102 <... futex resumed>) = 0\n\
                   --- SIGCHLD {si_signo=SIGCHLD} ---\n\
                   102 pread64(3,  <unfinished ...>) = ?\n\
                   102 +++ killed by SIGKILL +++\n";
    assert_eq!(requests(threads), [(Read, 0, 512), (Read, 1024, 512), (Read, 2048, 512)], "as they ended");
    let files = "pread64(3</lib/libc.so.6>, \"\"..., 784, 64) = 784\n\
                 pread64(4</dev/loop0<block 7:0>>, \"\"..., 4096, 4096) = 4096\n";
    for (only, offset) in [("/lib/libc.so.6", 64), ("/dev/loop0", 4096)] {
        let trace = parse(files, Some(only)).expect(only);
        assert_eq!(trace.requests.iter().map(|r| r.offset).collect::<Vec<_>>(), [offset]);
        assert_eq!(trace.requests[0].arrival, Arrival::ReadAhead);
    }
    let resumed = "7 pread64(3</disk.img>,  <unfinished ...>\n7 <... pread64 resumed>\"\"..., 512, 0) = 512\n";
    assert_eq!(parse(resumed, Some("/disk.img")).expect("its file is known").requests.len(), 1);
    let e = parse(files, None).expect_err("two files");
    assert!(e.starts_with("t:2: requests to /dev/loop0 and /lib/libc.so.6") && e.contains("--only"), "{e}");
    let e = parse(files, Some("/disk.img")).expect_err("neither");
    assert!(e.contains("no request to /disk.img; there are some to /dev/loop0, /lib/libc.so.6"), "{e}");
    let e = parse(plain, Some("/disk.img")).expect_err("it says no names");
    assert!(e.contains("strace -y"), "{e}");
}

const FILE: &str = "pread64(3</d.img>, \"\"..., 512, 0) = 512\n";

#[test]
fn names_are_told_apart_whatever_is_in_them_and_other_reads_of_the_chosen_file_are_refused() {
    let file = "pread64(3</a, b\\74c\\76\\303\\274>, \"\"..., 512, 0) = 512\n";
    for only in ["/a, b<c>\u{fc}", "/a, b\\74c\\76\\303\\274"] {
        assert_eq!(parse(file, Some(only)).expect(only).requests.len(), 1);
    }
    for name in ["read", "readv", "preadv", "preadv2"] {
        let text = |file: &str| format!("{FILE}{name}(3<{file}>, 0x7ffd, 1, 0) = 512\n");
        let e = parse(&text("/d.img"), Some("/d.img")).expect_err(name);
        assert!(e.starts_with(&format!("t:2: a {name} of /d.img")) && e.contains("block_rq_issue"), "{e}");
        assert_eq!(parse(&text("/lib.so"), Some("/d.img")).expect("the loader's").requests.len(), 1);
    }
}

/// e2fsck reads bitmaps in several threads, whose calls interleave differently each time.
#[test]
fn threads_are_taken_one_after_the_other_between_calls_of_the_first() {
    let line = |thread: u32, block: u32| format!("{thread} pread64(3, \"\"..., 4096, {}) = 4096\n", block * 4096);
    let mixed = |order: [(u32, u32); 8]| {
        let text: String = order.iter().map(|(thread, block)| line(*thread, *block)).collect();
        requests(&text).iter().map(|(_, at, _)| at / 4096).collect::<Vec<_>>()
    };
    let order = [(10, 0), (12, 20), (11, 10), (11, 11), (12, 21), (10, 1), (12, 22), (11, 12)];
    assert_eq!(mixed(order), [0, 10, 11, 20, 21, 1, 12, 22]);
    let other = [(10, 0), (11, 10), (12, 20), (12, 21), (11, 11), (10, 1), (11, 12), (12, 22)];
    assert_eq!(mixed(other), mixed(order));
}

#[test]
fn events_of_tracefs_are_read() {
    use BioOp::{Discard, Flush, Read, Write};
    let text = "# tracer: nop\n\
                #\n\
                \x20         e2fsck-1234    [001] ..... 12345.678901: block_rq_issue: 7,0 R 4096 () 2048 + 8 [e2fsck]\n\
                \x20         e2fsck-1234    [001] ..... 12345.678905: block_rq_complete: 7,0 R () 2048 + 8 [0]\n\
                \x20   kworker/0:1H-99    [000] d..1. 12345.7: block_rq_issue: 7,0 FWFSM 4096 () 8 + 8 none,0,0 [kworker/0:1H]\n\
                \x20   kworker/0:1H-99    [000] d..1. 12345.7: block_rq_issue: 7,0 WS 512 () 16 + 1 [kworker/0:1H]\n\
                \x20   kworker/0:1H-99    [000] d..1. 12345.8: block_rq_issue: 7,0 FF 0 () 0 + 0 [kworker/0:1H]\n\
                \x20   kworker/0:1H-99    [000] d..1. 12345.9: block_rq_issue: 7,0 DS 4096 () 64 + 8 [kworker/0:1H]\n";
    let trace = parse(text, Some("7,0")).expect("good");
    let all: Vec<_> = trace.requests.iter().map(|r| (r.line, r.op, r.offset, r.len)).collect();
    assert_eq!(
        all,
        [
            (3, Read, 1 << 20, 4096),
            (5, Write, 4096, 4096),
            (6, Write, 8192, 512),
            (7, Flush, 0, 0),
            (8, Discard, 32768, 4096)
        ]
    );
    let flags: Vec<_> = trace.requests.iter().map(|r| (r.flushes_first, r.is_durable)).collect();
    assert_eq!(flags, [(false, false), (true, true), (false, false), (true, false), (false, false)]);
    assert!(trace.requests.iter().all(|r| r.arrival == Arrival::Submitted));
    let e = parse(&format!("{text}{}", text.replace("7,0", "8,16")), None).expect_err("two devices");
    assert!(e.starts_with("t:11: requests to 7,0 and 8,16"), "{e}");
    let e = parse(&format!("{text}CPU:1 [LOST 17 EVENTS]\n"), None).expect_err("events are missing");
    assert!(e.starts_with("t:9:") && e.contains("buffer_size_kb"), "{e}");
}

#[test]
fn a_trace_that_is_cut_off_or_of_something_else_is_refused_with_its_line() {
    let good = "pread64(3, \"\"..., 4096, 1024) = 4096\n";
    for cut in [
        "pread64(3, \"\\0\\0",
        "pread64(3, \"\"..., 4096, 10",
        "pread64(3, \"\"..., 4096, 1024)",
        "pread64(3) = 4",
        "pread64(3, \"\"..., 4096, x) = 4096",
        "pread64(3, \"\"..., 4096, 1024) = ",
        "pread64(3, \"\"..., 4096, 1024 = 4096",
    ] {
        let e = parse(&format!("{good}{good}{cut}"), None).expect_err(cut);
        assert!(e.starts_with("t:3: this pread64 is cut off; expected a call as strace prints it"), "{e}");
    }
    for cut in ["7,0 R 4096 () 2048 + ", "7,0 R 4096 (", "7,0", "7,0 R 4096 () 2048 + 8", "7,0 R 4096 () 2048 - 8 [x]"]
    {
        let e = parse(&format!("{good}x-1 [000] 1.0: block_rq_issue: {cut}\n"), None).expect_err(cut);
        assert!(e.starts_with("t:2: this block_rq_issue is cut off"), "{e}");
    }
    let e = parse("x-1 [000] 1.0: block_rq_issue: 7,0 Q 4096 () 2048 + 8 [x]\n", None).expect_err("operation");
    assert!(e.starts_with("t:1: 'Q' is no operation"), "{e}");
    let huge = "x-1 [000] 1.0: block_rq_issue: 7,0 R 4096 () 18446744073709551615 + 8 [x]\n";
    assert!(parse(huge, None).expect_err("huge").contains("behind every device's end"));
    for foreign in [
        "{\"op\":\"mkdir\"}",
        "8,0    1     3     0.000 1234  D   R 223490 + 8 [x]",
        "\0\0\0\0",
        "hello world",
        "(x) = 1",
    ] {
        let e = parse(&format!("\n{good}{foreign}\n"), None).expect_err(foreign);
        assert!(e.starts_with("t:3: expected a call as strace prints it"), "{e}");
    }
    let e = parse(&format!("{good}12 pread64(3,  <unfinished ...>\n"), None).expect_err("no end");
    assert!(e.contains("t:3: the trace ends before a pread64 of process 12 does"), "{e}");
    let e = parse(&format!("{good}{}", good.trim_end()), None).expect_err("its end is missing");
    assert!(e.starts_with("t:2: this line has no end"), "{e}");
    let e = parse("pread64(3, \"\"..., 4096, 1024) = 40960\n", None).expect_err("more than was asked for");
    assert!(e.starts_with("t:1: this pread64 returned 40960 bytes of the 4096"), "{e}");
    let e = parse(&"x".repeat(70_000), None).expect_err("no lines");
    assert!(e.starts_with("t:1: a line of over 65536 bytes"), "{e}");
    for empty in ["", "# tracer: nop\n", "exit_group(0) = ?\n"] {
        assert!(parse(empty, None).expect_err("empty").starts_with("t: no request"), "{empty}");
    }
}

#[test]
fn a_replay_is_the_sum_of_its_requests() {
    let text = "pread64(3, \"\"..., 4096, 1024) = 4096\n\
                pread64(3, \"\"..., 32768, 1048576) = 32768\n\
                pread64(3, \"\"..., 512, 4096) = 512\n";
    let trace = parse(text, None).expect("good");
    let model = || DeviceModel::named("hdd").expect("known");
    let usage = replay_on(&trace, model(), Some(1 << 30)).expect("served");
    let mut timer = Timer::new(model(), 1 << 30);
    // Whole pages, each once.
    timer.read(0, 8192, Arrival::ReadAhead);
    timer.read(1 << 20, 32768, Arrival::ReadAhead);
    assert_eq!(usage, timer.usage());
    assert!(replay_on(&trace, model(), None).expect("served").seconds() > 0.0, "the size of such disks");
    let e = replay_on(&trace, model(), Some(1 << 20)).expect_err("too small").to_string();
    assert!(
        e.starts_with("t:2: read of 32768 bytes at byte 1048576 lies behind the end") && e.contains("--size"),
        "{e}"
    );
}
