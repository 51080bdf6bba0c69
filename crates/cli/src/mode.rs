//! Modes in the syntax of chmod(1): octal, or symbolic (`u+rw,go-w`, `a=rX`, `+t`).
//!
//! # Locking
//! None.

use extant_ondisk::inode::FileType;

use crate::failure::{Failure, Result};

/// The permission bits after `text` is applied to `mode` (kind and permissions). `umask` applies if `text` names no
/// class of users.
pub fn apply(text: &str, mode: u16, umask: u16) -> Result<u16> {
    change(text, mode, umask).ok_or_else(|| Failure::usage(format!("'{text}' is not a mode (644, u+rw,go-w)")))
}

fn change(text: &str, mode: u16, umask: u16) -> Option<u16> {
    let is_dir = FileType::from_mode(mode) == Some(FileType::Directory);
    let mut bits = mode & 0o7777;
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let octal = u16::from_str_radix(text, 8).ok().filter(|octal| *octal <= 0o7777)?;
        // As in GNU chmod: a directory keeps set-ID bits that fewer than five digits do not mention.
        let kept = if is_dir && text.len() < 5 { bits & 0o6000 } else { 0 };
        return Some(octal | kept);
    }
    for clause in text.split(',') {
        let at = clause.find(['+', '-', '='])?;
        let (who, mut rest) = clause.split_at(at);
        let mut whom = 0;
        for c in who.chars() {
            whom |= match c {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        // Without a class: all classes, except for the bits in the umask.
        let (whom, cleared) = if who.is_empty() { (0o7777 & !umask, 0o7777) } else { (whom, whom) };
        while let Some(op) = rest.chars().next() {
            let tail = &rest[1..];
            let end = tail.find(['+', '-', '=']).unwrap_or(tail.len());
            let what = permissions(&tail[..end], bits, is_dir)? & whom;
            rest = &tail[end..];
            bits = match op {
                '+' => bits | what,
                '-' => bits & !what,
                '=' => {
                    let kept = if is_dir { 0o6000 } else { 0 };
                    bits & !(cleared & !kept) | what
                }
                _ => return None,
            };
        }
    }
    Some(bits)
}

/// The bits of permission letters, for all classes.
fn permissions(letters: &str, bits: u16, is_dir: bool) -> Option<u16> {
    let copied = |shift: u16| {
        let three = bits >> shift & 7;
        three << 6 | three << 3 | three
    };
    match letters {
        "u" => return Some(copied(6)),
        "g" => return Some(copied(3)),
        "o" => return Some(copied(0)),
        _ => {}
    }
    let mut what = 0;
    for c in letters.chars() {
        what |= match c {
            'r' => 0o444,
            'w' => 0o222,
            'x' => 0o111,
            'X' if is_dir || bits & 0o111 != 0 => 0o111,
            'X' => 0,
            's' => 0o6000,
            't' => 0o1000,
            _ => return None,
        };
    }
    Some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's chmod(1) gives the same result.
    #[test]
    fn modes_match_the_hosts_chmod() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("file");
        let sub = dir.path().join("dir");
        std::fs::create_dir(&sub).expect("directory");
        let modes = [
            "644",
            "0",
            "7777",
            "02755",
            "00755",
            "u+x",
            "a-w",
            "go=",
            "+x",
            "-w",
            "=r",
            "u=rwx,g=rx,o=",
            "g=u",
            "o=g-w",
            "a+X",
            "u+s,g+s",
            "+t",
            "a=rX",
            "u-rwx+r",
            "g+s-x",
            "a=",
            "o+t",
            "u=g,g=o",
        ];
        for (path, kind) in [(&file, 0o100_000), (&sub, 0o040_000)] {
            for start in [0o640, 0o755, 0o000, 0o6755, 0o1777] {
                for text in modes {
                    std::fs::set_permissions(path, PermissionsExt::from_mode(start)).expect("mode");
                    let script = format!("umask 022; chmod -- {text} {}", path.display());
                    // chmod warns, and fails, if the umask makes the result differ from what a user may expect.
                    let _ = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh");
                    let theirs = std::fs::metadata(path).expect("file").permissions().mode() & 0o7777;
                    let ours = apply(text, kind | start as u16, 0o022).expect(text);
                    assert_eq!(format!("{ours:o}"), format!("{theirs:o}"), "{text} of {start:o}, kind {kind:o}");
                }
            }
        }
        for bad in ["", "8", "77777", "u", "z+x", "u+q", "rwx", "u+r,"] {
            assert!(apply(bad, 0o100_644, 0).is_err(), "{bad}");
        }
    }
}
