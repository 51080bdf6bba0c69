//! Import cycles inside a crate: files that can only be understood together.
//!
//! Main types: [`Crate`] (the modules of one crate, and which names they re-export). There is an arrow from a file to
//! each file of the same crate whose items its code names by path (including `use`). Re-exports are no arrows: a module
//! that re-exports its children does not depend on them. Test files and items under `#[cfg(test)]` do not count.
//!
//! Cycles are counted a second time with calls of methods: a type whose methods stand in many files ties those files
//! together, although none imports another. The type of a receiver is taken from declarations: `self`, a parameter, or
//! a field whose name means one type in the whole crate. [`WITH_CALLS`] lets no such knot grow.
//! [`METHODS`] lets the types with the most methods get no more: what hangs on them knows everything, and a new
//! method belongs to the part that owns its data.
//!
//! What it does not do: infer types, or see names made by macros. Dependencies between crates are checked by
//! [`super::floors`].
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

/// The maximum number of files that may form a cycle.
const MOST: usize = 6;

/// The same with calls of methods, for crates whose knots were once larger and must not grow again. When a knot becomes
/// smaller, so does its number here.
const WITH_CALLS: [(&str, usize); 3] = [("crates/fs", 5), ("crates/mballoc", 5), ("crates/testkit", 4)];

/// The maximum number of inherent methods of a type. When it loses some, so does its number here.
const METHODS: [(&str, &str, usize); 3] =
    [("crates/fs", "Filesystem", 85), ("crates/fs", "Volume", 91), ("crates/fs", "Maps", 33)];

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
    /// The type whose methods are being read.
    this: Option<String>,
    /// Parameters of the function that is being read, and their types.
    parameters: BTreeMap<String, String>,
    /// Inherent methods by type.
    methods: BTreeSet<(String, String)>,
    /// Fields and their types.
    fields: BTreeSet<(String, String)>,
    /// Called methods, each with its receiver.
    calls: BTreeSet<(Receiver, String)>,
    /// Types that dereference to others.
    derefs: BTreeMap<String, String>,
}

/// The receiver of a call, as far as declarations show its type.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Receiver {
    Of(String),
    Field(String),
}

/// The name of a type without references and the pointers that lend it.
fn bare(ty: &syn::Type) -> Option<String> {
    match ty {
        syn::Type::Reference(reference) => bare(&reference.elem),
        syn::Type::Path(path) => {
            let last = path.path.segments.last()?;
            let inner = match &last.arguments {
                syn::PathArguments::AngleBracketed(all) => all.args.iter().find_map(|argument| match argument {
                    syn::GenericArgument::Type(ty) => Some(ty),
                    _ => None,
                }),
                _ => None,
            };
            match inner {
                Some(inner) if ["Arc", "Rc", "Box", "Option"].iter().any(|pointer| last.ident == pointer) => {
                    bare(inner)
                }
                _ => Some(last.ident.to_string()),
            }
        }
        _ => None,
    }
}

impl Names {
    fn new(module: Module) -> Names {
        let (used, imports, parameters) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let (methods, fields, calls) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let derefs = BTreeMap::new();
        Names { module, used, imports, this: None, parameters, methods, fields, calls, derefs }
    }

    fn receiver(&self, expression: &syn::Expr) -> Option<Receiver> {
        match expression {
            syn::Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                let of = if name == "self" { self.this.clone() } else { self.parameters.get(&name).cloned() };
                of.map(Receiver::Of)
            }
            syn::Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => Some(Receiver::Field(name.to_string())),
                syn::Member::Unnamed(_) => None,
            },
            syn::Expr::Reference(reference) => self.receiver(&reference.expr),
            syn::Expr::Paren(paren) => self.receiver(&paren.expr),
            _ => None,
        }
    }

    fn with_parameters(&mut self, signature: &syn::Signature, read: impl FnOnce(&mut Names)) {
        let typed = signature.inputs.iter().filter_map(|input| match input {
            syn::FnArg::Typed(typed) => match &*typed.pat {
                syn::Pat::Ident(name) => Some((name.ident.to_string(), bare(&typed.ty)?)),
                _ => None,
            },
            syn::FnArg::Receiver(_) => None,
        });
        let outer = std::mem::replace(&mut self.parameters, typed.collect());
        read(self);
        self.parameters = outer;
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = std::mem::replace(&mut self.this, bare(&item.self_ty));
        if let (Some((_, of, _)), Some(this)) = (&item.trait_, self.this.clone())
            && of.segments.last().is_some_and(|name| name.ident == "Deref")
        {
            let target = item.items.iter().find_map(|item| match item {
                syn::ImplItem::Type(ty) => bare(&ty.ty),
                _ => None,
            });
            self.derefs.extend(target.map(|target| (this, target)));
        }
        if let (None, Some(this)) = (&item.trait_, self.this.clone()) {
            let methods = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(method) if method.sig.receiver().is_some() => Some(method.sig.ident.to_string()),
                _ => None,
            });
            self.methods.extend(methods.map(|method| (this.clone(), method)));
        }
        visit::visit_item_impl(self, item);
        self.this = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            self.with_parameters(&item.sig, |names| visit::visit_impl_item_fn(names, item));
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.with_parameters(&item.sig, |names| visit::visit_item_fn(names, item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let (Some(name), Some(of)) = (&field.ident, bare(&field.ty)) {
            self.fields.insert((name.to_string(), of));
        }
        visit::visit_field(self, field);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Some(receiver) = self.receiver(&call.receiver) {
            self.calls.insert((receiver, call.method.to_string()));
        }
        visit::visit_expr_method_call(self, call);
    }

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

/// From each file of a crate to those on which it depends.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The files that define the methods which each file of a crate calls.
fn calls_between(all: &[(String, Names)]) -> Arrows {
    let mut home: BTreeMap<(&str, &str), &String> = BTreeMap::new();
    let mut fields: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let derefs: BTreeMap<&String, &String> = all.iter().flat_map(|(_, names)| &names.derefs).collect();
    for (file, names) in all {
        home.extend(names.methods.iter().map(|(of, method)| ((of.as_str(), method.as_str()), file)));
        for (field, of) in &names.fields {
            fields.entry(field).or_default().insert(of);
        }
    }
    let type_of = |receiver: &Receiver| match receiver {
        Receiver::Of(of) => Some(of.clone()),
        Receiver::Field(field) => {
            let mut types = fields.get(field.as_str())?.iter();
            let only = types.next().map(|of| (*of).to_owned());
            only.filter(|_| types.next().is_none())
        }
    };
    let home_of = |of: &String, method: &String| {
        let types = std::iter::successors(Some(of), |of| derefs.get(of).copied()).take(8);
        types.filter_map(|of| home.get(&(of.as_str(), method.as_str()))).map(|file| (*file).clone()).next()
    };
    let called = |names: &Names| -> BTreeSet<String> {
        let files = names.calls.iter().filter_map(|(receiver, method)| home_of(&type_of(receiver)?, method));
        files.collect()
    };
    all.iter().map(|(file, names)| (file.clone(), called(names))).collect()
}

/// The dependencies inside a crate.
struct Inside {
    /// The arrows between its files: by path, and those of calls.
    arrows: [Arrows; 2],
    /// The number of inherent methods of each type.
    methods: BTreeMap<String, usize>,
}

fn inside_of(files: &[SourceFile]) -> Result<BTreeMap<String, Inside>, Finding> {
    let mut crates: BTreeMap<String, (Crate, Vec<(String, Names)>)> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust() && !file.is_test()) {
        let Some((dir, module)) = module_of(&file.path) else { continue };
        let parsed =
            syn::parse_file(&file.text).map_err(|e| Finding::new(&file.path, 0, format!("cannot be parsed: {e}")))?;
        let mut names = Names::new(module.clone());
        names.visit_file(&parsed);
        let (krate, all) = crates.entry(dir).or_default();
        krate.files.insert(module.clone(), file.path.clone());
        krate.imports.insert(module, std::mem::take(&mut names.imports));
        all.push((file.path.clone(), names));
    }
    let inside = crates.iter().map(|(dir, (krate, all))| {
        let by_path = |(file, names): &(String, Names)| {
            let to = names.used.iter().filter_map(|path| krate.file_of(path, 0));
            (file.clone(), to.filter(|to| is_arrow(file, to)).cloned().collect::<BTreeSet<_>>())
        };
        let mut calls = calls_between(all);
        calls.iter_mut().for_each(|(file, to)| to.retain(|to| is_arrow(file, to)));
        let mut methods = BTreeMap::new();
        for (of, _) in all.iter().flat_map(|(_, names)| &names.methods) {
            *methods.entry(of.clone()).or_insert(0) += 1;
        }
        (dir.clone(), Inside { arrows: [all.iter().map(by_path).collect(), calls], methods })
    });
    Ok(inside.collect())
}

/// Cycles of more than [`MOST`] files; with calls of methods, of more than [`WITH_CALLS`] says; types with more methods
/// than [`METHODS`] says.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    check_with(files, &METHODS)
}

fn check_with(files: &[SourceFile], most_methods: &[(&str, &str, usize)]) -> Vec<Finding> {
    let crates = match inside_of(files) {
        Ok(crates) => crates,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    for (dir, Inside { arrows: [by_path, calls], methods }) in &crates {
        for (_, of, most) in most_methods.iter().filter(|(krate, ..)| krate == dir) {
            let found = methods.get(*of).copied().unwrap_or(0);
            if found > *most {
                let message =
                    format!("`{of}` has {found} methods, at most {most} are allowed: give them to a part of it");
                findings.push(Finding::new(dir, 0, message));
            }
        }
        let mut both = by_path.clone();
        calls.iter().for_each(|(file, to)| both.entry(file.clone()).or_default().extend(to.iter().cloned()));
        let with_calls = WITH_CALLS.iter().find(|(of, _)| of == dir).map_or(MOST, |(_, most)| *most);
        let imports = knots(by_path);
        let larger: Vec<_> = knots(&both).into_iter().filter(|knot| !imports.contains(knot)).collect();
        for (knots, most, cycle) in [(imports, MOST, "an import cycle"), (larger, with_calls, "a knot of calls")] {
            for knot in knots.into_iter().filter(|knot: &Vec<String>| knot.len() > most) {
                let message =
                    format!("{cycle} of {} files, at most {most} are allowed: {}", knot.len(), knot.join(", "));
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
        let knots_of = |files: &[SourceFile]| knots(&inside_of(files).expect("parsed")["crates/x"].arrows[0]).len();
        assert_eq!(knots_of(&[one.clone(), back]), 1);
        assert_eq!(knots_of(&[one, tests]), 0);
    }

    /// Methods of one type in many files tie these together, whether through `self`, a parameter, or a field.
    #[test]
    fn a_knot_of_calls_is_found() {
        let call = ["self.m{}()", "whole.m{}()", "part.whole.m{}()"];
        let ring = |n: usize| -> Vec<SourceFile> {
            let file = |i: usize| {
                let call = call[i % 3].replace("{}", &((i + 1) % n).to_string());
                let text = format!("impl Whole {{ fn m{i}(&self, whole: &Arc<Whole>, part: &Part) {{ {call}; }} }}\n");
                source(&format!("crates/x/src/m{i}.rs"), &text)
            };
            let types = source("crates/x/src/types.rs", "struct Whole; struct Part { whole: Arc<Whole> }\n");
            (0..n).map(file).chain([types]).collect()
        };
        assert!(check(&ring(MOST)).is_empty());
        let findings = check(&ring(MOST + 3));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.starts_with("a knot of calls of 9 files"), "{}", findings[0]);
    }

    /// A call on a type that dereferences to the one with the method is an arrow as well.
    #[test]
    fn a_call_through_deref_is_an_arrow() {
        let files = [
            source("crates/x/src/a.rs", "pub struct Low;\nimpl Low { fn low(&self, high: &High) { high.high(); } }\n"),
            source(
                "crates/x/src/b.rs",
                "pub struct High;\nimpl std::ops::Deref for High { type Target = Low; }\nimpl High { fn high(&self) { self.low(); } }\n",
            ),
        ];
        let inside = inside_of(&files).expect("parsed");
        let knots = knots(&inside["crates/x"].arrows[1]);
        assert_eq!(knots, [["crates/x/src/a.rs".to_owned(), "crates/x/src/b.rs".to_owned()]]);
    }

    /// Methods in all files of the crate count, but neither functions without a receiver nor those of traits and tests.
    #[test]
    fn a_type_with_too_many_methods_is_found() {
        let files = [
            source(
                "crates/x/src/a.rs",
                "pub struct Whole;\nimpl Whole { fn new() -> Whole { Whole } fn a(&self) {} }\n",
            ),
            source(
                "crates/x/src/b.rs",
                "impl Whole { fn b(&self) {} }\nimpl Drop for Whole { fn drop(&mut self) {} }\n",
            ),
            source("crates/x/src/c.rs", "#[cfg(test)]\nimpl Whole { fn c(&self) {} }\n"),
        ];
        assert!(check_with(&files, &[("crates/x", "Whole", 2)]).is_empty());
        let findings = check_with(&files, &[("crates/x", "Whole", 1)]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.starts_with("`Whole` has 2 methods"), "{}", findings[0]);
    }

    /// A name that the root re-exports leads to the file that defines it, and re-exporting it is no arrow.
    #[test]
    fn a_reexported_name_leads_to_its_definition() {
        let files = [
            source("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::T;\n"),
            source("crates/x/src/a.rs", "use crate::b::U;\npub struct T;\n"),
            source("crates/x/src/b.rs", "use crate::T;\npub struct U;\n"),
        ];
        let inside = inside_of(&files).expect("parsed");
        let knots = knots(&inside["crates/x"].arrows[0]);
        assert_eq!(knots, [["crates/x/src/a.rs".to_owned(), "crates/x/src/b.rs".to_owned()]]);
    }
}
