//! Canaries: for each layer, a repair whose steps do harm. The proof must reject it, and the image must not change.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::{CowDevice, MemDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use extant_testkit::damage::{self, Edit, Image as Kind, Mutation};

use crate::apply::{self, Owners};
use crate::error::StepResult;
use crate::loss::LossKind;
use crate::plan::{Action, Layer};
use crate::prove::{Apply, prove_by};
use crate::view::Image;
use crate::{Decision, End, Layers, Options, Outcome, Sharing};

/// The time of all repairs.
const NOW: i64 = 2_000_000_000;
/// A number that no block has.
const NOWHERE: u32 = 0xffff_fff0;

/// For each layer, a mutation whose repair has a step in that layer.
const DAMAGE: [(Layer, &str); 13] = [
    (Layer::Volume, "all blocks reserved"),
    (Layer::Groups, "block bitmap on the inode table"),
    (Layer::Inodes, "mode of nothing"),
    (Layer::Maps, "extent that runs over the end"),
    (Layer::Attributes, "attribute block without magic number"),
    (Layer::Shared, "two files with the same block"),
    (Layer::Directories, "entry that runs over its block"),
    (Layer::Entries, "entry of an unused inode"),
    (Layer::Parents, "dot dot leads to another directory"),
    (Layer::Names, "file without a name"),
    (Layer::Links, "more links than names"),
    (Layer::Bitmaps, "used block marked as free"),
    (Layer::Quota, "used blocks that no quota counts"),
];

fn proved(image: &MemDevice, apply: Apply) -> (Outcome, Arc<CowDevice>) {
    let check = extant_check::Options { threads: 1, now: NOW, ..extant_check::Options::default() };
    let options = Options { check, layers: Layers::in_memory(), sharing: Sharing::Copy, now: NOW };
    let base: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
    let device = Arc::new(CowDevice::new(base));
    (prove_by(device.clone(), &options, &mut |_, _| Decision::Yes, apply).expect("planned"), device)
}

/// Carries out an action, and then damages the structure that it has repaired.
fn harmful<const LAYER: usize>(image: &mut Image, action: &Action, owners: &mut Owners) -> StepResult {
    let done = apply::apply(image, action, owners);
    if layer_of(action) == Layer::ALL[LAYER] && done.is_ok() {
        harm(image, action)?;
    }
    done
}

/// The layer in which the plan has an action.
fn layer_of(action: &Action) -> Layer {
    match action {
        Action::Descriptor(_) | Action::Places(_) | Action::Table(_) | Action::ResizeInode | Action::MultiMount => {
            Layer::Groups
        }
        Action::InodeField(..) | Action::InodeFlags { .. } | Action::InodeSeal(_) | Action::Kind(_) => Layer::Inodes,
        Action::ExtraIsize(_) | Action::Revive(_) | Action::Root | Action::Inline(_) => Layer::Inodes,
        Action::Map(_) | Action::Target(_) | Action::OrphanFile => Layer::Maps,
        Action::Attributes(_) | Action::AttributeBlock { .. } | Action::DropAttributeBlock(_) => Layer::Attributes,
        Action::Own(_) => Layer::Shared,
        Action::DirBlock(..) | Action::Directory(_) => Layer::Directories,
        Action::DropEntry { .. } | Action::EntryKind { .. } | Action::OneName(_) => Layer::Entries,
        Action::Parent(..) => Layer::Parents,
        Action::Attach(_) | Action::Clear(_) => Layer::Names,
        Action::Links(..) | Action::Blocks(..) => Layer::Links,
        Action::Recount(_) => Layer::Bitmaps,
        Action::Quota(_) => Layer::Quota,
        _ => Layer::Volume,
    }
}

/// Damages the structure that the action has repaired.
fn harm(image: &mut Image, action: &Action) -> StepResult {
    let ino = action.ino().unwrap_or(InodeNr::ROOT);
    match layer_of(action) {
        Layer::Volume => image.change_super(|raw| raw.s_r_blocks_count_lo.set(u32::MAX)),
        Layer::Groups => {
            let bitmap = image.descs[0].block_bitmap;
            image.descs[0].inode_bitmap = bitmap;
            image.put_desc(GroupNr(0))
        }
        Layer::Inodes => image.change_inode(ino, |raw| raw.i_mode.set(raw.i_mode.get() | 0o170_000)),
        Layer::Maps | Layer::Quota => point_astray(image, ino),
        Layer::Shared => {
            let other = image.facts.sharers().iter().map(|other| InodeNr(*other)).find(|other| *other != ino);
            let map = image.inode(other.unwrap_or(ino))?.raw.i_block;
            image.change_inode(ino, |raw| raw.i_block = map)
        }
        Layer::Attributes => match *action {
            Action::AttributeBlock { block, .. } => spoil(image, block, 8..12),
            _ => image.change_inode(ino, |raw| raw.i_file_acl_lo.set(NOWHERE)),
        },
        Layer::Directories => spoil_directory(image, ino, 4..6),
        // The first entry after `..` has another type.
        Layer::Entries => spoil_directory(image, ino, 31..32),
        Layer::Parents => apply::apply(image, &Action::Parent(ino, ino), &mut Owners::new(Sharing::Copy)),
        Layer::Names => {
            // Its current name is removed.
            for (dir, entry) in image.names_of(|named| named == ino.0) {
                let action = Action::DropEntry { dir, lblk: entry.lblk, offset: entry.offset, ino };
                apply::apply(image, &action, &mut Owners::new(Sharing::Copy))?;
            }
            Ok(())
        }
        Layer::Links => image.change_inode(ino, |raw| {
            raw.i_links_count.set(raw.i_links_count.get() + 7);
            raw.i_blocks_lo.set(raw.i_blocks_lo.get() + 64);
        }),
        Layer::Bitmaps => {
            let Action::Recount(group) = *action else { return Ok(()) };
            let bitmap = image.descs[group.0 as usize].block_bitmap;
            spoil(image, bitmap, 0..8)
        }
    }
}

/// Makes the first entry of a map refer to a block after the end of the device.
fn point_astray(image: &Image, ino: InodeNr) -> StepResult {
    let extents = image.inode(ino)?.has(InodeFlags::EXTENTS);
    image.change_inode(ino, |raw| match extents {
        true => {
            // A leaf with one extent of one block.
            raw.i_block[2..8].copy_from_slice(&[1, 0, 4, 0, 0, 0]);
            raw.i_block[12..20].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
            raw.i_block[20..24].copy_from_slice(&NOWHERE.to_le_bytes());
        }
        false => raw.i_block[..4].copy_from_slice(&NOWHERE.to_le_bytes()),
    })
}

fn spoil(image: &Image, block: BlockNr, bytes: std::ops::Range<usize>) -> StepResult {
    let mut all = image.block(block)?;
    all[bytes].iter_mut().for_each(|byte| *byte ^= 0x5b);
    image.put_block(block, &all)
}

fn spoil_directory(image: &Image, dir: InodeNr, bytes: std::ops::Range<usize>) -> StepResult {
    let place = image.map(&image.inode(dir)?).place(0);
    place.map_or(Ok(()), |block| spoil(image, block, bytes))
}

fn harm_of(layer: Layer) -> Apply {
    const ALL: [Apply; 13] = [
        harmful::<0>,
        harmful::<1>,
        harmful::<2>,
        harmful::<3>,
        harmful::<4>,
        harmful::<5>,
        harmful::<6>,
        harmful::<7>,
        harmful::<8>,
        harmful::<9>,
        harmful::<10>,
        harmful::<11>,
        harmful::<12>,
    ];
    ALL[Layer::ALL.iter().position(|one| *one == layer).expect("a layer")]
}

fn named(name: &str) -> (&'static Mutation, Kind) {
    let mutation = damage::table().find(|one| one.name == name).unwrap_or_else(|| panic!("no mutation {name}"));
    (mutation, mutation.images[0])
}

#[test]
fn the_proof_refuses_a_harmful_step_of_each_layer() {
    for (layer, name) in DAMAGE {
        let (mutation, first) = named(name);
        // A wrong checksum of a block would be found before a wrong entry in it.
        let kind = if layer == Layer::Entries { Kind::Ext2 } else { first };
        let image = mutation.on(kind);
        let (honest, _) = proved(&image, apply::apply);
        assert_eq!(honest.end, End::Proved, "{name}");
        assert!(honest.steps.iter().any(|step| layer_of(&step.action) == layer), "{layer:?}: {:?}", honest.steps);
        let (outcome, device) = proved(&image, harm_of(layer));
        assert_eq!(outcome.end, End::Refused, "{layer:?}: {:?}", outcome.steps);
        assert!(!outcome.left.is_empty(), "{layer:?}: nothing is said");
        assert!(device.is_unchanged(), "{layer:?}: a refused repair has changed the image");
    }
}

/// Carries out an action, and empties `/other` in such a way that nothing is wrong with it.
fn forgetful(image: &mut Image, action: &Action, owners: &mut Owners) -> StepResult {
    let names = image.entries(&image.inode(InodeNr::ROOT)?);
    let ino = names.into_iter().find(|entry| entry.name == b"other").map(|entry| InodeNr(entry.ino));
    if let Some(ino) = ino {
        image.set_map(ino, &[])?;
        image.set_size(ino, 0)?;
    }
    apply::apply(image, action, owners)
}

#[test]
fn the_census_names_what_a_sound_but_forgetful_repair_loses() {
    let mut edit = Edit::new(Kind::Ext4.made());
    edit.inode("/file", |inode| inode.i_links_count.set(9));
    let (outcome, _) = proved(&edit.finish(), forgetful);
    assert_eq!(outcome.end, End::Proved);
    let lost: Vec<_> = outcome.losses.iter().filter(|loss| loss.path == b"/other").collect();
    assert!(lost.iter().any(|loss| matches!(loss.lost, LossKind::Bytes { bytes, .. } if bytes > 0)), "{lost:?}");
    assert!(outcome.needs_person().is_some());
}

/// A device that differs from the one in the proof is not the result of a harmless repair.
#[test]
fn an_honest_repair_of_the_same_image_changes_it() {
    let (mutation, kind) = named(DAMAGE[0].1);
    let image = mutation.on(kind);
    let (_, device) = proved(&image, apply::apply);
    let mut now = vec![0; 1024];
    device.read_at(1024, &mut now, BioFlags::META).expect("read");
    let mut then = vec![0; 1024];
    image.read_at(1024, &mut then, BioFlags::META).expect("read");
    assert_ne!(now, then, "the superblock is repaired");
}
