//! `make install`: the installed files, and that each program runs.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Dir, extant_path, run, tool};

#[test]
fn everything_is_installed_and_runs() {
    let dir = Dir::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (make, dest) = (top.to_str().expect("UTF-8"), dir.text("dest"));
    let binary = format!("EXTANT={}", extant_path().display());
    let to = [format!("DESTDIR={dest}"), "PREFIX=/usr".to_owned(), binary];
    let with = |target| ["-s", "-C", make, target, &to[0], &to[1], &to[2]].map(str::to_owned);
    let call = |target| {
        let args = with(target);
        tool("make", &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // Other directories there do not change.
    let private = format!("{dest}/usr/share/private");
    std::fs::create_dir_all(&private).expect("directory");
    std::fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).expect("mode");
    let mode = |path: &str| std::fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    let quoted: Vec<String> = with("install").iter().map(|arg| format!("'{arg}'")).collect();
    tool("sh", &["-c", &format!("umask 077; make {}", quoted.join(" "))]);
    assert_eq!(mode(&private), 0o700);
    std::fs::remove_dir(&private).expect("removed");
    for (name, bits) in [
        ("bin/extant", 0o755),
        ("share/man/man1", 0o755),
        ("share/man/man1/extant-mount.1", 0o644),
        ("share/man/man8/umount.fuse.extant.8", 0o644),
        ("share/zsh", 0o755),
        ("share/zsh/site-functions/_extant", 0o644),
    ] {
        assert_eq!(mode(&format!("{dest}/usr/{name}")), bits, "{name}");
    }
    let installed = format!("{dest}/usr/bin/extant");
    assert!(run(&installed, &["--version"]).ok().starts_with("extant "));
    for name in ["mount.fuse.extant", "mount.fuseblk.extant", "umount.fuse.extant", "umount.fuseblk.extant"] {
        let link = format!("{dest}/sbin/{name}");
        assert_eq!(std::fs::read_link(&link).expect("link"), Path::new("/usr/bin/extant"));
        // Runs the program under its final name.
        let here = dir.text(name);
        std::os::unix::fs::symlink(&installed, &here).expect("link");
        assert!(run(&here, &["--help"]).ok().contains("Usage: "), "{name}");
        let page = format!("{dest}/usr/share/man/man8/{name}.8");
        assert!(std::fs::read_to_string(&page).expect("page").contains("mount.fuse.extant"), "{page}");
    }
    let page = std::fs::read_to_string(format!("{dest}/usr/share/man/man1/extant-mount.1")).expect("page");
    assert!(page.contains("allow_other") && page.contains("grpid"), "{page}");
    let page = std::fs::read_to_string(format!("{dest}/usr/share/man/man8/mount.fuse.extant.8")).expect("page");
    assert!(page.contains("grpid") && page.contains("FILES") && !page.contains("EXTRA"), "{page}");
    let completion = std::fs::read_to_string(format!("{dest}/usr/share/bash-completion/completions/extant"));
    assert!(completion.expect("completion").contains("errors=remount-ro"));
    tool("bash", &["-n", &format!("{dest}/usr/share/bash-completion/completions/extant")]);
    for name in ["zsh/site-functions/_extant", "fish/vendor_completions.d/extant.fish"] {
        assert!(std::fs::read_to_string(format!("{dest}/usr/share/{name}")).expect("completion").contains("unmount"));
    }
    call("uninstall");
    let left = tool("find", &[&dest, "!", "-type", "d"]);
    assert_eq!(left, "");
}

/// A directory that is the whole PATH of a script: the usual programs, and others with the given scripts.
fn programs(dir: &Dir, others: &[(&str, &str)]) -> String {
    let bin = dir.path("bin");
    let _ = std::fs::remove_dir_all(&bin);
    std::fs::create_dir(&bin).expect("directory");
    for name in [
        "sh", "cat", "cut", "dirname", "env", "grep", "head", "id", "mktemp", "rm", "sed", "sort", "tail", "tr",
        "chmod",
    ] {
        let at = tool("sh", &["-c", &format!("command -v {name}")]);
        std::os::unix::fs::symlink(at.trim(), bin.join(name)).expect("link");
    }
    for (name, does) in others {
        std::fs::write(bin.join(name), format!("#!/bin/sh\n{does}\n")).expect("program");
        std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).expect("mode");
    }
    bin.to_str().expect("UTF-8").to_owned()
}

/// `make deps` on a machine with an old toolchain or none; `answer` is the reply to its question.
#[test]
fn deps_install_a_toolchain_by_the_first_way_that_there_is() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-deps.sh");
    let dir = Dir::new();
    let (home, done) = (dir.text("home"), dir.text("done"));
    let tools = ["mke2fs", "e2fsck", "debugfs", "fusermount3", "fuse2fs", "fio", "fuser", "setfattr", "setfacl", "cc"];
    let more = [
        "python3",
        "tar",
        "losetup",
        "findmnt",
        "sfdisk",
        "fakeroot",
        "strace",
        "qemu-nbd",
        "nbdkit",
        "pkg-config",
        "valgrind",
    ];
    let gets_cargo = |how: &str| {
        // Installs both programs, whichever method is used.
        let bin = dir.text("bin");
        format!(
            "echo {how} \"$@\" >> {done}\ncd {bin}\n[ -e rustup ] || printf '#!/bin/sh\\n' > rustup\n\
             printf '#!/bin/sh\\necho cargo 1.99.0\\n' > cargo\nchmod 755 cargo rustup"
        )
    };
    let policy = |package: &str, version: &str| format!("[ $2 != {package} ] || echo '  Candidate: {version}'");
    let attempt = |answer: &str, others: &[(&str, String)]| {
        let _ = std::fs::remove_file(&done);
        let there = tools.iter().chain(&more).map(|name| (*name, ""));
        let all: Vec<(&str, &str)> = there.chain(others.iter().map(|(name, does)| (*name, &does[..]))).collect();
        let (path, home) = (format!("PATH={}", programs(&dir, &all)), format!("HOME={home}"));
        let answer = format!("EXTANT_RUST={answer}");
        let ran = run("/usr/bin/env", &["-i", &path, &home, &answer, "sh", script.to_str().expect("UTF-8")]);
        (ran, std::fs::read_to_string(&done).unwrap_or_default())
    };
    let apt = || ("apt-get", gets_cargo("apt-get"));
    let curl =
        || ("curl", format!("while [ $1 != -o ]; do shift; done\ncat > $2 <<'E'\n{}\nE", gets_cargo("installer")));

    let (ran, _) = attempt("", &[("cargo", "echo cargo 1.99.0".into())]);
    assert_eq!((ran.code, &ran.err[..]), (Some(0), ""));
    for (cargo, found) in [(None, "no Rust toolchain"), (Some("echo cargo 1.63.0"), "the Rust toolchain is 1.63.0")] {
        let old: Vec<(&str, String)> = cargo.into_iter().map(|does| ("cargo", does.to_owned())).collect();
        for answer in ["", "no"] {
            let others = [&old[..], &[apt(), curl()]].concat();
            let (ran, did) = attempt(answer, &others);
            ran.fails(1, &[found, "or newer is needed", "EXTANT_RUST=yes", "https://rustup.rs"]);
            assert_eq!(did, "", "nothing is installed without a yes");
        }
    }
    for (way, others, wanted) in [
        ("rustup is there", vec![("rustup", gets_cargo("rustup")), apt(), curl()], "rustup toolchain install stable"),
        (
            "the distribution has rustup",
            vec![("apt-cache", policy("rustup", "1.27")), apt(), curl()],
            "install -y --no-install-recommends rustup\n",
        ),
        ("its rustc is new enough", vec![("apt-cache", policy("rustc", "1.90.0")), apt(), curl()], "rustc cargo"),
        ("its rustc is too old", vec![("apt-cache", policy("rustc", "1.63.0")), apt(), curl()], "installer -y"),
        ("no apt", vec![curl()], "installer -y"),
    ] {
        let (ran, did) = attempt("yes", &others);
        assert!(did.contains(wanted), "{way}: {did}{}", ran.err);
        assert_eq!(ran.code, Some(0), "{way}: {}", ran.err);
    }
}

/// `make build` must also work for users who may not install packages.
#[test]
fn build_needs_a_compiler_and_no_other_package() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install-deps.sh");
    let dir = Dir::new();
    let asked = dir.text("asked");
    let apt = format!("echo \"$@\" >> {asked}");
    let bin = programs(&dir, &[("cargo", "echo cargo 1.99.0"), ("cc", ""), ("apt-get", &apt)]);
    let deps =
        |what: &str| run("/usr/bin/env", &["-i", &format!("PATH={bin}"), "sh", script.to_str().expect("UTF-8"), what]);
    assert_eq!((deps("--build").code, std::fs::exists(&asked).expect("asked")), (Some(0), false));
    let cc = format!("{bin}/cc");
    std::fs::remove_file(cc).expect("removed");
    deps("--build").fails(1, &["could not install: build-essential"]);
    assert!(std::fs::read_to_string(&asked).expect("asked").contains("build-essential"));
}

/// root seldom has a toolchain: `make install` installs and strips the existing binary, and builds nothing.
#[test]
fn install_needs_no_toolchain() {
    let dir = Dir::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (top, dest) = (top.to_str().expect("UTF-8"), format!("DESTDIR={}", dir.text("dest")));
    let install = |binary: &str| {
        let args = ["-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "make", "-s", "-C", top, "install", &dest, binary];
        run("/usr/bin/env", &args)
    };
    let missing = dir.text("not-built");
    install(&format!("EXTANT={missing}")).fails(2, &[&missing, "run 'make build' first, without sudo"]);
    install(&format!("EXTANT={}", extant_path().display())).ok();
    let installed = dir.text("dest/usr/local/bin/extant");
    assert!(run(&installed, &["--version"]).ok().starts_with("extant "));
    let sections = tool("readelf", &["-S", &installed]);
    assert!(!sections.contains(".debug_line") && !sections.contains(".symtab"), "{sections}");
}
