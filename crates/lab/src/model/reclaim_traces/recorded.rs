//! Traces of real programs: the pages of files that a program read, as `scripts/record-trace.py` wrote them.
//!
//! Main items: [`read`], [`Recorded`].
//!
//! A trace is a file in zstd (RFC 8878). Inside are a line, [`HEAD`], and then records of three LEB128 numbers. Each
//! record is a run of pages of one file, read in a row:
//!
//! | number | meaning |
//! |---|---|
//! | file | difference from the number of the last record's file, zigzag; files have numbers in the order of their first use, from 0 |
//! | page | difference from the page after this file's last run (0 at first), zigzag |
//! | pages | in the run, less 1 |
//!
//! A page is 4 KiB. There are no names, inode numbers or times. Pages become items in the order of their first use.
//!
//! A trace is hostile until it is read: [`UNPACKED_MAX`], [`ITEMS_MAX`] and [`ACCESSES_MAX`] bound what it can cost.
//!
//! # Locking
//! None.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{ACCESSES_MAX, ITEMS_MAX};
use crate::error::{Error, Result};

const HEAD: &[u8] = b"extant page trace 1\n";
/// Bytes of a trace without its compression: a record takes three at least.
const UNPACKED_MAX: u64 = 64 << 20;
/// Numbers of files and of pages end here, so that sums of them do not overflow.
const NUMBER_MAX: i64 = 1 << 40;

/// A trace in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The items in the order of their use.
    pub accesses: Vec<u32>,
    /// How many there are.
    pub items: u64,
}

/// Reads the trace at `path`. It is [`Error::File`] if that cannot be read, or is no trace.
pub fn read(path: &Path) -> Result<Recorded> {
    let failed = |source| Error::File { path: path.display().to_string(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let unpacked = zstd::stream::read::Decoder::new(file).map_err(failed)?;
    unpacked.take(UNPACKED_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    decode(&bytes, ITEMS_MAX).map_err(|why| {
        let why = format!("{why}; a trace is a file that scripts/record-trace.py wrote");
        failed(io::Error::new(io::ErrorKind::InvalidData, why))
    })
}

fn decode(bytes: &[u8], items_max: u64) -> std::result::Result<Recorded, String> {
    let mut rest = bytes.strip_prefix(HEAD).ok_or("it does not begin as a trace does")?;
    if bytes.len() as u64 > UNPACKED_MAX {
        return Err(format!("it is longer than {UNPACKED_MAX} bytes without its compression"));
    }
    let (mut accesses, mut items) = (Vec::new(), HashMap::new());
    let (mut file, mut ends) = (0i64, HashMap::new());
    for record in 0u64.. {
        if rest.is_empty() {
            break;
        }
        let at = |why: &str| format!("record {record}: {why}");
        let mut number = || leb128(&mut rest).ok_or_else(|| at("a number is cut off or too large"));
        let (of_file, of_page, more) = (zigzag(number()?), zigzag(number()?), number()?);
        file += of_file;
        let end = ends.entry(file).or_insert(0i64);
        let first = *end + of_page;
        if !(0..NUMBER_MAX).contains(&file) || !(0..NUMBER_MAX).contains(&first) {
            return Err(at("a file or page below 0, or beyond 2^40"));
        }
        if accesses.len() as u64 + more >= ACCESSES_MAX {
            return Err(at(&format!("more than {ACCESSES_MAX} accesses")));
        }
        *end = first + more as i64 + 1;
        for page in first..*end {
            let next = items.len() as u32;
            accesses.push(*items.entry((file, page)).or_insert(next));
            if items.len() as u64 > items_max {
                return Err(at(&format!("more than {items_max} different pages")));
            }
        }
    }
    Ok(Recorded { accesses, items: items.len() as u64 })
}

/// Takes a number below 2^42 off the front.
fn leb128(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..42).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// 0, 1, 2, 3, ... are 0, -1, 1, -2, ...
fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[u64]) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        for number in numbers {
            let mut left = *number;
            while left >= 0x80 {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
        }
        bytes
    }

    #[test]
    fn runs_of_pages_become_items_in_the_order_of_their_first_use() {
        // File 0: pages 0 to 2; file 1: page 5; file 0: page 3, then pages 1 and 2; file 1: page 6.
        let trace = bytes(&[0, 0, 2, 2, 10, 0, 1, 0, 0, 0, 5, 1, 2, 0, 0]);
        let read = decode(&trace, 6).expect("a trace");
        assert_eq!(read, Recorded { accesses: vec![0, 1, 2, 3, 4, 1, 2, 5], items: 6 });
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.trace");
        std::fs::write(&path, zstd::bulk::compress(&trace, 3).expect("compressed")).expect("written");
        assert_eq!(super::read(&path).expect("a trace"), read);
    }

    #[test]
    fn damaged_traces_are_refused_with_the_record() {
        let cases = [
            (b"something else".to_vec(), "begin"),
            (bytes(&[0, 0, 0, 1, 0, 0]), "record 1: a file or page below 0"),
            (bytes(&[0, 1, 0]), "record 0: a file or page below 0"),
            (bytes(&[0, 0, ACCESSES_MAX]), "record 0: more than 100000000 accesses"),
            (bytes(&[0, 0, 1 << 41]), "record 0: more than 100000000 accesses"),
            (bytes(&[0, 0, 5, 2, 0, 5]), "record 1: more than 10 different pages"),
            (bytes(&[0, 0]), "record 0: a number is cut off"),
            (bytes(&[1 << 50, 0, 0]), "record 0: a number is cut off or too large"),
        ];
        for (trace, why) in cases {
            let error = decode(&trace, 10).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn any_bytes_after_the_head_are_a_trace_or_refused() {
        let mut rng = extant_base::rng::Rng::new(1);
        for _ in 0..2000 {
            let mut trace = HEAD.to_vec();
            trace.extend((0..rng.below(40)).map(|_| if rng.one_in(4) { rng.below(256) } else { rng.below(8) } as u8));
            if let Ok(read) = decode(&trace, 1000) {
                assert!(read.accesses.iter().all(|item| u64::from(*item) < read.items));
            }
        }
    }
}
