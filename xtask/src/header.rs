//! `extant.h`, generated from the sources of `crates/capi`.
//!
//! Main function: [`text`]. Structures, function types and constants come from `types.rs`; functions from the `export!`
//! blocks, each with the last argument `extant_error *error` that the macro adds. Doc comments become C comments.
//!
//! What it does not do: it does not parse Rust that the header does not need. An unknown type is an error that names
//! it.
//!
//! # Locking
//! None.

use std::fmt::Write;

use syn::{Attribute, Expr, Fields, FnArg, GenericArgument, Item, Lit, Meta, Pat, PathArguments, ReturnType, Type};

/// The header, from the repository's root.
pub const PATH: &str = "crates/capi/include/extant.h";

/// The sources, in the order of the header, each with the heading of its part.
pub const SOURCES: &[(&str, &str)] = &[
    ("crates/capi/src/types.rs", "Types and constants"),
    ("crates/capi/src/border.rs", "The library itself"),
    ("crates/capi/src/image.rs", "Images and mounts"),
    ("crates/capi/src/file.rs", "Files"),
    ("crates/capi/src/dir.rs", "Listings"),
    ("crates/capi/src/names.rs", "Names"),
    ("crates/capi/src/attributes.rs", "Attributes"),
];

const HEAD: &str = "/*
 * extant.h: ext2, ext3 and ext4 images in user space. Made by `cargo xtask header`; changes belong into crates/capi/src.
 *
 * A function returns 0 or a count, or a negative error number of Linux, whatever the system is. The last argument gets
 * the reason, or is NULL. Paths are bytes, start at the root of the image, and permissions are not checked.
 *
 * A handle (extant_image *, extant_fs *, extant_file *, extant_dir *) is never followed: one that was closed, or that is
 * of another kind, is -EBADF, and NULL is -EFAULT. Every function may be called by many threads at once. One that is
 * closed while another thread uses it lives until that thread's call ends.
 */
#ifndef EXTANT_H
#define EXTANT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

const FOOT: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

/// The maximum width of a comment or a declaration, in columns.
const COLUMNS: usize = 110;

/// A doc comment as one string.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Wraps words into lines of at most [`COLUMNS`] minus `indent`.
fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        if !last.is_empty() && indent + last.len() + 1 + word.len() > COLUMNS {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

fn comment(out: &mut String, text: &str, indent: &str) {
    if text.is_empty() {
        return;
    }
    let lines = wrapped(text, indent.len() + 6);
    let last = lines.len() - 1;
    for (i, line) in lines.iter().enumerate() {
        let (begin, end) = (if i == 0 { "/* " } else { " * " }, if i == last { " */" } else { "" });
        let _ = writeln!(out, "{indent}{begin}{line}{end}");
    }
}

/// The only generic argument of a type.
fn inner(arguments: &PathArguments) -> Option<&Type> {
    match arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        }),
        _ => None,
    }
}

/// A C declaration of `name` with the type.
fn declare(ty: &Type, name: &str) -> Result<String, String> {
    let unknown = || Err(format!("{name}: extant.h has no type for this one"));
    match ty {
        Type::Ptr(pointer) => {
            let of = declare(&pointer.elem, "")?;
            let constant = if pointer.const_token.is_some() { "const " } else { "" };
            Ok(format!("{constant}{} *{name}", of.trim_end()))
        }
        Type::Array(array) => {
            let Expr::Lit(len) = &array.len else { return unknown() };
            let Lit::Int(len) = &len.lit else { return unknown() };
            declare(&array.elem, &format!("{name}[{}]", len.base10_digits()))
        }
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return unknown() };
            let plain = match last.ident.to_string().as_str() {
                "c_int" => "int",
                "c_char" => "char",
                "c_void" => "void",
                "usize" => "size_t",
                "u32" => "uint32_t",
                "u64" => "uint64_t",
                "i64" => "int64_t",
                "Text" => return Ok(format!("const char *{name}")),
                "Source" => return Ok(format!("const void *{name}")),
                "Target" => return Ok(format!("void *{name}")),
                "Out" | "Handle" => return pointer_to(inner(&last.arguments), name, "").map_or_else(unknown, Ok),
                "SizedInput" | "PlainInput" => {
                    return pointer_to(inner(&last.arguments), name, "const ").map_or_else(unknown, Ok);
                }
                own if own.starts_with("extant_") => return Ok(format!("{own} {name}")),
                _ => return unknown(),
            };
            Ok(format!("{plain} {name}"))
        }
        _ => unknown(),
    }
}

fn pointer_to(ty: Option<&Type>, name: &str, before: &str) -> Option<String> {
    let of = declare(ty?, "").ok()?;
    let of = of.trim_end();
    let space = if of.ends_with('*') { "" } else { " " };
    Some(format!("{before}{of}{space}*{name}"))
}

/// The declaration of a function, with line breaks between arguments.
fn function(begin: &str, arguments: &[String]) -> String {
    let one = format!("{begin}({});", if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") });
    if one.len() <= COLUMNS {
        return one;
    }
    let mut lines = vec![format!("{begin}(")];
    for (i, argument) in arguments.iter().enumerate() {
        let end = if i + 1 == arguments.len() { ");" } else { "," };
        let last = lines.last_mut().expect("never empty");
        if !last.ends_with('(') && last.len() + 1 + argument.len() + end.len() > COLUMNS {
            lines.push(format!("    {argument}{end}"));
        } else {
            let space = if last.ends_with('(') { "" } else { " " };
            last.push_str(&format!("{space}{argument}{end}"));
        }
    }
    lines.join("\n")
}

fn arguments<'a>(inputs: impl Iterator<Item = &'a FnArg>) -> Result<Vec<String>, String> {
    inputs
        .map(|argument| match argument {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(name) => declare(&typed.ty, &name.ident.to_string()),
                _ => Err("an argument without a name".to_owned()),
            },
            FnArg::Receiver(_) => Err("a method".to_owned()),
        })
        .collect()
}

/// The return type and the name of a function: `int extant_mkdir`.
fn begin(output: &ReturnType, name: &str) -> Result<String, String> {
    match output {
        ReturnType::Default => Ok(format!("void {name}")),
        ReturnType::Type(_, ty) => declare(ty, name),
    }
}

/// Translates `pub type NAME = Option<extern "C" fn(…) -> …>` into a typedef.
fn callback(out: &mut String, item: &syn::ItemType) -> Result<(), String> {
    let name = item.ident.to_string();
    let wrong = || format!("{name}: not an optional function");
    let Type::Path(path) = &*item.ty else { return Err(wrong()) };
    let of = path.path.segments.last().and_then(|last| inner(&last.arguments)).ok_or_else(wrong)?;
    let Type::BareFn(of) = of else { return Err(wrong()) };
    let arguments = of.inputs.iter().map(|input| {
        let name = input.name.as_ref().map(|(name, _)| name.to_string()).unwrap_or_default();
        declare(&input.ty, &name)
    });
    let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
    let begin = begin(&of.output, &format!("(*{name})"))?;
    let _ = writeln!(out, "typedef {}", function(&begin, &arguments));
    Ok(())
}

fn structure(out: &mut String, item: &syn::ItemStruct) -> Result<(), String> {
    let name = item.ident.to_string();
    let Fields::Named(fields) = &item.fields else { return Err(format!("{name}: fields without names")) };
    let _ = writeln!(out, "typedef struct {name} {{");
    for field in &fields.named {
        comment(out, &doc(&field.attrs), "    ");
        let field_name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, "    {};", declare(&field.ty, &field_name)?);
    }
    let _ = writeln!(out, "}} {name};");
    Ok(())
}

/// Adds one item of a source, if it belongs into the header.
fn item(out: &mut String, item: &Item, is_exported: bool) -> Result<(), String> {
    let head = |out: &mut String, attributes: &[Attribute]| {
        out.push('\n');
        comment(out, &doc(attributes), "");
    };
    match item {
        Item::Enum(opaque) if opaque.variants.is_empty() => {
            head(out, &opaque.attrs);
            let _ = writeln!(out, "typedef struct {0} {0};", opaque.ident);
        }
        Item::Struct(of_c) if of_c.ident.to_string().starts_with("extant_") => {
            head(out, &of_c.attrs);
            structure(out, of_c)?;
        }
        Item::Type(alias) if alias.ident.to_string().starts_with("extant_") => {
            head(out, &alias.attrs);
            callback(out, alias)?;
        }
        Item::Const(constant) if constant.ident.to_string().starts_with("EXTANT_") => {
            head(out, &constant.attrs);
            let Expr::Lit(value) = &*constant.expr else { return Err(format!("{}: no number", constant.ident)) };
            let Lit::Int(value) = &value.lit else { return Err(format!("{}: no number", constant.ident)) };
            let number: u32 = value.base10_parse().map_err(|e| e.to_string())?;
            let _ = writeln!(out, "#define {} {number}u", constant.ident);
        }
        Item::Fn(of_c) if is_exported || of_c.sig.abi.is_some() => {
            head(out, &of_c.attrs);
            let name = of_c.sig.ident.to_string();
            let mut arguments = arguments(of_c.sig.inputs.iter())?;
            if is_exported {
                arguments.push("extant_error *error".to_owned());
            }
            let _ = writeln!(out, "{}", function(&begin(&of_c.sig.output, &name)?, &arguments));
        }
        Item::Macro(call) if call.mac.path.is_ident("export") => {
            let inside: syn::File = syn::parse2(call.mac.tokens.clone()).map_err(|e| e.to_string())?;
            for of_c in &inside.items {
                self::item(out, of_c, true)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The header, from the sources that `read` returns for the paths in [`SOURCES`].
///
/// # Errors
/// A source is missing or not Rust, or has an item that the header cannot express.
pub fn text(read: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = HEAD.to_owned();
    for (path, heading) in SOURCES {
        let source = read(path).ok_or_else(|| format!("{path}: cannot be read"))?;
        let file = syn::parse_file(&source).map_err(|e| format!("{path}: {e}"))?;
        let _ = writeln!(out, "\n/* ---- {heading} ---- */");
        for of_file in &file.items {
            item(&mut out, of_file, false).map_err(|e| format!("{path}: {e}"))?;
        }
    }
    out.push_str(FOOT);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(source: &str) -> Result<String, String> {
        let whole = text(|path| Some(if path.ends_with("types.rs") { source.to_owned() } else { String::new() }))?;
        let from = whole.find("Types and constants").expect("the heading");
        let to = whole.find("\n/* ---- The library").expect("the next heading");
        Ok(whole[from..to].lines().skip(1).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn items_become_declarations_of_c() {
        for (rust, c) in [
            ("/// A thing.\npub enum extant_a {}", "\n/* A thing. */\ntypedef struct extant_a extant_a;"),
            ("pub const EXTANT_X: u32 = 0x10;", "\n#define EXTANT_X 16u"),
            (
                "#[repr(C)] pub struct extant_s { /** T. */ pub t: [c_char; 4], pub n: usize }",
                "\ntypedef struct extant_s {\n    /* T. */\n    char t[4];\n    size_t n;\n} extant_s;",
            ),
            (
                "pub type extant_f = Option<extern \"C\" fn(user: *mut c_void, n: u64) -> c_int>;",
                "\ntypedef int (*extant_f)(void *user, uint64_t n);",
            ),
            (
                "export! { fn extant_g(a: Handle<extant_a>, to: Out<Handle<extant_a>>, o: SizedInput<extant_o>) -> i64 { Ok(0) } }",
                "\nint64_t extant_g(extant_a *a, extant_a **to, const extant_o *o, extant_error *error);",
            ),
            ("fn inner() {}\npub struct Own;", ""),
        ] {
            assert_eq!(made(rust).as_deref(), Ok(c));
        }
    }

    #[test]
    fn types_that_c_lacks_are_an_error() {
        let error = made("export! { fn extant_g(a: Vec<u8>) -> c_int { Ok(0) } }").expect_err("no such type");
        assert!(error.contains("types.rs: a: "), "{error}");
    }
}
