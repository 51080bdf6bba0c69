//! Resolves paths to directories and names.
//!
//! # Locking
//! None.

use super::super::Body;
use super::{
    Builder, IMPLIED_MAX, IMPLIED_PER_ENTRY, LINKS_FOLLOWED_MAX, NAME_MAX, PATH_MAX, PENDING, ROOT, STEPS_MAX,
    STEPS_PER_ENTRY,
};
use crate::Result;
use crate::error::shown;

impl Builder {
    /// The directory and the name of a path, whose parents are created; `None` for the root.
    pub(super) fn place<'p>(&mut self, path: &'p [u8]) -> Result<Option<(u32, &'p [u8])>> {
        match self.place_parts(path, true)? {
            PathPlace::In(parent, name) => Ok(Some((parent, name))),
            PathPlace::Root | PathPlace::Missing => Ok(None),
        }
    }

    pub(super) fn place_of_file<'p>(&mut self, path: &'p [u8]) -> Result<(u32, &'p [u8])> {
        self.place(path)?.ok_or_else(|| self.error(path, "the root can only be a directory"))
    }

    /// The same as [`Builder::place`] for existing parents.
    pub(super) fn existing_place<'p>(&mut self, path: &'p [u8]) -> Result<Option<(u32, &'p [u8])>> {
        match self.place_parts(path, false)? {
            PathPlace::In(parent, name) => Ok(Some((parent, name))),
            PathPlace::Missing => Ok(None),
            PathPlace::Root => Err(self.error(path, "the root cannot be removed")),
        }
    }

    pub(super) fn place_parts<'p>(&mut self, path: &'p [u8], make: bool) -> Result<PathPlace<'p>> {
        if path.is_empty() {
            return Err(self.error(path, "an entry without a name"));
        }
        let trimmed = path.strip_suffix(b"/").unwrap_or(path);
        let split = trimmed.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (above, name) = trimmed.split_at(split);
        if let Some((last, node)) = &self.last
            && last == above
            && !matches!(name, b"" | b".")
        {
            let node = *node;
            check_name(name).map_err(|why| self.error(path, why))?;
            return Ok(PathPlace::In(node, name));
        }
        let placed = self.descend(path, make).map_err(|why| self.error(path, why))?;
        if let PathPlace::In(parent, _) = placed {
            self.last = Some((above.to_vec(), parent));
        }
        Ok(placed)
    }

    /// Descends a path to its last name. With `make`, missing directories in it are created.
    pub(super) fn descend<'p>(&mut self, path: &'p [u8], make: bool) -> std::result::Result<PathPlace<'p>, String> {
        if self.follow && path.len() >= PATH_MAX {
            return Err(format!("a path of {} bytes; at most {} can be walked", path.len(), PATH_MAX - 1));
        }
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        let Some(mut name) = parts.next() else { return Ok(PathPlace::Root) };
        check_name(name)?;
        let (mut at, mut links) = (ROOT, 0);
        for next in parts {
            check_name(next)?;
            match self.step(at, name, make, &mut links)? {
                Some(directory) => at = directory,
                None => return Ok(PathPlace::Missing),
            }
            name = next;
        }
        Ok(PathPlace::In(at, name))
    }

    /// The directory of a name in the middle of a path, after `links` links.
    fn step(
        &mut self,
        parent: u32,
        name: &[u8],
        make: bool,
        links: &mut u32,
    ) -> std::result::Result<Option<u32>, String> {
        let Some(node) = self.find(parent, name) else { return self.made(parent, name, make) };
        if self.is_directory(node) {
            return Ok(Some(node));
        }
        let Some(target) = self.followed(node) else {
            return Err(format!("{} is not a directory", shown(name)));
        };
        let mut at = parent;
        let mut todo = Vec::new();
        follow(&target, name, links, &mut at, &mut todo)?;
        while let Some(part) = todo.pop() {
            self.take_step()?;
            if *part == *b".." {
                at = self.parent(at);
                continue;
            }
            check_name(&part)?;
            match self.find(at, &part) {
                None => match self.made(at, &part, make)? {
                    Some(directory) => at = directory,
                    None => return Ok(None),
                },
                Some(node) if self.is_directory(node) => at = node,
                Some(node) => {
                    let Some(target) = self.followed(node) else {
                        return Err(format!(
                            "{} leads through {}, which is not a directory",
                            shown(name),
                            shown(&part)
                        ));
                    };
                    follow(&target, name, links, &mut at, &mut todo)?;
                }
            }
        }
        Ok(Some(at))
    }

    /// Counts a step through the target of a link.
    fn take_step(&mut self) -> std::result::Result<(), String> {
        self.steps += 1;
        let most = STEPS_MAX + STEPS_PER_ENTRY * self.links.len();
        if self.steps > most {
            return Err(format!("its path is the last of many through long links: more than {most} steps up to here"));
        }
        Ok(())
    }

    /// The size and content of the regular file without holes to which a path leads. Links are followed within the
    /// tree.
    pub fn file_at(&self, path: &[u8]) -> Option<(u64, u64)> {
        let (mut at, mut links, mut todo) = (ROOT, 0, Vec::new());
        let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        todo.extend(parts.rev().map(Box::from));
        while let Some(part) = todo.pop() {
            if *part == *b".." {
                at = self.parent(at);
                continue;
            }
            match &self.nodes.get(self.find(at, &part)? as usize)?.body {
                Body::Directory { .. } => at = self.find(at, &part)?,
                Body::Symlink(target) => follow(target, &part, &mut links, &mut at, &mut todo).ok()?,
                Body::File { size, content, sparse: None } if todo.is_empty() => return Some((*size, *content)),
                _ => return None,
            }
        }
        None
    }

    /// The target of a symbolic link, if links are followed.
    fn followed(&self, node: u32) -> Option<Box<[u8]>> {
        if !self.follow || node & PENDING != 0 {
            return None;
        }
        match &self.nodes[node as usize].body {
            Body::Symlink(target) => Some(target.clone()),
            _ => None,
        }
    }

    fn made(&mut self, parent: u32, name: &[u8], make: bool) -> std::result::Result<Option<u32>, String> {
        if !make {
            return Ok(None);
        }
        self.implied += 1;
        if self.implied > IMPLIED_MAX + IMPLIED_PER_ENTRY * (self.nodes.len() + 1 - self.implied) {
            return Err("its path leads through more directories without entries than a tree may have".into());
        }
        let directory = self.implied_directory(parent);
        let number = self.new_node(directory)?;
        self.enter(parent, name, number)?;
        Ok(Some(number))
    }
}

/// The place of a path.
pub(super) enum PathPlace<'p> {
    Root,
    /// A directory and a name in it, which may exist or not.
    In(u32, &'p [u8]),
    /// A directory in the path is missing.
    Missing,
}

/// Inserts the parts of a link's target before the parts that remain to be walked. `name` is the first name of the way
/// to it.
fn follow(
    target: &[u8],
    name: &[u8],
    links: &mut u32,
    at: &mut u32,
    todo: &mut Vec<Box<[u8]>>,
) -> std::result::Result<(), String> {
    *links += 1;
    if *links > LINKS_FOLLOWED_MAX {
        return Err(format!("{} leads through more than {LINKS_FOLLOWED_MAX} symbolic links", shown(name)));
    }
    if target.starts_with(b"/") {
        *at = ROOT;
    }
    let parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    todo.extend(parts.rev().map(Box::from));
    Ok(())
}

fn check_name(name: &[u8]) -> std::result::Result<(), String> {
    match name {
        b".." => Err("the name .. leads out of its directory".into()),
        name if name.len() > NAME_MAX => {
            Err(format!("a name of {} bytes; at most {NAME_MAX} can be stored", name.len()))
        }
        name if name.contains(&0) => Err("a name with a NUL byte".into()),
        _ => Ok(()),
    }
}
