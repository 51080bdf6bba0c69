//! Tests the builder: compared with a model of paths, and single cases.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::Error;

fn attributes(uid: u32) -> Attributes {
    Attributes { mode: 0o640, uid, ..Attributes::default() }
}

fn names(tree: &Tree) -> Vec<(String, Id)> {
    let mut names = Vec::new();
    let mut waiting = vec![(String::new(), Id(0))];
    while let Some((path, id)) = waiting.pop() {
        for (name, id) in tree.entries(id) {
            let path = format!("{path}/{}", name.escape_ascii());
            names.push((path.clone(), id));
            waiting.push((path, id));
        }
    }
    names.sort();
    names
}

/// Runs steps that must end in an error, and returns its message.
fn refused(steps: impl FnOnce(&mut Builder) -> crate::Result<()>) -> String {
    let mut builder = Builder::new(Options::default());
    builder.set_position(512);
    let error = steps(&mut builder).and_then(|()| builder.finish().map(|_| ())).expect_err("refused");
    assert!(matches!(error, Error::Entry { .. }), "{error:?}");
    error.to_string()
}

fn file(builder: &mut Builder, path: &str) -> crate::Result<()> {
    builder.file(path.as_bytes(), attributes(1), 10, None, 0)
}

#[test]
fn paths_that_lead_out_of_the_tree_or_cannot_be_stored_are_refused() {
    for (path, why) in [
        ("", ": an entry without a name (at byte 512)"),
        ("..", "..: the name .. leads out of its directory (at byte 512)"),
        ("a/../b", "a/../b: the name .. leads out of its directory (at byte 512)"),
        ("/../x", "/../x: the name .. leads out of its directory (at byte 512)"),
        ("./x/..", "./x/..: the name .. leads out of its directory (at byte 512)"),
        (".", ".: the root can only be a directory (at byte 512)"),
        ("//", "//: the root can only be a directory (at byte 512)"),
        ("a\0b", "a?b: a name with a NUL byte (at byte 512)"),
    ] {
        assert_eq!(refused(|builder| file(builder, path)), why);
        if why.contains("root") {
            Builder::new(Options::default()).directory(path.as_bytes(), attributes(1)).expect("a directory");
        }
    }
    let long = "n".repeat(256);
    assert!(refused(|builder| file(builder, &long)).contains("a name of 256 bytes; at most 255 can be stored"));
    assert!(refused(|builder| file(builder, &format!("{long}/x"))).contains("a name of 256 bytes"));
    let neighbours = |builder: &mut Builder| file(builder, "d/a").and_then(|()| file(builder, &format!("d/{long}")));
    assert!(refused(neighbours).contains("a name of 256 bytes"));
    let below = |builder: &mut Builder| file(builder, "f").and_then(|()| file(builder, "f/x"));
    assert_eq!(refused(below), "f/x: f is not a directory (at byte 512)");
}

#[test]
fn bodies_that_cannot_be_stored_are_refused() {
    let link = |target: &'static [u8]| refused(|builder| builder.symlink(b"l", attributes(1), target));
    assert_eq!(link(b""), "l: a symbolic link that leads nowhere (at byte 512)");
    assert!(link(&[b'x'; 4096]).contains("has 4096 bytes; at most 4095 can be stored"));
    assert!(link(b"a\0").contains("has a NUL byte"));
    Builder::new(Options::default()).symlink(b"l", attributes(1), &[b'x'; 4095]).expect("as long as can be");
    let device = |mode, major, minor| {
        let attributes = Attributes { mode, ..Attributes::default() };
        refused(|builder| builder.device(b"d", attributes, major, minor))
    };
    assert!(device(0o020600, 4096, 0).contains("does not fit"));
    assert!(device(0o060600, 0, 1 << 20).contains("does not fit"));
    assert!(device(0o100600, 1, 1).contains("is no device's"));
    assert!(refused(|builder| builder.special(b"d", attributes(1))).contains("no FIFO's and no socket's"));
    let sparse = |data: Vec<Range<u64>>| refused(|builder| builder.file(b"s", attributes(1), 10, Some(data), 0));
    assert!(sparse(vec![0..4, 3..5]).contains("not in order"));
    assert!(sparse(vec![5..6, 0..1]).contains("not in order"));
    assert!(sparse(vec![0..4, 4..11]).contains("beyond its 10 bytes"));
    assert!(refused(|builder| builder.file(b"s", attributes(1), 1 << 63, None, 0)).contains("larger than any can be"));
}

#[test]
fn hard_links_lead_to_earlier_and_later_files_and_through_each_other() {
    let mut builder = Builder::new(Options::default());
    builder.hard_link(b"a", b"d/b").expect("later");
    builder.hard_link(b"d/b", b"./c").expect("later");
    builder.hard_link(b"replaced", b"nowhere").expect("later");
    file(&mut builder, "c").expect("a file");
    builder.hard_link(b"e", b"/c").expect("earlier");
    file(&mut builder, "replaced").expect("a file");
    let tree = builder.finish().expect("a tree");
    let names = names(&tree);
    let id = |path: &str| names.iter().find(|(name, _)| name == path).expect("there").1;
    assert!(["/a", "/d/b", "/e"].iter().all(|path| id(path) == id("/c")));
    assert_eq!(tree.node(id("/c")).links, 4);
    assert_eq!(tree.node(id("/replaced")).links, 1);
}

#[test]
fn hard_links_to_nothing_directories_and_themselves_are_refused() {
    let link = |links: &[(&str, &str)]| {
        refused(|builder| {
            builder.directory(b"d", attributes(1))?;
            links.iter().try_for_each(|(path, target)| builder.hard_link(path.as_bytes(), target.as_bytes()))
        })
    };
    assert_eq!(link(&[("a", "no")]), "a: a hard link to no, which is not there (at byte 512)");
    assert_eq!(link(&[("a", "no/way")]), "a: a hard link to no/way, which is not there (at byte 512)");
    assert_eq!(link(&[("a", "d")]), "a: a hard link to d, which is a directory (at byte 512)");
    assert_eq!(link(&[("a", "")]), "a: a hard link to , which is a directory (at byte 512)");
    assert_eq!(link(&[("a", "b"), ("b", "d")]), "b: a hard link to d, which is a directory (at byte 512)");
    assert_eq!(link(&[("a", "../b")]), "a: a hard link to ../b: the name .. leads out of its directory (at byte 512)");
    assert_eq!(link(&[("a", "a")]), "a: a hard link that leads back to itself (at byte 512)");
    assert_eq!(link(&[("a", "b"), ("b", "c"), ("c", "a")]), "a: a hard link that leads back to itself (at byte 512)");
    assert_eq!(link(&[("a", "b"), ("b", "x")]), "b: a hard link to x, which is not there (at byte 512)");
}

#[test]
fn a_long_chain_of_hard_links_is_followed_once() {
    let mut builder = Builder::new(Options::default());
    for n in 0..100_000 {
        builder.hard_link(format!("{n}").as_bytes(), format!("{}", n + 1).as_bytes()).expect("later");
    }
    file(&mut builder, "100000").expect("a file");
    let tree = builder.finish().expect("a tree");
    assert_eq!((tree.len(), tree.node(Id(1)).links), (2, 100_001));
}

#[test]
fn another_name_survives_what_hides_the_first() {
    let mut builder = Builder::new(Options::default());
    file(&mut builder, "a/f").expect("a file");
    builder.hard_link(b"b", b"a/f").expect("a link");
    builder.hard_link(b"c", b"a/f").expect("a link");
    builder.remove(b"a").expect("removed");
    builder.symlink(b"c", attributes(2), b"x").expect("replaced");
    builder.remove(b"not/there").expect("nothing to do");
    let tree = builder.finish().expect("a tree");
    let names: Vec<String> = names(&tree).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["/b", "/c"]);
    assert_eq!(tree.node(Id(1)).links, 1);
    assert!(refused(|builder| builder.remove(b"/")).starts_with("/: the root cannot be removed"));
}

#[test]
fn parents_may_be_links_only_where_they_are_followed() {
    let steps = |builder: &mut Builder| {
        builder.directory(b"usr/lib", attributes(1))?;
        builder.symlink(b"lib", attributes(1), b"usr/lib")?;
        builder.symlink(b"usr/lib64", attributes(1), b"../lib/new/../")?;
        file(builder, "usr/lib64/f")?;
        builder.symlink(b"out", attributes(1), b"../../../usr")?;
        file(builder, "out/g")?;
        builder.symlink(b"abs", attributes(1), b"/made/here")?;
        file(builder, "abs/h")?;
        builder.hard_link(b"hard", b"lib/f")
    };
    assert_eq!(refused(steps), "usr/lib64/f: lib64 is not a directory (at byte 512)");
    let mut builder = Builder::new(Options::default());
    builder.follow_links();
    steps(&mut builder).expect("followed");
    let names: Vec<String> = names(&builder.finish().expect("a tree")).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "/abs",
        "/hard",
        "/lib",
        "/made",
        "/made/here",
        "/made/here/h",
        "/out",
        "/usr",
        "/usr/g",
        "/usr/lib",
        "/usr/lib/f",
        "/usr/lib/new",
        "/usr/lib64",
    ];
    assert_eq!(names, expected);
    let round = refused(|builder| {
        builder.follow_links();
        builder.symlink(b"a", attributes(1), b"b")?;
        builder.symlink(b"b", attributes(1), b"a")?;
        file(builder, "a/x")
    });
    assert_eq!(round, "a/x: a leads through more than 40 symbolic links (at byte 512)");
    let blocked = refused(|builder| {
        builder.follow_links();
        file(builder, "f")?;
        builder.symlink(b"a", attributes(1), b"f/x")?;
        file(builder, "a/x")
    });
    assert_eq!(blocked, "a/x: a leads through f, which is not a directory (at byte 512)");
}

/// A chain of directories `d0/l/l/l`, in which `l` of each leads to the next one.
fn chain(builder: &mut Builder, links: u32) -> crate::Result<String> {
    for number in 0..links {
        let target = format!("../d{}", number + 1);
        builder.symlink(format!("d{number}/l").as_bytes(), attributes(1), target.as_bytes())?;
    }
    Ok(format!("d0/{}f", "l/".repeat(links as usize)))
}

#[test]
fn forty_links_are_followed_in_a_whole_path_as_the_kernel_does() {
    let file_behind = |links: u32| {
        move |builder: &mut Builder| {
            builder.follow_links();
            let path = chain(builder, links)?;
            file(builder, &path)
        }
    };
    let mut builder = Builder::new(Options::default());
    file_behind(40)(&mut builder).expect("followed");
    assert!(names(&builder.finish().expect("a tree")).iter().any(|(name, _)| name == "/d40/f"));
    let said = refused(file_behind(41));
    assert!(said.ends_with(": l leads through more than 40 symbolic links (at byte 512)"), "{said}");
}

#[test]
fn paths_through_links_are_as_long_as_the_kernel_takes_them() {
    let file_at = |len: usize| {
        move |builder: &mut Builder| {
            builder.follow_links();
            file(builder, &format!("{}f", "./".repeat(2048))[4097 - len..])
        }
    };
    let mut builder = Builder::new(Options::default());
    file_at(4095)(&mut builder).expect("taken");
    let said = refused(file_at(4096));
    assert!(said.ends_with(": a path of 4096 bytes; at most 4095 can be walked (at byte 512)"), "{said}");
    // Without links, each part of a path is visited once.
    let mut builder = Builder::new(Options::default());
    file(&mut builder, &format!("{}f", "d/".repeat(5000))).expect("taken");
}

#[test]
fn many_paths_through_long_links_are_refused_before_they_take_time() {
    let said = refused(|builder| {
        builder.follow_links();
        // Each path takes forty targets of 2,000 names.
        let target = format!("{}d", "d/../".repeat(800));
        builder.directory(b"d", attributes(1))?;
        builder.symlink(b"d/l", attributes(1), format!("../{target}").as_bytes())?;
        (0..100_000).try_for_each(|number| file(builder, &format!("d/{}{number}/f", "l/".repeat(40))))
    });
    assert!(said.contains("its path is the last of many through long links: more than 84"), "{said}");
}

#[test]
fn a_message_shows_only_the_ends_of_a_very_long_name() {
    let long = "n".repeat(16 << 20);
    for path in [long.clone(), format!("d/{long}"), format!("{long}/f"), "d/".repeat(8 << 20)] {
        for follow in [false, true] {
            let said = refused(|builder| {
                if follow {
                    builder.follow_links();
                }
                file(builder, &path)
            });
            assert!(said.len() < 600 && said.contains(" bytes)"), "{} bytes", said.len());
        }
    }
}

#[test]
fn an_emptied_directory_retains_its_attributes() {
    let mut builder = Builder::new(Options::default());
    for path in ["d/old", "d/below/old", "e"] {
        file(&mut builder, path).expect("a file");
    }
    builder.directory(b"d", attributes(9)).expect("a directory");
    builder.make_opaque(b"d").expect("emptied");
    builder.make_opaque(b"e").expect("nothing to do");
    builder.make_opaque(b"none/there").expect("nothing to do");
    file(&mut builder, "d/new").expect("a file");
    let tree = builder.finish().expect("a tree");
    let names = names(&tree);
    assert_eq!(names.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["/d", "/d/new", "/e"]);
    assert_eq!((tree.node(names[0].1).uid, tree.node(names[0].1).links), (9, 2));
    let mut builder = Builder::new(Options::default());
    file(&mut builder, "a/b").expect("a file");
    builder.make_opaque(b".").expect("emptied");
    file(&mut builder, "a/c").expect("a file");
    assert_eq!(self::names(&builder.finish().expect("a tree")).len(), 2);
}

#[test]
fn sets_of_attributes_are_kept_once_and_the_last_value_counts() {
    let xattr = |name: &str, value: &str| -> Xattr { (name.as_bytes().into(), value.as_bytes().into()) };
    let with = |xattrs| Attributes { xattrs, ..attributes(1) };
    let mut builder = Builder::new(Options::default());
    // It is replaced, so its set is not in the tree.
    builder.file(b"z", with(vec![xattr("user.z", "")]), 0, None, 0).expect("a file");
    builder.file(b"z", with(vec![xattr("user.b", "2"), xattr("user.a", "1")]), 0, None, 0).expect("a file");
    let again = vec![xattr("user.a", "0"), xattr("user.a", "1"), xattr("user.b", "2")];
    builder.file(b"a", with(again), 0, None, 0).expect("a file");
    builder.file(b"b", with(vec![xattr("user.b", "2")]), 0, None, 0).expect("a file");
    let tree = builder.finish().expect("a tree");
    assert_eq!(tree.xattrs.len(), 2);
    assert_eq!(tree.xattrs(0), [xattr("user.a", "1"), xattr("user.b", "2")]);
    let sets: Vec<_> = (1..4).map(|id| tree.node(Id(id)).xattrs).collect();
    assert_eq!(sets, [Some(0), Some(1), Some(0)]);
}

#[test]
fn data_is_joined_and_a_whole_file_has_no_map() {
    let mut builder = Builder::new(Options::default());
    let mut file = |path: &str, size, data| builder.file(path.as_bytes(), attributes(1), size, Some(data), 0);
    file("a", 10, vec![0..4, 4..4, 4..10]).expect("whole");
    file("b", 10, vec![0..2, 2..4, 5..6, 10..10]).expect("with holes");
    file("c", 0, vec![]).expect("empty");
    file("d", 1 << 40, vec![]).expect("nothing but a hole");
    let tree = builder.finish().expect("a tree");
    let sparse = |id| match tree.node(Id(id)).body {
        Body::File { sparse, .. } => sparse,
        _ => panic!("a file"),
    };
    assert_eq!([1, 2, 3, 4].map(sparse), [None, Some(0), None, Some(1)]);
    assert_eq!((tree.data(0), tree.data(1)), (&[0..4, 5..6][..], &[][..]));
}

#[test]
fn depth_and_width_cost_no_more_than_their_entries() {
    let mut builder = Builder::new(Options::default());
    let deep = "d/".repeat(100_000);
    file(&mut builder, &format!("{deep}f")).expect("a deep file");
    for n in 0..100_000u32 {
        file(&mut builder, &format!("wide/{}", n.wrapping_mul(0x9E37_79B9))).expect("a file");
    }
    let tree = builder.finish().expect("a tree");
    assert_eq!(tree.len(), 1 + 100_000 + 1 + 1 + 100_000);
}

#[test]
fn long_paths_do_not_make_directories_without_end() {
    let said = refused(|builder| {
        (0..).try_for_each(|n| {
            assert!(n < 4, "400,000 directories of four entries");
            file(builder, &format!("{n}/{}f", "d/".repeat(99_000)))
        })
    });
    assert!(
        said.ends_with("its path leads through more directories without entries than a tree may have (at byte 512)")
    );
    // Ten directories for each entry are accepted.
    let mut builder = Builder::new(Options::default());
    for n in 0..20_000 {
        file(&mut builder, &format!("{n}/{}f", "d/".repeat(9))).expect("a file");
    }
    assert_eq!(builder.finish().expect("a tree").len(), 1 + 20_000 * 11);
}

/// A step of building.
#[derive(Clone, Debug)]
enum Step {
    Directory(String),
    File(String),
    Link(String, String),
    Remove(String),
    Opaque(String),
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["[abc]", Just("bb".to_owned())], 1..4).prop_map(|parts| parts.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => path().prop_map(Step::Directory),
        5 => path().prop_map(Step::File),
        3 => (path(), path()).prop_map(|(path, target)| Step::Link(path, target)),
        1 => path().prop_map(Step::Remove),
        1 => path().prop_map(Step::Opaque),
    ]
}

/// The target of a path of the model.
#[derive(Clone, Debug, PartialEq)]
enum ModelNode {
    Directory(u32),
    File(u32),
    Later(String),
}

#[derive(Default)]
struct Model(BTreeMap<String, ModelNode>);

impl Model {
    fn below(path: &str) -> String {
        format!("{path}/")
    }

    fn empty(&mut self, path: &str) {
        let start = Model::below(path);
        self.0.retain(|path, _| !path.starts_with(&start));
    }

    fn parents(path: &str) -> impl Iterator<Item = &str> {
        path.match_indices('/').map(move |(at, _)| &path[..at])
    }

    /// Whether the parents are directories, or can be created.
    fn open(&self, path: &str) -> bool {
        Model::parents(path).all(|parent| matches!(self.0.get(parent), None | Some(ModelNode::Directory(_))))
    }

    fn put(&mut self, path: &str, thing: ModelNode) -> bool {
        if !self.open(path) {
            return false;
        }
        for parent in Model::parents(path) {
            self.0.entry(parent.to_owned()).or_insert(ModelNode::Directory(0));
        }
        if !matches!((&thing, self.0.get(path)), (ModelNode::Directory(_), Some(ModelNode::Directory(_)))) {
            self.empty(path);
        }
        self.0.insert(path.to_owned(), thing);
        true
    }

    fn step(&mut self, step: &Step, number: u32) -> bool {
        match step {
            Step::Directory(path) => self.put(path, ModelNode::Directory(number)),
            Step::File(path) => self.put(path, ModelNode::File(number)),
            Step::Link(path, target) => {
                let thing = match self.0.get(target) {
                    _ if !self.open(target) => return false,
                    Some(ModelNode::Directory(_)) => return false,
                    Some(ModelNode::File(number)) => ModelNode::File(*number),
                    Some(ModelNode::Later(_)) | None => ModelNode::Later(target.clone()),
                };
                self.put(path, thing)
            }
            Step::Remove(path) => {
                if !self.open(path) {
                    return false;
                }
                self.empty(path);
                self.0.remove(path);
                true
            }
            Step::Opaque(path) => {
                if !self.open(path) {
                    return false;
                }
                if matches!(self.0.get(path), Some(ModelNode::Directory(_))) {
                    self.empty(path);
                }
                true
            }
        }
    }

    /// Every name, with links followed; `None` if one is impossible.
    fn finish(&self) -> Option<BTreeMap<String, ModelNode>> {
        let follow = |thing: &ModelNode| {
            let mut thing = thing.clone();
            for _ in 0..=self.0.len() {
                match thing {
                    ModelNode::Later(target) => thing = self.0.get(&target)?.clone(),
                    ModelNode::Directory(_) => return None,
                    ModelNode::File(_) => return Some(thing),
                }
            }
            None
        };
        let finished = self.0.iter().map(|(path, thing)| match thing {
            ModelNode::Later(_) => Some((path.clone(), follow(thing)?)),
            thing => Some((path.clone(), thing.clone())),
        });
        finished.collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_builder_agrees_with_a_map_of_paths(steps in proptest::collection::vec(step(), 0..25)) {
        let mut model = Model::default();
        let mut builder = Builder::new(Options::default());
        for (number, step) in (1..).zip(&steps) {
            let done = match step {
                Step::Directory(path) => builder.directory(path.as_bytes(), attributes(number)),
                Step::File(path) => builder.file(path.as_bytes(), attributes(number), 0, None, 0),
                Step::Link(path, target) => builder.hard_link(path.as_bytes(), target.as_bytes()),
                Step::Remove(path) => builder.remove(path.as_bytes()),
                Step::Opaque(path) => builder.make_opaque(path.as_bytes()),
            };
            prop_assert_eq!(done.is_ok(), model.step(step, number), "{:?}: {:?}", step, done);
        }
        let tree = builder.finish();
        let Some(expected) = model.finish() else {
            prop_assert!(tree.is_err());
            return Ok(());
        };
        let tree = tree.expect("the model finishes");
        let found: BTreeMap<String, ModelNode> = names(&tree)
            .into_iter()
            .map(|(path, id)| {
                let node = tree.node(id);
                let directory = matches!(node.body, Body::Directory { .. });
                let thing = if directory { ModelNode::Directory(node.uid) } else { ModelNode::File(node.uid) };
                (path[1..].to_owned(), thing)
            })
            .collect();
        prop_assert_eq!(&found, &expected);
        // Numbers, links and parents are those of the names.
        let mut links = vec![0; tree.len()];
        links[0] = 2;
        let mut next = 1;
        let mut waiting = vec![Id(0)];
        while let Some(dir) = waiting.pop() {
            let mut below = Vec::new();
            for (_, id) in tree.entries(dir) {
                links[id.0 as usize] += 1;
                if id.0 == next {
                    next += 1;
                }
                prop_assert!(id.0 < next, "{} was not met in order", id.0);
                if let Body::Directory { parent, .. } = tree.node(id).body {
                    prop_assert_eq!(parent, dir);
                    links[id.0 as usize] += 1;
                    links[dir.0 as usize] += 1;
                    below.push(id);
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        prop_assert_eq!(next as usize, tree.len());
        let counted: Vec<u32> = (0..tree.len() as u32).map(|id| tree.node(Id(id)).links).collect();
        prop_assert_eq!(links, counted);
    }

    #[test]
    fn the_order_of_entries_makes_no_difference(
        kinds in proptest::collection::btree_map(path(), 0..4u32, 0..12),
        order in proptest::collection::vec(any::<u32>(), 12),
    ) {
        // A name below a file is impossible.
        let is_parent = |path: &String| kinds.keys().any(|other| other.starts_with(&Model::below(path)));
        let mut entries: Vec<_> =
            kinds.iter().map(|(path, kind)| (path, if is_parent(path) { 0 } else { *kind })).collect();
        let first = entries.iter().find(|(_, kind)| matches!(kind, 1 | 2)).map(|(path, _)| (*path).clone());
        let build = |entries: &[(&String, u32)]| {
            let mut builder = Builder::new(Options::default());
            for (path, kind) in entries {
                match (kind, &first) {
                    (0, _) => builder.directory(path.as_bytes(), attributes(path.len() as u32)),
                    (3, Some(first)) => builder.hard_link(path.as_bytes(), first.as_bytes()),
                    (2, _) => builder.symlink(path.as_bytes(), attributes(2), path.as_bytes()),
                    _ => builder.file(path.as_bytes(), attributes(1), path.len() as u64, None, 0),
                }
                .expect("an entry");
            }
            builder.finish().expect("a tree")
        };
        let one = build(&entries);
        let mut keyed: Vec<_> = order.into_iter().zip(entries.drain(..)).collect();
        keyed.sort();
        let two = build(&keyed.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>());
        prop_assert_eq!(&one.nodes, &two.nodes);
        prop_assert_eq!(&one.entries, &two.entries);
        prop_assert_eq!(&one.names, &two.names);
    }
}
