//! Texts that a command's definition does not contain: exit statuses, destinations of messages, files, environment,
//! other pages.
//!
//! # Locking
//! None.

use clap::Command;

/// A heading and a text.
pub type Row = (&'static str, &'static str);

/// For a command whose help has no exit status.
pub const EXIT_STATUS: &str = "0: done. 1: usage. 8: the image or the system said no. 130, 143: ended by SIGINT or SIGTERM. \
                               141: nobody reads the output.";

/// The pages about mounts.
const MOUNTS: [&str; 3] = ["extant-mount", "extant-unmount", "mount.fuse.extant"];

/// Whether the page lists the words of `-o`.
pub fn has_mount_options(name: &str) -> bool {
    matches!(name, "extant-mount" | "mount.fuse.extant")
}

/// The destinations of a mount's messages ([`crate::server::log`]).
pub fn diagnostics(name: &str) -> &'static [Row] {
    if !MOUNTS.contains(&name) {
        return &[];
    }
    &[
        (
            "",
            "Until the mount can be used, messages go to the standard error. After that the server is in the background:",
        ),
        (
            "syslog",
            "Where there is /dev/log, it says what no call returns (damage that it met, why it turned read-only) to the \
             system's log, as 'extant', facility daemon: journalctl -t extant, or grep extant /var/log/syslog.",
        ),
        ("MAJOR:MINOR.log", "Elsewhere it writes to this file in the run folder; see FILES."),
        ("", "extant mount -v says which. With --foreground all messages go to the standard error."),
    ]
}

/// Files that a command reads or writes besides images ([`crate::server::status`]).
pub fn files(name: &str) -> &'static [Row] {
    if !MOUNTS.contains(&name) {
        return &[];
    }
    &[
        (
            "/run/extant, $XDG_RUNTIME_DIR/extant, /run/user/UID/extant, /tmp/extant-UID",
            "The run folder: the first that the server can make and that is the user's own; the first of all is for root. For \
             each mount it has a file named after the mount's device, which says with what options it is served, and in the \
             end what it came to.",
        ),
        (
            "RUN FOLDER/MAJOR:MINOR.log, RUN FOLDER/MAJOR:MINOR.log.1",
            "Messages of the mount with this device number where there is no system log, each with its time (UTC), the \
             server's process and the image. Past 1 MiB the first becomes the second.",
        ),
        ("/etc/fstab", "Lines of type fuse.extant; root's suid and dev are taken from there."),
        (
            "/sbin/mount.fuse.extant, /sbin/umount.fuse.extant",
            "What mount(8) and umount(8) call; with the second, umount(8) returns when everything is in the image.",
        ),
    ]
}

/// Variables that a command reads.
pub fn environment(name: &str) -> &'static [Row] {
    const RUNTIME: Row = ("XDG_RUNTIME_DIR", "Where the run folder of a user other than root is.");
    const TEMPORARY: Row =
        ("TMPDIR", "Where 'extant script --atomic' stores its changes until they are committed (/tmp).");
    const COLOR: Row = ("NO_COLOR", "If it is set, help has no colors.");
    const DATE: Row = (
        "SOURCE_DATE_EPOCH",
        "The newest time that is stored, in seconds since 1970; random numbers begin at it unless --seed is given.",
    );
    const SPOOL: Row =
        ("TMPDIR", "Where files of compressed archives and of pipes are stored until they are in the image (/tmp).");
    const MADE: Row = (
        "SOURCE_DATE_EPOCH",
        "The time of the file system and the newest of its files, in seconds since 1970; UUID and hash seed follow from it \
         unless -U or -E hash_seed says otherwise.",
    );
    match name {
        "extant" => const { &[RUNTIME, TEMPORARY, DATE, COLOR] },
        "extant-mkfs" => const { &[SPOOL, MADE] },
        "extant-script" => const { &[TEMPORARY, DATE] },
        "extant-cp" | "extant-mkdir" | "extant-ln" | "extant-mknod" | "extant-touch" | "extant-mv" | "extant-rm"
        | "extant-chmod" | "extant-chown" | "extant-chattr" | "extant-xattr" => const { &[DATE] },
        "extant-mount" | "extant-unmount" | "mount.fuse.extant" => const { &[RUNTIME] },
        _ => &[],
    }
}

/// Other pages: the parent and sibling commands, and the programs that the command replaces.
pub fn see_also(name: &str, command: &Command) -> Vec<String> {
    let mut pages = Vec::new();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages.push(format!("{}(1)", super::page::name_of(below)));
    }
    if name.starts_with("extant-lab-") {
        pages.push("extant-lab(1)".to_owned());
    }
    if name.starts_with("extant-xattr-") {
        pages.push("extant-xattr(1)".to_owned());
    }
    if name != "extant" {
        pages.push("extant(1)".to_owned());
    }
    let others: &[&str] = match name {
        "extant" => &["ext4(5)", "e2fsck(8)", "mke2fs(8)", "mount.fuse.extant(8)"],
        "extant-mount" => &["extant-unmount(1)", "mount.fuse.extant(8)", "ext4(5)", "mount(8)", "tune2fs(8)"],
        "mount.fuse.extant" => {
            &["extant-mount(1)", "extant-unmount(1)", "ext4(5)", "fstab(5)", "mount(8)", "umount(8)"]
        }
        "extant-unmount" => &["extant-mount(1)", "e2fsck(8)", "umount(8)"],
        "extant-freeze" | "extant-thaw" => &["extant-mount(1)", "fsfreeze(8)"],
        "extant-info" => &["dumpe2fs(8)", "tune2fs(8)"],
        "extant-fsck" => &["e2fsck(8)", "fsck(8)"],
        "extant-resize" => &["extant-mkfs(1)", "extant-fsck(1)", "resize2fs(8)"],
        "extant-tune" => &["extant-mkfs(1)", "extant-fsck(1)", "tune2fs(8)", "e2label(8)"],
        "extant-trim" => &["fstrim(8)"],
        "extant-undelete" => &["extant-find(1)", "ext4magic(8)", "photorec(8)"],
        "extant-image" => &["e2image(8)", "qemu-img(1)"],
        "extant-xattr" => &["getfattr(1)", "setfattr(1)"],
        "extant-script" => &["debugfs(8)"],
        "extant-export" => &["tar(1)", "skopeo(1)", "umoci(1)"],
        "extant-mkfs" => &["mke2fs(8)", "tar(1)"],
        "extant-tree" | "extant-completions" | "extant-man" => &[],
        name => return with_namesake(name, pages),
    };
    pages.extend(others.iter().map(|page| (*page).to_owned()));
    pages
}

/// The verbs have the names of programs of the first section.
fn with_namesake(name: &str, mut pages: Vec<String>) -> Vec<String> {
    let verb = name.strip_prefix("extant-").filter(|verb| !verb.contains('-') && *verb != "lab");
    pages.extend(verb.map(|verb| format!("{verb}(1)")));
    pages
}
