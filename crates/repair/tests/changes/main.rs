//! Repairs and other changes of an unmounted image.

#[path = "../judge/mod.rs"]
mod judge;

mod cuts;
mod evidence;
mod faults;
mod grow;
mod kinds;
mod log;
mod partition;
mod shrink;
mod tune;
