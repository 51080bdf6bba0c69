//! The owners of files in an image: named on the command line, or the default for new files.
//!
//! Main types: [`OwnerSpec`] (`USER:GROUP`), [`Owner`] (the rule for files that a command creates).
//!
//! What it does not do: it checks no permissions. A user who may write the image file may change everything in it.
//!
//! # Locking
//! None.

use extant_fs::{Cred, Error, Filesystem, InodeRef, NewNode};
use extant_transfer::Owners;
use nix::unistd::{Group, User};
use rustix::process::{getegid, geteuid};

use crate::failure::warn;

/// Warns if fakeroot(1) has no effect. fakeroot preloads a library in front of the C library, but a static binary
/// contains its own. Files copied from the host then have their real owners, modes and types.
pub fn warn_of_fakeroot() {
    if cfg!(target_feature = "crt-static") && std::env::var_os("FAKEROOTKEY").is_some() {
        warn("fakeroot has no effect on this statically linked extant: owners, modes and devices are the host's own");
    }
}

/// An owner, a group, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerSpec {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl OwnerSpec {
    /// `USER`, `USER:GROUP`, `:GROUP`, `USER:` (the user's own group); numbers, or names of this host.
    pub fn parse(text: &str) -> Result<OwnerSpec, String> {
        let wrong = |what: &str| format!("'{text}' is not an owner (USER:GROUP): {what}");
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let known = match user.parse::<u32>() {
            _ if user.is_empty() => None,
            Ok(uid) => Some((uid, None)),
            Err(_) => {
                let found =
                    User::from_name(user).ok().flatten().ok_or_else(|| wrong("this host knows no such user"))?;
                Some((found.uid.as_raw(), Some(found.gid.as_raw())))
            }
        };
        let gid = match group {
            None => None,
            Some("") => match known {
                Some((_, Some(gid))) => Some(gid),
                _ => return Err(wrong("no group is known for it")),
            },
            Some(group) => match group.parse() {
                Ok(gid) => Some(gid),
                Err(_) => {
                    let found = Group::from_name(group).ok().flatten();
                    Some(found.ok_or_else(|| wrong("this host knows no such group"))?.gid.as_raw())
                }
            },
        };
        let given = OwnerSpec { uid: known.map(|(uid, _)| uid), gid };
        if given == OwnerSpec::default() { Err(wrong("it names no user or group")) } else { Ok(given) }
    }

    /// This owner and group; a missing one is taken from `rest`.
    pub fn or(self, rest: OwnerSpec) -> OwnerSpec {
        OwnerSpec { uid: self.uid.or(rest.uid), gid: self.gid.or(rest.gid) }
    }
}

/// The owner of new files: the same as through a mount by the same user, unless the command line names one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    given: OwnerSpec,
}

impl Owner {
    /// The same rule, unless an inner command line names another owner.
    pub fn within(self, inner: Option<OwnerSpec>) -> Owner {
        Owner { given: inner.unwrap_or_default().or(self.given) }
    }

    /// The rule for new files with this `umask`.
    pub fn rule(&self, umask: u16) -> Owners {
        let cred = Cred { uid: geteuid().as_raw(), gid: getegid().as_raw(), umask };
        Owners { cred, of_directory: !geteuid().is_root(), uid: self.given.uid, gid: self.given.gid }
    }

    pub fn create(
        &self,
        fs: &Filesystem,
        dir: &InodeRef,
        name: &[u8],
        node: NewNode<'_>,
        umask: u16,
    ) -> Result<InodeRef, Error> {
        self.rule(umask).create(fs, dir, name, node)
    }

    /// The directory at `path`; creates missing directories.
    pub fn make_dirs(&self, fs: &Filesystem, path: &[u8], umask: u16) -> Result<InodeRef, Error> {
        let mut at = fs.root()?;
        for part in path.split(|b| *b == b'/').filter(|p| !p.is_empty()) {
            let next = match fs.walk_at(&at, part, true) {
                Err(Error::NotFound) => self.create(fs, &at, part, NewNode::directory(0o777), umask)?,
                other => other?,
            };
            at = if next.is_dir() { next } else { return Err(Error::NotDirectory) };
        }
        Ok(at)
    }
}

/// The umask, for the modes of new files.
pub fn umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.bits() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names() {
        let given = |uid, gid| Ok(OwnerSpec { uid, gid });
        assert_eq!(OwnerSpec::parse("0"), given(Some(0), None));
        assert_eq!(OwnerSpec::parse("1000:100"), given(Some(1000), Some(100)));
        assert_eq!(OwnerSpec::parse(":7"), given(None, Some(7)));
        assert_eq!(OwnerSpec::parse("root"), given(Some(0), None));
        assert_eq!(OwnerSpec::parse("root:"), given(Some(0), Some(0)));
        assert_eq!(OwnerSpec::parse("root:root"), given(Some(0), Some(0)));
        for bad in ["", ":", "0:", "no-such-user-here", "0:no-such-group", "-1"] {
            assert!(OwnerSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
