//! The flags that chattr(1) sets, with their names in `SCHILY.fflags`, which are those of bsdtar(1) on Linux.
//!
//! Main functions: [`names`], [`parse`].
//!
//! # Locking
//! None.

use extant_ondisk::inode::InodeFlags;

/// The flags and their names, of which the first is written.
const TABLE: [(InodeFlags, &[&str]); 13] = [
    (InodeFlags::APPEND, &["sappnd", "sappend"]),
    (InodeFlags::IMMUTABLE, &["schg", "schange", "simmutable"]),
    (InodeFlags::NODUMP, &["nodump"]),
    (InodeFlags::UNRM, &["undel"]),
    (InodeFlags::COMPR, &["compress"]),
    (InodeFlags::NOATIME, &["noatime"]),
    (InodeFlags::DIRSYNC, &["dirsync"]),
    (InodeFlags::JOURNAL_DATA, &["journal-data", "journal"]),
    (InodeFlags::SECRM, &["secdel", "securedeletion"]),
    (InodeFlags::SYNC, &["sync"]),
    (InodeFlags::NOTAIL, &["notail"]),
    (InodeFlags::TOPDIR, &["topdir"]),
    (InodeFlags::PROJINHERIT, &["projinherit"]),
];

/// The names of flags, separated by commas; `None` if none of them has a name.
pub fn names(flags: InodeFlags) -> Option<String> {
    let set = TABLE.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, names)| names[0]);
    Some(set.collect::<Vec<_>>().join(",")).filter(|names| !names.is_empty())
}

/// The flags in a list separated by commas. Calls `unknown` with each name of a flag that Linux does not have.
pub fn parse(list: &[u8], mut unknown: impl FnMut(&[u8])) -> InodeFlags {
    let mut flags = InodeFlags::empty();
    for name in list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty()) {
        match TABLE.iter().find(|(_, names)| names.iter().any(|known| known.as_bytes() == name)) {
            Some((flag, _)) => flags |= *flag,
            None => unknown(name),
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_the_same_flags() {
        let all = TABLE.iter().fold(InodeFlags::empty(), |all, (flag, _)| all | *flag);
        let list = names(all).expect("names");
        assert!(list.starts_with("sappnd,schg,nodump,undel"), "{list}");
        assert_eq!(parse(list.as_bytes(), |name| panic!("{}", name.escape_ascii())), all);
        assert_eq!((names(InodeFlags::EXTENTS), names(InodeFlags::empty())), (None, None));
        let mut unknown = Vec::new();
        let flags = parse(b" simmutable , uchg,,journal", |name| unknown.push(name.to_vec()));
        assert_eq!((flags, unknown), (InodeFlags::IMMUTABLE | InodeFlags::JOURNAL_DATA, vec![b"uchg".to_vec()]));
    }
}
