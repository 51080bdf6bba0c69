//! A crate uses each dependency of its manifest: the dependency's name occurs in its sources as a path (`name::`).
//!
//! The compiler's own lint (`unused_crate_dependencies`) checks each target separately, and so reports dependencies
//! that only another target of the package uses. This rule can only be deceived by a module or a variable with the same
//! name.
//!
//! # Locking
//! None.

use super::floors::{Package, line_of};
use super::{Finding, SourceFile};

/// Whether `file` names an item of the crate `name`.
fn names(file: &SourceFile, name: &str) -> bool {
    let path = format!("{}::", name.replace('-', "_"));
    let joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    file.code_lines().any(|(_, line)| line.match_indices(&path).any(|(at, _)| !joined(line[..at].chars().next_back())))
}

/// The entries of `[workspace.dependencies]`: line and name.
fn shared(manifest: &str) -> Vec<(usize, String)> {
    let lines = manifest.lines().enumerate().skip_while(|(_, l)| l.trim() != "[workspace.dependencies]").skip(1);
    let entries = lines.take_while(|(_, l)| !l.starts_with('['));
    entries.filter_map(|(i, l)| Some((i + 1, l.split_once([' ', '=', '.'])?.0.to_owned()))).collect()
}

/// Dependencies that no source of their package names, and shared dependencies that no package has.
pub fn check(packages: &[Package], files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for p in packages {
        let folder = p.manifest.strip_suffix("Cargo.toml").unwrap_or_default();
        let sources: Vec<&SourceFile> = files.iter().filter(|f| f.is_rust() && f.path.starts_with(folder)).collect();
        for d in &p.dependencies {
            // A dependency that only tests use is a development dependency; unit tests inside a module count as code
            // here.
            let within = |f: &&&SourceFile| d.dev || !f.path[folder.len()..].starts_with("tests/");
            if !sources.iter().filter(within).any(|f| names(f, &d.name)) {
                let message = format!("{} does not use {}", p.name, d.name);
                findings.push(Finding::new(&p.manifest, line_of(p, &d.name), message));
            }
        }
    }
    if let Some(root) = files.iter().find(|f| f.path == "Cargo.toml") {
        for (line, name) in shared(&root.text) {
            let used = packages.iter().any(|p| p.name == name || p.dependencies.iter().any(|d| d.name == name));
            if !used {
                findings.push(Finding::new(&root.path, line, format!("no package depends on {name}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::floors::Dependency;
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn unused_dependencies_are_found() {
        let dependency = |name: &str, dev| Dependency { name: name.into(), dev };
        let package = Package {
            name: "extant-a".into(),
            manifest: "crates/a/Cargo.toml".into(),
            manifest_text: "[dependencies]\nserde.workspace = true\nbit-flags.workspace = true\n".into(),
            needs: Vec::new(),
            dependencies: vec![dependency("serde", false), dependency("bit-flags", false), dependency("temp", true)],
        };
        let mut files = vec![
            file("crates/a/src/lib.rs", "use serde::Serialize;\nbit_flags::make!();\n"),
            file("crates/a/tests/x.rs", "temp::dir();\n"),
            file("Cargo.toml", "[workspace.dependencies]\nserde = \"1\"\nuuid = \"1\"\n\n[profile.dev]\nx = 1\n"),
        ];
        let found = |files: &[SourceFile]| {
            check(std::slice::from_ref(&package), files).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(&files), ["Cargo.toml:3: no package depends on uuid"]);
        files[0].text = "use serde_json::Value;\n// bit_flags::make\nmy_serde::x();\n".into();
        files.pop();
        let expected = [
            "crates/a/Cargo.toml:2: extant-a does not use serde",
            "crates/a/Cargo.toml:3: extant-a does not use bit-flags",
        ];
        assert_eq!(found(&files), expected);
        files[0].text = "serde::x(); bit_flags::y();".into();
        files[1].text = String::new();
        assert_eq!(found(&files), ["crates/a/Cargo.toml: extant-a does not use temp"]);
    }
}
