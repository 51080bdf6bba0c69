//! What `make install` puts where, and that each of it runs.

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
    // What else is there is nobody's business.
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
        // Under that name, as it will be once it is where it belongs.
        let here = dir.text(name);
        std::os::unix::fs::symlink(&installed, &here).expect("link");
        assert!(run(&here, &["--help"]).ok().contains("Usage: "), "{name}");
        let page = format!("{dest}/usr/share/man/man8/{name}.8");
        assert!(std::fs::read_to_string(&page).expect("page").contains("mount.fuse.extant"), "{page}");
    }
    let page = std::fs::read_to_string(format!("{dest}/usr/share/man/man1/extant-mount.1")).expect("page");
    assert!(page.contains("allow_other"), "{page}");
    tool("bash", &["-n", &format!("{dest}/usr/share/bash-completion/completions/extant")]);
    for name in ["zsh/site-functions/_extant", "fish/vendor_completions.d/extant.fish"] {
        assert!(std::fs::read_to_string(format!("{dest}/usr/share/{name}")).expect("completion").contains("unmount"));
    }
    call("uninstall");
    let left = tool("find", &[&dest, "!", "-type", "d"]);
    assert_eq!(left, "");
}
