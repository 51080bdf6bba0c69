//! Advice for verbs of other programs, and for words that users try.
//!
//! Main function: [`advice`]. Without it, clap would propose the verb with the most similar spelling, which may be one
//! that deletes: `format` is close to `rm`.
//!
//! # Locking
//! None.

/// Words for the same intention, and the sentence that answers them.
const ADVICE: &[(&[&str], &str)] = &[
    (&["resize2fs", "grow", "shrink", "extend"], "'extant resize' makes a file system larger or smaller"),
    (&["tune2fs", "label", "e2label", "uuid", "set-label"], "'extant tune' changes labels, UUIDs, limits and features"),
    (
        &["lsdel", "recover", "unrm"],
        "'extant undelete' finds deleted files by the journal; 'extant find --rescue' finds lost ones",
    ),
    (&["repair", "e2fsck"], "'extant fsck' checks an image, and repairs it with -p or -y"),
    (&["format", "mke2fs", "create", "new", "build"], "'extant mkfs' makes a file system"),
    (&["rmdir", "del", "delete", "unlink"], "'extant rm' removes files and, with -r, directories"),
    (&["put", "write", "get", "copy", "extract", "rdump", "rsync"], "'extant cp' copies files in and out of an image"),
    (&["tar", "dump", "archive"], "'extant export' writes a tar archive of an image"),
    (&["umount"], "'extant unmount' ends a mount"),
    (&["chgrp"], "'extant chown :GROUP' changes the group"),
    (&["blkid", "dumpe2fs", "show"], "'extant info' shows what an image is"),
    (&["icheck", "ncheck"], "'extant find -block N' and '-inode N' print the names of what lies there"),
    (&["version"], "'extant --version' prints the version"),
];

/// Verbs that clap may propose: those that change and remove nothing.
const HARMLESS: &[&str] = &[
    "info",
    "fsck",
    "ls",
    "cat",
    "stat",
    "tree",
    "find",
    "du",
    "df",
    "export",
    "mount",
    "unmount",
    "help",
    "man",
    "completions",
    "lab",
    "freeze",
    "thaw",
    "mkdir",
    "touch",
    "xattr",
    "lsattr",
    "undelete",
    "image",
    "script",
    "cp",
];

/// The sentence for a verb that does not exist.
pub fn advice(verb: &str) -> Option<&'static str> {
    ADVICE.iter().find(|(words, _)| words.contains(&verb)).map(|(_, sentence)| *sentence)
}

/// Whether a verb may be proposed for another word.
pub fn may_be_proposed(verb: &str) -> bool {
    HARMLESS.contains(&verb)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn advice_is_for_verbs_that_do_not_exist_and_proposals_for_those_that_do() {
        let verbs: Vec<String> = Cli::command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        for word in ADVICE.iter().flat_map(|(words, _)| *words) {
            assert!(!verbs.contains(&(*word).to_owned()), "{word}");
        }
        for verb in HARMLESS {
            assert!(*verb == "help" || verbs.contains(&(*verb).to_owned()), "{verb}");
        }
        for verb in ["rm", "mv", "mkfs", "chmod", "chown"] {
            assert!(verbs.contains(&verb.to_owned()) && !may_be_proposed(verb), "{verb}");
        }
    }
}
