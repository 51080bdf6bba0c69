//! The table of what C has open.
//!
//! Main types: [`Handle`], a pointer that C gets and gives back; [`Object`], the thing that it stands for. A handle is
//! a number in the shape of a pointer. It is looked up and never followed, and no number is used twice. So a handle
//! that was closed, one of another kind and any other pointer are -EBADF, and not undefined.
//!
//! An object that is closed while another thread uses it lives until that thread's call ends.
//!
//! # Locking
//! `c handles` (1): for a look into the table. Objects are dropped outside of it.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use extant::{Fs, Image, ReadDir};
use extant_base::sync::{LockClass, Mutex};

use crate::fault::{EBADF, EFAULT, Fault, Result};
use crate::file::OpenFile;
use crate::types::{extant_dir, extant_file, extant_fs, extant_image};

static CLASS: LockClass = LockClass::new("c handles", 1);
static TABLE: Mutex<Option<Table>> = Mutex::new(&CLASS, None);

/// Numbers go up in steps of this, so that none is the address of memory with an alignment of 2 or more.
const STEP: usize = 16;

struct Table {
    open: HashMap<usize, Object>,
    last: usize,
}

impl Default for Table {
    fn default() -> Table {
        Table { open: HashMap::new(), last: STEP + 1 }
    }
}

/// The thing that a handle stands for.
#[derive(Clone)]
pub enum Object {
    Image(Image),
    Fs(Fs),
    File(Arc<OpenFile>),
    Dir(Arc<Mutex<ReadDir>>),
}

/// The kind of a handle: a name of the header, and its objects.
pub trait Kind {
    type Live;
    const NAME: &str;
    fn of(object: &Object) -> Option<&Self::Live>;
}

macro_rules! kind {
    ($name:ident, $variant:ident, $live:ty, $text:literal) => {
        impl Kind for $name {
            type Live = $live;
            const NAME: &str = $text;
            fn of(object: &Object) -> Option<&$live> {
                match object {
                    Object::$variant(live) => Some(live),
                    _ => None,
                }
            }
        }
    };
}

kind!(extant_image, Image, Image, "image");
kind!(extant_fs, Fs, Fs, "file system");
kind!(extant_file, File, Arc<OpenFile>, "file");
kind!(extant_dir, Dir, Arc<Mutex<ReadDir>>, "directory");

/// A handle as C passes it.
#[repr(transparent)]
pub struct Handle<K>(*mut K, PhantomData<K>);

impl<K: Kind<Live: Clone>> Handle<K> {
    /// The object that the handle stands for.
    pub fn get(&self) -> Result<K::Live> {
        let table = TABLE.lock();
        let object = table.as_ref().and_then(|table| table.open.get(&self.0.addr()));
        object.and_then(K::of).cloned().ok_or_else(|| self.unknown())
    }

    /// The object, whose handle is closed from now on.
    pub fn take(&self) -> Result<K::Live> {
        let mut table = TABLE.lock();
        let table = table.get_or_insert_default();
        let live = table.open.get(&self.0.addr()).and_then(K::of).cloned().ok_or_else(|| self.unknown())?;
        table.open.remove(&self.0.addr());
        Ok(live)
    }

    fn unknown(&self) -> Fault {
        match self.0.is_null() {
            true => Fault::new(EFAULT, format!("the {} is NULL", K::NAME)),
            false => Fault::new(EBADF, format!("this is no open {}: it was closed, or is something else", K::NAME)),
        }
    }

    /// Stores an object and returns its handle.
    pub fn new(object: Object) -> Handle<K> {
        let mut table = TABLE.lock();
        let table = table.get_or_insert_default();
        table.last = table.last.wrapping_add(STEP);
        table.open.insert(table.last, object);
        Handle(ptr::without_provenance_mut(table.last), PhantomData)
    }
}
