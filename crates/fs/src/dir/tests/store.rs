//! A directory's blocks in memory. The store checks the contract strictly: it verifies every block at every read, and
//! its appends can fail.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::htree::{DxShape, HashVersion};
use extant_ondisk::inode::FileType;
use extant_ondisk::units::InodeNr;

use super::super::*;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoreError {
    Dir(DirError),
    NoSpace,
}

impl From<DirError> for StoreError {
    fn from(error: DirError) -> StoreError {
        StoreError::Dir(error)
    }
}

pub(super) const INODES: u32 = 1_000_000;

pub(super) struct MemDir {
    pub(super) blocks: RefCell<Vec<Vec<u8>>>,
    pub(super) block_size: usize,
    pub(super) indexed: Cell<bool>,
    /// How many blocks can still be appended.
    pub(super) room: Cell<u32>,
    pub(super) base: DirParams,
    pub(super) reads: Cell<u64>,
}

impl MemDir {
    pub(super) fn new(block_size: usize, base: DirParams) -> MemDir {
        let dir = MemDir::empty(block_size, base);
        init(&dir, &mut (), &base, InodeNr(12), InodeNr(2)).unwrap();
        dir
    }

    pub(super) fn empty(block_size: usize, base: DirParams) -> MemDir {
        let indexed = Cell::new(base.is_indexed);
        let (blocks, room) = (RefCell::default(), Cell::new(u32::MAX));
        MemDir { blocks, block_size, indexed, room, base, reads: Cell::new(0) }
    }

    pub(super) fn params(&self) -> DirParams {
        DirParams { is_indexed: self.indexed.get(), ..self.base }
    }

    pub(super) fn add(&self, name: &[u8], ino: u32) -> Result<Added, StoreError> {
        add(self, &mut (), &self.params(), name, InodeNr(ino), Some(FileType::Regular))
    }

    pub(super) fn remove(&self, name: &[u8]) -> Result<Found, StoreError> {
        remove(self, &mut (), &self.params(), name, None)
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        lookup(self, &self.params(), name).unwrap().map(|found| found.ino.0)
    }

    /// All names in listing order, without `.` and `..`, in calls of at most `batch` entries. A batch does not end
    /// between names that share a hash.
    pub(super) fn list(&self, batch: usize) -> Vec<(Vec<u8>, u32)> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let (page, next) = self.page(cookie, batch);
            if page.is_empty() {
                break;
            }
            assert!(next > cookie, "cookies must grow");
            cookie = next;
            names.extend(page);
        }
        assert_eq!(&names[0].0, b".");
        assert_eq!(&names[1].0, b"..");
        names.split_off(2)
    }

    pub(super) fn page(&self, cookie: u64, batch: usize) -> (Vec<(Vec<u8>, u32)>, u64) {
        let mut page = Vec::new();
        let mut peers = 0;
        let mut expected = cookie;
        let next = readdir(self, &self.params(), cookie, |entry| {
            if page.len() >= batch && peers == 0 {
                return false;
            }
            assert!(entry.cookie >= expected && entry.next_cookie > entry.cookie);
            expected = entry.next_cookie;
            peers = entry.peers;
            page.push((entry.name.to_vec(), entry.ino.0));
            true
        })
        .unwrap()
        .next;
        (page, next)
    }

    /// Checks the names and the other invariants: the index's shape, and that each name is in the leaf of its hash.
    pub(super) fn check(&self, model: &BTreeMap<Vec<u8>, u32>) {
        let mut seen = BTreeMap::new();
        let params = self.params();
        let blocks = self.blocks.borrow();
        let mut leaves = Vec::new();
        if params.is_indexed {
            let mut visited = BTreeSet::from([0]);
            let (info, _) = params.dx_format().root(&blocks[0]).unwrap();
            self.walk(&blocks, 0, usize::from(info.indirect_levels), (0, None), &mut visited, &mut leaves);
            assert_eq!(visited.len(), blocks.len(), "a block is not in the tree");
        } else {
            leaves.extend((0..blocks.len() as u32).map(|lblk| (lblk, 0, None)));
        }
        let hasher = params.hasher(params.hash_version);
        for (lblk, lowest, next) in leaves {
            verify(&params, BlockKind::Leaf, lblk, blocks.len() as u32, &blocks[lblk as usize]).unwrap();
            for entry in params.leaf_format().entries(&blocks[lblk as usize]) {
                let entry = entry.unwrap();
                if entry.is_used() && !(lblk == 0 && entry.is_dot()) {
                    let hash = name_hash(&hasher, entry.name).hash;
                    if params.is_indexed {
                        assert!(hash >= lowest & !1);
                        assert!(next.is_none_or(|next| hash < next & !1 || (hash == next & !1 && next & 1 == 1)));
                    }
                    assert!(seen.insert(entry.name.to_vec(), entry.ino).is_none(), "a name is there twice");
                }
            }
        }
        assert_eq!(&seen, model);
    }

    fn walk(
        &self,
        blocks: &[Vec<u8>],
        lblk: u32,
        levels: usize,
        range: (u32, Option<u32>),
        visited: &mut BTreeSet<u32>,
        leaves: &mut Vec<(u32, u32, Option<u32>)>,
    ) {
        let params = self.params();
        let block = &blocks[lblk as usize];
        verify(&params, BlockKind::Index, lblk, blocks.len() as u32, block).unwrap();
        let shape = if lblk == 0 { DxShape::Root } else { DxShape::Node };
        let node = params.dx_format().node(shape, block).unwrap();
        node.validate(shape, blocks.len() as u32).unwrap();
        for index in 0..node.count() {
            let lowest = if index == 0 { range.0 } else { node.key(index) };
            let next = if index + 1 < node.count() { Some(node.key(index + 1)) } else { range.1 };
            assert!(lowest >= range.0 && next.is_none_or(|next| next >= lowest));
            let child = node.child(index);
            assert!(visited.insert(child), "block {child} is in the tree twice");
            if levels == 0 {
                leaves.push((child, lowest, next));
            } else {
                self.walk(blocks, child, levels - 1, (lowest, next), visited, leaves);
            }
        }
    }
}

pub(super) fn params(has_csum: bool, has_dir_index: bool, hash_version: HashVersion) -> DirParams {
    DirParams {
        has_csum,
        has_filetype: true,
        has_dir_index,
        has_large_dir: false,
        is_indexed: false,
        hash_version,
        hash_seed: [1, 2, 3, 4],
        inode_seed: ChecksumSeed::from_raw(7).for_inode(InodeNr(12), 34),
        inodes_count: INODES,
        encrypted: false,
        folds: false,
        by_place: false,
    }
}

impl DirStore for MemDir {
    type Txn = ();
    type Error = StoreError;

    fn is_damage(&self, error: &StoreError) -> bool {
        matches!(error, StoreError::Dir(DirError::Corrupt { .. }))
    }

    fn block_size(&self) -> u32 {
        self.block_size as u32
    }

    fn blocks(&self) -> u32 {
        self.blocks.borrow().len() as u32
    }

    fn read<R>(&self, lblk: u32, kind: BlockKind, f: impl FnOnce(&[u8]) -> R) -> Result<R, StoreError> {
        self.reads.set(self.reads.get() + 1);
        let blocks = self.blocks.borrow();
        verify(&self.params(), kind, lblk, self.blocks(), &blocks[lblk as usize])?;
        Ok(f(&blocks[lblk as usize]))
    }

    fn modify<R>(
        &self,
        (): &mut (),
        lblk: u32,
        kind: BlockKind,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, StoreError> {
        assert_ne!(kind, BlockKind::Any);
        let mut blocks = self.blocks.borrow_mut();
        let result = f(&mut blocks[lblk as usize]);
        seal(&self.params(), kind, &mut blocks[lblk as usize]);
        Ok(result)
    }

    fn append(&self, (): &mut (), kind: BlockKind, f: impl FnOnce(&mut [u8])) -> Result<u32, StoreError> {
        assert_ne!(kind, BlockKind::Any);
        let room = self.room.get().checked_sub(1).ok_or(StoreError::NoSpace)?;
        self.room.set(room);
        let mut block = vec![0; self.block_size];
        f(&mut block);
        seal(&self.params(), kind, &mut block);
        let mut blocks = self.blocks.borrow_mut();
        blocks.push(block);
        Ok(blocks.len() as u32 - 1)
    }

    fn set_indexed(&self, (): &mut (), indexed: bool) -> Result<(), StoreError> {
        self.indexed.set(indexed);
        Ok(())
    }
}
