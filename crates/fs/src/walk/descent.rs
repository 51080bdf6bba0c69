//! Descending into a tree of directories in any storage: depth first, with sorted names, in bounded memory.
//!
//! Main types: [`Descent`] (the directories on the path, and the names that remain in each), [`Tree`] (the interface to
//! a storage of directories), [`Bound`] (the reason why a directory is not entered). All walks of an image and all
//! copies use it, so its bounds apply to each of them.
//!
//! A damaged directory may contain itself, share its names with many others, or have very many names. So a descent
//! keeps only a few directories open, and for the others a mark to open them again. It keeps names up to a bound. Of a
//! directory with more names it reads a part, and reads again when that part is used up.
//!
//! # Locking
//! None held between calls.

use crate::number_set::FileSet;

/// The maximum memory for the names of all directories on the path, except the last, in bytes.
const HELD_BYTES: usize = 16 << 20;
/// The number of times that a walk may reach directories again before it ends, because many directories may share one
/// block of names.
pub const REACHED_AGAIN_MAX: usize = 4096;
/// The maximum depth of directories that are entered. No program creates a deeper tree, since its paths would be
/// sixteen times as long as Linux allows.
pub const DEPTH_MAX: usize = 32_768;

/// The storage of directories that a descent needs.
pub trait Tree {
    /// An open directory.
    type Dir;
    /// The data that is kept for a directory while it is closed.
    type Mark;
    /// A name in a directory.
    type Name: AsRef<[u8]>;
    /// The reason why a directory cannot be read.
    type Error;

    /// The number of directories on the path that stay open.
    const OPEN_MAX: usize;

    /// The identity of a directory: device and number.
    fn id(&self, dir: &Self::Dir, mark: &Self::Mark) -> (u64, u64);

    /// The first names after `after`, sorted, without `.` and `..`, and whether more follow.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn names(&self, dir: &Self::Dir, after: Option<&Self::Name>) -> Result<(Vec<Self::Name>, bool), Self::Error>;

    /// Opens a closed directory again; it contains `below`.
    ///
    /// # Errors
    /// The directory can no longer be opened.
    fn reopen(&self, below: &Self::Dir, mark: &Self::Mark) -> Result<Self::Dir, Self::Error>;

    /// The error for a directory that is not entered.
    fn refused(&self, dir: &Self::Dir, mark: &Self::Mark, bound: Bound) -> Self::Error;
}

/// The reason why a directory is not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// It has been entered before; a valid directory has only one name.
    ReachedAgain,
    /// The same, more than [`REACHED_AGAIN_MAX`] times. The descent has ended.
    GivenUp,
    /// There are more directories than can be remembered.
    TooMany,
    /// It is deeper than [`DEPTH_MAX`].
    TooDeep,
}

/// A directory that a descent has left.
pub type Left<T> = (<T as Tree>::Dir, <T as Tree>::Mark);

/// A directory in progress.
struct Level<T: Tree> {
    /// `None` for a closed directory, far up the path.
    dir: Option<T::Dir>,
    mark: T::Mark,
    /// The next names, and the memory that they took initially.
    rest: std::vec::IntoIter<T::Name>,
    rest_bytes: usize,
    /// The last name that was taken. Later names that are not in `rest` are read again.
    at: Option<T::Name>,
    more: bool,
}

impl<T: Tree> Level<T> {
    /// Drops the next names; they can be read again.
    fn forget(&mut self) {
        self.more |= self.rest.len() > 0;
        (self.rest, self.rest_bytes) = (Vec::new().into_iter(), 0);
    }
}

/// The directories on the path from the top down to the current one.
pub struct Descent<T: Tree> {
    levels: Vec<Level<T>>,
    seen: FileSet,
    reached_again: usize,
    /// The memory of all names in `levels`.
    held: usize,
}

impl<T: Tree> Default for Descent<T> {
    fn default() -> Self {
        Descent { levels: Vec::new(), seen: FileSet::default(), reached_again: 0, held: 0 }
    }
}

fn bytes_of<N: AsRef<[u8]>>(names: &[N]) -> usize {
    names.iter().map(|name| 2 * size_of::<N>() + name.as_ref().len()).sum()
}

impl<T: Tree> Descent<T> {
    /// A descent that has not begun.
    pub fn new() -> Descent<T> {
        Descent::default()
    }

    /// Enters a directory; its names come next.
    ///
    /// # Errors
    /// The directory cannot be read, or a bound forbids it. The descent continues with the directory above, except
    /// after [`Bound::GivenUp`].
    pub fn enter(&mut self, tree: &T, dir: T::Dir, mark: T::Mark) -> Result<(), T::Error> {
        let bound = match self.seen.insert(tree.id(&dir, &mark)) {
            None => Some(Bound::TooMany),
            Some(true) if self.levels.len() >= DEPTH_MAX => Some(Bound::TooDeep),
            Some(true) => None,
            Some(false) if self.reached_again < REACHED_AGAIN_MAX => {
                self.reached_again += 1;
                Some(Bound::ReachedAgain)
            }
            Some(false) => {
                self.clear();
                Some(Bound::GivenUp)
            }
        };
        if let Some(bound) = bound {
            return Err(tree.refused(&dir, &mark, bound));
        }
        let (names, more) = tree.names(&dir, None)?;
        if let Some(far) = self.levels.len().checked_sub(T::OPEN_MAX) {
            self.levels[far].dir = None;
        }
        for level in &mut self.levels {
            if self.held <= HELD_BYTES {
                break;
            }
            self.held -= level.rest_bytes;
            level.forget();
        }
        let rest_bytes = bytes_of(&names);
        self.held += rest_bytes;
        self.levels.push(Level { dir: Some(dir), mark, rest: names.into_iter(), rest_bytes, at: None, more });
        Ok(())
    }

    /// Goes to the next name of the current directory; [`Descent::name`] returns it. Returns false if there is none.
    ///
    /// # Errors
    /// The rest of the names cannot be read. The descent does not try them again.
    pub fn advance(&mut self, tree: &T) -> Result<bool, T::Error> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        if level.more && level.rest.len() == 0 {
            self.held -= level.rest_bytes;
            level.forget();
            level.more = false;
            let Some(dir) = &level.dir else { return Ok(false) };
            let (names, more) = tree.names(dir, level.at.as_ref())?;
            level.rest_bytes = bytes_of(&names);
            self.held += level.rest_bytes;
            (level.rest, level.more) = (names.into_iter(), more);
        }
        let Some(name) = level.rest.next() else { return Ok(false) };
        level.at = Some(name);
        Ok(true)
    }

    /// The current name in the current directory.
    pub fn name(&self) -> Option<&T::Name> {
        self.levels.last().and_then(|level| level.at.as_ref())
    }

    /// Leaves the current directory and returns it; the one above becomes the current one. `None` if there is none.
    ///
    /// # Errors
    /// The directory above cannot be opened again, so the descent has ended.
    pub fn leave(&mut self, tree: &T) -> Result<Option<Left<T>>, T::Error> {
        let Some(Level { dir: Some(dir), mark, rest_bytes, .. }) = self.levels.pop() else { return Ok(None) };
        self.held -= rest_bytes;
        if let Some(up) = self.levels.last_mut()
            && up.dir.is_none()
        {
            match tree.reopen(&dir, &up.mark) {
                Ok(above) => up.dir = Some(above),
                Err(e) => {
                    self.clear();
                    return Err(e);
                }
            }
        }
        Ok(Some((dir, mark)))
    }

    /// The current directory.
    pub fn current(&self) -> Option<(&T::Dir, &T::Mark)> {
        self.levels.last().and_then(|level| Some((level.dir.as_ref()?, &level.mark)))
    }

    /// The number of directories on the path.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// For each directory on the path, whether it has further names.
    pub fn more(&self) -> impl Iterator<Item = bool> {
        self.levels.iter().map(|level| level.more || level.rest.len() > 0)
    }

    fn clear(&mut self) {
        self.levels.clear();
        self.held = 0;
    }

    /// Drops all names that can be read again.
    #[cfg(test)]
    pub(super) fn forget(&mut self) {
        self.levels.iter_mut().for_each(Level::forget);
        self.held = 0;
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories whose names refer to others, by number. Some contain themselves, or share their content.
    struct Graph(Vec<Vec<usize>>);

    #[derive(Debug, PartialEq, Eq)]
    struct Refused(usize, Bound);

    struct Number(usize, [u8; 8]);

    impl AsRef<[u8]> for Number {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }

    impl Tree for Graph {
        type Dir = usize;
        type Mark = usize;
        type Name = Number;
        type Error = Refused;
        const OPEN_MAX: usize = 2;

        fn id(&self, dir: &usize, _mark: &usize) -> (u64, u64) {
            (0, *dir as u64)
        }

        fn names(&self, dir: &usize, after: Option<&Number>) -> Result<(Vec<Number>, bool), Refused> {
            let rest = self.0[*dir].iter().filter(|n| after.is_none_or(|after| **n > after.0));
            let names: Vec<_> = rest.map(|n| Number(*n, (*n as u64).to_be_bytes())).collect();
            let more = names.len() > 3;
            Ok((names.into_iter().take(3).collect(), more))
        }

        fn reopen(&self, _below: &usize, mark: &usize) -> Result<usize, Refused> {
            Ok(*mark)
        }

        fn refused(&self, dir: &usize, _mark: &usize, bound: Bound) -> Refused {
            Refused(*dir, bound)
        }
    }

    /// The directories in the order of their visits, the refusals, and the deepest level.
    fn walked(graph: &Graph) -> (Vec<usize>, Vec<Refused>, usize) {
        let mut descent = Descent::new();
        let (mut entered, mut refused, mut deepest) = (vec![0], Vec::new(), 0);
        descent.enter(graph, 0, 0).expect("entered");
        while descent.depth() > 0 {
            deepest = deepest.max(descent.depth());
            if !descent.advance(graph).expect("listed") {
                descent.leave(graph).expect("left");
                continue;
            }
            let dir = descent.name().expect("a name").0;
            match descent.enter(graph, dir, dir) {
                Ok(()) => entered.push(dir),
                Err(e) => refused.push(e),
            }
        }
        assert_eq!(descent.held(), 0);
        (entered, refused, deepest)
    }

    #[test]
    fn a_directory_is_entered_once_whatever_leads_to_it() {
        let graph = Graph(vec![vec![1, 2, 3, 4, 5], vec![0, 1, 5], vec![], vec![1], vec![], vec![4]]);
        let (entered, refused, _) = walked(&graph);
        assert_eq!(entered, [0, 1, 5, 4, 2, 3]);
        let again = |dir| Refused(dir, Bound::ReachedAgain);
        assert_eq!(refused, [again(0), again(1), again(1), again(4), again(5)]);
    }

    #[test]
    fn directories_that_share_their_names_end_the_descent() {
        // Each directory contains all of them, so a naive walk would make as many visits as the square of their number.
        let count = 200;
        let (entered, refused, _) = walked(&Graph(vec![(0..count).collect(); count]));
        assert!(entered.len() < count && refused.len() == REACHED_AGAIN_MAX + 1, "{} {}", entered.len(), refused.len());
        assert_eq!(refused.last().map(|refused| refused.1), Some(Bound::GivenUp));
    }

    #[test]
    fn depth_has_an_end() {
        let chain = (0..DEPTH_MAX + 10).map(|dir| if dir < DEPTH_MAX + 9 { vec![dir + 1] } else { vec![] });
        let (entered, refused, deepest) = walked(&Graph(chain.collect()));
        assert_eq!((entered.len(), deepest), (DEPTH_MAX, DEPTH_MAX));
        assert_eq!(refused, [Refused(DEPTH_MAX, Bound::TooDeep)]);
    }
}
