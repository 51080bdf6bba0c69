//! A damaged image gives true answers or errors: never success with less than the truth.
//!
//! A table of structures, of ways to damage each, and of questions. The truth is the answer of the intact image.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::damaged::*;
use extant_block::device::MemDevice;
use extant_fs::{
    Atime, Cred, Error, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, Result, Seek, SetAttr,
    SetMode, WriteFlags,
};
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::{BlockNr, InodeNr};

/// user::rw-,user:1:rw-,group::r--,mask::rw-,other::---, as setxattr(2) passes it.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 6, 0,
    255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const MANY: usize = 400;
const LONG_TARGET: &[u8] = &[b't'; 200];

fn name_in_many(i: usize) -> Vec<u8> {
    format!("{i:0>40}").into_bytes()
}

fn fill(fs: &Filesystem, root: &InodeRef) {
    let create = |dir: &InodeRef, name: &[u8], node| fs.create(dir, name, node, Cred::default()).expect("create");
    let bs = u64::from(fs.block_size());
    let few = create(root, b"few", NewNode::directory(0o755));
    for i in 0..5 {
        create(&few, &name_in_many(i), NewNode::file(0o644));
    }
    create(&few, b"below", NewNode::directory(0o755));
    let many = create(root, b"many", NewNode::directory(0o755));
    for i in 0..MANY {
        create(&many, &name_in_many(i), NewNode::file(0o644));
    }
    let file = create(root, b"file", NewNode::file(0o644));
    for i in 0..40 {
        fs.write(&file, i * 2 * bs, &vec![i as u8 + 1; bs as usize], WriteFlags::default()).expect("write");
    }
    fs.set_xattr(&file, b"user.small", b"value", SetMode::Any).expect("xattr");
    fs.set_xattr(&file, b"user.large", &[b'L'; 700], SetMode::Any).expect("xattr");
    create(root, b"fast", NewNode::symlink(b"target"));
    create(root, b"slow", NewNode::symlink(LONG_TARGET));
    let guarded = create(root, b"guarded", NewNode::file(0o640));
    fs.set_xattr(&guarded, ACCESS, ACL, SetMode::Any).expect("ACL");
    let hands_down = create(root, b"hands-down", NewNode::directory(0o750));
    fs.set_xattr(&hands_down, DEFAULT, ACL, SetMode::Any).expect("ACL");
}

/// The answer to each question. An error that blames the image or the device is not an answer.
type Answers = BTreeMap<String, std::result::Result<String, Error>>;

fn note(answers: &mut Answers, question: String, r: Result<String>) {
    let answer = match r {
        Err(e @ (Error::Corrupt { .. } | Error::Device(_) | Error::Unsupported(_))) => Err(e),
        Err(e) => Ok(format!("refused: {e}")),
        Ok(answer) => Ok(answer),
    };
    answers.insert(question, answer);
}

fn listing(fs: &Filesystem, dir: &InodeRef) -> Result<String> {
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let before = names.len();
        cookie = fs.read_dir(dir, cookie, |e| {
            names.push(String::from_utf8_lossy(e.name).into_owned());
            names.len() < before + 50
        })?;
        if names.len() == before {
            names.sort();
            names.dedup();
            return Ok(names.concat());
        }
    }
}

fn content(fs: &Filesystem, file: &InodeRef) -> Result<String> {
    let mut all = vec![0; file.size() as usize];
    let n = fs.read(file, 0, &mut all)?;
    Ok(format!("{n} bytes {:x}", extant_ondisk::csum::crc32c(0, &all)))
}

/// All questions that change nothing. An error that blames the image is counted at each question, except for
/// listings, which count it when they meet the damage.
fn ask_all(dev: &MemDevice) -> Answers {
    let mount_options = MountOptions { atime: Atime::Never, ..options() };
    let fs = Filesystem::mount(Arc::new(dev.snapshot()), mount_options).expect("mounted");
    let mut answers = Answers::new();
    let top = |name: &str| fs.lookup(&fs.root()?, name.as_bytes());
    let mut ask = |question: &str, f: &dyn Fn() -> Result<String>| {
        let before = fs.stats.errors.get();
        let r = f();
        let counted = fs.stats.errors.get() > before || question.starts_with("list");
        assert!(counted || !matches!(r, Err(Error::Corrupt { .. })), "{question}: not noted: {r:?}");
        note(&mut answers, question.to_owned(), r);
    };
    for name in ["few", "many", "file", "fast", "slow", "guarded", "hands-down", "absent"] {
        ask(&format!("stat {name}"), &|| top(name).map(|i| format!("{:?}", fs.getattr(&i))));
        ask(&format!("attributes of {name}"), &|| Ok(format!("{:?}", fs.list_xattrs(&top(name)?)?)));
    }
    for name in ["few", "many", "hands-down"] {
        ask(&format!("list {name}"), &|| listing(&fs, &top(name)?));
        ask(&format!("parent of {name}"), &|| Ok(fs.parent(&top(name)?)?.ino.to_string()));
    }
    for (dir, count) in [("few", 5), ("many", MANY)] {
        for i in 0..count {
            ask(&format!("{dir}/{i}"), &|| Ok(fs.lookup(&top(dir)?, &name_in_many(i))?.ino.to_string()));
        }
    }
    let attributes =
        [("file", &b"user.small"[..]), ("file", b"user.large"), ("guarded", ACCESS), ("hands-down", DEFAULT)];
    for (file, name) in attributes {
        let question = format!("{} of {file}", name.escape_ascii());
        ask(&question, &|| Ok(format!("{:?}", fs.get_xattr(&top(file)?, name)?)));
    }
    ask("read", &|| content(&fs, &top("file")?));
    let bs = u64::from(fs.block_size());
    for i in 0..80 {
        for what in [Seek::Data, Seek::Hole] {
            ask(&format!("{what:?} {i}"), &|| Ok(fs.seek(&top("file")?, i * bs, what)?.to_string()));
        }
        ask(&format!("bmap {i}"), &|| Ok(format!("{:?}", fs.bmap(&top("file")?, i)?)));
    }
    ask("extents", &|| {
        let mut all = Vec::new();
        fs.extents(&top("file")?, |e| all.push(e))?;
        Ok(format!("{all:?}"))
    });
    for link in ["fast", "slow"] {
        ask(&format!("target of {link}"), &|| Ok(format!("{:?}", fs.read_link(&top(link)?)?)));
    }
    answers
}

type Change = fn(&Filesystem, &dyn Fn(&str) -> Result<InodeRef>) -> Result<String>;

/// Changes, and their visible results, each on its own mount.
const CHANGES: &[(&str, Change)] = &[
    ("create what is there, in few", |fs, top| {
        fs.create(&top("few")?, &name_in_many(3), NewNode::file(0o600), Cred::default()).map(|_| String::new())
    }),
    ("create what is there, in many", |fs, top| {
        let mut all = String::new();
        for i in 0..MANY {
            match fs.create(&top("many")?, &name_in_many(i), NewNode::file(0o600), Cred::default()) {
                Err(Error::Exists | Error::Corrupt { .. }) => {}
                other => all += &format!("{i}: {other:?}"),
            }
        }
        Ok(all)
    }),
    ("link over what is there", |fs, top| {
        fs.link(&top("file")?, &top("few")?, &name_in_many(4)).map(|()| String::new())
    }),
    ("rmdir few", |fs, _| fs.rmdir(&fs.root()?, b"few").map(|()| String::new())),
    ("rmdir many", |fs, _| fs.rmdir(&fs.root()?, b"many").map(|()| String::new())),
    ("rename over few", |fs, _| {
        let root = fs.root()?;
        fs.rename(&root, b"hands-down", &root, b"few", RenameFlags::default()).map(|()| String::new())
    }),
    ("rename over many", |fs, _| {
        let root = fs.root()?;
        fs.rename(&root, b"few", &root, b"many", RenameFlags::default()).map(|()| String::new())
    }),
    ("rename into many", |fs, top| {
        fs.rename(
            &fs.root()?,
            b"guarded",
            &top("many")?,
            &name_in_many(7),
            RenameFlags { no_replace: true, ..RenameFlags::default() },
        )
        .map(|()| String::new())
    }),
    ("create with a default ACL", |fs, top| {
        let made = fs.create(&top("hands-down")?, b"new", NewNode::file(0o666), Cred::default())?;
        Ok(format!("{:o} {:?}", made.mode(), fs.get_xattr(&made, ACCESS)?))
    }),
    ("mkdir with a default ACL", |fs, top| {
        let made = fs.create(&top("hands-down")?, b"new", NewNode::directory(0o777), Cred::default())?;
        Ok(format!("{:o} {:?}", made.mode(), fs.get_xattr(&made, DEFAULT)?))
    }),
    ("chmod with an ACL", |fs, top| {
        let file = top("guarded")?;
        fs.setattr(&file, &SetAttr { mode: Some(0o600), ..SetAttr::default() })?;
        Ok(format!("{:o} {:?}", file.mode(), fs.get_xattr(&file, ACCESS)?))
    }),
    ("create an attribute that is there", |fs, top| {
        fs.set_xattr(&top("file")?, b"user.large", b"new", SetMode::Create).map(|()| String::new())
    }),
    ("set an attribute", |fs, top| {
        let file = top("file")?;
        fs.set_xattr(&file, b"user.more", &[b'M'; 100], SetMode::Any)?;
        Ok(format!("{:?} {:?}", fs.list_xattrs(&file)?, fs.get_xattr(&file, b"user.large")?))
    }),
    ("remove an attribute", |fs, top| {
        let file = top("file")?;
        fs.remove_xattr(&file, b"user.small")?;
        Ok(format!("{:?} {:?}", fs.list_xattrs(&file)?, fs.get_xattr(&file, b"user.large")?))
    }),
    ("cut and grow", |fs, top| {
        let file = top("file")?;
        let bs = u64::from(fs.block_size());
        fs.setattr(&file, &SetAttr { size: Some(33 * bs + 10), ..SetAttr::default() })?;
        fs.setattr(&file, &SetAttr { size: Some(70 * bs), ..SetAttr::default() })?;
        fs.fsync(&file, false)?;
        content(fs, &file)
    }),
    ("fill holes", |fs, top| {
        let file = top("file")?;
        let bs = u64::from(fs.block_size());
        for i in [1, 31, 61] {
            fs.write(&file, i * bs, &vec![0xAB; bs as usize], WriteFlags::default())?;
        }
        fs.fsync(&file, false)?;
        content(fs, &file)
    }),
    ("overwrite a part", |fs, top| {
        let file = top("file")?;
        fs.write(&file, 60 * u64::from(fs.block_size()) + 7, b"seven", WriteFlags::default())?;
        fs.fsync(&file, false)?;
        content(fs, &file)
    }),
];

/// How a structure is damaged.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Ones,
    Zeros,
    /// One bit at this percentage of the structure.
    Flip(usize),
}

impl Harm {
    fn inflict(self, bytes: &mut [u8]) {
        match self {
            Harm::Ones => bytes.fill(0xFF),
            Harm::Zeros => bytes.fill(0),
            Harm::Flip(percent) => {
                let at = (bytes.len() - 1) * percent / 100;
                bytes[at] ^= 1;
            }
        }
    }
}

/// A structure of the image, by name.
#[derive(Clone, Debug)]
enum Target {
    Block(BlockNr),
    Slot(InodeNr),
}

fn slot_of(dev: &MemDevice, ino: InodeNr) -> Vec<u8> {
    let mut bytes = Vec::new();
    edit_inode(dev, ino, |slot| bytes = slot.to_vec());
    bytes
}

/// Every structure, with the damage that is distinguishable from an intact one.
fn targets(dev: &Arc<MemDevice>) -> Vec<(String, Target, &'static [Harm])> {
    const ANY: &[Harm] = &[Harm::Ones, Harm::Zeros, Harm::Flip(0), Harm::Flip(7), Harm::Flip(50), Harm::Flip(99)];
    const WITHOUT_CHECKSUM: &[Harm] = &[Harm::Ones, Harm::Zeros];
    let sb = super_of(dev);
    let geo = sb.geometry();
    let some = if geo.metadata_csum { ANY } else { WITHOUT_CHECKSUM };
    let ones: &[Harm] = if geo.metadata_csum { ANY } else { &[Harm::Ones] };
    let (fs, root) = mount(dev);
    let ino = |name: &str| fs.lookup(&root, name.as_bytes()).expect("there").ino;
    let mut all = Vec::new();
    for name in ["few", "many", "file", "fast", "slow", "guarded", "hands-down"] {
        all.push((
            format!("inode of {name}"),
            Target::Slot(ino(name)),
            if geo.metadata_csum { ANY } else { &[Harm::Zeros] },
        ));
    }
    all.push(("block of few".into(), Target::Block(first_block(dev, ino("few"))), some));
    for lblk in [0, 1, 5] {
        let what = if lblk == 0 { "root of many's index".into() } else { format!("leaf {lblk} of many") };
        all.push((what, Target::Block(mapped(dev, ino("many"), lblk)), some));
    }
    let desc = InodeDesc::parse(&slot_of(dev, ino("file")), ino("file"), geo).expect("inode");
    all.push(("attributes of file".into(), Target::Block(desc.file_acl), some));
    let pointer =
        |at: usize| BlockNr(u64::from(u32::from_le_bytes(desc.i_block[at..at + 4].try_into().expect("4 bytes"))));
    if desc.has_extents() {
        all.push(("extents of file".into(), Target::Block(pointer(12 + 4)), some));
    } else {
        // Zeros would be a hole.
        all.push(("pointers of file".into(), Target::Block(pointer(48)), ones));
    }
    drop(root);
    fs.unmount().expect("unmount");
    all
}

fn damaged_copy(dev: &MemDevice, target: &Target, harm: Harm) -> Arc<MemDevice> {
    let copy = Arc::new(dev.snapshot());
    let sb = super_of(dev);
    let geo = sb.geometry();
    match *target {
        Target::Block(nr) => {
            let mut bytes = block(&copy, geo, nr);
            harm.inflict(&mut bytes);
            put(&copy, nr, &bytes);
        }
        Target::Slot(ino) => edit_slot_only(&copy, ino, |slot| harm.inflict(slot)),
    }
    copy
}

/// As [`edit_inode`], but the checksum does not change.
fn edit_slot_only(dev: &MemDevice, ino: InodeNr, f: impl FnOnce(&mut [u8])) {
    let sb = super_of(dev);
    let geo = sb.geometry();
    let place = geo.inode_location(ino).expect("place");
    let nr = BlockNr(desc(dev, geo, place.group).inode_table.0 + u64::from(place.table_block));
    let mut bytes = block(dev, geo, nr);
    f(&mut bytes[place.offset..place.offset + geo.inode_size]);
    put(dev, nr, &bytes);
}

fn judge(what: &str, truth: &Answers, found: &Answers, lies: &mut Vec<String>) -> usize {
    let mut errors = 0;
    for (question, wanted) in truth {
        match (&found[question], wanted.as_ref().expect("the whole image answers")) {
            (Ok(answer), wanted) if answer == wanted => {}
            (Ok(answer), wanted) => {
                lies.push(format!("{what}: {question}: {answer:.300}\n    the truth: {wanted:.300}"))
            }
            (Err(_), _) => errors += 1,
        }
    }
    errors
}

fn change(dev: &MemDevice, change: Change) -> (Answers, u64) {
    let (fs, root): (Mounted, InodeRef) = mount(&Arc::new(dev.snapshot()));
    let top = |name: &str| fs.lookup(&root, name.as_bytes());
    let mut answers = Answers::new();
    note(&mut answers, "it".to_owned(), change(&fs, &top));
    let errors = fs.stats.errors.get();
    drop(root);
    let _ = fs.unmount();
    (answers, errors)
}

/// Damage with correct checksums: a structure that contradicts itself.
struct Contradiction {
    what: &'static str,
    of: &'static str,
    edit: fn(&mut [u8], u64),
}

/// The start of the attributes in an inode, behind their magic number.
fn first_attribute(slot: &[u8]) -> usize {
    128 + usize::from(u16::from_le_bytes([slot[128], slot[129]])) + 4
}

/// Each takes the bytes of an inode, and the size of a block.
const CONTRADICTIONS: &[Contradiction] = &[
    Contradiction { what: "a directory of no bytes", of: "few", edit: |slot, _| slot[4..8].fill(0) },
    Contradiction {
        what: "a directory of less than a block",
        of: "few",
        edit: |slot, bs| slot[4..8].copy_from_slice(&(bs as u32 - 4).to_le_bytes()),
    },
    Contradiction {
        what: "a directory with a block and a half",
        of: "few",
        edit: |slot, bs| slot[4..8].copy_from_slice(&(bs as u32 * 3 / 2).to_le_bytes()),
    },
    Contradiction {
        what: "a directory that ends with a hole",
        of: "few",
        edit: |slot, bs| slot[4..8].copy_from_slice(&(bs as u32 * 2).to_le_bytes()),
    },
    Contradiction {
        what: "a directory that is a hole",
        of: "few",
        edit: |slot, _| match slot[40..42] == [0x0A, 0xF3] {
            true => slot[42..44].fill(0),
            false => slot[40..44].fill(0),
        },
    },
    Contradiction {
        what: "an indexed directory that lost its end",
        of: "many",
        edit: |slot, bs| slot[4..8].copy_from_slice(&(bs as u32 * 3).to_le_bytes()),
    },
    Contradiction { what: "a fast target that ends early", of: "fast", edit: |slot, _| slot[43] = 0 },
    Contradiction { what: "a fast target without end", of: "fast", edit: |slot, _| slot[4] = 30 },
    Contradiction { what: "a slow target without end", of: "slow", edit: |slot, _| slot[4] = 250 },
    Contradiction { what: "a target of no bytes", of: "fast", edit: |slot, _| slot[4] = 0 },
    Contradiction {
        what: "a slow target without a block",
        of: "slow",
        edit: |slot, _| match slot[40..42] == [0x0A, 0xF3] {
            true => slot[42..44].fill(0),
            false => slot[40..44].fill(0),
        },
    },
    Contradiction {
        what: "an attribute whose value lies outside",
        of: "file",
        edit: |slot, _| {
            let at = first_attribute(slot);
            slot[at + 2..at + 4].copy_from_slice(&[0xF0, 0x7F]);
        },
    },
    Contradiction {
        what: "an attribute with a long name",
        of: "file",
        edit: |slot, _| {
            let at = first_attribute(slot);
            slot[at] = 255;
        },
    },
    Contradiction {
        what: "an attribute in an inode of its own, without the feature",
        of: "file",
        edit: |slot, _| {
            let at = first_attribute(slot);
            slot[at + 4..at + 8].copy_from_slice(&13u32.to_le_bytes());
        },
    },
    Contradiction {
        what: "an ACL of another version",
        of: "guarded",
        edit: |slot, _| {
            let at = first_attribute(slot);
            let value = at - 4 + 4 + usize::from(u16::from_le_bytes([slot[at + 2], slot[at + 3]]));
            slot[value] = 7;
        },
    },
    Contradiction {
        what: "an ACL that ends early",
        of: "hands-down",
        edit: |slot, _| {
            let at = first_attribute(slot);
            slot[at + 8] -= 2;
        },
    },
];

#[test]
fn contradictory_inodes_give_the_truth_or_an_error() {
    let mut lies = Vec::new();
    for kind in KINDS {
        let dev = made(kind, fill);
        let truth = ask_all(&dev);
        let changed: Vec<Answers> = CHANGES.iter().map(|(_, f)| change(&dev, *f).0).collect();
        for Contradiction { what, of, edit } in CONTRADICTIONS {
            let copy = Arc::new(dev.snapshot());
            let ino = {
                let (fs, root) = mount(&Arc::new(dev.snapshot()));
                fs.lookup(&root, of.as_bytes()).expect("there").ino
            };
            edit_inode(&copy, ino, |slot| edit(slot, u64::from(super_of(&dev).geometry().block_size)));
            let what = format!("{kind:?}: {what}");
            let mut found = ask_all(&copy);
            // The size is the changed field, and is shown as it is.
            found.insert(format!("stat {of}"), truth[&format!("stat {of}")].clone());
            let mut errors = judge(&what, &truth, &found, &mut lies);
            for ((action, f), truth) in CHANGES.iter().zip(&changed) {
                errors += judge(&format!("{what}: {action}"), truth, &change(&copy, *f).0, &mut lies);
            }
            if errors == 0 {
                lies.push(format!("{what}: no error"));
            }
        }
    }
    assert!(lies.is_empty(), "{}:\n{}", lies.len(), lies[..lies.len().min(20)].join("\n"));
}

#[test]
fn a_damaged_image_answers_with_the_truth_or_an_error() {
    let mut lies = Vec::new();
    let (mut asked, mut refused) = (0, 0);
    for kind in KINDS {
        let dev = made(kind, fill);
        let truth = ask_all(&dev);
        let changed: Vec<Answers> = CHANGES.iter().map(|(_, f)| change(&dev, *f).0).collect();
        for (name, target, harms) in targets(&dev) {
            for harm in harms {
                let what = format!("{kind:?}: {name}, {harm:?}");
                let copy = damaged_copy(&dev, &target, *harm);
                let errors = judge(&what, &truth, &ask_all(&copy), &mut lies);
                asked += truth.len();
                refused += errors;
                for ((action, f), truth) in CHANGES.iter().zip(&changed) {
                    let (found, noted) = change(&copy, *f);
                    let errors = judge(&format!("{what}: {action}"), truth, &found, &mut lies);
                    assert!(errors == 0 || noted > 0, "{what}: {action}: an error without a record: {found:?}");
                    asked += 1;
                    refused += errors;
                }
            }
        }
    }
    assert!(refused > 500, "{refused} of {asked} questions met the damage");
    assert!(lies.is_empty(), "{} of {asked}:\n{}", lies.len(), lies[..lies.len().min(20)].join("\n"));
}
