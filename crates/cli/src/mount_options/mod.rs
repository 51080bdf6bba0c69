//! `-o`: the options of a mount.
//!
//! Main type: [`MountConfig`]. [`table`] has all words and their effects; a word that is missing there is refused, and
//! the message names it.
//!
//! # Locking
//! None.

pub mod help;
mod table;
#[cfg(test)]
mod tests;
mod word;

use std::path::PathBuf;

use extant_base::clock::Clock;
use extant_block::device::{Engine, IoMode};
use extant_fs::{Atime, COMMIT_INTERVAL_S, MountOptions};
use extant_fuse::DirectIo;
use extant_ondisk::superblock::{ErrorBehaviour, SuperBlock};

use self::word::{Fate, Word};
use crate::keys::Keys;
use crate::text::shown;

/// The options of a mount. `None` means not given: the default depends on the image and the user.
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
    /// Write an image file even if the host cannot lock files.
    pub no_lock: bool,
    /// Write to a member of a RAID, a pool or a volume group.
    pub write_member: bool,
    pub writeback_cache: Option<bool>,
    pub no_open: Option<bool>,
    pub direct_io: DirectIo,
    /// The words that name keys of encrypted files. The server reads them ([`MountConfig::read_keys`]).
    pub keys: Vec<String>,
    /// The device or image of a journal that is not in the image.
    pub journal_path: Option<PathBuf>,
    pub remount: bool,
    /// Whether `cache=` was given.
    pub cache_given: bool,
    /// Whether `rw` was given, and no `ro` after it.
    pub said_rw: bool,
    /// If the directory is missing, create it with this mode.
    pub mkdir: Option<u32>,
    /// The directory of the image that is mounted instead of its root.
    pub subdir: Option<PathBuf>,
    /// Differences from the kernel's behaviour, to print once.
    pub notes: Vec<String>,
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
            no_lock: false,
            write_member: false,
            writeback_cache: None,
            no_open: None,
            direct_io: DirectIo::Never,
            keys: Vec::new(),
            journal_path: None,
            remount: false,
            cache_given: false,
            said_rw: false,
            mkdir: None,
            subdir: None,
            notes: Vec::new(),
        }
    }
}

impl MountConfig {
    /// Whether the kernel checks modes, owners and ACLs.
    pub fn checks_permissions(&self) -> bool {
        self.default_permissions.unwrap_or(!self.fakeroot)
    }

    /// Everything that a remount cannot change, as text to compare. It excludes read-only, and the flags that the
    /// kernel itself applies, which `root` may change.
    pub fn fixed(&self, root: bool) -> String {
        let mut fixed = self.clone();
        // The clock is not an option, and differs between configurations.
        fixed.fs.clock = Clock::virtual_at(0);
        (fixed.said_rw, fixed.mkdir) = (false, None);
        fixed.notes.clear();
        // An option that is not given has its default.
        let fs = &mut fixed.fs;
        fs.commit_interval_s.get_or_insert(COMMIT_INTERVAL_S);
        for (option, default) in [
            (&mut fs.acls, true),
            (&mut fs.user_xattrs, true),
            (&mut fs.group_of_directory, false),
            (&mut fs.count_overhead, false),
            (&mut fs.discard, false),
        ] {
            option.get_or_insert(default);
        }
        (fixed.remount, fixed.fs.read_only, fixed.fuse.read_only) = (false, false, false);
        if root {
            let fuse = &mut fixed.fuse;
            (fuse.nosuid, fuse.nodev, fuse.noexec, fuse.nosymfollow) = (false, false, false, false);
        }
        // Not all fields can be compared, but the text shows all that options set.
        format!("{fixed:?}")
    }

    /// Reads the keys. Only the process that serves may: the words may name pipes.
    pub fn read_keys(&mut self) -> Result<(), String> {
        let keys = self.keys.iter().map(|word| Keys::read(word.into())).collect::<Result<Vec<_>, _>>();
        self.fs.keys = Keys::together(&keys.map_err(|e| format!("mount option 'fscrypt_key': {e}"))?);
        Ok(())
    }

    /// Parses the values of all `-o`; the later one wins. `sloppy`: unknown and refused words are ignored.
    pub fn parse(lists: &[String], sloppy: bool) -> Result<MountConfig, String> {
        let mut config = MountConfig::default();
        for option in lists.iter().flat_map(|list| list.split(',')).filter(|o| !o.is_empty()) {
            config.take(option, sloppy)?;
        }
        if config.offset.is_some() && config.partition.is_some() {
            return Err("mount options 'offset' and 'partition' exclude each other".into());
        }
        if config.direct_io != DirectIo::Never && config.writeback_cache == Some(true) {
            return Err("mount options 'direct_io' and 'writeback_cache' exclude each other".into());
        }
        if matches!(config.direct_io, DirectIo::From(_)) && config.no_open == Some(true) {
            return Err("mount option 'direct_io=SIZE' decides when a file is opened: leave 'no_open' out".into());
        }
        // The kernel mounts such an image for writing only if there is nothing to replay. But a user who does not give
        // `rw` wants to examine a damaged image.
        if config.fs.no_recovery && !config.said_rw {
            config.fs.read_only = true;
        }
        // Read-only even if mount(8) passes `rw` on.
        config.fs.read_only |= config.fs.rescue;
        config.fuse.read_only = config.fs.read_only;
        Ok(config)
    }

    /// Applies one word and its value.
    fn take(&mut self, option: &str, sloppy: bool) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let Some(word) = word::find(name) else {
            if sloppy {
                return Ok(());
            }
            let meant = word::nearest(name).map_or_else(
                || "'extant help mount' lists them".to_owned(),
                |known| format!("did you mean '{known}'?"),
            );
            return Err(format!("unknown mount option '{}'; {meant}", shown(option.as_bytes())));
        };
        if sloppy && matches!(word.fate, Fate::Refused) {
            self.note(&format!("{option}: left out: {}", word.text));
            return Ok(());
        }
        self.apply(word, name, value).map_err(|e| format!("mount option '{}': {e}", shown(option.as_bytes())))
    }

    fn apply(&mut self, word: &Word, name: &str, value: Option<&str>) -> Result<(), String> {
        if matches!(word.fate, Fate::Refused) {
            return Err(format!("not supported: {}", word.text));
        }
        word.check_form(value)?;
        match word.fate {
            Fate::Engines => self.engine_word(name, value),
            Fate::Policy => {
                let chosen = self.fs.set_policy(name, value.unwrap_or_default());
                chosen.map_or(Ok(()), |chosen| chosen.map_err(|e| e.to_string()))
            }
            Fate::Sets(set) => set(self, value.unwrap_or_default()),
            Fate::Kernel(set) => {
                set(self);
                Ok(())
            }
            Fate::Ignored | Fate::Refused => Ok(()),
        }
    }

    fn engine_word(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let set = self.fs.set_word(name, value).or_else(|| self.fs.set_own_word(name, value));
        set.map_or(Ok(()), |set| set.map_err(|e| e.to_string()))
    }

    fn note(&mut self, text: &str) {
        self.notes.push(shown(text.as_bytes()));
    }

    fn say_read_only(&mut self, read_only: bool) -> Result<(), String> {
        (self.fs.read_only, self.said_rw) = (read_only, !read_only);
        Ok(())
    }

    fn relative_atime(&mut self) -> Result<(), String> {
        self.fs.atime = Atime::Relative;
        (self.fuse.noatime, self.fuse.strictatime) = (false, false);
        Ok(())
    }

    fn dir_atime(&mut self, moves: bool) -> Result<(), String> {
        self.fs.dir_atime = moves;
        self.fuse.nodiratime = !moves;
        Ok(())
    }
}

/// The note for `errors=panic`.
const PANIC: &str = "errors=panic: a server does not halt the machine: the mount turns read-only instead";

/// Notes about the mount options in a superblock, which the engine applies: those whose effect differs from the
/// kernel's, or that have none. `errors`: the superblock decides how to react to an error.
pub fn notes_on(sb: &SuperBlock, errors: bool) -> Vec<String> {
    let text = sb.mount_options();
    let mut words: Vec<&str> = sb.default_mount_opts().words().collect();
    words.extend(text.split(',').filter(|option| !option.is_empty()));
    let mut config = MountConfig::default();
    if errors && sb.error_behaviour() == ErrorBehaviour::Panic {
        config.note(PANIC);
    }
    for option in words {
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        match word::find(name) {
            Some(word) if word.may_be_in_superblock() => {
                // The engine reports a bad value of its own options.
                if let Err(e) = config.take(option, true)
                    && !matches!(word.fate, Fate::Engines)
                {
                    config.note(&e);
                }
            }
            _ => config.note(&format!("{option}: left out: it has no place in a superblock")),
        }
    }
    config.notes.iter().map(|note| format!("in the superblock's mount options, {note}")).collect()
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
