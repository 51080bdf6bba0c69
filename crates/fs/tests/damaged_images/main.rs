//! Damaged images: what is refused, what is read in spite of the damage, and what a change never makes worse.

#[path = "../common/damaged.rs"]
mod damaged;

mod borrow;
mod copies;
mod damage;
mod damaged_answers;
mod damaged_removal;
mod draft;
mod hostile_values;
mod limits;
mod lying_fields;
mod nameless;
mod orphans;
mod rescue;
mod smallest_loss;
mod superblock_options;
