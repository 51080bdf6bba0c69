//! A vector that grows without being copied.
//!
//! Main type: [`Pile`]. A [`Vec`] that grows temporarily needs three times its size, which is too much for the facts
//! about each directory of a large file system.
//!
//! # Locking
//! None.

/// The number of elements in a part.
const PART: usize = 1024;

/// Many elements in no particular order.
pub struct Pile<T> {
    parts: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Pile<T> {
    fn default() -> Pile<T> {
        Pile { parts: Vec::new(), len: 0 }
    }
}

impl<T> From<Vec<T>> for Pile<T> {
    fn from(part: Vec<T>) -> Pile<T> {
        Pile { len: part.len(), parts: vec![part] }
    }
}

impl<T> Pile<T> {
    pub fn push(&mut self, one: T) {
        self.len += 1;
        match self.parts.last_mut().filter(|part| part.len() < part.capacity()) {
            Some(part) => part.push(one),
            None => {
                // The first parts are small, because there may be only a few elements.
                let mut part = Vec::with_capacity(self.len.clamp(8, PART));
                part.push(one);
                self.parts.push(part);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes the parts of another pile, without copying them.
    pub fn append(&mut self, mut other: Pile<T>) {
        self.parts.append(&mut other.parts);
        self.len += other.len;
    }

    /// All elements, in exactly as much memory as they need.
    pub fn into_vec(mut self) -> Vec<T> {
        if self.parts.len() == 1 {
            return self.parts.swap_remove(0);
        }
        let mut all = Vec::with_capacity(self.len);
        self.parts.into_iter().for_each(|part| all.extend(part));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pile_has_all_pushed_and_appended_elements() {
        let mut pile = Pile::from(vec![0, 1]);
        (2..3000).for_each(|n| pile.push(n));
        let mut other = Pile::default();
        (3000..3010).for_each(|n| other.push(n));
        pile.append(other);
        pile.push(3010);
        assert_eq!(pile.len(), 3011);
        assert!(pile.parts.iter().all(|part| part.capacity() <= PART));
        let all = pile.into_vec();
        assert_eq!((all.capacity(), all), (3011, (0..3011).collect()));
        assert_eq!(Pile::<u8>::default().into_vec(), []);
    }
}
