//! Every document in `docs` is linked from an index: README.md, or docs/README.md.
//!
//! # Locking
//! None.

use super::{Finding, SourceFile};

/// Documents that no index links to.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let text = |path: &str| files.iter().find(|f| f.path == path).map_or("", |f| f.text.as_str());
    let (top, inner) = (text("README.md"), text("docs/README.md"));
    let linked = |name: &str| top.contains(&format!("](docs/{name}")) || inner.contains(&format!("]({name}"));
    let all = files.iter().filter_map(|f| Some((f, f.path.strip_prefix("docs/")?)));
    all.filter(|(_, name)| name.ends_with(".md") && *name != "README.md" && !linked(name))
        .map(|(f, _)| Finding::new(&f.path, 0, "no link leads here from README.md or docs/README.md"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_without_a_link_is_found() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = [
            file("README.md", "see [locks](docs/locking.md#order) and `docs/c.md`"),
            file("docs/README.md", "[a](a.md)"),
            file("docs/a.md", ""),
            file("docs/c.md", ""),
            file("docs/locking.md", ""),
            file("docs/stack.svg", ""),
        ];
        let found: Vec<_> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["docs/c.md: no link leads here from README.md or docs/README.md"]);
    }
}
