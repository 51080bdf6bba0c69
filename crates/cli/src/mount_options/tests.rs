//! The effect of each word, and the completeness of the table.

use extant_fs::{BorrowJournal, OnError};

use super::table::WORDS;
use super::word::{Audience, Fate, find, nearest};
use super::*;

fn parse(text: &str) -> Result<MountConfig, String> {
    MountConfig::parse(&[text.to_owned()], false)
}

#[test]
fn options() {
    let c = parse("rw,cache=64M,commit=30,data=writeback,noatime,errors=remount-ro,io=direct,partition=2").unwrap();
    assert_eq!((c.fs.cache_bytes, c.fs.commit_interval_s, c.partition), (64 << 20, Some(30), Some(2)));
    assert_eq!((c.fs.atime, c.io), (Atime::Never, Some(IoMode::Direct)));
    assert!(c.fuse.noatime && !c.fs.read_only && !c.fs.keep_clean);
    let c = parse("noload,offset=1M,suid,dev,no_open=1,workers=3,engine=psync").unwrap();
    assert!(c.fs.read_only && c.fuse.read_only && !c.fuse.nosuid && !c.fuse.nodev);
    assert_eq!((c.offset, c.no_open, c.fuse.workers, c.engine), (Some(1 << 20), Some(true), Some(3), Engine::Psync));
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
    // Hints for ext4, and restrictions that do not matter here, are accepted; words that require an effect are refused.
    let hints = parse("nobarrier,stripe=8,journal_checksum,max_batch_time=0").unwrap();
    assert_eq!(hints.fixed(false), parse("").unwrap().fixed(false));
    assert!(parse("usrjquota=aquota.user").is_err() && parse("dax").is_err());
    assert!(parse("noatime,atime").unwrap().fs.atime == Atime::Relative);
    let c = parse("nodiratime").unwrap();
    assert!(!c.fs.dir_atime && c.fuse.nodiratime);
    assert!(parse("nodiratime,diratime").unwrap().fs.dir_atime);
}

#[test]
fn a_remount_cannot_change_other_options() {
    let same = |a: &str, b: &str, root| parse(a).unwrap().fixed(root) == parse(b).unwrap().fixed(root);
    assert!(same("cache=64M,relatime", "commit=5,cache=67108864,ro,remount", false));
    assert!(same("noexec,nosymfollow", "suid,dev", true) && !same("noexec", "exec", false));
    for changed in ["noatime", "strictatime", "commit=60", "cache=64M", "errors=continue", "sync", "norecovery"] {
        assert!(!same("rw", changed, true), "{changed}");
    }
}

#[test]
fn the_later_option_wins() {
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

/// mount(8) always passes `rw` to its helpers; `serve` then acts as the kernel does.
#[test]
fn norecovery_is_read_only_unless_writing_is_asked_for() {
    for (options, read_only) in
        [("noload", true), ("rw,noload", false), ("norecovery,rw", false), ("rw,ro,noload", true)]
    {
        let c = parse(options).unwrap();
        assert_eq!((c.fs.read_only, c.fuse.read_only, c.fs.no_recovery), (read_only, read_only, true), "{options}");
    }
}

#[test]
fn rescue_is_read_only_and_a_superblock_is_counted_in_kib() {
    let c = parse("rw,rescue,sb=131072").unwrap();
    assert_eq!((c.fs.rescue, c.fs.read_only, c.fuse.read_only, c.fs.superblock), (true, true, true, Some(128 << 20)));
    for wrong in ["sb=0", "sb=x", "sb=18446744073709551615", "sb"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

/// The words, as the manuals write them.
const EXT4_5: &str = "acl noacl bsddf minixdf check=none nocheck debug errors=continue errors=remount-ro errors=panic \
    grpid bsdgroups nogrpid sysvgroups grpquota noquota quota usrquota nouid32 oldalloc orlov resgid=0 resuid=0 sb=131072 \
    user_xattr nouser_xattr journal_dev=8 journal_path=/dev/sdb norecovery noload data=journal data=ordered \
    data=writeback data_err=ignore data_err=abort barrier=0 barrier=1 commit=5 jqfmt=vfsold jqfmt=vfsv0 jqfmt=vfsv1 \
    usrjquota=aquota.user grpjquota=aquota.group journal_checksum nojournal_checksum journal_async_commit barrier \
    nobarrier inode_readahead_blks=32 stripe=16 delalloc nodelalloc max_batch_time=15000 min_batch_time=0 \
    journal_ioprio=3 abort auto_da_alloc noauto_da_alloc noinit_itable init_itable=10 init_itable discard nodiscard \
    block_validity noblock_validity dioread_lock dioread_nolock max_dir_size_kb=4 i_version nombcache prjquota dax \
    dax=always dax=inode dax=never inlinecrypt test_dummy_encryption lazytime nolazytime";
const MOUNT_8: &str = "async atime noatime auto noauto context=x fscontext=x defcontext=x rootcontext=x defaults dev nodev \
    diratime nodiratime dirsync exec noexec group iversion noiversion mand nomand _netdev nofail relatime norelatime \
    strictatime nostrictatime lazytime nolazytime suid nosuid silent loud owner remount ro rw sync user nouser users \
    X-any.thing x-systemd.automount x-systemd.device-timeout=3 X-mount.mkdir X-mount.mkdir=700 X-mount.subdir=d \
    X-mount.owner=0 X-mount.group=0 X-mount.mode=755 X-mount.idmap=x X-mount.auto-fstypes=ext4 nosymfollow symfollow \
    loop loop=/dev/loop0 offset=512 sizelimit=512 encryption=aes bind rbind move";
const FUSE_8: &str = "allow_other allow_root auto_unmount default_permissions fsname=x subtype=x max_read=4096 max_write=4096 \
    blksize=4096 user_id=0 group_id=0 rootmode=40000 fd=3 nonempty uid=1 gid=1 umask=022 entry_timeout=1 attr_timeout=1 \
    negative_timeout=1 kernel_cache auto_cache direct_io big_writes use_ino fakeroot no_default_opts kernel lockfile=x \
    cache_size=32m";

#[test]
fn every_word_of_the_manuals_has_its_effect_is_refused_or_is_ignored_with_a_reason() {
    for list in [EXT4_5, MOUNT_8, FUSE_8] {
        for option in list.split_ascii_whitespace() {
            let name = option.split('=').next().expect("a name");
            let word = find(name).unwrap_or_else(|| panic!("{option} is not in the table"));
            assert!(!word.text.is_empty(), "{option}");
            match (word.fate, parse(option)) {
                (Fate::Refused, Err(e)) => assert!(e.contains(word.text) && e.contains(option), "{e}"),
                (Fate::Refused, Ok(_)) => panic!("{option} is refused"),
                (Fate::Ignored, parsed) => {
                    let same = parsed.unwrap_or_else(|e| panic!("{e}")).fixed(true) == parse("").unwrap().fixed(true);
                    assert!(same, "{option} is ignored");
                }
                (_, parsed) => {
                    parsed.unwrap_or_else(|e| panic!("{e}"));
                }
            }
        }
    }
}

#[test]
fn each_word_stands_in_the_table_once_and_each_policy_has_one() {
    let mut names: Vec<&str> = WORDS.iter().flat_map(|word| word.names).copied().collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "twice in the table");
    for policy in &extant_fs::POLICIES {
        let word = find(policy.table.option).expect("a row");
        assert!(matches!(word.fate, Fate::Policy) && word.audience == Audience::Researcher);
    }
    // The engine knows all words that the table leaves to it.
    for word in WORDS.iter().filter(|word| matches!(word.fate, Fate::Engines)) {
        for name in word.names {
            let mut options = MountOptions::default();
            assert!(options.set_word(name, None).or_else(|| options.set_own_word(name, None)).is_some(), "{name}");
        }
    }
}

#[test]
fn a_word_with_a_missing_or_superfluous_value_is_refused() {
    for (option, why) in [
        ("ro=1", "takes no value"),
        ("nodelalloc=1", "takes no value"),
        ("stripe", "stripe=N"),
        ("commit", "commit=SECONDS"),
        ("barrier=2", "0, 1"),
        ("check=strict", "none"),
    ] {
        let e = parse(option).unwrap_err();
        assert!(e.contains(why) && e.contains(&format!("'{option}'")), "{e}");
    }
}

#[test]
fn no_suggestion_is_the_opposite_of_what_was_typed() {
    let opposite = |word: &str| word.strip_prefix("no").map_or_else(|| format!("no{word}"), str::to_owned);
    for word in WORDS.iter().flat_map(|word| word.names).filter(|name| !name.ends_with('*')) {
        let typos = (1..word.len())
            .flat_map(|at| [format!("{}{}", &word[..at], &word[at + 1..]), format!("{}z{}", &word[..at], &word[at..])]);
        for typo in typos {
            let Some(meant) = nearest(&typo) else { continue };
            let meant = meant.trim_end_matches('=');
            let negated = |word: &str| word.starts_with("no");
            assert!(meant != opposite(word) || negated(&typo) != negated(word), "{typo}: {meant}");
            assert_eq!(negated(meant), negated(&typo), "{typo}: {meant}");
        }
    }
    for typed in ["nosync", "noro", "nofakeroot", "recovery", "nobsddf"] {
        assert_eq!(nearest(typed), None, "{typed}");
    }
}

#[test]
fn word_that_acts_unlike_the_kernels_is_noted() {
    for option in ["errors=panic", "data=journal", "data_err=abort"] {
        let c = parse(option).unwrap();
        assert_eq!(c.notes.len(), 1, "{option}");
        assert!(c.notes[0].starts_with(option), "{}", c.notes[0]);
        assert!(parse(&format!("{option},{option}")).unwrap().fixed(true) == c.fixed(true));
    }
    assert_eq!(parse("errors=panic").unwrap().fs.errors, Some(OnError::RemountReadOnly));
    assert!(parse("noatime,acl,data=ordered,errors=remount-ro").unwrap().notes.is_empty());
}

/// Mount options in an image must not open files of the host, or make its programs privileged.
#[test]
fn no_word_that_reaches_out_of_the_image_may_be_in_a_superblock() {
    for word in [
        "suid",
        "dev",
        "allow_other",
        "no_sandbox",
        "no_lock",
        "write_member",
        "journal_path",
        "journal_dev",
        "fscrypt_key",
        "sb",
        "norecovery",
        "uid",
        "io",
    ] {
        assert!(!find(word).expect("a row").may_be_in_superblock(), "{word}");
    }
    for word in ["grpid", "acl", "nodelalloc", "errors", "commit", "usrjquota", "stripe"] {
        assert!(find(word).expect("a row").may_be_in_superblock(), "{word}");
    }
}

#[test]
fn help_fits_into_80_columns_and_lists_researchers_options_separately() {
    let help = help::on_screen();
    for line in help.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let (admin, lab) = help.split_once("Mount options for measurements").expect("two lists");
    assert!(admin.contains("noatime") && !admin.contains("mb_policy"));
    assert!(lab.contains("mb_policy") && lab.contains("goal-first"));
}
