//! Gives the shared library its soname, which a program that is linked against it looks for.
//!
//! # Locking
//! None.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        // The number counts the changes of extant.h that need a recompilation of the programs.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libextant.so.0");
    }
}
