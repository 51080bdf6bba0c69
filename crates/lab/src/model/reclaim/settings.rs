//! The machine's parameters: the thread's machine, or a part of it.
//!
//! Main type: [`Settings`]. The machine of May 2013 is known from mmtests'
//! `config-global-dhp__parallelio-memcachetest`, whose writer's sizes are a tenth, a third and 17/30 of all memory:
//! 7155 MiB.
//!
//! memcached's memory follows from the same source: mmtests stores MemTotal × 0.8 / 20,480 = 293,068 items of 16 KiB.
//! memcached 1.4.15 puts each into a chunk of 17,352 bytes, 60 of them in a page of 1 MiB that it clears when it makes
//! it: 4885 pages with 255 pages of 4 KiB each in use, 4865 MiB. Its limit (`-m`) was given in bytes where it takes
//! MiB, and so was none.
//!
//! A scale divides memory, the length of the test and the depth of the disk's queue; the cost of one operation, one
//! request or one seek does not change.
//!
//! # Locking
//! None.

use super::memory::Backing;
use crate::error::{Error, Result};
use crate::workload::Parameters;

pub const DMA32: usize = 0;
pub const NORMAL: usize = 1;

/// Pages of a MiB.
const MIB: u64 = 256;
/// Pages of an item: 16 KiB and memcached's header for it.
pub const ITEM_PAGES: usize = 5;
/// The machine gets no smaller than this.
const SCALE_MAX: u64 = 64;

#[derive(Clone, Debug)]
pub struct Settings {
    pub scale: u64,
    /// Of all memory but the kernel's own.
    pub pages: usize,
    normal_pages: usize,
    /// Of the writer's file, by its name in the thread.
    pub files: [(&'static str, usize); 4],
    /// Pages of the program that are used all the time, and those that are not.
    pub touched: usize,
    pub idle: usize,
    /// Pages of files that were read before the test, clean and used once.
    pub cached: u64,
    pub inodes: u64,
    pub disk_bytes_per_s: f64,
    pub network_bytes_per_s: f64,
    pub test_ns: u64,
    pub backing: Backing,
    pub swap: bool,
}

impl Settings {
    pub fn parameters() -> Parameters {
        Parameters::new()
            .with("scale", 32)
            .with("memory_mib", 7155)
            .with("kernel_mib", 300)
            .with("normal_mib", 3700)
            .with("touched_mib", 4865)
            .with("idle_mib", 470)
            .with("cached_mib", 100)
            .with("inodes", 30_000)
            .with("disk_mb_s", 116)
            .with("network_mb_s", 70)
            .with("seconds", 200)
            .with_text("backing", "ext4")
            .with("swap", 1)
    }

    pub fn new(parameters: &Parameters) -> Result<Settings> {
        let get = |name: &str| parameters.get(name);
        let scale = get("scale");
        if !(1..=SCALE_MAX).contains(&scale) {
            return Err(Error::Usage(format!("scale={scale}: from 1 (the thread's machine) to {SCALE_MAX}")));
        }
        let backing = match parameters.text("backing") {
            "ext4" => Backing::Ext4,
            "ext3" => Backing::Ext3,
            "nfs" => Backing::Nfs,
            other => return Err(Error::Usage(format!("backing={other}: ext4, ext3 or nfs"))),
        };
        let mib = |name: &str| get(name) * MIB / scale;
        let all = mib("memory_mib");
        let (pages, normal) = (all.saturating_sub(mib("kernel_mib")), mib("normal_mib"));
        let touched = mib("touched_mib") as usize / ITEM_PAGES * ITEM_PAGES;
        let idle = mib("idle_mib") as usize;
        let room = pages.saturating_sub(pages / 16);
        if normal == 0
            || normal >= pages
            || touched == 0
            || (touched + idle) as u64 + mib("cached_mib") > room
            || all > 1 << 31
        {
            let why = "normal_mib is less than memory_mib - kernel_mib, all others at most 15/16 of that";
            return Err(Error::Usage(why.into()));
        }
        if get("disk_mb_s") == 0 || get("network_mb_s") == 0 || get("seconds") == 0 {
            return Err(Error::Usage("disk_mb_s, network_mb_s and seconds: at least 1".into()));
        }
        let file = |tenths_of_3: u64| (all * tenths_of_3 / 30) as usize;
        Ok(Settings {
            scale,
            pages: pages as usize,
            normal_pages: normal as usize,
            files: [("0M", 0), ("715M", file(3)), ("2385M", file(10)), ("4055M", file(17))],
            touched,
            idle,
            cached: mib("cached_mib"),
            inodes: get("inodes") / scale,
            disk_bytes_per_s: get("disk_mb_s") as f64 * 1e6,
            network_bytes_per_s: get("network_mb_s") as f64 * 1e6,
            test_ns: get("seconds") * 1_000_000_000 / scale,
            backing,
            swap: get("swap") > 0,
        })
    }

    /// A time that belongs to the length of the test.
    pub fn scaled(&self, ns: u64) -> u64 {
        ns / self.scale
    }

    pub fn zone_pages(&self, zone: usize) -> u64 {
        (if zone == NORMAL { self.normal_pages } else { self.pages - self.normal_pages }) as u64
    }

    /// Reserved pages of a zone: in all, √(16 × KiB) KiB (Linux: `min_free_kbytes`), in proportion to the thread's
    /// machine.
    pub fn min_free(&self, zone: usize) -> u64 {
        let all = self.pages as u64 * self.scale;
        let min = ((16 * all * 4) as f64).sqrt() as u64 / 4;
        min * self.zone_pages(zone) / all
    }
}
