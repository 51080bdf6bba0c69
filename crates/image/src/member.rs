//! Signatures that say to whom a device with an ext superblock belongs: a RAID array, ZFS, bcache, LVM.
//!
//! Half of a mirror whose array keeps its own superblock at the end (md 0.90 and 1.0, DDF, the RAID of mainboards)
//! looks like a file system from its first byte on. A write to it makes the halves differ, and the array does not
//! notice. The same holds for a device that ZFS, bcache or LVM took over and left an old superblock on.
//!
//! Main function: [`member`], which returns the [`Member`]. Offsets and magics: libblkid, util-linux 2.41.
//!
//! A signature behind the end of the file system counts, because an array's data ends before its superblock. One that
//! lies inside is old, or the content of a file, which any user could write. The signatures at the start lie where an
//! ext file system has its own metadata or its boot sectors.
//!
//! What it does not do: devices without an ext superblock ([`crate::identify`]).
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};

/// The owner of a device on which an ext file system was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// As a phrase: "a member of a Linux software RAID".
    pub name: &'static str,
    /// The next step, as a clause; `IMAGE` is the device.
    advice: &'static str,
    /// The offset of the signature, in bytes.
    pub byte: u64,
}

impl Member {
    /// The step that opens the file system through its owner; `image` is the device.
    pub fn advice(&self, image: &str) -> String {
        self.advice.replace("IMAGE", image)
    }
}

/// Recognizes a signature in the bytes at its place. The second argument is the place; a test may read more.
type Test = fn(&[u8], u64, &dyn BlockDevice) -> bool;

struct Signature {
    name: &'static str,
    advice: &'static str,
    place: Place,
    /// Bytes to read.
    len: usize,
    is: Test,
}

enum Place {
    /// Bytes from the start.
    Start(u64),
    /// The device's size is rounded down to a multiple of the first number, and the second is subtracted.
    End(u64, u64),
}

const MD: (&str, &str) =
    ("a member of a Linux software RAID", "'mdadm --assemble --readonly' as root shows the array as /dev/mdN");
const FAKERAID: &str = "'mdadm --assemble --scan' or dmraid(8) shows the array as root";
const ZFS: (&str, &str) = ("a disk of a ZFS pool", "'zpool import' as root lists the pool");

const SIGNATURES: &[Signature] = &[
    Signature { name: MD.0, advice: MD.1, place: Place::End(65536, 65536), len: 64, is: is_md_0 },
    Signature { name: MD.0, advice: MD.1, place: Place::End(4096, 8192), len: 256, is: is_md_1 },
    Signature { name: MD.0, advice: MD.1, place: Place::Start(0), len: 256, is: is_md_1 },
    Signature { name: MD.0, advice: MD.1, place: Place::Start(4096), len: 256, is: is_md_1 },
    Signature {
        name: "a disk of a RAID with DDF metadata",
        advice: FAKERAID,
        place: Place::End(512, 512),
        len: 16,
        is: is_ddf,
    },
    Signature {
        name: "a disk of a RAID with DDF metadata",
        advice: FAKERAID,
        place: Place::End(512, 257 * 512),
        len: 16,
        is: is_ddf,
    },
    Signature {
        name: "a disk of an Intel RAID",
        advice: FAKERAID,
        place: Place::End(512, 1024),
        len: 32,
        is: |bytes, _, _| bytes.starts_with(b"Intel Raid ISM Cfg Sig. "),
    },
    Signature {
        name: "a disk of an NVIDIA RAID",
        advice: FAKERAID,
        place: Place::End(512, 1024),
        len: 8,
        is: |bytes, _, _| bytes.starts_with(b"NVIDIA  "),
    },
    Signature {
        name: "a disk of an LSI RAID",
        advice: FAKERAID,
        place: Place::End(512, 512),
        len: 8,
        is: |bytes, _, _| bytes.starts_with(b"$XIDE$"),
    },
    Signature {
        name: "the backing device of a DRBD resource",
        advice: "use /dev/drbdN on the node that is primary",
        place: Place::End(4096, 4096),
        len: 64,
        is: |bytes, _, _| matches!(bytes[60..], [0x83, 0x74, 0x02, 0x6b..=0x6d]),
    },
    zfs(Place::Start(ZFS_PAIRS)),
    zfs(Place::Start(ZFS_LABEL + ZFS_PAIRS)),
    zfs(Place::End(ZFS_LABEL, ZFS_LABEL - ZFS_PAIRS)),
    zfs(Place::End(ZFS_LABEL, 2 * ZFS_LABEL - ZFS_PAIRS)),
    Signature {
        name: "a device of bcache",
        advice: "register it ('echo IMAGE > /sys/fs/bcache/register' as root) and use /dev/bcacheN",
        place: Place::Start(4096),
        len: 40,
        is: |bytes, _, _| bytes[24..] == *b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    },
    Signature {
        name: "a physical volume of LVM",
        advice: "'vgchange -ay' as root activates its group, and the file systems are in /dev/mapper then",
        place: Place::Start(512),
        len: 32,
        is: is_lvm,
    },
    Signature {
        name: "a physical volume of LVM",
        advice: "'vgchange -ay' as root activates its group, and the file systems are in /dev/mapper then",
        place: Place::Start(0),
        len: 32,
        is: is_lvm,
    },
];

const MD_MAGIC: u32 = 0xa92b_4efc;

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// md 0.90, in the byte order of the machine that made it.
fn is_md_0(bytes: &[u8], _: u64, _: &dyn BlockDevice) -> bool {
    [le32, |bytes: &[u8], at| le32(bytes, at).swap_bytes()].iter().any(|word: &fn(&[u8], usize) -> u32| {
        let version = (word(bytes, 4), word(bytes, 8));
        word(bytes, 0) == MD_MAGIC && matches!(version, (0, 90..))
    })
}

/// md 1.x, which knows its own place.
fn is_md_1(bytes: &[u8], at: u64, _: &dyn BlockDevice) -> bool {
    let place = u64::from(le32(bytes, 144)) | u64::from(le32(bytes, 148)) << 32;
    le32(bytes, 0) == MD_MAGIC && le32(bytes, 4) == 1 && place == at / 512
}

fn is_ddf(bytes: &[u8], _: u64, _: &dyn BlockDevice) -> bool {
    bytes.starts_with(&[0xde, 0x11, 0xde, 0x11])
}

fn is_lvm(bytes: &[u8], _: u64, _: &dyn BlockDevice) -> bool {
    bytes.starts_with(b"LABELONE") && bytes[24..].starts_with(b"LVM2 001")
}

/// Bytes of a label, which a disk of ZFS has twice at each end: a boot block, the configuration as pairs of names and
/// values, and behind them 128 uberblocks of 1 KiB.
const ZFS_LABEL: u64 = 256 << 10;
/// The place of the configuration in a label. Its first bytes are the encoding and the byte order.
const ZFS_PAIRS: u64 = 16 << 10;
const ZFS_UBERBLOCKS: u64 = 128 << 10;

const fn zfs(place: Place) -> Signature {
    Signature { name: ZFS.0, advice: ZFS.1, place, len: 4, is: is_zfs }
}

fn is_zfs(bytes: &[u8], at: u64, dev: &dyn BlockDevice) -> bool {
    const MAGIC: u64 = 0x00ba_b10c;
    let uberblock = |block: &[u8]| block.starts_with(&MAGIC.to_le_bytes()) || block.starts_with(&MAGIC.to_be_bytes());
    let mut blocks = vec![0; (ZFS_LABEL - ZFS_UBERBLOCKS) as usize];
    matches!(bytes, [0 | 1, 0 | 1, 0, 0])
        && bytes != [0; 4]
        && dev.read_at(at - ZFS_PAIRS + ZFS_UBERBLOCKS, &mut blocks, BioFlags::META).is_ok()
        && blocks.chunks(1024).any(uberblock)
}

/// The owner of `dev`, on which an ext file system ends at byte `end`.
pub fn member(dev: &dyn BlockDevice, end: u64) -> Option<Member> {
    let size = dev.size_bytes();
    SIGNATURES.iter().find_map(|signature| {
        let byte = match signature.place {
            Place::Start(byte) => byte,
            Place::End(unit, before) => (size - size % unit).checked_sub(before).filter(|byte| *byte >= end)?,
        };
        let mut bytes = vec![0; signature.len];
        let fits = byte + bytes.len() as u64 <= size;
        let read = fits && dev.read_at(byte, &mut bytes, BioFlags::META).is_ok();
        (read && (signature.is)(&bytes, byte, dev)).then_some(Member {
            name: signature.name,
            advice: signature.advice,
            byte,
        })
    })
}

#[cfg(test)]
mod tests {
    use extant_block::device::MemDevice;

    use super::*;

    const SIZE: u64 = (64 << 20) + 12800;

    fn with(parts: &[(u64, &[u8])]) -> MemDevice {
        let dev = MemDevice::new(SIZE);
        for (at, bytes) in parts {
            dev.write_at(*at, &[bytes], BioFlags::empty()).expect("memory");
        }
        dev
    }

    fn words(words: &[(usize, u32)], big: bool) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        for (at, word) in words {
            let word = if big { word.to_be_bytes() } else { word.to_le_bytes() };
            bytes[*at..*at + 4].copy_from_slice(&word);
        }
        bytes
    }

    #[test]
    fn each_signature_is_found_behind_the_file_system_and_not_inside_of_it() {
        let md_0 = |big| words(&[(0, MD_MAGIC), (8, 90)], big);
        let md_1 = |at: u64| words(&[(0, MD_MAGIC), (4, 1), (144, (at / 512) as u32)], false);
        let sector = |text: &[u8]| [text, &vec![0; 512 - text.len()]].concat();
        let last = SIZE - SIZE % 512;
        let ends = [
            ((SIZE & !65535) - 65536, md_0(false)),
            ((SIZE & !65535) - 65536, md_0(true)),
            ((SIZE & !4095) - 8192, md_1((SIZE & !4095) - 8192)),
            (last - 512, sector(b"\xde\x11\xde\x11")),
            (last - 257 * 512, sector(b"\xde\x11\xde\x11")),
            (last - 1024, sector(b"Intel Raid ISM Cfg Sig. 1.3.00")),
            (last - 1024, sector(b"NVIDIA  ")),
            (last - 512, sector(b"$XIDE$")),
            ((SIZE & !4095) - 4096, sector(&[&[0; 60][..], b"\x83\x74\x02\x6d"].concat())),
        ];
        for (at, bytes) in ends {
            let dev = with(&[(at, &bytes)]);
            assert_eq!(member(&dev, at).map(|member| member.byte), Some(at), "{at}");
            assert_eq!(member(&dev, at + 1), None, "a file system with these bytes in it: {at}");
            assert!(member(&with(&[(at - 512, &bytes)]), 0).is_none(), "beside its place: {at}");
        }
        let label = [(16 << 10, sector(&[1, 1, 0, 0])), (130 << 10, sector(&0x00ba_b10c_u64.to_le_bytes()))];
        let end = SIZE - SIZE % ZFS_LABEL;
        for start in [0, ZFS_LABEL, end - 2 * ZFS_LABEL, end - ZFS_LABEL] {
            let parts: Vec<(u64, &[u8])> = label.iter().map(|(at, bytes)| (start + at, &bytes[..])).collect();
            assert_eq!(member(&with(&parts), 1 << 20).map(|member| member.name), Some(ZFS.0), "{start}");
            assert_eq!(member(&with(&parts[..1]), 1 << 20), None, "{start}");
        }
        let bcache = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
        let starts = [
            (0, md_1(0)),
            (4096, md_1(4096)),
            (4096, sector(&[&[0; 24][..], bcache].concat())),
            (512, sector(b"LABELONE................LVM2 001")),
        ];
        for (at, bytes) in starts {
            let found = member(&with(&[(at, &bytes)]), SIZE).expect("found");
            assert_eq!(found.byte, at);
            assert!(!found.advice("a.img").contains("IMAGE"));
        }
        assert_eq!(member(&MemDevice::new(512), 0), None);
    }
}
