//! Options of the engine in this process: those of `extant mount` that are meaningful without a mount.
//!
//! # Locking
//! None.

use extant_block::device::{DeviceModel, Engine, IoMode};
use extant_fs::{Atime, MountOptions, POLICIES};

/// Writes of at least this many bytes bypass the cache if the image file is opened through the page cache, as in
/// `extant mount`.
const WRITE_THROUGH_BYTES: u64 = 65536;

/// How the image is used.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The options of the file system.
    pub fs: MountOptions,
    /// Whether to bypass the host's page cache.
    pub io: IoMode,
    /// How requests are made.
    pub engine: Engine,
    /// Whether to copy the image into memory, and back at the end.
    pub memory: bool,
    /// The device whose timing is modelled.
    pub device: Option<DeviceModel>,
    /// Whether to drop data and store only metadata.
    pub metadata_only: bool,
    /// Whether the image depends only on the operations: nothing runs in the background, and time stands still.
    pub exact: bool,
    /// Each operation takes longer by this fraction of its own time: a difference of known size, to test the lab.
    pub slow: f64,
}

/// The known options, for the message about an unknown one.
const KNOWN: [&str; 15] = [
    "cache=",
    "dirty=",
    "commit=",
    "data=",
    "noatime",
    "relatime",
    "io=direct|buffered|memory",
    "engine=",
    "mb_locality_groups=",
    "queue_depth=1...4096",
    "fast_commit=on|off",
    "exact",
    "slow=PERCENT",
    "device=hdd-2007|hdd|flash|net-5ms",
    "store=all|metadata",
];

impl EngineOptions {
    /// Parses `a,b=c`; an error message names the wrong option.
    pub fn parse(list: &str) -> Result<EngineOptions, String> {
        let mut options = EngineOptions {
            // An error during the work is the error of an operation, and is recorded in the trial.
            fs: MountOptions::default(),
            io: IoMode::Buffered,
            engine: Engine::IoUring,
            memory: false,
            device: None,
            metadata_only: false,
            exact: false,
            slow: 0.0,
        };
        for option in list.split(',').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let wrong = || format!("option '{option}': that value is not known");
            match (name, value) {
                // Data is on the device before its map, with either value.
                ("data", "ordered" | "writeback") => {}
                ("exact", "") => {
                    options.exact = true;
                    options.fs.threads = false;
                    options.fs.locality_groups = 1;
                }
                ("noatime", "") => options.fs.atime = Atime::Never,
                ("relatime", "") => options.fs.atime = Atime::Relative,
                ("io", "direct") => options.io = IoMode::Direct,
                ("io", "buffered") => options.io = IoMode::Buffered,
                ("io", "memory") => options.memory = true,
                ("device", name) => {
                    let named = DeviceModel::named(name).map_err(|e| format!("option '{option}': {e}"))?;
                    options.device = Some(named);
                }
                ("store", "all") => options.metadata_only = false,
                ("store", "metadata") => options.metadata_only = true,
                ("slow", percent) => {
                    options.slow =
                        percent.parse::<f64>().ok().filter(|p| (0.0..=1000.0).contains(p)).ok_or_else(wrong)? / 100.0;
                }
                ("engine", "psync") => options.engine = Engine::Psync,
                ("engine", "io_uring") => options.engine = Engine::IoUring,
                ("data" | "io" | "engine" | "store", _) => return Err(wrong()),
                // The rest is read as `extant mount` reads it.
                _ => {
                    let given = option.split_once('=').map(|(_, value)| value);
                    let fs = &mut options.fs;
                    let set = fs.set_word(name, given).or_else(|| fs.set_own_word(name, given));
                    let set = set.map(|set| set.map_err(|e| e.to_string()));
                    match set.or_else(|| fs.set_policy(name, value).map(|set| set.map_err(|e| e.to_string()))) {
                        Some(set) => set.map_err(|e| format!("option '{option}': {e}"))?,
                        None => {
                            let policies: String = POLICIES.iter().map(|p| format!(" {}=", p.table.option)).collect();
                            return Err(format!(
                                "option '{option}' is not known to the engine; known are: {}{policies}, and ext4(5)'s \
                                 that change what the engine does",
                                KNOWN.join(" ")
                            ));
                        }
                    }
                }
            }
        }
        let modelled = options.device.is_some() || options.metadata_only;
        // Data that bypasses the cache gets its blocks earlier than data that waits in the cache.
        let through = options.io == IoMode::Buffered && !options.memory && !modelled && !options.exact;
        options.fs.write_through_bytes = through.then_some(WRITE_THROUGH_BYTES);
        if modelled {
            // The requests come in the caller's order, because no other thread writes. The placement of blocks does not
            // depend on the number of processors either.
            options.fs.threads = false;
            options.fs.locality_groups = options.fs.locality_groups.max(1);
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let o = EngineOptions::parse("cache=64M,commit=30,io=memory,mb_policy=vanilla").unwrap();
        assert_eq!((o.fs.cache_bytes, o.fs.commit_interval_s, o.memory), (64 << 20, Some(30), true));
        assert_eq!((o.fs.alloc_policy, o.fs.write_through_bytes), (extant_fs::AllocPolicy::Vanilla, None));
        assert_eq!(EngineOptions::parse("").unwrap().fs.write_through_bytes, Some(65536));
        assert_eq!(EngineOptions::parse("slow=5").unwrap().slow, 0.05);
        let o = EngineOptions::parse("queue_depth=4096,tag_policy=wake-all").unwrap();
        assert_eq!((o.fs.queue_depth, o.fs.tag_policy.name()), (4096, "wake-all"));
        let o = EngineOptions::parse("device=hdd-2007,store=metadata").unwrap();
        assert_eq!((o.device.unwrap().name(), o.metadata_only, o.fs.threads), ("hdd-2007", true, false));
        assert_eq!(o.fs.locality_groups, 1, "not one for each processor");
        assert_eq!(o.fs.write_through_bytes, None, "a disk has no page cache below");
        let e = EngineOptions::parse("device=tape").unwrap_err();
        assert!(e.contains("tape") && e.contains("hdd-2007, hdd, flash, net-5ms"), "{e}");
        let e = EngineOptions::parse("devices=hdd").unwrap_err();
        assert!(DeviceModel::names().iter().all(|name| e.contains(name)) && e.contains("store="), "{e}");
        let exact = |more: &str| {
            let o = EngineOptions::parse(&format!("exact,{more}")).unwrap().fs;
            (o.write_through_bytes, o.threads, o.locality_groups)
        };
        for place in ["io=direct", "io=memory", "device=hdd", "store=metadata"] {
            assert_eq!(exact(place), exact(""), "the image's place changes its bytes: {place}");
        }
        for bad in [
            "device=",
            "store=data",
            "slow=-1",
            "slow=NaN",
            "slow=",
            "io=fast",
            "mb_policy=x",
            "tag_policy=x",
            "queue_depth=0",
            "queue_depth=4097",
            "cache=x",
            "ro",
            "noatime=1",
            "commit=",
            "commit=99999999",
            "dirty=1",
            "cache=4M",
        ] {
            assert!(EngineOptions::parse(bad).is_err(), "{bad}");
        }
    }
}
