//! Carries out steps on the overlay with the changes.
//!
//! Main function: [`apply`]. The actions are in [`super_block`], [`groups`], [`inodes`], [`maps`], [`attributes`],
//! [`shared`], [`directories`] and [`names`], those for the log in [`orphans`] and [`journal`]. [`content`] writes
//! whole files.
//!
//! What it does not do: check the result. The next check does that.
//!
//! # Locking
//! None.

mod attributes;
pub mod content;
pub mod directories;
pub mod groups;
pub mod inodes;
pub mod journal;
mod maps;
mod names;
pub mod orphans;
pub mod quota;
pub mod search;
mod shared;
pub mod super_block;

use crate::error::{Refusal, StepResult};
use crate::plan::Action;
use crate::view::Image;

pub use shared::{Owners, Sharing};

/// Carries out one action. [`crate::evidence`] carries out those that need a choice between candidates.
pub fn apply(image: &mut Image, action: &Action, owners: &mut Owners) -> StepResult {
    match *action {
        Action::Feature { word, set, clear } => super_block::feature(image, word, set, clear),
        Action::SuperField(field, value) => super_block::field(image, field, value),
        Action::ForgetExternalJournal => super_block::forget_external_journal(image),
        Action::Totals => super_block::totals(image),
        Action::NewJournal => journal::renew(image),
        Action::FinishOrphans => orphans::finish(image),
        Action::OrphanFile => orphans::renew_file(image),
        Action::MultiMount => groups::multi_mount(image),
        Action::Descriptor(group) => groups::descriptor(image, group),
        Action::Places(group) => groups::places(image, group),
        Action::UsualPlaces(group) => groups::usual(image, group),
        Action::Table(ino) => groups::open_table(image, ino),
        Action::ResizeInode => groups::resize_inode(image),
        Action::Recount(group) => groups::recount(image, group),
        Action::InodeField(ino, field, value) => inodes::field(image, ino, field, value),
        Action::InodeFlags { ino, set, clear } => inodes::flags(image, ino, set, clear),
        Action::InodeSeal(ino) => image.change_inode(ino, |_| {}),
        Action::Kind(ino) => inodes::kind(image, ino),
        Action::ExtraIsize(ino) => inodes::extra_isize(image, ino),
        Action::Clear(ino) => image.zero_inode(ino),
        Action::Revive(ino) => inodes::revive(image, ino),
        Action::Inline(ino) => inodes::inline(image, ino),
        Action::Links(ino, links) => image.change_inode(ino, |raw| raw.i_links_count.set(links)),
        Action::Blocks(ino, blocks) => inodes::blocks(image, ino, blocks),
        Action::Root => names::root(image),
        Action::Map(ino) => maps::rewrite(image, ino),
        Action::Target(ino) => maps::target(image, ino),
        Action::Attributes(ino) => attributes::in_inode(image, ino),
        Action::AttributeBlock { block, references } => attributes::block(image, block, references),
        Action::DropAttributeBlock(block) => attributes::drop_block(image, block),
        Action::Own(ino) => shared::own(image, ino, owners),
        Action::DirBlock(ino, lblk) => directories::block(image, ino, lblk),
        Action::Directory(ino) => directories::rebuild(image, ino, &[]),
        Action::DropEntry { dir, lblk, offset, ino } => directories::drop_entry(image, dir, lblk, offset, ino),
        Action::EntryKind { dir, lblk, offset, kind } => directories::entry_kind(image, dir, lblk, offset, kind),
        Action::OneName(ino) => names::one_name(image, ino),
        Action::Parent(ino, parent) => directories::set_parent(image, ino, parent),
        Action::Attach(ino) => names::attach(image, ino),
        Action::Quota(ino) => quota::renew(image, ino),
        Action::SuperBlock | Action::UnmentionedLog | Action::LogCopy { .. } => {
            Err(Refusal::Lost("no candidate leaves fewer findings"))
        }
    }
}
