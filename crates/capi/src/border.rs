//! The border to C: arguments that C passes become values of Rust, and results go back.
//!
//! Main types: [`Text`], [`Source`], [`Target`], [`SizedInput`], [`PlainInput`], [`Out`], [`ErrorOut`]. Each is a
//! pointer of C. None can be made in Rust: a value comes from C alone, and extant.h says what C promises about it. So
//! their methods may rely on that promise, and the rest of the crate is safe. `export!` makes functions of the header;
//! [`guard`] is around each.
//!
//! What it does not do: handles, which are looked up and never followed ([`crate::handles`]).
//!
//! # Locking
//! None.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use crate::fault::{EFAULT, EINVAL, EIO, Fault, Result};
use crate::types::{extant_device, extant_error, extant_options, extant_time};

/// Declares functions of extant.h. Each gets a last argument, `extant_error *error`, and its body returns
/// `Result<RETURN TYPE>`.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) -> $answer:ty $body:block)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code, reason = "C finds the function by its name")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $kind,)* error: $crate::border::ErrorOut) -> $answer {
            $crate::border::guard(error, move || -> $crate::fault::Result<$answer> { $body })
        }
    )*};
}

/// Runs the body of a function. A failure is stored for the caller and returned as a negative number. A panic must not
/// unwind into C: it is -EIO.
pub fn guard<T: From<c_int>>(error: ErrorOut, body: impl FnOnce() -> Result<T>) -> T {
    // A body that panics leaves no broken state behind that this crate could see: handles are whole before and after.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Fault::new(EIO, format!("internal error: {}", text.unwrap_or("a panic")))
        }
    };
    error.tell(&fault);
    T::from(-fault.number)
}

/// The version of the library, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn extant_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// `extant_error *`, or NULL.
#[repr(transparent)]
pub struct ErrorOut(*mut extant_error);

impl ErrorOut {
    fn tell(&self, fault: &Fault) {
        if self.0.is_null() {
            return;
        }
        let mut error = extant_error { number: fault.number, text: [0; 1020] };
        let mut end = fault.text.len().min(error.text.len() - 1);
        while !fault.text.is_char_boundary(end) {
            end -= 1;
        }
        for (to, byte) in error.text.iter_mut().zip(fault.text[..end].bytes()) {
            *to = byte as c_char;
        }
        // SAFETY: C passes NULL or a pointer to an extant_error that it owns.
        unsafe { self.0.write_unaligned(error) }
    }
}

fn null(what: &str) -> Fault {
    Fault::new(EFAULT, format!("{what} is NULL"))
}

/// `const char *`: bytes that end with a zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn bytes<'a>(self) -> Result<&'a [u8]> {
        if self.0.is_null() {
            return Err(null("a path or name"));
        }
        // SAFETY: C passes NULL or a string that ends with a zero and stays as it is during the call. The result is
        // used during the call alone.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    pub fn path<'a>(self) -> Result<&'a Path> {
        let bytes = self.bytes()?;
        #[cfg(unix)]
        let name = std::os::unix::ffi::OsStrExt::from_bytes(bytes);
        #[cfg(not(unix))]
        let name = std::str::from_utf8(bytes).map_err(|_| Fault::new(EINVAL, "a path that is not UTF-8"))?;
        Ok(Path::new::<OsStr>(name))
    }
}

/// The length of memory that C owns.
fn length(size: usize) -> Result<usize> {
    if isize::try_from(size).is_err() {
        return Err(Fault::new(EINVAL, format!("{size} bytes are more than memory can have")));
    }
    Ok(size)
}

/// `const void *`: bytes to read, whose number is another argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Source(*const c_void);

impl Source {
    pub fn of<'a>(self, size: usize) -> Result<&'a [u8]> {
        match (self.0.is_null(), length(size)?) {
            (_, 0) => Ok(&[]),
            (true, _) => Err(null("the data")),
            // SAFETY: C passes at least `size` bytes, which stay as they are during the call.
            (false, size) => Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), size) }),
        }
    }
}

/// `void *`: bytes to fill, whose number is another argument.
#[repr(transparent)]
pub struct Target(*mut c_void);

impl Target {
    pub fn of<'a>(self, size: usize) -> Result<&'a mut [u8]> {
        match (self.0.is_null(), length(size)?) {
            (_, 0) => Ok(&mut []),
            (true, _) => Err(null("the buffer")),
            // SAFETY: C passes at least `size` bytes of its own, which no other thread uses during the call. For this
            // library, bytes that C has not set have some value.
            (false, size) => Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), size) }),
        }
    }
}

/// `T *`: the place for a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Fails before the work is done whose result could not be stored.
    pub fn check(&self) -> Result<()> {
        if self.0.is_null() { Err(null("the place for the result")) } else { Ok(()) }
    }

    pub fn put(self, value: T) -> Result<()> {
        self.check()?;
        // SAFETY: C passes NULL or a pointer to a T that it owns.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

/// A structure of the header that begins with its size in bytes, and of which all zeroes are a value.
///
/// # Safety
/// Both must hold.
pub unsafe trait SizeFirst {}
// SAFETY: their first field is `size: usize`; the others are integers, pointers and optional functions.
unsafe impl SizeFirst for extant_options {}
// SAFETY: as above.
unsafe impl SizeFirst for extant_device {}

/// Beyond this, a structure is no structure of any version of the header.
const STRUCTURE_MAX: usize = 4096;

/// `const T *` or NULL, of a structure that begins with its size. A program that was compiled with an older header
/// passes a smaller one, whose missing fields are zero.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct SizedInput<T>(*const T);

impl<T: SizeFirst> SizedInput<T> {
    pub fn get(self) -> Result<Option<T>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: C passes NULL or a pointer to a structure whose first field says how many bytes it has.
        let size = unsafe { self.0.cast::<usize>().read_unaligned() };
        if !(size_of::<usize>()..=STRUCTURE_MAX).contains(&size) {
            return Err(Fault::new(EINVAL, format!("a structure whose field 'size' is {size}: set it to its sizeof")));
        }
        // SAFETY: the structure has `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), size) };
        let known = size.min(size_of::<T>());
        if bytes[known..].iter().any(|byte| *byte != 0) {
            return Err(Fault::new(EINVAL, "a structure has fields that this version of the library does not know"));
        }
        // SAFETY: zeroes are a value of T (`SizeFirst`), and so is what C has set in its place.
        let value = unsafe {
            let mut value: T = std::mem::zeroed();
            ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::from_mut(&mut value).cast(), known);
            value
        };
        Ok(Some(value))
    }
}

/// `const T *` or NULL, of a structure that will not grow.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct PlainInput<T>(*const T);

impl PlainInput<extant_time> {
    pub fn get(self) -> Option<extant_time> {
        // SAFETY: C passes NULL or a pointer to a structure of its own, of integers.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// A pointer of C that belongs to its functions, and goes back to them from any thread.
#[derive(Clone, Copy)]
pub struct User(*mut c_void);

// SAFETY: this library never follows the pointer. The header says that other threads call the functions that get it.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    pub fn new(user: *mut c_void) -> User {
        User(user)
    }

    pub fn get(self) -> *mut c_void {
        self.0
    }
}
