//! Reading and writing inodes in the inode tables.
//!
//! Main types: none; [`Volume::inode_slot`] finds an inode's place, [`Maps::write_inode`] writes it and charges its
//! owners.
//!
//! What it does not do: keep inodes in memory (`inode_table.rs`), or find them there (`iget.rs`).
//!
//! # Locking
//! `write_inode` takes the inode's meta lock (60), then the table block's buffer lock.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_ondisk::inode::{InodeDesc, InodeFlags};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Damage, Error, Result};
use crate::inode::{Inode, InodeRef};
use crate::maps::Maps;
use crate::volume::Volume;

impl Volume {
    /// The table block of an inode and the offset of its slot.
    pub(crate) fn inode_slot(&self, ino: InodeNr) -> Result<(Arc<Buffer>, usize)> {
        let place = self.geo.inode_location(ino)?;
        let table = self.placement.groups.with(place.group, |d| d.inode_table)?;
        let block = BlockNr(table.0 + u64::from(place.table_block));
        if self.cache.peek(block).is_none() {
            // As with Linux's inode_readahead_blks: 32 blocks around the wanted one, within the table.
            let first = place.table_block - place.table_block % 32;
            let count = 32.min(self.geo.inode_table_blocks - first);
            self.cache.readahead(BlockNr(table.0 + u64::from(first)), count);
        }
        Ok((self.cache.get(block)?, place.offset))
    }

    /// The table blocks of inodes that an operation will write. The operation takes them before its first change and
    /// holds them until its handle ends, so that [`Maps::write_inode`] cannot fail half-way.
    pub(crate) fn hold_slots<'a>(&self, inodes: impl IntoIterator<Item = &'a InodeRef>) -> Result<Vec<Arc<Buffer>>> {
        inodes.into_iter().map(|inode| self.inode_slot(inode.ino).map(|(table, _)| table)).collect()
    }

    /// The checksum seed of an inode's own blocks.
    pub(crate) fn inode_seed(&self, ino: InodeNr, generation: u32) -> Option<u32> {
        self.geo.metadata_csum.then(|| self.geo.seed.for_inode(ino, generation).raw())
    }

    /// Decodes the inode from its table.
    pub(crate) fn read_inode(&self, ino: InodeNr) -> Result<InodeDesc> {
        let (buffer, offset) = self.inode_slot(ino)?;
        let size = self.geo.inode_size;
        let desc = buffer.read(|b| InodeDesc::decode(&b[offset..offset + size], ino, &self.geo))?;
        if desc.file_type().is_none() {
            return Err(Error::Stale(ino));
        }
        self.check_content(ino, &desc)?;
        Ok(desc)
    }

    /// Checks the place of the content, and a directory's size.
    fn check_content(&self, ino: InodeNr, desc: &InodeDesc) -> Result<()> {
        let damaged = |detail: String| Err(Error::corrupt(Damage::Inode, detail).of(ino));
        if desc.flags.contains(InodeFlags::INLINE_DATA) {
            // As in Linux (`__ext4_iget`), so that no code treats such an inode as empty.
            if !self.inline_data {
                return damaged("its content is in the inode, but the image lacks the feature 'inline_data'".into());
            }
            if desc.has_extents() {
                return damaged("its content is in the inode, and in extents".into());
            }
            // Linux never writes this: content in the inode is always plaintext.
            if desc.flags.contains(InodeFlags::ENCRYPT) {
                return damaged("its content is in the inode, and encrypted".into());
            }
        } else if desc.is_regular()
            && desc.size > u64::from(u32::MAX)
            && desc.size > self.size_limit(desc.has_extents())
        {
            // As in Linux (`ext4_iget`: "bad i_size value"), because a read would end before the end of the file.
            let limit = self.size_limit(desc.has_extents());
            return damaged(format!("a file of {} bytes, more than its map can hold ({limit})", desc.size));
        } else if desc.is_dir() && desc.size > u64::from(u32::MAX) {
            // Otherwise a listing would try every block up to this size (Linux: `ext4_readdir` ends at i_blocks).
            let most = desc.blocks.saturating_mul(512).min(self.geo.blocks_count << self.geo.block_bits);
            if desc.size > most {
                return damaged(format!("a directory of {} bytes with blocks for {most}", desc.size));
            }
        }
        Ok(())
    }

    /// Runs `f` on the inode's bytes in its table.
    pub(crate) fn inode_bytes<R>(&self, ino: InodeNr, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (buffer, offset) = self.inode_slot(ino)?;
        Ok(buffer.read(|b| f(&b[offset..offset + self.geo.inode_size])))
    }
}

impl Maps {
    /// Writes the inode into its table block, and charges its owners. 1 credit, in addition to those of the quotas.
    pub(crate) fn write_inode(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        let (buffer, offset) = self.inode_slot(inode.ino)?;
        let size = self.geo.inode_size;
        let mut m = inode.meta.write();
        m.lazy_times = false;
        handle.modify(&buffer, BufKind::Table, |b| {
            m.desc.encode_into(&mut b[offset..offset + size], inode.ino, &self.geo)
        })?;
        self.describe_inode(handle, inode.ino, &m.desc, &buffer, offset);
        // Before the lock is released: a thread that sees no pending times must also see their transaction.
        inode.sync_tid.store(handle.tid().0, Ordering::Release);
        let charges = self.quotas.recharge(inode, &mut m);
        drop(m);
        charges.map_or(Ok(()), |(before, after)| self.quotas.charge(handle, inode.ino, before, after))
    }

    /// As [`Maps::write_inode`], for a change that is needed to read the file's data (size, mapping).
    pub(crate) fn write_inode_data(&self, handle: &mut Handle, inode: &Arc<Inode>) -> Result<()> {
        self.write_inode(handle, inode)?;
        inode.datasync_tid.store(handle.tid().0, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_block::device::FaultyDevice;

    use super::*;
    use crate::dir_store::tests::{hide_from, spacious};
    use crate::filesystem::Filesystem;
    use crate::forgetful::Forgetful;
    use crate::{Attr, Cred, NewNode, RenameFlags, SetAttr, SetMode, WriteFlags};

    /// The directory tree of the test below.
    struct Tree<'a> {
        fs: &'a Filesystem,
        d: InodeRef,
        e: InodeRef,
        file: InodeRef,
        sub: InodeRef,
        other: InodeRef,
    }

    type State = (Vec<Attr>, Vec<(Vec<u8>, u64)>);

    impl Tree<'_> {
        fn inodes(&self) -> [&InodeRef; 5] {
            [&self.d, &self.e, &self.file, &self.sub, &self.other]
        }

        fn state(&self) -> State {
            let mut names = Vec::new();
            for dir in [&self.d, &self.e, &self.sub] {
                let note = |item: crate::DirItem<'_>| {
                    names.push((item.name.to_vec(), u64::from(item.ino.0)));
                    true
                };
                self.fs.read_dir(dir, 0, note).expect("listed");
            }
            (self.inodes().map(|inode| self.fs.getattr(inode)).to_vec(), names)
        }
    }

    /// Tries a change while one of the inodes that it writes is unreadable.
    fn refuse(
        tree: &Tree<'_>,
        faulty: &FaultyDevice,
        what: &str,
        hidden: &[&InodeRef],
        change: impl Fn() -> Result<()>,
    ) {
        for inode in hidden {
            let before = tree.state();
            hide_from(tree.fs, faulty, inode);
            let failed = change();
            faulty.clear();
            assert!(matches!(failed, Err(Error::Device(_))), "{what} without {}: {failed:?}", inode.ino);
            assert!(!tree.fs.is_read_only(), "{what} without {}: no change was left half-done", inode.ino);
            assert_eq!(tree.state(), before, "{what} without {}", inode.ino);
        }
    }

    /// The table block of an inode in memory is unreadable, so no operation that must write the inode begins.
    #[test]
    fn operations_fail_before_the_first_change_if_an_inode_cannot_be_written() {
        let (dev, faulty, fs) = spacious("dir_index");
        let root = fs.root().expect("root");
        let create = |dir: &InodeRef, name: &[u8], node| fs.create(dir, name, node, Cred::default()).expect("create");
        let [d, e] = [b"d", b"e"].map(|name| create(&root, name, NewNode::directory(0o755)));
        let file = create(&d, b"file", NewNode::file(0o644));
        let sub = create(&d, b"sub", NewNode::directory(0o755));
        let other = create(&e, b"other", NewNode::file(0o644));
        fs.write(&file, 0, &[1; 5000], WriteFlags::default()).expect("write");
        fs.sync().expect("sync");
        let tree = Tree { fs: &fs, d, e, file, sub, other };
        let Tree { d, e, file, sub, other, .. } = &tree;
        let refuse = |what: &str, hidden: &[&InodeRef], change: &dyn Fn() -> Result<()>| {
            refuse(&tree, &faulty, what, hidden, change);
        };
        let chown = SetAttr { uid: Some(4711), ..SetAttr::default() };
        refuse("chown", &[file], &|| fs.setattr(file, &chown).map(drop));
        let cut = SetAttr { size: Some(100), ..SetAttr::default() };
        refuse("truncate", &[file], &|| fs.setattr(file, &cut).map(drop));
        refuse("create", &[d], &|| fs.create(d, b"new", NewNode::file(0o644), Cred::default()).map(drop));
        refuse("unlink", &[d, file], &|| fs.unlink(d, b"file"));
        refuse("rmdir", &[d, sub], &|| fs.rmdir(d, b"sub"));
        refuse("link", &[e, file], &|| fs.link(file, e, b"linked"));
        let rename = |old: &[u8], new: &[u8], flags| fs.rename(d, old, e, new, flags);
        refuse("rename", &[d, e, file], &|| rename(b"file", b"new", RenameFlags::default()));
        refuse("replace", &[d, e, file, other], &|| rename(b"file", b"other", RenameFlags::default()));
        refuse("move", &[d, e, sub], &|| rename(b"sub", b"new", RenameFlags::default()));
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        refuse("exchange", &[d, e, sub, other], &|| rename(b"sub", b"other", exchange));
        drop((tree, root));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }

    /// The same, if the block has been evicted since the operation began.
    #[test]
    fn inodes_to_be_written_stay_in_memory() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-I", "1024", "-N", "64"], "8M"));
        let (forgetful, fs) = Forgetful::mount(dev.clone());
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        let (set, allocated) = forgetful.run(&fs, || fs.set_xattr(&f, b"user.large", &[b'L'; 900], SetMode::Any));
        assert!(set.is_ok() && allocated && !fs.is_read_only(), "{set:?}");
        let mkdir = || fs.create(&root, b"d", NewNode::directory(0o755), Cred::default());
        let (made, allocated) = forgetful.run(&fs, mkdir);
        assert!(made.is_ok() && allocated && !fs.is_read_only(), "{made:?}");
        drop((root, f, made));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}
