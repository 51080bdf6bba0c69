//! Every word that may follow `-o`: of ext4(5), of mount(8), of FUSE, and Extant's own.
//!
//! Main items: [`WORDS`], in the order in which help and manual page print them. The parser, `extant help mount`, the
//! manual page, the completions and the tests read this table and nothing else.
//!
//! What it does not do: find a word ([`super::word`]), print it ([`super::help`]).
//!
//! # Locking
//! None.

use extant_block::device::{Engine, IoMode};
use extant_fs::{Atime, BorrowJournal, OnError};
use extant_fuse::{DirectIo, Transport};

use super::word::Audience::{Administrator, Researcher};
use super::word::Fate::{Engines, Ignored, Kernel, Policy, Refused, Sets};
use super::word::Origin::{Ext4, Extant, Fuse, Mount};
use super::word::{Audience, Fate, Origin, Word};
use super::{PANIC, number, pick};
use crate::size;

/// A row for the word and its synonyms (`names`). `value`: "" for none, "=WHAT", or "[=WHAT]" if it is optional;
/// alternatives in lower case are the only values.
const fn row(
    names: &'static [&'static str],
    value: &'static str,
    origin: Origin,
    audience: Audience,
    fate: Fate,
    text: &'static str,
) -> Word {
    Word { names, value, origin, audience, fate, text }
}

/// A word for every user who mounts.
const fn admin(
    names: &'static [&'static str],
    value: &'static str,
    origin: Origin,
    fate: Fate,
    text: &'static str,
) -> Word {
    row(names, value, origin, Administrator, fate, text)
}

/// A word for users who measure.
const fn lab(names: &'static [&'static str], value: &'static str, fate: Fate, text: &'static str) -> Word {
    row(names, value, Extant, Researcher, fate, text)
}

const fn ignored(names: &'static [&'static str], value: &'static str, origin: Origin, why: &'static str) -> Word {
    row(names, value, origin, Administrator, Ignored, why)
}

const fn refused(names: &'static [&'static str], value: &'static str, origin: Origin, why: &'static str) -> Word {
    row(names, value, origin, Administrator, Refused, why)
}

/// Why quota files with names are refused.
const QUOTA: &str =
    "quotas are in the image's own files (feature 'quota'); usrquota, grpquota and prjquota enforce them";
/// Why the words that set SELinux labels are refused.
const LABEL: &str = "the labels are those of the image's files";

/// Every word, beginning with the effective words for administrators.
pub static WORDS: &[Word] = &[
    admin(&["ro"], "", Mount, Sets(|c, _| c.say_read_only(true)), "nothing is written"),
    admin(&["rw"], "", Mount, Sets(|c, _| c.say_read_only(false)), "for reading and writing (the default)"),
    admin(
        &["remount"],
        "",
        Mount,
        Sets(|c, _| {
            c.remount = true;
            Ok(())
        }),
        "change a mount that is there to ro or rw; as root also suid, dev, exec, symfollow and their opposites",
    ),
    admin(
        &["noatime"],
        "",
        Mount,
        Sets(|c, _| {
            c.fs.atime = Atime::Never;
            (c.fuse.noatime, c.fuse.strictatime) = (true, false);
            Ok(())
        }),
        "reading changes no access times",
    ),
    admin(
        &["relatime"],
        "",
        Mount,
        Sets(|c, _| c.relative_atime()),
        "reading changes those that are older than the file or than a day (the default); what the kernel's cache answers \
         changes none, except with strictatime or no_open=0",
    ),
    admin(
        &["strictatime"],
        "",
        Mount,
        Sets(|c, _| {
            c.fs.atime = Atime::Always;
            (c.fuse.noatime, c.fuse.strictatime) = (false, true);
            Ok(())
        }),
        "each read changes access times",
    ),
    admin(
        &["atime"],
        "",
        Mount,
        Sets(|c, _| if c.fs.atime == Atime::Never { c.relative_atime() } else { Ok(()) }),
        "undo noatime",
    ),
    admin(
        &["nostrictatime"],
        "",
        Mount,
        Sets(|c, _| if c.fs.atime == Atime::Always { c.relative_atime() } else { Ok(()) }),
        "undo strictatime",
    ),
    admin(&["nodiratime"], "", Mount, Sets(|c, _| c.dir_atime(false)), "listing a directory changes no access time"),
    admin(&["diratime"], "", Mount, Sets(|c, _| c.dir_atime(true)), "undo nodiratime"),
    admin(
        &["sync"],
        "",
        Mount,
        Sets(|c, _| {
            (c.fuse.sync, c.fuse.dirsync) = (true, true);
            Ok(())
        }),
        "each change is durable before it returns",
    ),
    admin(
        &["dirsync"],
        "",
        Mount,
        Sets(|c, _| {
            c.fuse.dirsync = true;
            Ok(())
        }),
        "each change of names is durable before it returns",
    ),
    admin(
        &["async"],
        "",
        Mount,
        Sets(|c, _| {
            (c.fuse.sync, c.fuse.dirsync) = (false, false);
            Ok(())
        }),
        "undo sync and dirsync",
    ),
    admin(
        &["nosuid"],
        "",
        Mount,
        Kernel(|c| c.fuse.nosuid = true),
        "set-user-ID bits have no effect (the default, because an image may come from anyone)",
    ),
    admin(
        &["suid"],
        "",
        Mount,
        Kernel(|c| c.fuse.nosuid = false),
        "they have their effect (root; here and in fstab, because mount(8) does not pass it on from its command line)",
    ),
    admin(&["nodev"], "", Mount, Kernel(|c| c.fuse.nodev = true), "device files cannot be opened (the default)"),
    admin(&["dev"], "", Mount, Kernel(|c| c.fuse.nodev = false), "device files can be opened (as with suid)"),
    admin(&["noexec"], "", Mount, Kernel(|c| c.fuse.noexec = true), "programs cannot be executed"),
    admin(&["exec"], "", Mount, Kernel(|c| c.fuse.noexec = false), "programs can be executed (the default)"),
    admin(&["nosymfollow"], "", Mount, Kernel(|c| c.fuse.nosymfollow = true), "symbolic links are not followed (root)"),
    admin(
        &["symfollow"],
        "",
        Mount,
        Kernel(|c| c.fuse.nosymfollow = false),
        "symbolic links are followed (the default)",
    ),
    admin(&["discard"], "", Ext4, Engines, "tell the device of freed blocks: an image file shrinks"),
    admin(
        &["nodiscard"],
        "",
        Ext4,
        Engines,
        "freed blocks are not reported to the device (the default); fstrim(8) works in any case",
    ),
    admin(&["commit"], "=SECONDS", Ext4, Engines, "how much work a crash may cost (5; 0 stands for it)"),
    admin(
        &["errors"],
        "=continue|remount-ro|panic",
        Ext4,
        Sets(|c, value| {
            c.engine_word("errors", Some(value))?;
            if value == "panic" && c.fs.errors == Some(OnError::RemountReadOnly) {
                c.note(PANIC);
            }
            Ok(())
        }),
        "when the image turns out to be damaged (as its superblock says); panic acts as remount-ro",
    ),
    admin(
        &["data"],
        "=ordered|writeback|journal",
        Ext4,
        Sets(|c, value| {
            // File data reaches the device before its map, with any value.
            if pick(value, &[("ordered", false), ("writeback", false), ("journal", true)])? {
                c.note("data=journal: file data does not go through the journal; it is written as with data=ordered");
            }
            Ok(())
        }),
        "all act as ordered: file data is written before the metadata that points to it",
    ),
    admin(
        &["data_err"],
        "=ignore|abort",
        Ext4,
        Sets(|c, value| {
            if pick(value, &[("ignore", false), ("abort", true)])? {
                c.note(
                    "data_err=abort: a failed write of file data is reported by fsync(2); it does not end the mount",
                );
            }
            Ok(())
        }),
        "both act as ignore: fsync(2) reports a failed write of file data, and nothing points to it",
    ),
    admin(
        &["norecovery", "noload"],
        "",
        Ext4,
        Sets(|c, _| {
            c.fs.no_recovery = true;
            Ok(())
        }),
        "do not replay the journal: read-only, unless rw is said, too, and the image was cleanly unmounted",
    ),
    admin(
        &["rescue"],
        "",
        Extant,
        Sets(|c, _| {
            c.fs.rescue = true;
            Ok(())
        }),
        "read what there is of a damaged image, without its log or lost block groups, and files without a name in \
         lost+found; what is hurt is an error when it is used; always read-only",
    ),
    admin(
        &["sb"],
        "=N",
        Ext4,
        Sets(|c, value| {
            // As in ext4(5): units of 1 KiB, whatever the block size is.
            let kib: u64 = value.parse().ok().filter(|n| (1..1 << 50).contains(n)).ok_or("not a block number")?;
            c.fs.superblock = Some(kib << 10);
            Ok(())
        }),
        "use the superblock in block N, counted in units of 1 KiB, and the descriptors beside it (with ro)",
    ),
    admin(
        &["journal_path"],
        "=DEVICE",
        Ext4,
        Sets(|c, value| {
            c.journal_path = Some(value.into());
            Ok(())
        }),
        "the journal is there, not in the image",
    ),
    admin(
        &["journal"],
        "=borrow|none",
        Extant,
        Sets(|c, value| {
            let known = [("borrow", BorrowJournal::Always), ("none", BorrowJournal::Never)];
            c.fs.borrow_journal = pick(value, &known)?;
            Ok(())
        }),
        "what an image without a journal gets while it is mounted (a borrowed one, if it was cleanly unmounted)",
    ),
    admin(
        &["fscrypt_key"],
        "=FILE|fd:N",
        Extant,
        Sets(|c, value| {
            if !c.keys.iter().any(|known| known == value) {
                c.keys.push(value.into());
            }
            Ok(())
        }),
        "a raw key of encrypted files, 16 to 64 bytes, read at the mount; DESCRIPTOR:FILE for a policy of version 1 \
         whose descriptor is not derived from the key; repeated for more keys",
    ),
    admin(&["acl"], "", Ext4, Engines, "ACLs are enforced and inherited (the default)"),
    admin(&["noacl"], "", Ext4, Engines, "ACLs are neither enforced nor inherited, and cannot be seen"),
    admin(&["user_xattr"], "", Ext4, Engines, "attributes of users can be seen and set (the default)"),
    admin(&["nouser_xattr"], "", Ext4, Engines, "attributes of users cannot be seen or set"),
    admin(&["grpid", "bsdgroups"], "", Ext4, Engines, "a new file gets the group of its directory"),
    admin(&["nogrpid", "sysvgroups"], "", Ext4, Engines, "a new file gets the group of its creator (the default)"),
    admin(&["bsddf"], "", Ext4, Engines, "df(1) leaves out the file system's own blocks (the default)"),
    admin(&["minixdf"], "", Ext4, Engines, "df(1) counts the file system's own blocks as used"),
    admin(
        &["usrquota", "quota"],
        "",
        Ext4,
        Engines,
        "limits of users hold (feature quota; usage is counted in any case)",
    ),
    admin(&["grpquota"], "", Ext4, Engines, "limits of groups hold"),
    admin(&["prjquota"], "", Ext4, Engines, "limits of projects hold"),
    admin(&["noquota"], "", Ext4, Engines, "no limits hold, not even those that the superblock names"),
    admin(&["resuid"], "=UID", Ext4, Engines, "another user who may use the reserved blocks (as in the image)"),
    admin(&["resgid"], "=GID", Ext4, Engines, "a group that may use the reserved blocks"),
    admin(
        &["partition"],
        "=N",
        Extant,
        Sets(|c, value| {
            c.partition = Some(number(value, 1, u32::MAX)?);
            Ok(())
        }),
        "the file system is in partition N of the image (also IMAGE@N)",
    ),
    admin(
        &["offset"],
        "=BYTES",
        Mount,
        Sets(|c, value| {
            let offset = size::parse(value)?;
            if !offset.is_multiple_of(512) {
                return Err("not a multiple of 512".into());
            }
            c.offset = Some(offset);
            Ok(())
        }),
        "the file system begins there in the image",
    ),
    admin(
        &["allow_other"],
        "",
        Fuse,
        Sets(|c, _| {
            c.allow_other = Some(true);
            Ok(())
        }),
        "other users may use the mount (the default for root, unless nothing is checked)",
    ),
    admin(
        &["uid"],
        "=UID",
        Fuse,
        Sets(|c, value| {
            c.uid = Some(number(value, 0, u32::MAX - 1)?);
            Ok(())
        }),
        "show all files as this user's (the default without root: yours)",
    ),
    admin(
        &["gid"],
        "=GID",
        Fuse,
        Sets(|c, value| {
            c.gid = Some(number(value, 0, u32::MAX - 1)?);
            Ok(())
        }),
        "show all files as this group's",
    ),
    admin(
        &["fakeroot"],
        "",
        Fuse,
        Sets(|c, _| {
            c.fakeroot = true;
            Ok(())
        }),
        "show the owners in the image and check nothing: chown and chmod as if root (the kernel may still refuse mknod)",
    ),
    admin(
        &["default_permissions"],
        "",
        Fuse,
        Sets(|c, _| {
            c.default_permissions = Some(true);
            Ok(())
        }),
        "check modes and owners (the default)",
    ),
    admin(
        &["no_default_permissions"],
        "",
        Extant,
        Sets(|c, _| {
            c.default_permissions = Some(false);
            Ok(())
        }),
        "do not check modes and owners",
    ),
    admin(
        &["cache", "cache_size"],
        "=SIZE",
        Extant,
        Sets(|c, value| {
            c.cache_given = true;
            c.engine_word("cache", Some(value))
        }),
        "memory for blocks, files and names (256M, or a quarter of what the control group may have if that is less)",
    ),
    admin(
        &["writeback_cache"],
        "",
        Fuse,
        Sets(|c, _| {
            c.writeback_cache = Some(true);
            Ok(())
        }),
        "the kernel delays writes: small ones become many times faster, but close(2) and fsync(2) report a full disk",
    ),
    admin(
        &["no_writeback_cache"],
        "",
        Extant,
        Sets(|c, _| {
            c.writeback_cache = Some(false);
            Ok(())
        }),
        "the kernel delays no write (the default)",
    ),
    admin(
        &["direct_io"],
        "[=auto|never|write|SIZE]",
        Fuse,
        Sets(|c, value| {
            c.direct_io = match value {
                // As in libfuse.
                "" => DirectIo::From(0),
                "never" | "auto" => DirectIo::Never,
                "write" => DirectIo::Write,
                size => DirectIo::From(size::parse(size).map_err(|e| format!("{e}; or auto, never, write"))?),
            };
            Ok(())
        }),
        "what bypasses the kernel's page cache: nothing (auto, for now), new files that are only written, or also files of at \
         least SIZE (without a value: all) when they are opened: large files that are read or written once gain, small reads lose",
    ),
    admin(
        &["no_lock"],
        "",
        Extant,
        Sets(|c, _| {
            c.no_lock = true;
            Ok(())
        }),
        "write an image file even if the host cannot lock files: no other program may use it then",
    ),
    admin(
        &["write_member"],
        "",
        Extant,
        Sets(|c, _| {
            c.write_member = true;
            Ok(())
        }),
        "write a disk of a RAID, a pool or a volume group: the others do not learn of it",
    ),
    admin(
        &["no_xattr"],
        "",
        Extant,
        Sets(|c, _| {
            c.no_xattr = true;
            Ok(())
        }),
        "no attributes and no ACLs: a fifth fewer requests for small files",
    ),
    admin(
        &["X-mount.mkdir", "x-mount.mkdir"],
        "[=MODE]",
        Mount,
        Sets(|c, value| {
            let mode = if value.is_empty() { Some(0o755) } else { u32::from_str_radix(value, 8).ok() };
            c.mkdir = Some(mode.filter(|mode| *mode <= 0o7777).ok_or(format!("'{value}' is not an octal mode"))?);
            Ok(())
        }),
        "make the directory if there is none (755)",
    ),
    admin(
        &["X-mount.subdir"],
        "=DIRECTORY",
        Mount,
        Sets(|c, value| {
            c.subdir = Some(value.into());
            Ok(())
        }),
        "mount this directory of the image, and nothing else of it (here and in fstab; mount(8) does not pass it on from \
         its command line)",
    ),
    // ---- For measurements ----
    lab(
        &["io"],
        "=direct|buffered",
        Sets(|c, value| {
            c.io = Some(pick(value, &[("direct", IoMode::Direct), ("buffered", IoMode::Buffered)])?);
            Ok(())
        }),
        "past the host's page cache (the default for devices), or through it (for files)",
    ),
    lab(
        &["engine"],
        "=psync|io_uring",
        Sets(|c, value| {
            c.engine = pick(value, &[("psync", Engine::Psync), ("io_uring", Engine::IoUring)])?;
            Ok(())
        }),
        "how the image is read and written",
    ),
    lab(
        &["workers"],
        "=N",
        Sets(|c, value| {
            c.fuse.workers = Some(number(value, 1, 256)? as usize);
            Ok(())
        }),
        "threads that serve; for a block device two at least; with io_uring the number of processors decides",
    ),
    admin(
        &["transport"],
        "=auto|dev|uring",
        Extant,
        Sets(|c, value| {
            let words = [("auto", Transport::Auto), ("dev", Transport::Device), ("uring", Transport::Ring)];
            c.fuse.transport = pick(value, &words)?;
            Ok(())
        }),
        "how requests come from the kernel: by io_uring where it can be used (the default), through /dev/fuse, or by \
         io_uring only. Linux 6.14 has it, switched off; as root: echo Y > /sys/module/fuse/parameters/enable_uring",
    ),
    lab(
        &["no_open"],
        "[=0|1]",
        Sets(|c, value| {
            c.no_open = Some(value.is_empty() || number(value, 0, 1)? == 1);
            Ok(())
        }),
        "the kernel opens and closes files without a request (1)",
    ),
    lab(
        &["fast_commit"],
        "=on|off",
        Engines,
        "whether an fsync writes a fast commit where it can, on images with that feature (off: e2fsck 1.47.0 replays some wrongly)",
    ),
    lab(&["dirty"], "=SIZE", Engines, "how much data may be dirty before writers wait (half of cache=)"),
    lab(&["mb_policy"], "=NAME", Policy, "how free blocks are chosen"),
    lab(&["meta_policy"], "=NAME", Policy, "where metadata blocks lie"),
    lab(
        &["mb_locality_groups"],
        "=N",
        Engines,
        "how many sets of chunks for small files; each thread uses one (one for each processor)",
    ),
    lab(&["es_policy"], "=NAME", Policy, "which entries leave the extent-status cache"),
    lab(&["reclaim_policy"], "=NAME", Policy, "which frames leave the cache when memory is short"),
    lab(&["tag_policy"], "=NAME", Policy, "which request gets the next tag"),
    lab(&["queue_depth"], "=N", Engines, "how many tags there are (1 to 4096, 128)"),
    lab(&["sync_policy"], "=NAME", Policy, "which other inodes' data an fsync writes, too"),
    lab(
        &["seed"],
        "=N",
        Sets(|c, value| {
            c.fs.seed = Some(value.parse().map_err(|_| format!("'{value}' is not a number"))?);
            Ok(())
        }),
        "where random numbers begin: directories are placed alike each time",
    ),
    lab(
        &["no_sandbox"],
        "",
        Sets(|c, _| {
            c.no_sandbox = true;
            Ok(())
        }),
        "the server keeps its privileges: it may open files, start programs and use the network",
    ),
    // ---- Accepted, without effect ----
    ignored(&["defaults"], "", Mount, "the defaults hold in any case"),
    ignored(
        &[
            "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers", "owner", "noowner", "group",
            "nogroup",
        ],
        "",
        Mount,
        "it is for mount(8)",
    ),
    ignored(&["comment"], "[=TEXT]", Mount, "a comment"),
    ignored(&["x-*", "X-*"], "[=TEXT]", Mount, "it is for mount(8), systemd or another program"),
    ignored(&["helper", "uhelper", "pamhelper"], "[=NAME]", Mount, "it is for mount(8)"),
    ignored(&["silent", "loud"], "", Mount, "messages of the server go to the log in any case"),
    ignored(&["mand", "nomand"], "", Mount, "Linux has no mandatory locks any more"),
    ignored(&["norelatime"], "", Mount, "Linux takes it for its default, relatime; strictatime is the opposite"),
    ignored(&["lazytime", "nolazytime"], "", Mount, "access times are written late in any case"),
    ignored(
        &["iversion", "noiversion", "i_version"],
        "",
        Mount,
        "the number of an inode's version is for the kernel's own file servers",
    ),
    ignored(
        &["loop"],
        "[=DEVICE]",
        Mount,
        "an image file is mounted as it is; with mount(8), which then makes a loop device, it is a block device",
    ),
    ignored(&["sizelimit"], "=BYTES", Mount, "the superblock says how long the file system is"),
    ignored(&["debug"], "", Ext4, "'extant info' prints what the kernel would"),
    ignored(&["check"], "=none", Ext4, "the kernel no longer checks a file system at mount; run e2fsck instead"),
    ignored(&["nocheck"], "", Ext4, "the kernel no longer checks a file system at mount; run e2fsck instead"),
    ignored(&["oldalloc", "orlov"], "", Ext4, "the kernel ignores it, too; mb_policy= chooses"),
    ignored(&["reservation", "noreservation", "bh", "nobh"], "", Ext4, "the kernel ignores it, too"),
    ignored(&["mblk_io_submit", "nomblk_io_submit"], "", Ext4, "the kernel ignores it, too"),
    ignored(&["barrier"], "[=0|1]", Ext4, "the device's cache is flushed in any case"),
    ignored(&["nobarrier"], "", Ext4, "the device's cache is flushed in any case"),
    ignored(
        &["journal_checksum", "nojournal_checksum", "journal_async_commit"],
        "",
        Ext4,
        "the journal keeps the format that it has",
    ),
    ignored(&["journal_ioprio"], "=PRIORITY", Ext4, "the queue has no priorities; ionice(1) works for the server"),
    ignored(
        &["min_batch_time", "max_batch_time"],
        "=MICROSECONDS",
        Ext4,
        "commits wait for others by a rule of their own",
    ),
    ignored(
        &["delalloc", "nodelalloc"],
        "",
        Ext4,
        "blocks are chosen at writeback; the space is promised at the write, which reports a full disk",
    ),
    ignored(
        &["auto_da_alloc", "noauto_da_alloc"],
        "",
        Ext4,
        "file data is on the device before the metadata that points to it",
    ),
    ignored(
        &["dioread_lock", "dioread_nolock", "nodioread_nolock"],
        "",
        Ext4,
        "new blocks are never seen before their data",
    ),
    ignored(&["init_itable"], "[=N]", Ext4, "inode tables are initialized where inodes are made"),
    ignored(&["noinit_itable"], "", Ext4, "inode tables are initialized where inodes are made"),
    ignored(&["inode_readahead_blks"], "=N", Ext4, "the cache reads ahead by its own measure"),
    ignored(&["stripe"], "=N", Ext4, "the stripe width in the superblock is used; tune2fs -E stripe_width= sets it"),
    ignored(
        &["block_validity", "noblock_validity"],
        "",
        Ext4,
        "no file reaches the file system's own blocks, in any case",
    ),
    ignored(&["nombcache", "no_mbcache"], "", Ext4, "it affects only speed"),
    ignored(
        &["prefetch_block_bitmaps", "no_prefetch_block_bitmaps"],
        "",
        Ext4,
        "bitmaps are read when they are needed",
    ),
    ignored(&["mb_optimize_scan"], "=0|1", Ext4, "mb_policy= chooses"),
    ignored(&["warn_on_error", "nowarn_on_error"], "", Ext4, "every error goes to the log"),
    ignored(&["inlinecrypt"], "", Ext4, "no device encrypts; the server does"),
    ignored(
        &["user_id", "group_id", "rootmode", "fd", "blksize", "max_read"],
        "=N",
        Fuse,
        "the kernel lists it so, and mount(8) hands it back at a remount",
    ),
    ignored(&["fsname", "subtype"], "=NAME", Fuse, "the name that is shown is the image's: unmounting goes by it"),
    ignored(&["nonempty"], "", Fuse, "a directory need not be empty"),
    ignored(&["auto_unmount"], "", Fuse, "the next mount on the directory replaces a dead one"),
    ignored(&["blkdev", "noblkdev"], "", Fuse, "root's mounts of block devices are of type fuseblk, others not"),
    ignored(
        &[
            "big_writes",
            "atomic_o_trunc",
            "hard_remove",
            "use_ino",
            "readdir_ino",
            "clone_fd",
            "splice_read",
            "splice_write",
            "splice_move",
            "no_splice_read",
            "no_splice_write",
            "no_splice_move",
            "async_read",
            "sync_read",
            "intr",
        ],
        "",
        Fuse,
        "libfuse's; the server does so, or has no need of it",
    ),
    ignored(
        &["max_write", "max_readahead", "max_background", "congestion_threshold", "max_threads", "max_idle_threads"],
        "=N",
        Fuse,
        "libfuse's; the server has its own limits",
    ),
    ignored(&["no_default_opts"], "", Fuse, "fuse2fs's; each default has a word that undoes it"),
    // ---- Refused ----
    refused(
        &["journal_dev"],
        "=NUMBER",
        Ext4,
        "a number may be another device's by now; name the journal by its path: journal_path=",
    ),
    refused(&["usrjquota", "grpjquota", "jqfmt"], "=NAME", Ext4, QUOTA),
    refused(&["nouid32"], "", Ext4, "owners have 32 bits, and the upper 16 are not taken away"),
    refused(&["max_dir_size_kb"], "=N", Ext4, "directories have no limit but the format's"),
    refused(&["dax"], "[=always|inode|never]", Ext4, "a mount through FUSE cannot map the device's memory"),
    refused(&["abort"], "", Ext4, "to see a mount fail, use 'xfs_io -x -c shutdown DIRECTORY'"),
    refused(&["test_dummy_encryption"], "[=v1|v2]", Ext4, "'extant encrypt' encrypts a directory, with a real key"),
    refused(&["fc_debug_force"], "", Ext4, "changes are logged only by full commits"),
    refused(&["fc_debug_max_replay"], "=N", Ext4, "the log is replayed whole, or, with norecovery, not at all"),
    refused(&["context", "fscontext", "defcontext", "rootcontext", "seclabel"], "[=LABEL]", Mount, LABEL),
    refused(
        &[
            "bind",
            "rbind",
            "move",
            "shared",
            "private",
            "slave",
            "unbindable",
            "rshared",
            "rprivate",
            "rslave",
            "runbindable",
        ],
        "",
        Mount,
        "an operation on a mount that is there; mount(8) has it",
    ),
    refused(
        &["X-mount.owner", "X-mount.group", "X-mount.mode", "X-mount.idmap", "X-mount.auto-fstypes"],
        "=VALUE",
        Mount,
        "mount(8) does this, for root: mount -t fuse.extant -o ... IMAGE DIRECTORY",
    ),
    refused(
        &["encryption"],
        "=NAME",
        Mount,
        "loop devices have no encryption any more; cryptsetup(8) opens such an image",
    ),
    refused(
        &[
            "verity.hashdevice",
            "verity.hashoffset",
            "verity.roothash",
            "verity.roothashfile",
            "verity.roothashsig",
            "verity.fecdevice",
            "verity.fecoffset",
            "verity.fecroots",
            "verity.oncorruption",
        ],
        "=VALUE",
        Mount,
        "open the image with veritysetup(8), and mount the device that it makes",
    ),
    refused(
        &["allow_root"],
        "",
        Fuse,
        "allow_other lets root in, and default_permissions keeps other users from your files",
    ),
    refused(
        &["umask", "fmask", "dmask"],
        "=MODE",
        Fuse,
        "the modes are those of the image; uid= and gid= set the owner",
    ),
    refused(
        &["kernel_cache", "auto_cache"],
        "",
        Fuse,
        "the kernel caches all that it may, because nothing else changes the image",
    ),
    refused(
        &["entry_timeout", "negative_timeout", "attr_timeout", "ac_attr_timeout"],
        "=SECONDS",
        Fuse,
        "names and attributes are cached for ever, because nothing else changes the image",
    ),
    refused(&["kernel"], "", Fuse, "fuse2fs's: here it is allow_other,suid,dev"),
    refused(&["lockfile"], "=FILE", Fuse, "fuse2fs's: the image itself is locked"),
];
