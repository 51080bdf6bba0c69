//! The accesses.
//!
//! Main items: [`trace`], [`Accesses`]. Items are numbers. The streams of `copy` and `pairs` have numbers beyond the
//! other items.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use extant_base::rng::Rng;

use super::super::zipf::{Zipf, shuffled};
use super::recorded;
use crate::error::{Error, Result};
use crate::workload::Parameters;

const TRACES: [&str; 7] = ["zipf", "scans", "loop", "copy", "shift", "files", "pairs"];
/// Pages of a file.
const FILE: u64 = 256;
/// Of `scans`, one in so many accesses is a scan's, and each scan reads one in so many items.
const SCANS: u64 = 5;
const SCAN: u64 = 16;
/// Of `copy`, one in so many items is hot.
const HOT: u64 = 20;
/// The number of parts of `shift`; other items are popular in each.
const QUARTERS: u64 = 4;
/// Of `pairs`, one in so many accesses is the stream's.
const PAIRS: u64 = 4;

/// A trace, and the cache for it.
pub struct Accesses {
    /// Numbers of the items, in the order of their use.
    pub items: Vec<u32>,
    /// How many items the cache has room for.
    pub room: u64,
    /// How many of the first accesses are not counted.
    pub warm: u64,
}

/// A recorded trace, or `accesses` accesses that are made up.
pub fn trace(parameters: &Parameters, accesses: u64, rng: &mut Rng) -> Result<Accesses> {
    let name = parameters.text("trace");
    let room = |items: u64| items.saturating_mul(parameters.get("room")) / 100;
    if TRACES.contains(&name) {
        let room = room(parameters.get("items"));
        let items = made_up(parameters, accesses, room, rng);
        return Ok(Accesses { warm: items.len() as u64 / 4, items, room });
    }
    if !Path::new(name).exists() {
        let why = format!("trace={name}: neither one of {} nor a file of scripts/record-trace.py", TRACES.join(", "));
        return Err(Error::Usage(why));
    }
    let recorded = recorded::read(Path::new(name))?;
    Ok(Accesses { items: recorded.accesses, room: room(recorded.items), warm: 0 })
}

/// `accesses` accesses, by number of the item, for a cache with room for `room` items.
fn made_up(parameters: &Parameters, accesses: u64, room: u64, rng: &mut Rng) -> Vec<u32> {
    let (items, skew) = (parameters.get("items"), parameters.get("skew") as f64 / 100.0);
    let popular = shuffled(items, rng);
    let by_rank = |rank: u64| popular[rank as usize];
    let mut all = Vec::with_capacity(accesses as usize);
    match parameters.text("trace") {
        "zipf" => {
            let zipf = Zipf::new(items, skew);
            all.extend((0..accesses).map(|_| by_rank(zipf.draw(rng))));
        }
        "scans" => {
            let zipf = Zipf::new(items, skew);
            let scan = (items / SCAN).max(1);
            let mut from = 0;
            while (all.len() as u64) < accesses {
                all.extend((0..(SCANS - 1) * scan).map(|_| by_rank(zipf.draw(rng))));
                all.extend((0..scan).map(|i| ((from + i) % items) as u32));
                from += scan;
            }
        }
        "loop" => {
            let around = (room * parameters.get("loop") / 100).clamp(1, items);
            all.extend((0..accesses).map(|i| by_rank(i % around)));
        }
        "copy" => {
            let hot = (items / HOT).max(1);
            all.extend((0..accesses).map(|i| if i % 2 == 0 { rng.below(hot) as u32 } else { (items + i / 2) as u32 }));
        }
        "shift" => {
            let zipf = Zipf::new(items, skew);
            for i in 0..accesses {
                let moved = i * QUARTERS / accesses * (items / QUARTERS);
                all.push(((u64::from(by_rank(zipf.draw(rng))) + moved) % items) as u32);
            }
        }
        "files" => {
            let zipf = Zipf::new((items / FILE).max(1), skew);
            while (all.len() as u64) < accesses {
                let file = zipf.draw(rng);
                all.extend((file * FILE..(file + 1) * FILE).map(|page| page as u32));
            }
        }
        _ => {
            let zipf = Zipf::new(items, skew);
            let within = parameters.get("within");
            let mut again = BinaryHeap::new();
            let mut next = items;
            for i in 0..accesses {
                if i % PAIRS != 0 {
                    all.push(by_rank(zipf.draw(rng)));
                } else if let Some(Reverse((_, item))) = again.peek().filter(|Reverse((due, _))| *due <= i) {
                    all.push(*item);
                    again.pop();
                } else {
                    all.push(next as u32);
                    again.push(Reverse((i + rng.below(within), next as u32)));
                    next += 1;
                }
            }
        }
    }
    all.truncate(accesses as usize);
    all
}
