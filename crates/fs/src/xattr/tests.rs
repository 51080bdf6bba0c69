//! Tests of attribute operations against a model, on inodes that share blocks in the way of the kernel.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use extant_ondisk::xattr::{EntryList, inode_area};
use extant_ondisk::xattr::{ExternalValue, Name, XattrBlock, is_outside_hash, value_hash};
use extant_ondisk::{BlockNr, InodeNr};
use proptest::prelude::*;

use super::*;

const SEED: Option<u32> = Some(77);
const BLOCK: usize = 1024;

/// Blocks in memory; every block in the map is allocated.
#[derive(Default)]
pub(super) struct Disk {
    pub blocks: BTreeMap<u64, Vec<u8>>,
    pub next: u64,
    pub full: bool,
    /// The blocks that joined the transaction, and the blocks that were freed, in order.
    pub journalled: Vec<u64>,
    pub freed: Vec<u64>,
    shared: Arc<SharedBlocks>,
    /// Whether values may have inodes of their own.
    pub outside: bool,
    /// The values in inodes of their own, with their reference counts.
    pub values: BTreeMap<u32, (Vec<u8>, u64)>,
}

/// One inode in memory.
#[derive(Clone)]
pub(super) struct MemInode {
    pub ino: u32,
    pub mode: u16,
    pub area: Vec<u8>,
    pub block: Option<BlockNr>,
    pub disk: Rc<RefCell<Disk>>,
    /// The bytes of values in other inodes that are charged to this one.
    pub charged: i64,
    shared: Arc<SharedBlocks>,
}

impl MemInode {
    pub fn new(ino: u32, mode: u16, area_len: usize, disk: &Rc<RefCell<Disk>>) -> MemInode {
        let shared = disk.borrow().shared.clone();
        MemInode { ino, mode, area: vec![0; area_len], block: None, disk: disk.clone(), charged: 0, shared }
    }
}

impl XattrSource for MemInode {
    type Error = String;
    fn ino(&self) -> InodeNr {
        InodeNr(self.ino)
    }
    fn mode(&self) -> u16 {
        self.mode
    }
    fn inode_area(&self) -> Result<Vec<u8>, String> {
        Ok(self.area.clone())
    }
    fn block_nr(&self) -> Option<BlockNr> {
        self.block
    }
    fn read_block(&self, nr: BlockNr) -> Result<Vec<u8>, String> {
        self.disk.borrow().blocks.get(&nr.0).cloned().ok_or_else(|| format!("read of free {nr}"))
    }
    fn block_size(&self) -> usize {
        BLOCK
    }
    fn checksum_seed(&self) -> Option<u32> {
        SEED
    }

    fn shared(&self) -> &Arc<SharedBlocks> {
        &self.shared
    }

    fn may_go_outside(&self) -> bool {
        self.disk.borrow().outside
    }

    fn value(&self, name: Name<'_>, there: ExternalValue) -> Result<Vec<u8>, Self::Error> {
        let d = self.disk.borrow();
        let (value, references) = d.values.get(&there.inode.0).ok_or("no such value")?;
        assert!(*references > 0 && value.len() == there.len as usize);
        assert!(is_outside_hash(there.hash, name.suffix, value_hash(7, value)));
        Ok(value.clone())
    }
}

impl XattrStore for MemInode {
    fn write_inode_area(&mut self, area: &[u8]) -> Result<(), String> {
        assert_eq!(area.len(), self.area.len());
        self.area = area.to_vec();
        Ok(())
    }
    fn set_mode(&mut self, mode: u16) -> Result<(), String> {
        self.mode = mode;
        Ok(())
    }
    fn set_block_nr(&mut self, nr: Option<BlockNr>) -> Result<(), String> {
        self.block = nr;
        Ok(())
    }
    fn allocate_block(&mut self) -> Result<BlockNr, String> {
        let mut d = self.disk.borrow_mut();
        if d.full {
            return Err("disk full".into());
        }
        d.next += 1;
        let nr = 100 + d.next;
        d.blocks.insert(nr, vec![0xA5; BLOCK]);
        Ok(BlockNr(nr))
    }
    fn init_block(&mut self, nr: BlockNr, bytes: &[u8]) -> Result<(), String> {
        self.disk.borrow_mut().blocks.insert(nr.0, bytes.to_vec());
        Ok(())
    }
    fn update_block(
        &mut self,
        nr: BlockNr,
        _held: &Joinable,
        change: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), String> {
        let mut d = self.disk.borrow_mut();
        let block = d.blocks.get_mut(&nr.0).ok_or("update of a free block")?;
        if change(block) {
            d.journalled.push(nr.0);
        }
        Ok(())
    }
    fn free_block(&mut self, nr: BlockNr) -> Result<(), String> {
        let mut d = self.disk.borrow_mut();
        d.blocks.remove(&nr.0).ok_or("double free")?;
        d.freed.push(nr.0);
        Ok(())
    }
    fn prepared(&self, value: &[u8]) -> Option<(InodeNr, u32)> {
        let mut d = self.disk.borrow_mut();
        if !d.outside {
            return None;
        }
        let found = d.values.iter().find(|(_, (bytes, _))| bytes == value).map(|(ino, _)| *ino);
        let ino = found.unwrap_or_else(|| d.values.last_key_value().map_or(1000, |(ino, _)| ino + 1));
        d.values.entry(ino).or_insert_with(|| (value.to_vec(), 0));
        Some((InodeNr(ino), value_hash(7, value)))
    }
    fn refer(&mut self, value: InodeNr, how: Reference) -> Result<(), String> {
        let mut d = self.disk.borrow_mut();
        let (_, references) = d.values.get_mut(&value.0).ok_or("no such value")?;
        match how {
            Reference::Add => *references += 1,
            Reference::Drop => *references = references.checked_sub(1).ok_or("a reference too few")?,
        }
        Ok(())
    }
    fn charge(&mut self, before: &[ExternalValue], after: &[ExternalValue]) -> Result<(), String> {
        let bytes = |all: &[ExternalValue]| all.iter().map(|there| i64::from(there.len)).sum::<i64>();
        self.charged += bytes(after) - bytes(before);
        Ok(())
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn check(inode: &MemInode, model: &Model) {
    let mut names = list(inode).unwrap();
    names.sort();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in model {
        assert_eq!(&get(inode, name).unwrap(), value);
    }
}

fn check_refcounts(inodes: &[MemInode]) {
    let disk = inodes[0].disk.borrow();
    let mut expected: BTreeMap<u64, u32> = BTreeMap::new();
    for nr in inodes.iter().filter_map(|i| i.block) {
        *expected.entry(nr.0).or_default() += 1;
    }
    let found: BTreeMap<u64, u32> =
        disk.blocks.iter().map(|(&nr, b)| (nr, XattrBlock::parse(b, BlockNr(nr), SEED).unwrap().refcount)).collect();
    assert_eq!(found, expected);
    drop(found);
    // Each entry in an inode and each entry in a block is one reference, and each inode counts all of its values.
    let mut references: BTreeMap<u32, u64> = BTreeMap::new();
    let mut refer =
        |list: &EntryList| list.outside().for_each(|there| *references.entry(there.inode.0).or_default() += 1);
    let list_of = |nr: u64| XattrBlock::parse(&disk.blocks[&nr], BlockNr(nr), SEED).unwrap().to_list();
    for inode in inodes {
        let own = inode_area::decode(&inode.area, InodeNr(inode.ino)).unwrap();
        let in_block = inode.block.map(|nr| list_of(nr.0)).unwrap_or_default();
        let bytes = own.outside().chain(in_block.outside()).map(|there| i64::from(there.len)).sum::<i64>();
        assert_eq!(inode.charged, bytes);
        refer(&own);
    }
    disk.blocks.keys().for_each(|nr| refer(&list_of(*nr)));
    let found: BTreeMap<_, _> =
        disk.values.iter().filter(|(_, (_, n))| *n > 0).map(|(ino, (_, n))| (*ino, *n)).collect();
    assert_eq!(found, references);
}

/// Makes `to` share the block of `from`, as the kernel does if both have the same attributes.
fn share(from: &MemInode, to: &mut MemInode) {
    let nr = from.block.unwrap();
    let mut disk = from.disk.borrow_mut();
    let bytes = disk.blocks.get_mut(&nr.0).unwrap();
    let (list, refcount) = {
        let b = XattrBlock::parse(bytes, nr, SEED).unwrap();
        (b.to_list(), b.refcount)
    };
    XattrBlock::encode(&list, refcount + 1, bytes, nr, SEED).unwrap();
    to.block = Some(nr);
    to.charged += list.outside().map(|there| i64::from(there.len)).sum::<i64>();
}

#[derive(Clone, Debug)]
enum Op {
    Set(usize, u8, usize, SetMode),
    Remove(usize, u8),
    Share(usize, usize),
    Evict(usize),
    Full(bool),
}

fn any_op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(SetMode::Any), Just(SetMode::Any), Just(SetMode::Create), Just(SetMode::Replace)];
    prop_oneof![
        8 => (0usize..4, 0u8..9, prop_oneof![0usize..40, 0usize..400, Just(900), Just(5000)], mode)
            .prop_map(|(i, n, v, m)| Op::Set(i, n, v, m)),
        3 => (0usize..4, 0u8..9).prop_map(|(i, n)| Op::Remove(i, n)),
        3 => (0usize..4, 0usize..4).prop_map(|(i, j)| Op::Share(i, j)),
        1 => (0usize..4).prop_map(Op::Evict),
        1 => any::<bool>().prop_map(Op::Full),
    ]
}

fn full_name(n: u8) -> Vec<u8> {
    [[&b"user."[..], b"trusted.", b"security."][usize::from(n) % 3], &vec![b'a' + n; 1 + usize::from(n) * 9]].concat()
}

proptest! {
    #[test]
    fn operations_match_a_model(ops in prop::collection::vec(any_op(), 1..60), area_len in prop_oneof![Just(0usize), Just(96), Just(200)], outside: bool) {
        let disk = Rc::new(RefCell::new(Disk { outside, ..Disk::default() }));
        let mut inodes: Vec<_> = (0..4).map(|i| MemInode::new(12 + i, 0o100644, area_len, &disk)).collect();
        let mut models = vec![Model::new(); 4];
        for op in ops {
            match op {
                Op::Set(i, n, len, mode) => {
                    let (name, value) = (full_name(n), vec![n ^ len as u8; len]);
                    let had = models[i].contains_key(&name);
                    match set(&mut inodes[i], &name, &value, mode) {
                        Ok(()) => {
                            prop_assert_ne!(mode, if had { SetMode::Create } else { SetMode::Replace });
                            models[i].insert(name, value);
                        }
                        Err(XattrError::Exists { .. }) => prop_assert!(mode == SetMode::Create && had),
                        Err(XattrError::NotFound { .. }) => prop_assert!(mode == SetMode::Replace && !had),
                        Err(XattrError::NoSpace { source, .. }) => prop_assert!(source.needed > source.available),
                        Err(XattrError::Store(_)) => prop_assert!(disk.borrow().full),
                        Err(other) => panic!("{other}"),
                    }
                }
                Op::Remove(i, n) => match remove(&mut inodes[i], &full_name(n)) {
                    Ok(()) => prop_assert!(models[i].remove(&full_name(n)).is_some()),
                    Err(XattrError::Store(_)) => prop_assert!(disk.borrow().full),
                    Err(_) => prop_assert!(!models[i].contains_key(&full_name(n))),
                },
                Op::Share(i, j) if i != j && inodes[i].block.is_some() && models[j].is_empty() => {
                    let mut to = inodes[j].clone();
                    share(&inodes[i], &mut to);
                    models[j] = list(&to).unwrap().into_iter().map(|n| (n.clone(), get(&to, &n).unwrap())).collect();
                    inodes[j] = to;
                }
                Op::Share(..) => {}
                Op::Evict(i) => {
                    while release_values(&mut inodes[i], 2).unwrap() {}
                    release_all(&mut inodes[i]).unwrap();
                    inodes[i].area.fill(0);
                    inodes[i].charged = 0;
                    models[i].clear();
                }
                Op::Full(full) => disk.borrow_mut().full = full,
            }
            for (inode, model) in inodes.iter().zip(&models) {
                check(inode, model);
            }
            check_refcounts(&inodes);
        }
    }
}

#[test]
fn inode_first_then_block_and_back() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut inode = MemInode::new(12, 0o100644, 96, &disk);
    set(&mut inode, b"user.a", b"small", SetMode::Any).unwrap();
    assert_eq!(inode.block, None);
    set(&mut inode, b"user.a", &[1; 200], SetMode::Replace).unwrap();
    assert!(inode.block.is_some() && inode.area == [0; 96], "too large for the inode");
    set(&mut inode, b"user.a", b"small", SetMode::Replace).unwrap();
    assert_eq!((inode.block, disk.borrow().blocks.len()), (None, 0), "in the inode again, and the block freed");
    assert!(disk.borrow().journalled.is_empty(), "a block that is freed does not join the transaction first");
    assert!(matches!(set(&mut inode, b"user.a", &[1; 1000], SetMode::Any), Err(XattrError::NoSpace { .. })));
    assert_eq!(get(&inode, b"user.a").unwrap(), b"small");
}

#[test]
fn a_shared_block_is_copied_and_the_last_frees_it() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut a = MemInode::new(12, 0o100644, 0, &disk);
    set(&mut a, b"user.x", b"1", SetMode::Any).unwrap();
    let mut b = MemInode::new(13, 0o100644, 0, &disk);
    share(&a, &mut b);
    let shared = a.block;
    disk.borrow_mut().full = true;
    assert!(matches!(set(&mut b, b"user.y", b"2", SetMode::Any), Err(XattrError::Store(_))));
    disk.borrow_mut().full = false;
    set(&mut b, b"user.y", b"2", SetMode::Any).unwrap();
    assert!(a.block == shared && b.block != shared);
    check_refcounts(&[a.clone(), b.clone()]);
    release_all(&mut a).unwrap();
    release_all(&mut b).unwrap();
    assert!(disk.borrow().blocks.is_empty());
    assert_eq!(disk.borrow().freed.len(), 2);
}

#[test]
fn names_and_limits() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut inode = MemInode::new(12, 0o100644, 96, &disk);
    let mut try_set = |name: &[u8], len: usize| set(&mut inode, name, &vec![0; len], SetMode::Any);
    assert!(matches!(try_set(b"system.data", 1), Err(XattrError::NameNotSupported { .. })));
    assert!(matches!(try_set(b"nope.x", 1), Err(XattrError::NameNotSupported { .. })));
    assert!(matches!(try_set(&[b"user.".to_vec(), vec![b'a'; 256]].concat(), 1), Err(XattrError::NameTooLong { .. })));
    assert!(matches!(try_set(b"user.a", 65537), Err(XattrError::ValueTooLong { .. })));
    assert!(matches!(remove(&mut inode, b"user.none"), Err(XattrError::NotFound { .. })));
    assert!(matches!(get(&inode, b"user.none"), Err(XattrError::NotFound { .. })));
}

#[test]
fn inline_data_stays_in_the_inode_and_is_not_listed() {
    use extant_ondisk::xattr::{EntryList, Name, index, inode_area};
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut inode = MemInode::new(12, 0o100644, 96, &disk);
    let data = Name { index: index::SYSTEM, suffix: b"data" };
    let mut start = EntryList::new();
    assert!(start.set(data, &[9; 30]));
    inode_area::encode(&start, &mut inode.area).unwrap();
    set(&mut inode, b"user.big", &[1; 100], SetMode::Any).unwrap();
    set(&mut inode, b"user.s", b"", SetMode::Any).unwrap();
    assert_eq!(list(&inode).unwrap(), [b"user.s".to_vec(), b"user.big".to_vec()]);
    assert_eq!(inode_area::decode(&inode.area, InodeNr(12)).unwrap().get(data), Some(&[9; 30][..]));
}

/// Inodes that have no room for attributes.
fn inodes(count: u32, disk: &Rc<RefCell<Disk>>) -> Vec<MemInode> {
    (0..count).map(|i| MemInode::new(12 + i, 0o100644, 0, disk)).collect()
}

fn set_any(inode: &mut MemInode, name: &[u8], value: &[u8]) {
    set(inode, name, value, SetMode::Any).unwrap();
}

#[test]
fn inodes_with_equal_attributes_share_a_block() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(3, &disk);
    for (inode, order) in
        all.iter_mut().zip([[&b"user.x"[..], b"user.yy"], [b"user.yy", b"user.x"], [b"user.x", b"user.yy"]])
    {
        for name in order {
            set_any(inode, name, name);
        }
    }
    assert!(all.iter().all(|i| i.block == all[0].block), "in any order of setting");
    check_refcounts(&all);
    let shared = all[0].block;
    set_any(&mut all[0], b"user.x", b"other");
    assert_ne!(all[0].block, shared);
    assert_eq!(get(&all[1], b"user.x").unwrap(), b"user.x", "a change does not affect the others");
    check_refcounts(&all);
    // Its attributes are equal again: it shares the block with the others, and its own block is freed.
    set_any(&mut all[0], b"user.x", b"user.x");
    assert_eq!((all[0].block, disk.borrow().blocks.len()), (shared, 1));
    check_refcounts(&all);
    // On a full disk it can still share a block.
    remove(&mut all[0], b"user.x").unwrap();
    disk.borrow_mut().full = true;
    set_any(&mut all[0], b"user.x", b"user.x");
    all.iter_mut().for_each(|i| release_all(i).unwrap());
    assert!(disk.borrow().blocks.is_empty());
}

#[test]
fn block_is_shared_by_1024_inodes_at_most() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(1026, &disk);
    for inode in &mut all[..1025] {
        set_any(inode, b"user.x", b"1");
    }
    assert_eq!(disk.borrow().blocks.len(), 2);
    check_refcounts(&all);
    assert_ne!(all[1024].block, all[0].block, "the first is full");
    // The full block has room again, and another inode shares it.
    remove(&mut all[7], b"user.x").unwrap();
    let first = all[0].block;
    release_all(&mut all[1024]).unwrap();
    set_any(&mut all[1025], b"user.x", b"1");
    assert_eq!(all[1025].block, first);
    check_refcounts(&all);
}

#[test]
fn freed_block_is_not_joined() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(2, &disk);
    set_any(&mut all[0], b"user.x", b"1");
    let first = all[0].block;
    release_all(&mut all[0]).unwrap();
    set_any(&mut all[1], b"user.x", b"1");
    assert_ne!(all[1].block, first);
    check_refcounts(&all);
}

#[test]
fn block_that_was_joined_since_it_was_read_is_copied() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(2, &disk);
    set_any(&mut all[0], b"user.x", b"1");
    let first = all[0].block;
    set_any(&mut all[0], b"user.x", b"2");
    assert_eq!(all[0].block, first, "changed in place while one inode refers to it");
    set_any(&mut all[1], b"user.x", b"1");
    assert_ne!(all[1].block, first, "its old content is not found");
    set_any(&mut all[1], b"user.x", b"2");
    assert_eq!(all[1].block, first);
    set_any(&mut all[0], b"user.x", b"3");
    assert_ne!(all[0].block, first);
    assert_eq!(get(&all[1], b"user.x").unwrap(), b"2");
    check_refcounts(&all);
}

#[test]
fn attributes_that_were_read_are_shared() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(3, &disk);
    set_any(&mut all[0], b"user.x", b"1");
    // As after a mount, the index is empty.
    disk.borrow_mut().shared = Arc::default();
    all[0].shared = disk.borrow().shared.clone();
    let mut late: Vec<_> = (0..2).map(|i| MemInode::new(50 + i, 0o100644, 0, &disk)).collect();
    set_any(&mut late[0], b"user.x", b"1");
    assert_ne!(late[0].block, all[0].block);
    release_all(&mut late[0]).unwrap();
    get(&all[0], b"user.x").unwrap();
    set_any(&mut late[1], b"user.x", b"1");
    assert_eq!(late[1].block, all[0].block);
}

#[test]
fn equal_hashes_are_not_equal_attributes() {
    use extant_ondisk::xattr::entry_hash;
    let disk = Rc::new(RefCell::new(Disk::default()));
    let (one, other) = ([1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(entry_hash(b"x", &one), entry_hash(b"x", &other));
    let mut all = inodes(3, &disk);
    set_any(&mut all[0], b"user.x", &one);
    set_any(&mut all[1], b"user.x", &other);
    set_any(&mut all[2], b"user.x", &one);
    assert!(all[0].block != all[1].block && all[0].block == all[2].block);
    check_refcounts(&all);
}

#[test]
fn block_with_a_hash_of_zero_is_not_shared() {
    use extant_ondisk::xattr::entry_hash;
    let disk = Rc::new(RefCell::new(Disk::default()));
    let value = [0, 0, b'x', 0];
    assert_eq!(entry_hash(b"x", &value), 0);
    let mut all = inodes(2, &disk);
    all.iter_mut().for_each(|i| set_any(i, b"user.x", &value));
    assert_ne!(all[0].block, all[1].block);
    check_refcounts(&all);
}

#[test]
fn damaged_block_is_not_joined() {
    let disk = Rc::new(RefCell::new(Disk::default()));
    let mut all = inodes(2, &disk);
    set_any(&mut all[0], b"user.x", b"1");
    let first = all[0].block.unwrap();
    disk.borrow_mut().blocks.get_mut(&first.0).unwrap()[500] ^= 1;
    let damaged = disk.borrow().blocks[&first.0].clone();
    set_any(&mut all[1], b"user.x", b"1");
    assert_ne!(all[1].block, Some(first));
    assert_eq!(disk.borrow().blocks[&first.0], damaged);
    assert!(get(&all[0], b"user.x").is_err(), "reading the damaged block is an error");
}
