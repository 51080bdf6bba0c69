//! Compares an operation with each row of the table in the head of `operation.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;
use crate::lifecycle::Transition;
use crate::{Error, MountOptions, Mounted};

const USER: Caller = Caller { uid: 5, gid: 6 };

/// The rows of the table: each a moment with its cells.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = include_str!("operation.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let cells = lines.map(|row| row.trim_end_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    cells.skip(1).map(|row| (row[0], row[1..].to_vec())).collect()
}

struct Scene {
    fs: Mounted,
    /// A mount whose gate is shut.
    shut: Mounted,
    /// The number of moments that have been compared.
    seen: Cell<usize>,
}

impl Scene {
    fn new() -> Scene {
        let dev = crate::tools::made(&["-t", "ext4"], "16M");
        let options = || MountOptions { threads: false, ..MountOptions::default() };
        let [fs, shut] = [(); 2].map(|()| Filesystem::mount(Arc::new(dev.snapshot()), options()).expect("mounted"));
        assert!(shut.lifecycle.go(Transition::Shut));
        Scene { fs, shut, seen: Cell::new(0) }
    }

    /// Compares this moment with its row; the innermost operation is `op`.
    fn at(&self, moment: &str, op: Option<&Operation<'_>>) {
        let found = [
            self.fs.lifecycle.inside().to_string(),
            if self.shut.try_begin_change().is_some() { "passes" } else { "waits" }.to_owned(),
            if Caller::current() == USER { "user" } else { "root" }.to_owned(),
            op.map_or("-".to_owned(), |op| op.taken_back.get().to_string()),
        ];
        let row = rows().into_iter().find(|row| row.0 == moment).expect("a row");
        assert_eq!(found.as_slice(), row.1.as_slice(), "{moment}");
        self.seen.set(self.seen.get() + 1);
    }

    fn begin(&self) -> Operation<'_> {
        Operation::begin(&self.fs).expect("writable")
    }
}

fn panics(f: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
}

#[test]
fn an_operation_owns_at_each_moment_what_the_table_says() {
    let scene = Scene::new();
    scene.at("no operation", None);
    USER.run(|| {
        scene.at("a user's thread", None);
        let op = scene.begin();
        scene.at("an operation begins", Some(&op));
        op.taken_back.set(1);
        scene.at("it takes an inode back", Some(&op));
        Caller::ROOT.run(|| scene.at("another begins in it, for root", Some(&scene.begin())));
        scene.at("the inner one ends", Some(&op));
        panics(|| {
            Caller::ROOT.run(|| {
                let _inner = scene.begin();
                panic!("as an operation may");
            })
        });
        scene.at("the inner one panics", Some(&op));
        drop(op);
        scene.at("it ends", None);
    });
    panics(|| {
        USER.run(|| {
            let _op = scene.begin();
            panic!("as an operation may");
        })
    });
    scene.at("it panics", None);
    scene.fs.remount(true).expect("read-only");
    assert!(USER.run(|| matches!(scene.fs.begin_change(), Err(Error::ReadOnly))));
    scene.at("it is refused", None);
    assert_eq!(scene.seen.get(), rows().len());
    assert!(scene.shut.lifecycle.go(Transition::Reopen));
}
