//! The table of name prefixes: `user.x` is stored as (1, "x").

/// The values of `e_name_index` (Linux: `EXT4_XATTR_INDEX_*`).
pub mod index {
    /// `user.`: for any owner.
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, the whole name: the ACL.
    pub const POSIX_ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, the whole name: the ACL that new files in a directory inherit.
    pub const POSIX_ACL_DEFAULT: u8 = 3;
    /// `trusted.`: for the administrator.
    pub const TRUSTED: u8 = 4;
    /// For Lustre; preserved, not shown.
    pub const LUSTRE: u8 = 5;
    /// `security.`: for labels and capabilities.
    pub const SECURITY: u8 = 6;
    /// Only `system.data`: the end of an inline file. It must never be stored outside the inode.
    pub const SYSTEM: u8 = 7;
    /// `system.richacl`, which Linux never had; preserved, not shown.
    pub const RICHACL: u8 = 8;
    /// The context of fscrypt; preserved, not shown.
    pub const ENCRYPTION: u8 = 9;
    /// `gnu.`, for the Hurd; preserved, not shown.
    pub const HURD: u8 = 10;
}

/// One row: the index, its prefix, and whether the prefix is the whole name.
struct Row {
    index: u8,
    prefix: &'static [u8],
    whole: bool,
    /// Whether the system calls can access it. The others are preserved on disk, and only inspection tools show them.
    visible: bool,
}

const fn row(index: u8, prefix: &'static [u8], whole: bool, visible: bool) -> Row {
    Row { index, prefix, whole, visible }
}

/// A longer prefix comes before its own beginning.
static TABLE: [Row; 9] = [
    row(index::USER, b"user.", false, true),
    row(index::POSIX_ACL_ACCESS, b"system.posix_acl_access", true, true),
    row(index::POSIX_ACL_DEFAULT, b"system.posix_acl_default", true, true),
    row(index::TRUSTED, b"trusted.", false, true),
    row(index::SECURITY, b"security.", false, true),
    row(index::RICHACL, b"system.richacl", true, false),
    row(index::SYSTEM, b"system.", false, false),
    row(index::HURD, b"gnu.", false, false),
    row(index::LUSTRE, b"lustre.", false, false),
];

/// A name as it is stored: an index for the prefix and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// The prefix, as a number of [`index`].
    pub index: u8,
    /// The name after the prefix, up to 255 bytes; empty if the prefix is the whole name.
    pub suffix: &'a [u8],
}

impl<'a> Name<'a> {
    /// Splits a full name as the system calls pass it. `None` for a prefix that ext4 does not have, an empty rest, or a
    /// NUL in the name (`EOPNOTSUPP`/`EINVAL` for a caller).
    pub fn parse(full: &'a [u8]) -> Option<Name<'a>> {
        Name::split(full).filter(|(_, visible)| *visible).map(|(name, _)| name)
    }

    /// The same as [`Name::parse`], but also for prefixes that only tools may see (`system.data`, `gnu.`, …).
    pub fn parse_any(full: &'a [u8]) -> Option<Name<'a>> {
        Name::split(full).map(|(name, _)| name)
    }

    fn split(full: &'a [u8]) -> Option<(Name<'a>, bool)> {
        if full.contains(&0) {
            return None;
        }
        TABLE.iter().find_map(|row| {
            let suffix = full.strip_prefix(row.prefix)?;
            (suffix.is_empty() == row.whole).then_some((Name { index: row.index, suffix }, row.visible))
        })
    }

    /// The full name; `None` for an index without a known prefix.
    pub fn full(&self) -> Option<Vec<u8>> {
        let row = TABLE.iter().find(|row| row.index == self.index)?;
        Some([row.prefix, self.suffix].concat())
    }

    /// Whether the system calls list this attribute (those of `system.data`, encryption and unknown indexes do not).
    pub fn is_visible(&self) -> bool {
        TABLE.iter().any(|row| row.index == self.index && row.visible && row.whole == self.suffix.is_empty())
    }

    /// The order of entries in a block (Linux: `xattr_find_entry`).
    pub fn block_order(&self) -> (u8, usize, &'a [u8]) {
        (self.index, self.suffix.len(), self.suffix)
    }
}
