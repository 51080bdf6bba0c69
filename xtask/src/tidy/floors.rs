//! Floors: a crate depends only on crates of strictly lower floors.
//!
//! Main types: [`Package`]; the table [`FLOORS`], which ARCHITECTURE.md explains.
//!
//! Development dependencies are not restricted, because they reach no user. The development crates (testkit, xtask) may
//! use all crates, and other crates may depend on them only for tests.
//!
//! # Locking
//! None.

use std::path::Path;

use serde_json::Value;

use super::Finding;

/// A package of the workspace and the workspace packages that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    pub name: String,
    /// The manifest's path, relative to the repository's root.
    pub manifest: String,
    pub manifest_text: String,
    /// Normal and build dependencies on packages of the workspace.
    pub needs: Vec<String>,
    /// All dependencies.
    pub dependencies: Vec<Dependency>,
}

/// A dependency of a package, under the name that its sources use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    pub name: String,
    /// Whether only tests use it.
    pub dev: bool,
}

/// For crates on no floor, used only in development.
const DEVELOPMENT: u32 = u32::MAX;

const FLOORS: &[(&str, u32)] = &[
    ("extant-base", 0),
    ("extant-ondisk", 1),
    ("extant-block", 1),
    ("extant-mballoc", 2),
    ("extant-cache", 2),
    ("extant-recovery", 2),
    ("extant-es", 3),
    ("extant-image", 3),
    ("extant-journal", 3),
    ("extant-fs", 4),
    ("extant-check", 4),
    ("extant-build", 4),
    ("extant-repair", 5),
    ("extant-transfer", 5),
    ("extant-fuse", 5),
    ("extant-lab", 6),
    ("extant", 6),
    ("extant-cli", 7),
    ("extant-capi", 7),
    ("extant-python", 7),
    ("extant-oracle", DEVELOPMENT),
    ("extant-testkit", DEVELOPMENT),
    ("xtask", DEVELOPMENT),
];

/// The crates with a list of permitted dependencies. `check` shares only bytes and replay with the engine that it
/// checks, and `repair` with the engine that uses its result. `image` opens images before any engine has examined them.
/// The tests of all crates above `block` use `oracle`.
const ONLY: &[(&str, &[&str])] = &[
    ("extant-check", &["extant-base", "extant-ondisk", "extant-block", "extant-recovery"]),
    ("extant-image", &["extant-base", "extant-ondisk", "extant-block", "extant-recovery"]),
    ("extant-repair", &["extant-base", "extant-ondisk", "extant-block", "extant-recovery", "extant-check"]),
    ("extant-oracle", &["extant-base", "extant-block"]),
];

fn floor(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(n, _)| *n == name).map(|(_, f)| *f)
}

/// The packages in the output of `cargo metadata --no-deps`.
pub fn packages(metadata: &Value, root: &Path) -> Result<Vec<Package>, String> {
    let list = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let ours: Vec<&str> = list.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut packages = Vec::new();
    for p in list {
        let path = p["manifest_path"].as_str().unwrap_or_default();
        let manifest = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path)).display().to_string();
        let all = p["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let dependencies = all.iter().filter_map(|d| {
            let name = d["rename"].as_str().or(d["name"].as_str())?;
            Some(Dependency { name: name.to_owned(), dev: d["kind"] == "dev" })
        });
        let needs = all.iter().filter(|d| d["kind"] != "dev").filter_map(|d| d["name"].as_str());
        packages.push(Package {
            name: p["name"].as_str().unwrap_or_default().to_owned(),
            manifest,
            manifest_text: std::fs::read_to_string(path).unwrap_or_default(),
            needs: needs.filter(|n| ours.contains(n)).map(str::to_owned).collect(),
            dependencies: dependencies.collect(),
        });
    }
    Ok(packages)
}

/// The line of the manifest that names `dependency`.
pub fn line_of(package: &Package, dependency: &str) -> usize {
    package.manifest_text.lines().position(|l| l.trim_start().starts_with(dependency)).map_or(0, |i| i + 1)
}

/// Dependencies on the same or a higher floor, and packages without a floor.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for p in packages {
        let Some(own) = floor(&p.name) else {
            findings.push(Finding::new(&p.manifest, 0, format!("{} has no floor: give it one in xtask", p.name)));
            continue;
        };
        for need in &p.needs {
            let line = line_of(p, need);
            let mut say = |message: String| findings.push(Finding::new(&p.manifest, line, message));
            match floor(need) {
                Some(DEVELOPMENT) if own != DEVELOPMENT => {
                    say(format!("{} needs {need}, which is for development only", p.name));
                }
                Some(other) if own != DEVELOPMENT && other >= own => {
                    say(format!("{} (floor {own}) needs {need} (floor {other}): only lower floors", p.name));
                }
                _ => {}
            }
            if ONLY.iter().any(|(name, allowed)| *name == p.name && !allowed.contains(&need.as_str())) {
                say(format!("{} must not know {need}", p.name));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, needs: &[&str]) -> Package {
        Package {
            name: name.into(),
            manifest: "crates/x/Cargo.toml".into(),
            manifest_text: format!(
                "[package]\n\n[dependencies]\n{}",
                needs.iter().map(|n| format!("{n}.workspace = true\n")).collect::<String>()
            ),
            needs: needs.iter().map(|n| (*n).to_owned()).collect(),
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn down_is_allowed() {
        let all = [
            package("extant-journal", &["extant-base", "extant-cache", "extant-recovery"]),
            package("extant-testkit", &["extant-cli", "extant-fs"]),
        ];
        assert_eq!(check(&all), []);
    }

    #[test]
    fn up_and_sideways_are_found() {
        let found = check(&[package("extant-cache", &["extant-base", "extant-journal", "extant-recovery"])]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].line, found[1].line), (5, 6));
        assert!(found[0].message.contains("extant-journal (floor 3)"));
    }

    #[test]
    fn development_crates_and_strangers_are_found() {
        assert!(check(&[package("extant-fs", &["extant-testkit"])])[0].message.contains("development"));
        assert!(check(&[package("extant-odd", &[])])[0].message.contains("no floor"));
        assert!(check(&[package("extant-check", &["extant-cache"])])[0].message.contains("must not know"));
    }

    #[test]
    fn metadata_is_understood() {
        let json = serde_json::json!({ "packages": [
            { "name": "a", "manifest_path": "/r/a/Cargo.toml", "dependencies": [
                { "name": "b", "kind": null }, { "name": "c", "kind": "dev" }, { "name": "libc", "kind": null } ] },
            { "name": "b", "manifest_path": "/r/b/Cargo.toml", "dependencies": [] },
            { "name": "c", "manifest_path": "/r/c/Cargo.toml", "dependencies": [] },
        ]});
        let found = packages(&json, Path::new("/r")).unwrap();
        assert_eq!(found[0].manifest, "a/Cargo.toml");
        assert_eq!(found[0].needs, ["b"]);
        let all: Vec<_> = found[0].dependencies.iter().map(|d| (d.name.as_str(), d.dev)).collect();
        assert_eq!(all, [("b", false), ("c", true), ("libc", false)]);
    }
}
