//! Recorded requests: the output of `strace -e trace=pread64`, and tracefs' `block_rq_issue`.
//!
//! strace may have the options `-f` (process IDs, calls that are interrupted and resumed), `-t` and `-r` (times), `-y`
//! and `-yy` (files behind the descriptors) and `-T`. Only successful reads count, with the bytes that they returned.
//! Each of them is synchronous, through a page cache that reads ahead. Other calls are skipped: `fadvise64` and
//! `readahead` are hints, whose bytes a `pread64` reads afterwards.
//!
//! Threads (with `-f -o`) are taken one after the other: the reads of several threads between two calls of the first
//! are grouped thread by thread. e2fsck 1.47 reads its bitmaps in one thread per processor. The interleaving of their
//! calls is random, and so would be the time.
//!
//! A trace of tracefs has reads, writes and flushes in their order, none of which waits for another.
//!
//! # Locking
//! None.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use extant_block::BioOp;
use extant_block::device::Arrival;

use crate::error::{Error, Result};

/// The longest line of a trace.
const LINE_BYTES: u64 = 1 << 16;
const SECTOR: u64 = 512;
const EXPECTED: &str = "expected a call as strace prints it, 'pread64(3, \"...\", 4096, 1024) = 4096' say, or an event of \
                        tracefs, '... block_rq_issue: 8,0 R 4096 () 2048 + 8 [name]'";

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of its line, from 1.
    pub line: u64,
    /// Its process or thread ID; 0 if the line has none.
    pub process: u64,
    /// The kind of request.
    pub op: BioOp,
    /// The offset, bytes.
    pub offset: u64,
    /// The length, bytes.
    pub len: u64,
    /// How the request arrives.
    pub arrival: Arrival,
    /// Whether earlier writes become durable first.
    pub flushes_first: bool,
    /// Whether it is durable when it ends.
    pub is_durable: bool,
}

/// The requests of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The name of the file, for messages.
    pub name: String,
    /// The requests, in order.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Reads a trace. `only`: requests to this file (as `strace -y` shows it) or device (`MAJOR,MINOR`).
    ///
    /// # Errors
    /// The file cannot be read, or has no request. A line is in neither format, or is cut off. Requests go to several
    /// files or devices, and `only` does not select one.
    pub fn read(path: &Path, only: Option<&str>) -> Result<Trace> {
        let file = File::open(path).map_err(Error::file(path))?;
        Trace::from_lines(&path.display().to_string(), BufReader::new(file), only)
    }

    /// As [`Trace::read`], from any source of lines.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn from_lines(name: &str, mut from: impl BufRead, only: Option<&str>) -> Result<Trace> {
        let mut parser = Parser::default();
        let (mut bytes, mut line) = (Vec::new(), 0);
        let mut requests = Vec::new();
        loop {
            bytes.clear();
            line += 1;
            let fail = |why: String| Error::Usage(format!("{name}:{line}: {why}"));
            let n = from.by_ref().take(LINE_BYTES).read_until(b'\n', &mut bytes);
            if n.map_err(|e| fail(e.to_string()))? == 0 {
                break;
            }
            if bytes.len() as u64 == LINE_BYTES {
                return Err(fail(format!("a line of over {LINE_BYTES} bytes; {EXPECTED}")));
            }
            let text = String::from_utf8_lossy(&bytes);
            let found = parser.line(text.trim_end(), only).map_err(fail)?;
            if bytes.last() != Some(&b'\n') {
                return Err(fail("this line has no end: the trace is cut off; record it again".into()));
            }
            let Some((of, mut request)) = found else { continue };
            request.line = line;
            match (only, of) {
                (Some(only), of) if !of.as_ref().is_some_and(|of| *of == only || *of == unescaped(only)) => {
                    parser.passed_over.extend(of);
                }
                (_, of) => {
                    parser.taken.extend(of);
                    if parser.taken.len() > 1 {
                        let names: Vec<&str> = parser.taken.iter().map(String::as_str).collect();
                        let names = names.join(" and ");
                        return Err(fail(format!("requests to {names}: choose one of them with --only")));
                    }
                    requests.push(request);
                }
            }
        }
        take_in_turn(&mut requests);
        if let Some((process, _)) = parser.unfinished.iter().next() {
            let of = if process.is_empty() { String::new() } else { format!(" of process {process}") };
            return Err(Error::Usage(format!("{name}:{line}: the trace ends before a pread64{of} does")));
        }
        if requests.is_empty() {
            let others: Vec<&str> = parser.passed_over.iter().map(String::as_str).collect();
            let why = match only {
                Some(only) if others.is_empty() => {
                    format!("no request says that it is to {only}: record with strace -y, or leave out --only")
                }
                Some(only) => format!("no request to {only}; there are some to {}", others.join(", ")),
                None => format!("no request; {EXPECTED}"),
            };
            return Err(Error::Usage(format!("{name}: {why}")));
        }
        Ok(Trace { name: name.to_owned(), requests })
    }
}

/// Groups the requests of each thread, between two requests of the first.
fn take_in_turn(requests: &mut [Request]) {
    let Some(first) = requests.first().map(|r| r.process).filter(|process| *process > 0) else { return };
    for between in requests.chunk_by_mut(|a, b| (a.process == first) == (b.process == first)) {
        between.sort_by_key(|r| r.process);
    }
}

/// A request, and its file or device if the line names one.
type Found = Option<(Option<String>, Request)>;

#[derive(Default)]
struct Parser {
    /// Interrupted calls, by process: the printed part of their arguments.
    unfinished: HashMap<String, String>,
    taken: BTreeSet<String>,
    passed_over: BTreeSet<String>,
}

impl Parser {
    fn line(&mut self, line: &str, only: Option<&str>) -> std::result::Result<Found, String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        if line.contains(" EVENTS]") && line.contains("[LOST ") {
            return Err("events are missing here: record again with a larger buffer_size_kb".into());
        }
        if let Some((_, event)) = line.split_once(": block_rq_issue: ") {
            return issued(event).map(Some);
        }
        if line.contains("] ") && line.contains(": block_") {
            return Ok(None);
        }
        let (process, call) = head(line);
        if call.starts_with("--- ") || call.starts_with("+++ ") || call.starts_with("strace: ") {
            return Ok(None);
        }
        if let Some((name, rest)) = call.strip_prefix("<... ").and_then(|c| c.split_once(" resumed>")) {
            let begun = self.unfinished.remove(process).unwrap_or_default();
            return if name == "pread64" { pread(process, &(begun + rest)) } else { Ok(None) };
        }
        let (name, arguments) = call.split_once('(').ok_or(EXPECTED)?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(EXPECTED.into());
        }
        if let (Some(only), "read" | "readv" | "preadv" | "preadv2") = (only, name)
            && let (Some(of), _) = descriptor(arguments).ok_or(EXPECTED)?
            && (of == only || of == unescaped(only))
        {
            return Err(format!("a {name} of {of}: of a program that reads so, record block_rq_issue with tracefs"));
        }
        if let Some(begun) = arguments.strip_suffix("<unfinished ...>") {
            if name == "pread64" {
                self.unfinished.insert(process.to_owned(), begun.to_owned());
            }
            return Ok(None);
        }
        if name == "pread64" { pread(process, arguments) } else { Ok(None) }
    }
}

/// Splits a line of strace into the process and the rest, without times.
fn head(line: &str) -> (&str, &str) {
    let (mut process, mut rest) = ("", line.trim_start());
    if let Some((pid, after)) = rest.strip_prefix("[pid ").and_then(|r| r.split_once(']')) {
        (process, rest) = (pid.trim(), after.trim_start());
    }
    while let Some((word, after)) = rest.split_once(' ') {
        if !word.starts_with(|c: char| c.is_ascii_digit())
            || !word.chars().all(|c| c.is_ascii_digit() || ":.".contains(c))
        {
            break;
        }
        if process.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
            process = word;
        }
        rest = after.trim_start();
    }
    (process, rest)
}

/// Parses `3</path>, ...` or `3, ...`: the file, if it is named, and the rest.
fn descriptor(arguments: &str) -> Option<(Option<String>, &str)> {
    let digits = arguments.len() - arguments.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Some(named) = arguments[digits..].strip_prefix('<') else {
        return Some((None, arguments[digits..].strip_prefix(", ")?));
    };
    // A bracket in the name is escaped.
    let (name, rest) = named.split_once(">, ")?;
    let name = name.split_once('<').map_or(name, |(name, _)| name);
    Some((Some(unescaped(name)), rest))
}

/// A name without strace's escapes: `\\`, `\n` and the like, and octal numbers.
fn unescaped(name: &str) -> String {
    let (mut bytes, mut from) = (Vec::with_capacity(name.len()), name.bytes().peekable());
    while let Some(byte) = from.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let mut octal = None;
        for _ in 0..3 {
            let Some(digit) = from.next_if(|b| (b'0'..=b'7').contains(b)) else { break };
            octal = Some((octal.unwrap_or(0u8) << 3) | (digit - b'0'));
        }
        bytes.extend(octal.or_else(|| {
            from.next().map(|letter| match letter {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'v' => 0x0b,
                b'f' => 0x0c,
                other => other,
            })
        }));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses `3</path>, "..."..., 4096, 1024) = 4096 <0.000012>`, behind the opening parenthesis.
fn pread(process: &str, text: &str) -> std::result::Result<Found, String> {
    let cut = || format!("this pread64 is cut off; {EXPECTED}");
    let (call, result) = text.rsplit_once(" = ").ok_or_else(cut)?;
    let result = result.split(' ').next().unwrap_or_default();
    // A read that failed, or never ended.
    if result == "?" || result.starts_with('-') {
        return Ok(None);
    }
    let arguments = call.trim_end().strip_suffix(')').ok_or_else(cut)?;
    let (of, arguments) = descriptor(arguments).ok_or_else(cut)?;
    let mut numbers = arguments.rsplitn(3, ", ");
    let mut number = || numbers.next().and_then(|n| n.parse::<u64>().ok()).ok_or_else(cut);
    let (offset, asked) = (number()?, number()?);
    numbers.next().ok_or_else(cut)?;
    let len = result.parse::<u64>().map_err(|_| cut())?;
    if len > asked {
        return Err(format!("this pread64 returned {len} bytes of the {asked} that it asked for"));
    }
    let request = Request {
        line: 0,
        process: process.parse().unwrap_or(0),
        op: BioOp::Read,
        offset,
        len,
        arrival: Arrival::ReadAhead,
        flushes_first: false,
        is_durable: false,
    };
    Ok((len > 0).then_some((of, request)))
}

/// Parses `8,0 R 4096 () 2048 + 8 [name]`, behind the name of the event.
fn issued(text: &str) -> std::result::Result<(Option<String>, Request), String> {
    let cut = || format!("this block_rq_issue is cut off; {EXPECTED}");
    let (before, after) = text.split_once(')').ok_or_else(cut)?;
    let (device, does) = before.split_once(' ').ok_or_else(cut)?;
    let does = does.split(' ').next().ok_or_else(cut)?;
    let mut place = after.split_whitespace();
    let (sector, plus, sectors) = (place.next(), place.next(), place.next());
    let number = |n: Option<&str>| n.and_then(|n| n.parse::<u64>().ok()).ok_or_else(cut);
    let (sector, sectors) = (number(sector)?, number(sectors)?);
    if plus != Some("+") || !after.trim_end().ends_with(']') {
        return Err(cut());
    }
    let bytes = |n: u64| n.checked_mul(SECTOR).ok_or_else(|| format!("sector {n} is behind every device's end"));
    let (flushes_first, kind) = match does.strip_prefix('F') {
        Some(rest) if !rest.is_empty() => (true, rest),
        _ => (false, does),
    };
    let op = match kind.chars().next() {
        Some('R') => BioOp::Read,
        Some('W') if sectors > 0 => BioOp::Write,
        Some('F' | 'W') => BioOp::Flush,
        // A discard, an erase, and commands of the driver itself move no data.
        Some('D' | 'E' | 'N') => BioOp::Discard,
        _ => return Err(format!("'{does}' is no operation that is known; {EXPECTED}")),
    };
    let is_durable = op == BioOp::Write && kind[1..].contains('F');
    let (offset, len) = if op == BioOp::Flush { (0, 0) } else { (bytes(sector)?, bytes(sectors)?) };
    Ok((
        Some(device.to_owned()),
        Request { line: 0, process: 0, op, offset, len, arrival: Arrival::Submitted, flushes_first, is_durable },
    ))
}
