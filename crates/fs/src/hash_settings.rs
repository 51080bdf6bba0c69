//! The settings of the superblock that determine how names are hashed and compared.
//!
//! Main types: [`HashSettings`].
//!
//! What it does not do: compute hashes ([`extant_ondisk::htree::Hasher`] does).
//!
//! # Locking
//! None: the settings do not change during a mount.

use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::htree::{HashVersion, Hasher};
use extant_ondisk::superblock::SuperBlock;

/// The superblock's settings for directories.
#[derive(Clone, Debug)]
pub(crate) struct HashSettings {
    pub(crate) version: HashVersion,
    pub(crate) seed: [u32; 4],
    pub(crate) dir_index: bool,
    pub(crate) large_dir: bool,
    pub(crate) filetype: bool,
    pub(crate) has_csum: bool,
    /// Case-insensitive directories accept only UTF-8 names (`encoding_flags=strict`).
    pub(crate) strict: bool,
}

impl HashSettings {
    pub(crate) fn of(sb: &SuperBlock) -> HashSettings {
        HashSettings {
            version: HashVersion::from_disk(sb.default_hash_version(), sb.hash_unsigned())
                .unwrap_or(HashVersion::HalfMd4),
            seed: sb.hash_seed(),
            dir_index: sb.compat().contains(Compat::DIR_INDEX),
            large_dir: sb.incompat().contains(Incompat::LARGE_DIR),
            filetype: sb.incompat().contains(Incompat::FILETYPE),
            has_csum: sb.ro_compat().contains(RoCompat::METADATA_CSUM),
            strict: sb.strict_encoding(),
        }
    }

    /// The hash of a name, by which new directories are spread over the groups.
    pub(crate) fn of_name(&self, name: &[u8]) -> u32 {
        Hasher::new(self.version, self.seed).hash(name).hash
    }
}
