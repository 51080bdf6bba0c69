//! Lists of features, as -O takes them.
//!
//! Main type: [`Features`].
//!
//! # Locking
//! None.

use extant_ondisk::features::{Compat, Incompat, RoCompat};

use crate::{Error, Result};

/// The features that mke2fs and Extant can create.
const COMPAT: Compat = Compat::HAS_JOURNAL
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::EXT_ATTR)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::EXTENTS)
    .union(Incompat::META_BG)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::MMP)
    .union(Incompat::BIT64)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::JOURNAL_DEV);
const RO_COMPAT: RoCompat = RoCompat::LARGE_FILE
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::SPARSE_SUPER)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::QUOTA)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// Other names for features.
const ALIASES: [(&str, &str); 5] = [
    ("extents", "extent"),
    ("uninit_groups", "uninit_bg"),
    ("fname_encoding", "casefold"),
    ("lazy_bg", "uninit_bg"),
    ("has_snapshot", "snapshot"),
];

/// The names of all features that can be created, in the order of their bits: compat, incompat, ro_compat.
pub fn makeable() -> Vec<String> {
    [COMPAT.names(), INCOMPAT.names(), RO_COMPAT.names()].concat()
}

/// The three feature words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    pub compat: Compat,
    pub incompat: Incompat,
    pub ro_compat: RoCompat,
}

impl Features {
    /// Adds the features of a list, and removes those with `^`; `none` removes all.
    pub fn edit(&mut self, list: &str) -> Result<()> {
        for word in list.split([',', ' ', '\t']).filter(|word| !word.is_empty()) {
            if word.eq_ignore_ascii_case("none") || word.eq_ignore_ascii_case("clear") {
                *self = Features::default();
                continue;
            }
            let (name, on) = match word.strip_prefix(['^', '-']) {
                Some(name) => (name, false),
                None => (word.strip_prefix('+').unwrap_or(word), true),
            };
            let lower = name.to_ascii_lowercase();
            let name = ALIASES.iter().find(|(alias, _)| *alias == lower).map_or(lower.as_str(), |(_, name)| name);
            if let Some(bit) = Compat::by_name(name).filter(|bit| COMPAT.contains(*bit)) {
                self.compat.set(bit, on);
            } else if let Some(bit) = Incompat::by_name(name).filter(|bit| INCOMPAT.contains(*bit)) {
                self.incompat.set(bit, on);
            } else if let Some(bit) = RoCompat::by_name(name).filter(|bit| RO_COMPAT.contains(*bit)) {
                self.ro_compat.set(bit, on);
            } else {
                return Err(refuse(word));
            }
        }
        Ok(())
    }
}

fn refuse(word: &str) -> Error {
    let mut known = COMPAT.names();
    known.extend(INCOMPAT.names());
    known.extend(RO_COMPAT.names());
    known.sort_unstable();
    Error::Options(format!("feature {word}: it is not known, or cannot be made; known are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_add_and_take_away() {
        let mut features = Features::default();
        features.edit("has_journal,extents 64BIT,^extent,+quota").unwrap();
        assert_eq!(features.compat, Compat::HAS_JOURNAL);
        assert_eq!(features.incompat, Incompat::BIT64);
        assert_eq!(features.ro_compat, RoCompat::QUOTA);
        features.edit("none,filetype").unwrap();
        assert_eq!(features, Features { incompat: Incompat::FILETYPE, ..Features::default() });
        let error = features.edit("^no_such").unwrap_err().to_string();
        assert!(error.starts_with("feature ^no_such: ") && error.contains("64bit, bigalloc"), "{error}");
    }
}
