//! Checks the rules of the repository.
//!
//! Main types: [`Finding`] (one broken rule, with its place), [`SourceFile`]. There is one module per kind of rule:
//! - [`floors`]: which crate may depend on which;
//! - [`layers`]: which module may name what;
//! - [`cycles`]: files that import or call each other, and types with too many methods;
//! - [`dependencies`]: none is unused;
//! - [`source`]: single files;
//! - [`prose`]: subjects of sentences;
//! - [`policies`]: folders of policies, and how they are chosen;
//! - [`locking`]: the lock classes, compared with docs/locking.md;
//! - [`oracles`]: the code that runs e2fsprogs;
//! - [`docs`]: every document is linked;
//! - [`facts`]: statements of documents about the code.
//!
//! Every rule is a function from text to findings, so that its test can give it a violation. [`slow`] is not a rule: it
//! lists tests that take long.
//!
//! What it does not do: it does not repeat the checks of rustfmt and clippy.
//!
//! # Locking
//! None.

mod cycles;
mod dependencies;
mod docs;
mod facts;
mod floors;
mod layers;
mod locking;
mod oracles;
mod policies;
mod prose;
pub mod slow;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A broken rule. `line` counts from 1; 0 means the whole file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl Finding {
    pub fn new(file: impl Into<String>, line: usize, message: impl Into<String>) -> Finding {
        Finding { file: file.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            n => write!(f, "{}:{n}: {}", self.file, self.message),
        }
    }
}

/// A text file of the repository. `path` is relative to its root, with `/`.
#[derive(Clone, Debug)]
pub struct SourceFile {
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether only tests run this code.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs")
    }

    /// The lines of code, with numbers from 1, without those that are only comments.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
    }
}

/// Directories without handwritten files.
const SKIPPED: &[&str] = &["target", "corpus", "artifacts", "node_modules"];
const TEXT: &[&str] = &["rs", "toml", "md", "py", "sh", "yml", "yaml", "svg", "c", "h"];

fn collect(root: &Path, dir: &Path, files: &mut Vec<SourceFile>) -> std::io::Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) && (!name.starts_with('.') || name == ".ci") {
                collect(root, &path, files)?;
            }
        } else if path.extension().is_some_and(|e| TEXT.iter().any(|t| e == *t)) || name == "Makefile" || name == "run"
        {
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            files.push(SourceFile { path: relative, text: std::fs::read_to_string(&path)? });
        }
    }
    Ok(())
}

/// All text files below `root`.
fn files_of(root: &Path) -> std::io::Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    Ok(files)
}

/// The workspace's metadata from `cargo metadata`, without its dependencies.
fn metadata(root: &Path) -> Result<serde_json::Value, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr)));
    }
    serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// Applies every rule to the repository at `root`.
fn check(root: &Path) -> Result<(usize, Vec<Finding>), String> {
    let files = files_of(root).map_err(|e| e.to_string())?;
    let packages = floors::packages(&metadata(root)?, root)?;
    let mut findings = floors::check(&packages);
    findings.extend(dependencies::check(&packages, &files));
    findings.extend(layers::check(&files));
    findings.extend(cycles::check(&files));
    findings.extend(docs::check(&files));
    findings.extend(facts::check(&files));
    for file in &files {
        findings.extend(source::check(file));
        findings.extend(prose::check(file));
        findings.extend(oracles::check(file));
    }
    findings.extend(policies::check(&files));
    findings.extend(locking::check(&files));
    findings.extend(header(&files));
    findings.sort();
    findings.dedup();
    Ok((files.len(), findings))
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Reports a C header that differs from the one generated from its sources.
fn header(files: &[SourceFile]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|f| f.path == path).map(|f| f.text.clone());
    let problem = match crate::header::text(text) {
        Ok(made) if text(crate::header::PATH).is_some_and(|stored| stored == made) => return Vec::new(),
        Ok(_) => "differs from crates/capi/src: run `cargo xtask header`".to_owned(),
        Err(e) => e,
    };
    vec![Finding::new(crate::header::PATH, 0, problem)]
}

/// Checks the repository and prints every finding.
pub fn main() -> ExitCode {
    match check(root()) {
        Err(e) => {
            eprintln!("tidy: {e}");
            ExitCode::from(2)
        }
        Ok((files, findings)) if findings.is_empty() => {
            println!("tidy: {files} files, no findings");
            ExitCode::SUCCESS
        }
        Ok((files, findings)) => {
            for finding in &findings {
                println!("{finding}");
            }
            println!("tidy: {files} files, {} findings", findings.len());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_prints_its_place() {
        assert_eq!(Finding::new("a.rs", 3, "wrong").to_string(), "a.rs:3: wrong");
        assert_eq!(Finding::new("a.rs", 0, "wrong").to_string(), "a.rs: wrong");
    }

    #[test]
    fn comments_are_no_code() {
        let file = SourceFile { path: "a.rs".into(), text: "//! doc\nlet x;\n  // no\n".into() };
        assert_eq!(file.code_lines().collect::<Vec<_>>(), [(2, "let x;")]);
    }
}
