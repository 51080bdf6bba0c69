//! Stamps the commit, its date, whether files were modified, and the build profile into the binary. They appear in
//! `extant --version`, the manual pages and the lab's results.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").arg("--no-optional-locks").args(args).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn main() {
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let modified = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=EXTANT_COMMIT={commit}{}", if modified { "-modified" } else { "" });
    // Empty without a repository: man(1) then shows no date.
    let day = git(&["log", "-1", "--format=%cs"]).unwrap_or_default();
    println!("cargo::rustc-env=EXTANT_DATE={day}");
    println!("cargo::rustc-env=EXTANT_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
    // All inputs of the answer: the sources, and the files that a commit or a checkout writes. The index is not among
    // them, because even `git status` writes it.
    println!("cargo::rerun-if-changed=..");
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
