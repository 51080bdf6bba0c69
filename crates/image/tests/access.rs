//! The operations that an embedder may do with an image that it opens.

use std::ffi::OsStr;

use extant_block::BioFlags;
use extant_image::{Access, Claim, ImageSpec, open_whole};

/// Two writers would destroy the file system.
#[test]
fn an_image_opened_without_a_claim_cannot_be_written() {
    let file = tempfile::NamedTempFile::new().expect("file");
    file.as_file().set_len(1 << 20).expect("size");
    let spec = ImageSpec::parse(OsStr::new(file.path()));
    for (claim, may_write) in [(Claim::Required, true), (Claim::None, false)] {
        let opened = open_whole(&spec, &Access { claim, ..Access::tool(false) }).expect("opened");
        assert_eq!(opened.device.read_only(), !may_write, "{claim:?}");
        assert_eq!(opened.device.write_at(0, &[&[1; 512]], BioFlags::empty()).is_ok(), may_write, "{claim:?}");
    }
}
