//! The buffer into which a worker reads requests.
//!
//! The message starts 80 bytes before a page boundary. So the data of a WRITE, behind two headers of 40 bytes, is
//! page-aligned, and the headers are 8-aligned.
//!
//! # Locking
//! None; one owner.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{InHeader, MIN_READ_BUFFER, WriteIn};

const PAGE: usize = 4096;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

const LEAD: usize = PAGE - size_of::<InHeader>() - size_of::<WriteIn>();
const _: () = assert!(LEAD.is_multiple_of(8));

pub(crate) struct Buffer(Vec<Page>);

impl Buffer {
    /// Room for a WRITE of `max_write` bytes and for any request without data. None if memory cannot be allocated.
    pub fn new(max_write: usize) -> Option<Buffer> {
        let pages = 2 + max_write.max(MIN_READ_BUFFER).div_ceil(PAGE);
        let mut buffer = Buffer(Page::new_vec_zeroed(pages).ok()?);
        // Vector instructions that compare a name at the page boundary look past its end. If the next page is not
        // mapped yet, each of them costs a hundred times as much.
        buffer.payload()[0] = u8::MAX;
        Some(buffer)
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[LEAD..]
    }

    /// The page-aligned part, where the data of a WRITE lies.
    pub fn payload(&mut self) -> &mut [u8] {
        self.bytes_before_payload(0)
    }

    /// The last `lead` bytes (at most a page) before [`payload`](Buffer::payload), and everything after them.
    pub fn bytes_before_payload(&mut self, lead: usize) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[PAGE - lead..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_data_is_page_aligned() {
        let mut b = Buffer::new(1 << 20).expect("memory");
        let bytes = b.bytes();
        let data = &bytes[size_of::<InHeader>() + size_of::<WriteIn>()..];
        assert_eq!(data.as_ptr() as usize % PAGE, 0);
        assert!(data.len() >= 1 << 20);
        assert_eq!(bytes.as_ptr() as usize % 8, 0);
    }
}
