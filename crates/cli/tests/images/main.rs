//! Verbs that read and change images, without root.

#[path = "../common/mod.rs"]
mod common;

mod android;
mod attributes;
mod copy;
mod damaged_directories;
mod deep;
mod encrypt;
mod export;
mod external_journal;
mod flags;
mod in_use;
mod listing;
mod look;
mod messages;
mod metadata;
mod offset;
mod pages;
mod quota;
mod remote;
mod rescue;
mod rescue_lost;
mod scan;
mod sources;
mod undelete;
mod verbs;
