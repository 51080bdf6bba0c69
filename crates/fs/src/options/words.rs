//! The mount options of ext4(5) that the engine supports, and those that the superblock contains.
//!
//! Main types: none. [`MountOptions::set_word`] parses an option that a superblock may contain,
//! [`MountOptions::set_own_word`] parses one of Extant's own, and [`MountOptions::with_defaults_of`] adds the
//! superblock's options (Linux: `ext4_set_def_opts` and `parse_apply_sb_mount_options`, fs/ext4/super.c).
//!
//! What it does not do: handle options that mean nothing to the engine. A superblock may contain those as well; to
//! report them, a program reads [`SuperBlock::default_mount_opts`] and [`SuperBlock::mount_options`].
//!
//! # Locking
//! None.

use std::fmt;

use extant_ondisk::features::RoCompat;
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::superblock::SuperBlock;

use super::{CACHE_BYTES_MIN, DIRTY_BYTES_MIN, MountOptions, OnError, QUEUE_DEPTH_MAX};

/// An invalid value of an option, and the valid ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// The invalid value. `None` if the value is missing, or if the option takes none.
    pub value: Option<String>,
    /// The values that the option takes.
    pub expected: &'static str,
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "'{value}' is not {}", self.expected),
            None => write!(f, "it takes {}", self.expected),
        }
    }
}

impl std::error::Error for BadValue {}

/// The kernel's limit would overflow its clock, and a day is more than any user needs.
const COMMIT_MAX_S: u32 = 86400;

impl MountOptions {
    /// Sets the mount option `word` of ext4(5). Returns `None` if the engine has no such option.
    pub fn set_word(&mut self, word: &str, value: Option<&str>) -> Option<Result<(), BadValue>> {
        self.try_set(word, value).transpose()
    }

    /// Sets one of Extant's own options, which no superblock contains: a size, a count or a policy. Returns `None` if
    /// the engine has no such option.
    pub fn set_own_word(&mut self, word: &str, value: Option<&str>) -> Option<Result<(), BadValue>> {
        Some(match word {
            "cache" | "cache_size" => {
                size(value, CACHE_BYTES_MIN, "a size of at least 8M").map(|bytes| self.cache_bytes = bytes)
            }
            "dirty" => {
                size(value, DIRTY_BYTES_MIN, "a size of at least 16K").map(|bytes| self.dirty_bytes = Some(bytes))
            }
            "mb_locality_groups" => {
                number(value, 1, 1024, "a number from 1 to 1024").map(|n| self.locality_groups = n as usize)
            }
            "fast_commit" => on_off(value).map(|on| self.fast_commits = on),
            "queue_depth" => {
                number(value, 1, QUEUE_DEPTH_MAX, "a number from 1 to 4096").map(|depth| self.queue_depth = depth)
            }
            _ => return None,
        })
    }

    /// Returns `Ok(None)` if the engine has no such option.
    fn try_set(&mut self, word: &str, value: Option<&str>) -> Result<Option<()>, BadValue> {
        let bare = || match value {
            None => Ok(()),
            Some(_) => Err(BadValue { value: None, expected: "no value" }),
        };
        match word {
            "grpid" | "bsdgroups" => bare().map(|()| self.group_of_directory = Some(true)),
            "nogrpid" | "sysvgroups" => bare().map(|()| self.group_of_directory = Some(false)),
            "minixdf" => bare().map(|()| self.count_overhead = Some(true)),
            "bsddf" => bare().map(|()| self.count_overhead = Some(false)),
            "acl" => bare().map(|()| self.acls = Some(true)),
            "noacl" => bare().map(|()| self.acls = Some(false)),
            "user_xattr" => bare().map(|()| self.user_xattrs = Some(true)),
            "nouser_xattr" => bare().map(|()| self.user_xattrs = Some(false)),
            "discard" => bare().map(|()| self.discard = Some(true)),
            "nodiscard" => bare().map(|()| self.discard = Some(false)),
            "quota" | "usrquota" => bare().map(|()| self.quota_limits[QuotaKind::User as usize] = true),
            "grpquota" => bare().map(|()| self.quota_limits[QuotaKind::Group as usize] = true),
            "prjquota" => bare().map(|()| self.quota_limits[QuotaKind::Project as usize] = true),
            "noquota" => bare().map(|()| (self.quota_limits, self.only_these_limits) = ([false; 3], true)),
            "resuid" => owner(value).map(|uid| self.resuid = Some(uid)),
            "resgid" => owner(value).map(|gid| self.resgid = Some(gid)),
            "commit" => seconds(value).map(|seconds| self.commit_interval_s = seconds),
            "errors" => on_error(value).map(|errors| self.errors = Some(errors)),
            _ => return Ok(None),
        }
        .map(Some)
    }

    /// These options, where the superblock's replace those that are `None`. If one option in the superblock's text has
    /// a bad value, the whole text is ignored, as in the kernel.
    pub(crate) fn with_defaults_of(self, sb: &SuperBlock, image: &str) -> MountOptions {
        let mut defaults = MountOptions::default();
        for word in sb.default_mount_opts().words() {
            let (word, value) = split(word);
            // The values have been checked. The engine ignores options that it does not have.
            let _ = defaults.set_word(word, value);
        }
        let text = sb.mount_options();
        let mut with_text = defaults.clone();
        let bad = text.split(',').find_map(|option| {
            let (word, value) = split(option);
            with_text.set_word(word, value)?.err().map(|e| (option, e))
        });
        match bad {
            None => defaults = with_text,
            Some((option, e)) => self.messages.say(format_args!(
                "{image}: the mount options in its superblock, '{text}', are ignored: '{option}': {e}; tune2fs -E \
                 mount_opts= sets others"
            )),
        }
        // An image whose superblock asks for limits that it cannot record is mounted all the same.
        let limits = sb.ro_compat().contains(RoCompat::QUOTA) && !self.only_these_limits;
        MountOptions {
            quota_limits: [0, 1, 2].map(|i| self.quota_limits[i] || limits && defaults.quota_limits[i]),
            commit_interval_s: self.commit_interval_s.or(defaults.commit_interval_s),
            resuid: self.resuid.or(defaults.resuid),
            resgid: self.resgid.or(defaults.resgid),
            errors: self.errors.or(defaults.errors),
            group_of_directory: self.group_of_directory.or(defaults.group_of_directory),
            count_overhead: self.count_overhead.or(defaults.count_overhead),
            acls: self.acls.or(defaults.acls),
            user_xattrs: self.user_xattrs.or(defaults.user_xattrs),
            discard: self.discard.or(defaults.discard),
            ..self
        }
    }
}

fn split(option: &str) -> (&str, Option<&str>) {
    option.split_once('=').map_or((option, None), |(word, value)| (word, Some(value)))
}

fn number(value: Option<&str>, min: u32, max: u32, expected: &'static str) -> Result<u32, BadValue> {
    let number = value.and_then(|value| value.parse().ok()).filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| BadValue { value: value.map(str::to_owned), expected })
}

fn on_off(value: Option<&str>) -> Result<bool, BadValue> {
    match value {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(BadValue { value: value.map(str::to_owned), expected: "on or off" }),
    }
}

fn size(value: Option<&str>, min: u64, expected: &'static str) -> Result<u64, BadValue> {
    let bytes = value.and_then(|value| extant_base::size::parse(value).ok()).filter(|bytes| *bytes >= min);
    bytes.ok_or_else(|| BadValue { value: value.map(str::to_owned), expected })
}

fn owner(value: Option<&str>) -> Result<u32, BadValue> {
    number(value, 0, u32::MAX - 1, "a number from 0 to 4294967294")
}

/// Parses a number of seconds; 0 means the default, as in the kernel.
fn seconds(value: Option<&str>) -> Result<Option<u32>, BadValue> {
    let seconds = number(value, 0, COMMIT_MAX_S, "a number of seconds from 0 to 86400")?;
    Ok(Some(if seconds == 0 { super::COMMIT_INTERVAL_S } else { seconds }))
}

fn on_error(value: Option<&str>) -> Result<OnError, BadValue> {
    match value {
        Some("continue") => Ok(OnError::Continue),
        // A process in user space cannot panic the machine, so both words refuse further changes.
        Some("remount-ro" | "panic") => Ok(OnError::RemountReadOnly),
        _ => Err(BadValue { value: value.map(str::to_owned), expected: "one of continue, remount-ro, panic" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_sets_its_field_and_a_bad_value_is_refused() {
        let mut o = MountOptions::default();
        for word in ["grpid", "minixdf", "noacl", "nouser_xattr", "discard"] {
            assert_eq!(o.set_word(word, None), Some(Ok(())), "{word}");
            assert!(matches!(o.set_word(word, Some("1")), Some(Err(_))), "{word}=1");
        }
        assert_eq!((o.group_of_directory, o.count_overhead, o.discard), (Some(true), Some(true), Some(true)));
        assert_eq!((o.acls, o.user_xattrs), (Some(false), Some(false)));
        assert_eq!(o.set_word("sysvgroups", None), Some(Ok(())));
        assert_eq!(o.group_of_directory, Some(false));
        assert_eq!(o.set_word("errors", Some("panic")), Some(Ok(())));
        assert_eq!(o.errors, Some(OnError::RemountReadOnly));
        for (word, value) in [("errors", Some("no")), ("errors", None), ("resuid", Some("-1")), ("commit", Some("x"))] {
            assert!(matches!(o.set_word(word, value), Some(Err(_))), "{word} {value:?}");
        }
        assert_eq!(o.set_word("stripe", Some("16")), None);
    }

    #[test]
    fn noquota_ends_the_limits_that_were_named_before_it() {
        let mut o = MountOptions::default();
        for (word, expected) in [
            ("usrquota", [true, false, false]),
            ("prjquota", [true, false, true]),
            ("noquota", [false; 3]),
            ("grpquota", [false, true, false]),
        ] {
            assert_eq!(o.set_word(word, None), Some(Ok(())), "{word}");
            assert_eq!(o.quota_limits, expected, "{word}");
        }
        assert!(o.only_these_limits, "nor do those of the superblock hold");
    }

    #[test]
    fn options_of_extant_have_limits_and_are_not_a_superblocks() {
        let mut o = MountOptions::default();
        let least = [
            ("cache", "8M", "7M"),
            ("dirty", "16K", "15K"),
            ("mb_locality_groups", "1", "0"),
            ("queue_depth", "4096", "4097"),
        ];
        for (word, valid, invalid) in least {
            assert_eq!(o.set_own_word(word, Some(valid)), Some(Ok(())), "{word}={valid}");
            for bad in [Some(invalid), Some("x"), None] {
                assert!(matches!(o.set_own_word(word, bad), Some(Err(_))), "{word} {bad:?}");
            }
            assert_eq!(o.set_word(word, Some(valid)), None, "{word} in a superblock");
        }
        assert_eq!((o.cache_bytes, o.dirty_bytes), (CACHE_BYTES_MIN, Some(DIRTY_BYTES_MIN)));
        assert_eq!((o.locality_groups, o.queue_depth), (1, 4096));
    }
}
