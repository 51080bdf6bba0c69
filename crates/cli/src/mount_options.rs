//! `-o`: the options of a mount.
//!
//! Main type: [`MountConfig`]. What mount(8) passes on although it is its own business (`user`, `nofail`, `x-…`) is
//! ignored; anything else that is not known is refused by name.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use extant_base::clock::Clock;
use extant_block::device::{Engine, IoMode};
use extant_fs::{Atime, BorrowJournal, MountOptions, OnError};

use crate::size;
use crate::text::shown;

/// What a mount was asked for. `None`: not said, so the kind of image and of user decide.
#[derive(Clone, Debug)]
pub struct MountConfig {
    pub fs: MountOptions,
    pub fuse: extant_fuse::MountOptions,
    pub io: Option<IoMode>,
    pub engine: Engine,
    pub offset: Option<u64>,
    pub partition: Option<u32>,
    pub allow_other: Option<bool>,
    pub default_permissions: Option<bool>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub fakeroot: bool,
    pub no_xattr: bool,
    /// The server keeps its privileges.
    pub no_sandbox: bool,
    pub writeback_cache: Option<bool>,
    pub no_open: Option<bool>,
    /// The device or image of a journal that is not in the image.
    pub journal_path: Option<PathBuf>,
    pub remount: bool,
    /// `cache=` was said.
    pub cache_given: bool,
}

impl Default for MountConfig {
    fn default() -> MountConfig {
        MountConfig {
            fs: MountOptions { keep_clean: false, ..MountOptions::default() },
            fuse: extant_fuse::MountOptions::default(),
            io: None,
            engine: Engine::IoUring,
            offset: None,
            partition: None,
            allow_other: None,
            default_permissions: None,
            uid: None,
            gid: None,
            fakeroot: false,
            no_xattr: false,
            no_sandbox: false,
            writeback_cache: None,
            no_open: None,
            journal_path: None,
            remount: false,
            cache_given: false,
        }
    }
}

/// For the message about an unknown one: the nearest of them.
const KNOWN: &[&str] = &[
    "ro",
    "rw",
    "remount",
    "cache=",
    "commit=",
    "data=",
    "journal=",
    "journal_path=",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "lazytime",
    "sync",
    "dirsync",
    "discard",
    "nodiscard",
    "errors=",
    "norecovery",
    "noload",
    "io=",
    "engine=",
    "partition=",
    "offset=",
    "loop",
    "allow_other",
    "default_permissions",
    "no_default_permissions",
    "uid=",
    "gid=",
    "resuid=",
    "resgid=",
    "fakeroot",
    "no_xattr",
    "no_sandbox",
    "writeback_cache",
    "no_writeback_cache",
    "no_open=",
    "workers=",
    "seed=",
    "mb_locality_groups=",
    "queue_depth=",
    "dirty=",
    "fsname=",
    "subtype=",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "nosymfollow",
    "symfollow",
];

/// What an unknown option may have been meant to be.
fn nearest(name: &str) -> Option<String> {
    /// Of what `strsim` calls alike: two words with half their letters in common are not.
    const ALIKE: f64 = 0.85;
    let policies = extant_fs::POLICIES.iter().map(|p| format!("{}=", p.table.option));
    let known = KNOWN.iter().chain(IGNORED).map(|k| (*k).to_owned()).chain(policies);
    let rated = known.map(|k| (strsim::jaro_winkler(name, k.trim_end_matches('=')), k));
    let best = rated.filter(|(alike, _)| *alike > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| known)
}

/// Options that are for mount(8), systemd or the kernel's own drivers, and mean nothing here: of ext4's those that
/// only make it faster or take a safety away that stays.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "noowner",
    "nogroup",
    "nousers",
    "atime",
    "norelatime",
    "nolazytime",
    "iversion",
    "mand",
    "comment=",
    "noiversion",
    "nomand",
    "silent",
    "loud",
    "nodelalloc",
    "delalloc",
    "acl",
    "user_xattr",
    "barrier",
    "nobarrier",
    "noquota",
    "journal_checksum",
    "nojournal_checksum",
    "auto_da_alloc",
    "noauto_da_alloc",
    "dioread_lock",
    "dioread_nolock",
    "nodioread_nolock",
    "init_itable",
    "noinit_itable",
    "inode_readahead_blks",
    "stripe",
    "min_batch_time",
    "max_batch_time",
    "journal_ioprio",
    "nonempty",
];

impl MountConfig {
    /// Whether the kernel checks modes, owners and ACLs.
    pub fn checks_permissions(&self) -> bool {
        self.default_permissions.unwrap_or(!self.fakeroot)
    }

    /// All that a remount leaves as it is, for comparing: all but the flags that the kernel heeds by itself, which are
    /// `root`'s to change, and whether it is read-only.
    pub fn fixed(&self, root: bool) -> String {
        let mut fixed = self.clone();
        // No option; each has a beginning of its own.
        fixed.fs.clock = Clock::virtual_at(0);
        (fixed.remount, fixed.fs.read_only, fixed.fuse.read_only) = (false, false, false);
        if root {
            let fuse = &mut fixed.fuse;
            (fuse.nosuid, fuse.nodev, fuse.noexec, fuse.nosymfollow) = (false, false, false, false);
        }
        // Not all of it can be compared, but all that was read from options shows.
        format!("{fixed:?}")
    }

    /// Reads the values of all `-o`, the later winning. `sloppy`: unknown options are ignored.
    pub fn parse(lists: &[String], sloppy: bool) -> Result<MountConfig, String> {
        let mut config = MountConfig::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            match config.set(name, value) {
                Ok(true) => {}
                Ok(false) if sloppy || IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
                Ok(false) if name == "comment" || name == "loop" => {}
                Ok(false) => {
                    let meant = nearest(name).map_or_else(
                        || "'extant help mount' lists them".to_owned(),
                        |known| format!("did you mean '{known}'?"),
                    );
                    return Err(format!("unknown mount option '{}'; {meant}", shown(option.as_bytes())));
                }
                Err(e) => return Err(format!("mount option '{option}': {e}")),
            }
        }
        if config.offset.is_some() && config.partition.is_some() {
            return Err("mount options 'offset' and 'partition' exclude each other".into());
        }
        if config.fs.no_recovery {
            config.fs.read_only = true;
        }
        config.fuse.read_only = config.fs.read_only;
        Ok(config)
    }

    /// False when the option is not known.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool, String> {
        match (name, value) {
            ("ro", None) => self.fs.read_only = true,
            ("rw", None) => self.fs.read_only = false,
            ("norecovery" | "noload", None) => self.fs.no_recovery = true,
            ("noatime", None) => {
                self.fs.atime = Atime::Never;
                (self.fuse.noatime, self.fuse.strictatime) = (true, false);
            }
            ("relatime", None) => {
                self.fs.atime = Atime::Relative;
                (self.fuse.noatime, self.fuse.strictatime) = (false, false);
            }
            ("strictatime", None) => {
                self.fs.atime = Atime::Always;
                (self.fuse.noatime, self.fuse.strictatime) = (false, true);
            }
            ("nostrictatime", None) if self.fs.atime == Atime::Always => {
                self.fs.atime = Atime::Relative;
                self.fuse.strictatime = false;
            }
            ("diratime" | "nodiratime", None) => {
                self.fs.dir_atime = name == "diratime";
                self.fuse.nodiratime = !self.fs.dir_atime;
            }
            // Access times are written late in any case.
            ("nostrictatime" | "lazytime" | "loop", None) => {}
            ("sync", None) => (self.fuse.sync, self.fuse.dirsync) = (true, true),
            ("dirsync", None) => self.fuse.dirsync = true,
            ("async", None) => (self.fuse.sync, self.fuse.dirsync) = (false, false),
            ("discard", None) => self.fs.discard = true,
            ("nodiscard", None) => self.fs.discard = false,
            ("remount", None) => self.remount = true,
            // As the kernel lists them, and mount(8) hands them back at a remount.
            ("user_id" | "group_id" | "rootmode" | "fd" | "blksize" | "max_read", Some(_)) => {}
            ("allow_other", None) => self.allow_other = Some(true),
            ("default_permissions", None) => self.default_permissions = Some(true),
            ("no_default_permissions", None) => self.default_permissions = Some(false),
            ("fakeroot", None) => self.fakeroot = true,
            ("no_xattr", None) => self.no_xattr = true,
            ("no_sandbox", None) => self.no_sandbox = true,
            ("nosuid", None) => self.fuse.nosuid = true,
            ("suid", None) => self.fuse.nosuid = false,
            ("nodev", None) => self.fuse.nodev = true,
            ("dev", None) => self.fuse.nodev = false,
            ("noexec", None) => self.fuse.noexec = true,
            ("exec", None) => self.fuse.noexec = false,
            ("nosymfollow", None) => self.fuse.nosymfollow = true,
            ("symfollow", None) => self.fuse.nosymfollow = false,
            ("writeback_cache", None) => self.writeback_cache = Some(true),
            ("no_writeback_cache", None) => self.writeback_cache = Some(false),
            ("no_open", None) => self.no_open = Some(true),
            // The name that is shown is the image's: unmounting goes by it.
            ("fsname" | "subtype", Some(_)) => {}
            (_, Some(value)) => return self.set_value(name, value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_value(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "cache" => {
                self.fs.cache_bytes = size::parse(value)?;
                self.cache_given = true;
                if self.fs.cache_bytes < 8 << 20 {
                    return Err("at least 8M are needed".into());
                }
            }
            "dirty" => {
                let bytes = size::parse(value)?;
                if bytes < extant_fs::DIRTY_BYTES_MIN {
                    return Err(format!("at least {}K are needed", extant_fs::DIRTY_BYTES_MIN >> 10));
                }
                self.fs.dirty_bytes = Some(bytes);
            }
            // 0 stands for the default, as in the kernel.
            "commit" => match number(value, 0, 86400)? {
                0 => self.fs.commit_interval_s = MountOptions::default().commit_interval_s,
                seconds => self.fs.commit_interval_s = seconds,
            },
            "data" => {
                // Data is on the device before its map, whatever is asked for.
                pick(value, &[("ordered", ()), ("writeback", ())])?;
            }
            "journal" => {
                let known = [("borrow", BorrowJournal::Always), ("none", BorrowJournal::Never)];
                self.fs.borrow_journal = pick(value, &known)?;
            }
            "journal_path" => self.journal_path = Some(value.into()),
            "errors" => {
                let known = [("continue", OnError::Continue), ("remount-ro", OnError::RemountReadOnly)];
                self.fs.errors = Some(pick(value, &known)?);
            }
            "io" => self.io = Some(pick(value, &[("direct", IoMode::Direct), ("buffered", IoMode::Buffered)])?),
            "engine" => {
                self.engine = pick(value, &[("psync", Engine::Psync), ("io_uring", Engine::IoUring)])?;
            }
            "offset" => {
                let offset = size::parse(value)?;
                if !offset.is_multiple_of(512) {
                    return Err("not a multiple of 512".into());
                }
                self.offset = Some(offset);
            }
            "partition" => self.partition = Some(number(value, 1, u32::MAX)?),
            "uid" => self.uid = Some(number(value, 0, u32::MAX - 1)?),
            "gid" => self.gid = Some(number(value, 0, u32::MAX - 1)?),
            "resuid" => self.fs.resuid = Some(number(value, 0, u32::MAX - 1)?),
            "resgid" => self.fs.resgid = Some(number(value, 0, u32::MAX - 1)?),
            "no_open" => self.no_open = Some(number(value, 0, 1)? == 1),
            "workers" => self.fuse.workers = Some(number(value, 1, 256)? as usize),
            "mb_locality_groups" => self.fs.locality_groups = number(value, 1, 1024)? as usize,
            "queue_depth" => self.fs.queue_depth = number(value, 1, extant_fs::QUEUE_DEPTH_MAX)?,
            "seed" => self.fs.seed = Some(value.parse().map_err(|_| format!("'{value}' is not a number"))?),
            _ => match self.fs.set_policy(name, value) {
                Some(chosen) => chosen.map_err(|e| e.to_string())?,
                None => return Ok(false),
            },
        }
        Ok(true)
    }
}

fn number(value: &str, min: u32, max: u32) -> Result<u32, String> {
    let number: Option<u32> = value.parse().ok().filter(|n| (min..=max).contains(n));
    number.ok_or_else(|| format!("'{value}' is not a number from {min} to {max}"))
}

fn pick<T: Copy>(value: &str, known: &[(&str, T)]) -> Result<T, String> {
    known.iter().find(|(name, _)| *name == value).map(|(_, t)| *t).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        format!("'{value}' is none of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountConfig, String> {
        MountConfig::parse(&[text.to_owned()], false)
    }

    #[test]
    fn options() {
        let c = parse("rw,cache=64M,commit=30,data=writeback,noatime,errors=remount-ro,io=direct,partition=2").unwrap();
        assert_eq!((c.fs.cache_bytes, c.fs.commit_interval_s, c.partition), (64 << 20, 30, Some(2)));
        assert_eq!((c.fs.atime, c.io), (Atime::Never, Some(IoMode::Direct)));
        assert!(c.fuse.noatime && !c.fs.read_only && !c.fs.keep_clean);
        let c = parse("noload,offset=1M,suid,dev,no_open=1,workers=3,engine=psync").unwrap();
        assert!(c.fs.read_only && c.fuse.read_only && !c.fuse.nosuid && !c.fuse.nodev);
        assert_eq!(
            (c.offset, c.no_open, c.fuse.workers, c.engine),
            (Some(1 << 20), Some(true), Some(3), Engine::Psync)
        );
        for table in extant_fs::POLICIES.iter().map(|p| p.table) {
            for row in table.rows {
                assert!(parse(&format!("{}={}", table.option, row.name)).is_ok(), "{} {}", table.option, row.name);
            }
        }
        let c = parse("resuid=1000,resgid=100").unwrap();
        assert_eq!((c.fs.resuid, c.fs.resgid), (Some(1000), Some(100)));
        assert_eq!(parse("rw").unwrap().fs.borrow_journal, BorrowJournal::IfClean);
        assert_eq!(parse("journal=borrow").unwrap().fs.borrow_journal, BorrowJournal::Always);
        assert_eq!(parse("journal=none").unwrap().fs.borrow_journal, BorrowJournal::Never);
        assert!(parse("defaults,noauto,user,nofail,_netdev,x-systemd.automount,,fsname=a,subtype=b").is_ok());
        // What ext4 takes as a hint, or to leave away what stays here; not what it would have to do.
        let hints = parse("nobarrier,stripe=8,noquota,journal_checksum,max_batch_time=0").unwrap();
        assert_eq!(hints.fixed(false), parse("").unwrap().fixed(false));
        assert!(parse("usrquota").is_err() && parse("dax").is_err());
        let c = parse("nodiratime").unwrap();
        assert!(!c.fs.dir_atime && c.fuse.nodiratime);
        assert!(parse("nodiratime,diratime").unwrap().fs.dir_atime);
    }

    #[test]
    fn what_a_remount_leaves_alone() {
        let same = |a: &str, b: &str, root| parse(a).unwrap().fixed(root) == parse(b).unwrap().fixed(root);
        assert!(same("cache=64M,relatime", "commit=5,cache=67108864,ro,remount", false));
        assert!(same("noexec,nosymfollow", "suid,dev", true) && !same("noexec", "exec", false));
        for changed in ["noatime", "strictatime", "commit=60", "cache=64M", "errors=continue", "sync", "norecovery"] {
            assert!(!same("rw", changed, true), "{changed}");
        }
    }

    #[test]
    fn the_later_wins() {
        assert!(!parse("ro,rw").unwrap().fs.read_only);
        assert!(MountConfig::parse(&["rw".into(), "ro".into()], false).unwrap().fs.read_only);
    }

    #[test]
    fn mistakes_are_named() {
        let unknown = parse("ro,frobnicate=3").unwrap_err();
        assert!(unknown.contains("'frobnicate=3'") && unknown.contains("extant help mount"), "{unknown}");
        for (wrong, right) in [
            ("noatme", "noatime"),
            ("allow_others", "allow_other"),
            ("fake_root", "fakeroot"),
            ("chache=64M", "cache="),
            ("es_polcy=lru", "es_policy="),
        ] {
            let answer = parse(wrong).unwrap_err();
            assert!(answer.contains(&format!("did you mean '{right}'?")) && !answer.contains('\n'), "{answer}");
        }
        assert!(MountConfig::parse(&["frobnicate".into()], true).is_ok());
        for bad in [
            "cache=1K",
            "cache=x",
            "data=journal",
            "journal=yes",
            "offset=100",
            "partition=0",
            "no_open=2",
            "ro=1",
            "uid=-1",
            "resuid=me",
            "es_policy=lru2",
            "tag_policy=best",
            "queue_depth=0",
            "dirty=8K",
            "dirty=",
            "queue_depth=4097",
            "commit=99999999999",
            "offset=1M,partition=1",
            "cache",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let known = parse("tag_policy=best").unwrap_err();
        assert!(known.contains("tag_policy=best") && known.contains("hand-off"), "{known}");
        assert!(parse("queue_depth=4097").unwrap_err().contains("queue_depth=4097"));
        assert_eq!(parse("dirty=1M").unwrap().fs.dirty_bytes, Some(1 << 20));
        let config = parse("queue_depth=4096,tag_policy=wake_all").unwrap();
        assert_eq!((config.fs.queue_depth, config.fs.tag_policy.name()), (4096, "wake-all"));
    }
}
