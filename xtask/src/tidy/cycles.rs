//! Import cycles inside a crate: files that can only be understood together.
//!
//! Main types: [`Crate`] (the modules of one crate, and which names they re-export). There is an arrow from a file to
//! each file of the same crate whose items its code names by path (including `use`). Re-exports are no arrows: a module
//! that re-exports its children does not depend on them. Test files and items under `#[cfg(test)]` do not count.
//!
//! What it does not do: it does not resolve methods, or names made by macros. Dependencies between crates are checked
//! by [`super::floors`].
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

/// The maximum number of files that may form a cycle.
const MOST: usize = 6;

/// The path of a module in its crate: `["ops", "sync"]`; empty for the root.
type Module = Vec<String>;

/// The modules of one crate.
#[derive(Default)]
struct Crate {
    /// The file of each module.
    files: BTreeMap<Module, String>,
    /// Names that a module imports or re-exports, and the paths that they refer to.
    imports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

/// The crate's directory, and the module, of a file in `crates/*/src` or `xtask/src`.
fn module_of(path: &str) -> Option<(String, Module)> {
    let (dir, inside) = path.split_once("/src/")?;
    let mut module: Module = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    Some((dir.to_owned(), module))
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && a.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// Resolves `path`, as used in `module`, from the crate's root. `None` if it refers to another crate or to something
/// local.
fn absolute(module: &Module, path: &[String]) -> Option<Module> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        _ => return None,
    };
    let rest = path.iter().skip_while(|segment| match segment.as_str() {
        "super" => base.pop().is_some(),
        "crate" | "self" => true,
        _ => false,
    });
    let rest: Vec<String> = rest.cloned().collect();
    base.extend(rest);
    Some(base)
}

/// All paths of a `use` tree, each with the name that it introduces; a glob has the name `*`.
fn leaves(tree: &syn::UseTree, prefix: &mut Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            leaves(&path.tree, prefix, found);
            prefix.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|item| leaves(item, prefix, found)),
        syn::UseTree::Glob(_) => found.push((prefix.clone(), "*".into())),
        syn::UseTree::Name(name) if name.ident == "self" => {
            found.push((prefix.clone(), prefix.last().cloned().unwrap_or_default()));
        }
        syn::UseTree::Name(name) => {
            let whole = prefix.iter().cloned().chain([name.ident.to_string()]).collect();
            found.push((whole, name.ident.to_string()));
        }
        syn::UseTree::Rename(rename) => {
            let whole = prefix.iter().cloned().chain([rename.ident.to_string()]).collect();
            found.push((whole, rename.rename.to_string()));
        }
    }
}

/// Collects the names that the code of one file uses.
struct Names {
    module: Module,
    /// Paths from the crate's root that the code uses.
    used: BTreeSet<Module>,
    imports: BTreeMap<String, Vec<String>>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Use(i) => &i.attrs,
            syn::Item::Struct(i) => &i.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test_only(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut found = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut found);
        let exported = !matches!(item.vis, syn::Visibility::Inherited);
        for (path, name) in found {
            let from_root = absolute(&self.module, &path);
            if !exported {
                self.used.extend(from_root.clone());
            }
            self.imports.insert(name, from_root.unwrap_or(path));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.used.extend(absolute(&self.module, &segments));
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

impl Crate {
    /// The file that defines the item at `path`, as far as paths and re-exports show.
    fn file_of(&self, path: &Module, depth: usize) -> Option<&String> {
        let known = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
        let module = path[..known].to_vec();
        let Some(name) = path.get(known).filter(|_| depth < 8) else { return self.files.get(&module) };
        let imported = self.imports.get(&module).and_then(|names| names.get(name));
        let Some(target) = imported.filter(|target| **target != path[..=known]) else { return self.files.get(&module) };
        // Without `self::`, a path begins with a child of the module or with another crate.
        let child: Module = module.iter().chain(target).cloned().collect();
        let begins =
            |whole: &Module, n: usize| (1..=whole.len()).any(|m| m >= n && self.files.contains_key(&whole[..m]));
        let whole = match () {
            () if begins(&child, module.len() + 1) => child,
            () if begins(target, 1) => target.clone(),
            () => return None,
        };
        self.file_of(&whole.iter().chain(&path[known + 1..]).cloned().collect(), depth + 1)
    }
}

/// The strongly connected components with more than one file (Tarjan's algorithm), each sorted.
fn knots(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    #[derive(Default)]
    struct Walk<'a> {
        index: BTreeMap<&'a str, (usize, usize)>,
        stack: Vec<&'a str>,
        knots: Vec<Vec<String>>,
    }
    fn visit<'a>(walk: &mut Walk<'a>, arrows: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> usize {
        let at = walk.index.len();
        walk.index.insert(from, (at, at));
        walk.stack.push(from);
        let mut low = at;
        for to in arrows.get(from).into_iter().flatten() {
            match walk.index.get(to.as_str()) {
                None => low = low.min(visit(walk, arrows, to)),
                Some((to_at, _)) if walk.stack.contains(&to.as_str()) => low = low.min(*to_at),
                Some(_) => {}
            }
        }
        if low == at {
            let begin = walk.stack.iter().position(|name| *name == from).unwrap_or(0);
            let mut knot: Vec<String> = walk.stack.drain(begin..).map(str::to_owned).collect();
            knot.sort();
            if knot.len() > 1 {
                walk.knots.push(knot);
            }
        }
        low
    }
    let mut walk = Walk::default();
    for from in arrows.keys() {
        if !walk.index.contains_key(from.as_str()) {
            visit(&mut walk, arrows, from);
        }
    }
    walk.knots.sort_by_key(|knot| std::cmp::Reverse(knot.len()));
    walk.knots
}

/// Whether an arrow counts: the enum of a mechanism's policies must name all of them to construct one.
fn is_arrow(from: &str, to: &str) -> bool {
    let is_own_policy = from.strip_suffix("policy/mod.rs").is_some_and(|dir| to.starts_with(&format!("{dir}policy/")));
    from != to && !is_own_policy
}

/// The arrows between the files of each crate.
fn arrows_of(files: &[SourceFile]) -> Result<BTreeMap<String, BTreeMap<String, BTreeSet<String>>>, Finding> {
    let mut crates: BTreeMap<String, (Crate, Vec<(String, Names)>)> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let Some((dir, module)) = module_of(&file.path) else { continue };
        let parsed =
            syn::parse_file(&file.text).map_err(|e| Finding::new(&file.path, 0, format!("cannot be parsed: {e}")))?;
        let mut names = Names { module: module.clone(), used: BTreeSet::new(), imports: BTreeMap::new() };
        names.visit_file(&parsed);
        let (krate, all) = crates.entry(dir).or_default();
        krate.files.insert(module.clone(), file.path.clone());
        krate.imports.insert(module, std::mem::take(&mut names.imports));
        all.push((file.path.clone(), names));
    }
    let mut arrows: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (dir, (krate, all)) in &crates {
        let of_crate = arrows.entry(dir.clone()).or_default();
        for (file, names) in all {
            let to = names.used.iter().filter_map(|path| krate.file_of(path, 0));
            of_crate.insert(file.clone(), to.filter(|to| is_arrow(file, to)).cloned().collect());
        }
    }
    Ok(arrows)
}

/// Cycles of more than [`MOST`] files.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let arrows = match arrows_of(files) {
        Ok(arrows) => arrows,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    for of_crate in arrows.values() {
        for knot in knots(of_crate) {
            if knot.len() > MOST {
                let message =
                    format!("an import cycle of {} files, at most {MOST} are allowed: {}", knot.len(), knot.join(", "));
                findings.push(Finding::new(&knot[0], 0, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.into() }
    }

    /// A cycle of `n` modules, each of which uses the next.
    fn ring(n: usize) -> Vec<SourceFile> {
        let file = |i: usize| {
            let text = format!("use crate::m{}::T;\n\npub struct T;\n", (i + 1) % n);
            source(&format!("crates/x/src/m{i}.rs"), &text)
        };
        (0..n).map(file).collect()
    }

    #[test]
    fn a_cycle_of_more_files_than_allowed_is_found_and_named() {
        assert!(check(&ring(MOST)).is_empty());
        let findings = check(&ring(MOST + 1));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("crates/x/src/m6.rs"), "{}", findings[0]);
    }

    #[test]
    fn a_path_in_code_is_an_arrow_and_one_under_cfg_test_is_none() {
        let one = source("crates/x/src/a.rs", "pub fn f() { crate::b::g(); }\n");
        let back = source("crates/x/src/b.rs", "pub fn g() { super::a::f(); }\n");
        let tests = source("crates/x/src/b.rs", "pub fn g() {}\n#[cfg(test)]\nmod tests { use crate::a::f; }\n");
        let knots_of = |files: &[SourceFile]| knots(&arrows_of(files).expect("parsed")["crates/x"]).len();
        assert_eq!(knots_of(&[one.clone(), back]), 1);
        assert_eq!(knots_of(&[one, tests]), 0);
    }

    /// A name that the root re-exports leads to the file that defines it, and re-exporting it is no arrow.
    #[test]
    fn a_reexported_name_leads_to_its_definition() {
        let files = [
            source("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::T;\n"),
            source("crates/x/src/a.rs", "use crate::b::U;\npub struct T;\n"),
            source("crates/x/src/b.rs", "use crate::T;\npub struct U;\n"),
        ];
        let arrows = arrows_of(&files).expect("parsed");
        let knots = knots(&arrows["crates/x"]);
        assert_eq!(knots, [["crates/x/src/a.rs".to_owned(), "crates/x/src/b.rs".to_owned()]]);
    }
}
