//! The numbers of the file system's own inodes.
//!
//! Main type: [`OwnInodes`].
//!
//! What it does not do: read those inodes.
//!
//! # Locking
//! None: the numbers do not change during a mount.

use extant_ondisk::InodeNr;
use extant_ondisk::superblock::{FIRST_INO_GOOD_OLD, SuperBlock};

/// Inodes of the file system's own structures, which no name may refer to (Linux: `is_special_ino`, fs/ext4/inode.c).
#[derive(Clone, Debug)]
pub(crate) struct OwnInodes {
    first_user: u32,
    /// The file system's own inodes above the reserved numbers.
    others: [u32; 4],
    /// Old ext3 conversions have a journal with a name and an ordinary number.
    pub journal: Option<InodeNr>,
}

impl OwnInodes {
    pub(crate) fn of(sb: &SuperBlock) -> OwnInodes {
        let raw = sb.raw();
        let quota = [&raw.s_usr_quota_inum, &raw.s_grp_quota_inum, &raw.s_prj_quota_inum].map(|n| n.get());
        let orphan_file = sb.orphan_file().map_or(0, |ino| ino.0);
        OwnInodes {
            first_user: sb.geometry().first_ino,
            others: [quota[0], quota[1], quota[2], orphan_file],
            journal: sb.journal_inode(),
        }
    }

    /// The numbers of all own inodes, including numbers without an inode.
    pub(crate) fn all(&self) -> impl Iterator<Item = InodeNr> {
        // The other reserved numbers have no meaning.
        let reserved = (1..FIRST_INO_GOOD_OLD).filter(|ino| *ino != InodeNr::ROOT.0);
        reserved.chain(self.others).filter(|ino| *ino > 0).map(InodeNr)
    }

    /// Never true for the root. Even if the superblock claims it for another purpose, the file system begins there
    /// (Linux: the root is read with `EXT4_IGET_SPECIAL`).
    pub(crate) fn contains(&self, ino: InodeNr) -> bool {
        ino != InodeNr::ROOT && (self.is_reserved(ino) || self.others.contains(&ino.0))
    }

    /// Whether the format reserves this number.
    pub(crate) fn is_reserved(&self, ino: InodeNr) -> bool {
        ino.0 < self.first_user && ino != InodeNr::ROOT
    }
}
