//! Damaged images: one table of mutations, each with the problems that e2fsck finds after it, and random ones.
//!
//! Main types: [`Mutation`], [`table`] (all of them), [`Image`] (the images that they start from), [`Edit`] (changes an
//! image), [`problem`] (e2fsck's names and numbers), [`fsck`] (e2fsck's answers), [`mod@compare`] (the objects that
//! e2fsck names, compared with another checker), [`census`] (everything that can be read). A checker, a fuzzer and a
//! repair are tested with the same table: [`Mutation::on`] makes the damaged image, [`Mutation::expected`] names its
//! problems.
//!
//! What it does not do: it does not name all consequences of a mutation. A block that two files claim also makes a
//! count wrong.
//!
//! # Locking
//! None.

pub mod census;
pub mod compare;
pub mod edit;
pub mod fsck;
pub mod image;
mod mend;
pub mod mixed;
pub mod problem;
pub mod random;
mod table;

pub use edit::Edit;
pub use image::Image;
pub use problem::{Detection, PROBLEMS, Problem, WITHOUT};
pub use table::table;

use extant_block::device::MemDevice;

/// One way to damage an image.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// The change, in a few words; unique.
    pub name: &'static str,
    /// The images on which it has this effect.
    pub images: &'static [Image],
    /// Changes a valid image.
    pub change: fn(&mut Edit),
    /// Names of [`PROBLEMS`] that e2fsck then reports; it may report more.
    pub expected: &'static [&'static str],
}

impl Mutation {
    /// The damaged image.
    pub fn on(&self, image: Image) -> MemDevice {
        let mut edit = Edit::new(image.made());
        (self.change)(&mut edit);
        edit.finish()
    }

    /// The expected problems with their numbers.
    pub fn problems(&self) -> Vec<Problem> {
        self.expected.iter().map(|name| problem::named(name)).collect()
    }
}
