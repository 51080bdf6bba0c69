//! The kernel's requests to one block device, from the events that the block layer emits.
//!
//! Main type: [`Requests`] (the sums of a trace). The events are `block_rq_issue` (the driver gets a request) and
//! `block_rq_complete` (it is done). A request's time is the difference; the time that it waits for the driver is
//! not in it.
//!
//! What it does not do: it enables no events ([`super::kernel`] does), and counts no merges, because
//! /sys/block/DEVICE/stat has them at no cost.
//!
//! # Locking
//! None.

use std::collections::{HashMap, VecDeque};

use super::Figures;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// A flush of the device's cache, without data.
    Flush,
    /// Discards and the like.
    Other,
}

/// Sums over the requests of a trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Requests {
    reads: u64,
    writes: u64,
    flushes: u64,
    /// Sectors of 512 bytes of reads and writes.
    sectors: u64,
    /// The times of completed reads, writes and flushes, in microseconds, ascending.
    took_us: Vec<u64>,
}

impl Requests {
    /// Reads a trace, in the order of time.
    pub(super) fn of(trace: &str) -> Requests {
        let mut sums = Requests::default();
        // Two requests to the same place have the same key; the driver completes the earlier one first.
        let mut under_way: HashMap<(&str, u64), VecDeque<u64>> = HashMap::new();
        for line in trace.lines().filter(|l| !l.starts_with('#')) {
            let Some(event) = Event::of(line) else { continue };
            let waiting = under_way.entry((event.flags, event.sector)).or_default();
            if !event.issued {
                // A request that was issued before the recording began has no time.
                sums.took_us.extend(waiting.pop_front().map(|since| event.at_us.saturating_sub(since)));
                continue;
            }
            match event.kind() {
                Kind::Read => sums.reads += 1,
                Kind::Write => sums.writes += 1,
                Kind::Flush => sums.flushes += 1,
                Kind::Other => continue,
            }
            sums.sectors += event.sectors;
            waiting.push_back(event.at_us);
        }
        sums.took_us.sort_unstable();
        sums
    }

    pub(super) fn figures(&self, figures: &mut Figures) {
        let mut put = |name: &str, n: u64| figures.insert(name.to_owned(), n as f64);
        put("device_issued_reads", self.reads);
        put("device_issued_writes", self.writes);
        put("device_issued_flushes", self.flushes);
        put("device_issued_sectors", self.sectors);
        let (Some(longest), n) = (self.took_us.last(), self.took_us.len()) else { return };
        put("device_request_sum_us", self.took_us.iter().sum());
        put("device_request_p50_us", self.took_us[(n - 1) / 2]);
        put("device_request_longest_us", *longest);
        // Of fewer, it would be the longest under another name.
        if n >= 100 {
            put("device_request_p99_us", self.took_us[n - 1 - n / 100]);
        }
    }
}

/// One line of the trace.
struct Event<'a> {
    issued: bool,
    at_us: u64,
    /// `R`, `W`, `F`, `D` and letters behind them, for example `WS` for a write that a caller waits for.
    flags: &'a str,
    sector: u64,
    sectors: u64,
}

impl<'a> Event<'a> {
    /// `TASK-PID [CPU] FLAGS SECONDS.MICROSECONDS: block_rq_issue: MAJOR,MINOR FLAGS BYTES () SECTOR + COUNT ...`, and
    /// `block_rq_complete` without the bytes. The name of a task may contain blanks.
    fn of(line: &'a str) -> Option<Event<'a>> {
        let (before, args, issued) = match line.split_once(": block_rq_issue: ") {
            Some((before, args)) => (before, args, true),
            None => {
                let (before, args) = line.split_once(": block_rq_complete: ")?;
                (before, args, false)
            }
        };
        let (seconds, fraction) = before.rsplit(' ').next()?.split_once('.')?;
        // Of all clocks of the kernel, those that a trace uses by default print six digits.
        let micros: u64 = if fraction.len() == 6 { fraction.parse().ok()? } else { return None };
        let flags = args.split(' ').nth(1)?;
        let (left, right) = args.split_once(" + ")?;
        let sector = left.rsplit(' ').next()?.parse().ok()?;
        let sectors = right.split(' ').next()?.parse().ok()?;
        Some(Event { issued, at_us: seconds.parse::<u64>().ok()? * 1_000_000 + micros, flags, sector, sectors })
    }

    fn kind(&self) -> Kind {
        // A flush before a write (`FW...`) is a request of its own, and so is the write.
        match (self.flags.as_bytes().first(), self.sectors) {
            (Some(b'F'), 0) => Kind::Flush,
            (Some(b'R'), _) => Kind::Read,
            (Some(b'W' | b'F'), 1..) => Kind::Write,
            (Some(b'W'), 0) => Kind::Flush,
            _ => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "# tracer: nop\n\
        lab 0-10 [000] ..... 7.000100: block_rq_issue: 7,0 R 4096 () 2048 + 8 none,0,0 [lab 0]\n\
        lab 0-10 [000] ..... 7.000110: block_rq_issue: 7,0 RA 131072 () 4096 + 256 none,0,0 [lab 0]\n\
        kworker/u8:1-11 [001] d..1. 7.000150: block_rq_complete: 7,0 RA () 4096 + 256 none,0,0 [0]\n\
        jbd2/loop0-8-12 [001] ..... 7.000160: block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]\n\
        kworker/u8:1-11 [001] d..1. 7.000200: block_rq_complete: 7,0 R () 2048 + 8 none,0,0 [0]\n\
        kworker/u8:1-11 [001] d..1. 7.001160: block_rq_complete: 7,0 FF () 0 + 0 none,0,0 [0]\n\
        jbd2/loop0-8-12 [001] ..... 8.000000: block_rq_issue: 7,0 WS 8192 () 64 + 16 none,0,0 [jbd2/loop0-8]\n\
        kworker/u8:1-11 [001] d..1. 8.000007: block_rq_complete: 7,0 WS () 999 + 16 none,0,0 [0]\n\
        lab 0-10 [000] ..... 8.100000: block_rq_issue: 7,0 D 8192 () 64 + 16 none,0,0 [lab 0]\n";

    #[test]
    fn requests_are_counted_by_kind_and_timed_from_issue_to_completion() {
        let sums = Requests::of(TRACE);
        // The write is not done yet, and one that was issued before the trace has no time.
        assert_eq!(
            sums,
            Requests { reads: 2, writes: 1, flushes: 1, sectors: 8 + 256 + 16, took_us: vec![40, 100, 1000] }
        );
        let mut figures = Figures::new();
        sums.figures(&mut figures);
        let names = ["device_request_sum_us", "device_request_p50_us", "device_request_longest_us"];
        assert_eq!(names.map(|name| figures[name]), [1140.0, 100.0, 1000.0]);
        assert!(!figures.contains_key("device_request_p99_us"), "too few requests for a percentile");
    }

    #[test]
    fn requests_to_one_place_are_completed_in_their_order() {
        let line =
            |at, event: &str| format!("a-1 [000] ..... 0.{at:06}: block_rq_{event}: 7,0 W 512 () 8 + 1 none,0,0 [a]\n");
        let trace = [line(1, "issue"), line(5, "issue"), line(11, "complete"), line(12, "complete")].concat();
        assert_eq!(Requests::of(&trace).took_us, [7, 10]);
    }

    #[test]
    fn a_percentile_takes_a_hundred_requests() {
        let sums = Requests { took_us: (1..=200).collect(), ..Requests::default() };
        let mut figures = Figures::new();
        sums.figures(&mut figures);
        assert_eq!(figures["device_request_p99_us"], 198.0);
    }
}
