//! The README's sessions work when they are pasted into a shell.
//!
//! A session is a block of shell commands after the mark `<!-- session -->`. All of them run one after the other in
//! one directory, as a newcomer runs them.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{CommandResult, Dir, extant_path, fsck_clean, run};

const MARK: &str = "<!-- session -->\n```sh\n";

/// The directory in which the commands run.
const PLACE: &str = "c++ (new)";

fn sessions() -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(readme).expect("README.md");
    let blocks = text.split(MARK).skip(1);
    blocks.map(|rest| rest.split_once("```").expect("the end of the block").0.to_owned()).collect()
}

/// Pastes `commands` into a shell in `dir`, where `extant` is the program in `bin`.
fn paste(dir: &Dir, bin: &Path, commands: &str) -> CommandResult {
    // Contains characters with a special meaning in a shell or a pattern.
    let (here, bin) = (dir.path(PLACE), bin.display());
    std::fs::create_dir_all(&here).expect("directory");
    let script = format!("cd '{}' && PATH={bin}:$PATH:/usr/sbin:/sbin\n{commands}", here.display());
    run("bash", &["-c", &script])
}

fn can_mount() -> bool {
    let there = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !there {
        eprintln!("skipped: /dev/fuse cannot be opened");
    }
    there
}

#[test]
fn readme_sessions_run_as_printed() {
    if !can_mount() {
        return;
    }
    let dir = Dir::new();
    let all = sessions();
    assert_eq!(all.len(), 2, "{all:?}");
    let bin = extant_path().parent().expect("a directory");
    for (commands, words) in all.iter().zip([
        &["State:       needs recovery", "Nothing is lost.", "no damage"][..],
        &["letter.txt", "lost+found", "Nothing is lost."],
    ]) {
        let ran = paste(&dir, bin, commands);
        let said = String::from_utf8_lossy(&ran.out).into_owned();
        assert_eq!(ran.code, Some(0), "{said}{}", ran.err);
        for word in words {
            assert!(said.contains(word), "'{word}' is not in: {said}{}", ran.err);
        }
        assert!(!ran.err.contains("extant: ") && !ran.err.contains("not found"), "{}", ran.err);
    }
    assert_eq!(
        std::fs::read_to_string(dir.path(PLACE).join("out/letter.txt")).expect("copied out"),
        "Nothing is lost.\n"
    );
    fsck_clean(&dir.text(&format!("{PLACE}/disk.img")));
}

#[test]
fn failed_mount_lets_no_file_into_the_bare_directory() {
    let (dir, bin) = (Dir::new(), Dir::new());
    let program = bin.path("extant");
    std::fs::write(&program, "#!/bin/sh\n[ \"$1\" != mount ]\n").expect("program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("mode");
    paste(&dir, &bin.path(""), &sessions()[0]);
    assert_eq!(std::fs::read_dir(dir.path(PLACE).join("mnt")).expect("the directory").count(), 0);
}

#[test]
fn readme_names_the_rust_version_of_the_workspace() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(top.join(name)).expect(name);
    let manifest = read("Cargo.toml");
    let version =
        manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a version");
    assert!(read("README.md").contains(&format!("Rust ({version} or newer)")), "{version}");
}
