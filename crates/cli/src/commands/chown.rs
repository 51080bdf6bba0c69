//! `extant chown`: changes owners.
//!
//! # Locking
//! None.

use extant_fs::SetAttr;
use nix::unistd::{Group, User};

use super::verb::{Images, Report, each};
use crate::args::ChownArgs;
use crate::failure::{Failure, Result};
use crate::image;

/// Whom to give files to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

pub fn run(args: &ChownArgs, images: &mut Images) -> Result<()> {
    let owner = parse(&args.owner)?;
    let mut report = Report::default();
    for path in &args.paths {
        let file = images.file(path)?;
        images.stop.check()?;
        let mut failures = Report::default();
        // As chown(1): a link is followed, unless everything below is meant.
        let follow = !args.no_dereference && !args.recursive;
        let changed = each(&file, follow, args.recursive, &images.stop, &mut failures, |path, inode, _| {
            let set = SetAttr { uid: owner.uid, gid: owner.gid, ..SetAttr::default() };
            file.fs.setattr(inode, &set).map(drop).map_err(|e| image::at(&file.fs, path, e))
        });
        report.note(changed.and(failures.end()))?;
    }
    report.end()
}

/// `USER`, `USER:GROUP`, `:GROUP`, `USER:` (the user's own group); numbers, or names of this host.
fn parse(text: &str) -> Result<Owner> {
    let wrong = |what: &str| Failure::usage(format!("'{text}' is no owner (USER:GROUP): {what}"));
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let known = match user.parse::<u32>() {
        _ if user.is_empty() => None,
        Ok(uid) => Some((uid, None)),
        Err(_) => {
            let found = User::from_name(user).ok().flatten().ok_or_else(|| wrong("this host knows no such user"))?;
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
    let owner = Owner { uid: known.map(|(uid, _)| uid), gid };
    if owner == (Owner { uid: None, gid: None }) { Err(wrong("nobody is named")) } else { Ok(owner) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let owner = |uid, gid| Owner { uid, gid };
        assert_eq!(parse("0").unwrap(), owner(Some(0), None));
        assert_eq!(parse("1000:100").unwrap(), owner(Some(1000), Some(100)));
        assert_eq!(parse(":7").unwrap(), owner(None, Some(7)));
        assert_eq!(parse("root").unwrap(), owner(Some(0), None));
        assert_eq!(parse("root:").unwrap(), owner(Some(0), Some(0)));
        assert_eq!(parse("root:root").unwrap(), owner(Some(0), Some(0)));
        for bad in ["", ":", "0:", "no-such-user-here", "0:no-such-group", "-1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
