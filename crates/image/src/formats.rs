//! Recognizes other formats than ext by their magic bytes, with advice for the user.
//!
//! Main types: [`Format`], the table [`FORMATS`]. [`identify`] looks for a known magic; [`nothing_found`] describes a
//! device without one.
//!
//! What it does not do: read any of these. A magic identifies a format; the content may still be damaged.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};

/// An offset and the bytes there.
type Magic = (usize, &'static [u8]);

/// A kind of content that users mistake for an ext image.
#[derive(Debug)]
pub struct Format {
    name: &'static str,
    /// Any of these identifies it.
    magics: &'static [Magic],
    /// The next step for the user; `IMAGE` is the file.
    advice: &'static str,
}

/// The last magic is that of btrfs, at 64 KiB and 64.
const HEAD_BYTES: usize = 69632;

const CONVERT: &str = "convert it with 'qemu-img convert -O raw IMAGE IMAGE.raw', or show it as a file with one command of \
                       qemu-storage-daemon or nbdfuse (docs/remote.md)";

const MOUNT: &str = "mount it with 'mount IMAGE DIR' as root";

const FORMATS: &[Format] = &[
    Format { name: "a qcow2 disk image", magics: &[(0, b"QFI\xfb")], advice: CONVERT },
    Format {
        name: "a VMDK disk image",
        magics: &[(0, b"KDMV"), (0, b"COWD"), (0, b"# Disk DescriptorFile")],
        advice: CONVERT,
    },
    Format { name: "a VDI disk image", magics: &[(64, b"\x7f\x10\xda\xbe")], advice: CONVERT },
    Format { name: "a VHDX disk image", magics: &[(0, b"vhdxfile")], advice: CONVERT },
    Format { name: "a VHD disk image", magics: &[(0, b"conectix")], advice: CONVERT },
    Format {
        name: "an Android sparse image",
        magics: &[(0, b"\x3a\xff\x26\xed")],
        advice: "unpack it with 'simg2img IMAGE IMAGE.raw'",
    },
    Format {
        name: "compressed with gzip",
        magics: &[(0, b"\x1f\x8b\x08")],
        advice: "unpack it with 'gunzip -k IMAGE'",
    },
    Format {
        name: "compressed with zstd",
        magics: &[(0, b"\x28\xb5\x2f\xfd")],
        advice: "unpack it with 'unzstd IMAGE'",
    },
    Format { name: "compressed with xz", magics: &[(0, b"\xfd7zXZ\0")], advice: "unpack it with 'unxz -k IMAGE'" },
    Format { name: "compressed with bzip2", magics: &[(0, b"BZh")], advice: "unpack it with 'bunzip2 -k IMAGE'" },
    Format { name: "compressed with lz4", magics: &[(0, b"\x04\x22\x4d\x18")], advice: "unpack it with 'unlz4 IMAGE'" },
    Format { name: "a zip archive", magics: &[(0, b"PK\x03\x04")], advice: "unpack it with 'unzip IMAGE'" },
    Format {
        name: "encrypted with LUKS",
        magics: &[(0, b"LUKS\xba\xbe")],
        advice: "open it with 'cryptsetup open IMAGE NAME' as root; the file system is /dev/mapper/NAME then",
    },
    Format {
        name: "encrypted with BitLocker",
        magics: &[(3, b"-FVE-FS-")],
        advice: "open it with 'cryptsetup bitlkOpen IMAGE NAME' as root",
    },
    Format {
        name: "a physical volume of LVM",
        magics: &[(0, b"LABELONE"), (512, b"LABELONE"), (1024, b"LABELONE"), (1536, b"LABELONE")],
        advice: "activate its group with 'losetup -f --show IMAGE' and 'vgchange -ay' as root; the file systems are in \
                 /dev/mapper then",
    },
    Format {
        name: "a member of a Linux software RAID",
        magics: &[(0, b"\xfc\x4e\x2b\xa9"), (4096, b"\xfc\x4e\x2b\xa9")],
        advice: "assemble it with 'mdadm --assemble --readonly' as root",
    },
    Format { name: "an XFS file system", magics: &[(0, b"XFSB")], advice: MOUNT },
    Format { name: "a btrfs file system", magics: &[(65600, b"_BHRfS_M")], advice: MOUNT },
    Format { name: "an EROFS file system", magics: &[(1024, b"\xe2\xe1\xf5\xe0")], advice: MOUNT },
    Format { name: "a JFS file system", magics: &[(32768, b"JFS1")], advice: MOUNT },
    Format {
        name: "a ReiserFS file system",
        magics: &[(65588, b"ReIsErFs"), (65588, b"ReIsEr2Fs"), (65588, b"ReIsEr3Fs")],
        advice: MOUNT,
    },
    Format { name: "an F2FS file system", magics: &[(1024, b"\x10\x20\xf5\xf2")], advice: MOUNT },
    Format { name: "an NTFS file system", magics: &[(3, b"NTFS    ")], advice: MOUNT },
    Format { name: "an exFAT file system", magics: &[(3, b"EXFAT   ")], advice: MOUNT },
    Format {
        name: "a FAT file system",
        magics: &[(82, b"FAT32   "), (54, b"FAT16   "), (54, b"FAT12   "), (54, b"FAT     ")],
        advice: "mount it with 'mount IMAGE DIR' as root, or copy out of it with mtools ('mcopy -i IMAGE ::FILE .')",
    },
    Format {
        name: "a squashfs file system",
        magics: &[(0, b"hsqs")],
        advice: "unpack it with 'unsquashfs IMAGE', or mount it with 'squashfuse IMAGE DIR'",
    },
    Format {
        name: "swap space",
        // At the end of the first page, whose size depends on the machine.
        magics: &[
            (4086, b"SWAPSPACE2"),
            (8182, b"SWAPSPACE2"),
            (16374, b"SWAPSPACE2"),
            (65526, b"SWAPSPACE2"),
            (4086, b"SWAP-SPACE"),
        ],
        advice: "there are no files in it",
    },
];

const TAR: Format = Format {
    name: "a tar archive",
    magics: &[(257, b"ustar\0"), (257, b"ustar  \0")],
    advice: "'extant mkfs --from IMAGE --size auto NEW.img' makes an image of its files",
};

const NO_FILES: &str = "there is no file system in it";

/// Files of other programs. Some of their magics are short enough to be a boot sector's first instruction, so a
/// partition table counts first.
const FILES: &[Format] = &[
    TAR,
    Format { name: "a program", magics: &[(0, b"\x7fELF"), (0, b"MZ"), (0, b"#!"), (0, b"\0asm")], advice: NO_FILES },
    Format {
        name: "a cpio archive",
        magics: &[(0, b"070701"), (0, b"070702"), (0, b"070707"), (0, b"\xc7\x71")],
        advice: "unpack it with 'cpio -idF IMAGE'; extant mkfs -d makes an image of a directory",
    },
    Format { name: "a package of RPM", magics: &[(0, b"\xed\xab\xee\xdb")], advice: "unpack it with 'rpm2cpio IMAGE'" },
    Format {
        name: "an archive of ar(1) or a Debian package",
        magics: &[(0, b"!<arch>\n")],
        advice: "unpack it with 'ar x IMAGE'",
    },
    Format { name: "a 7-Zip archive", magics: &[(0, b"7z\xbc\xaf\x27\x1c")], advice: "unpack it with '7z x IMAGE'" },
    Format { name: "a RAR archive", magics: &[(0, b"Rar!\x1a\x07")], advice: "unpack it with 'unrar x IMAGE'" },
    Format { name: "a SQLite database", magics: &[(0, b"SQLite format 3\0")], advice: NO_FILES },
    Format { name: "a PDF document", magics: &[(0, b"%PDF-")], advice: NO_FILES },
    Format {
        name: "a picture",
        magics: &[(0, b"\x89PNG\r\n\x1a\n"), (0, b"\xff\xd8\xff"), (0, b"GIF87a"), (0, b"GIF89a")],
        advice: NO_FILES,
    },
];

/// Checked last, because a bootable one may be a whole disk with partitions as well.
const ISO: Format = Format {
    name: "an ISO 9660 file system",
    magics: &[(32769, b"CD001")],
    advice: "mount it with 'mount -o loop IMAGE DIR' as root, or unpack it with 'xorriso -osirrox on -indev IMAGE -extract / DIR'",
};

fn head(dev: &dyn BlockDevice) -> Vec<u8> {
    let mut head = vec![0; dev.size_bytes().min(HEAD_BYTES as u64) as usize];
    if dev.read_at(0, &mut head, BioFlags::META).is_err() {
        head.clear();
    }
    head
}

fn matches(format: &Format, head: &[u8]) -> bool {
    format.magics.iter().any(|(at, magic)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
}

/// The format of a device without an ext superblock, if it is certain before a look at the partitions.
pub fn identify(dev: &dyn BlockDevice) -> Option<&'static Format> {
    let head = head(dev);
    FORMATS.iter().find(|format| matches(format, &head))
}

/// The same for a device that is known to have no partitions.
pub fn identify_unpartitioned(dev: &dyn BlockDevice) -> Option<&'static Format> {
    let head = head(dev);
    let is_tar = || is_old_tar(&head).then_some(&TAR);
    let file = || FILES.iter().find(|format| matches(format, &head)).or_else(is_tar);
    identify(dev).or_else(|| matches(&ISO, &head).then_some(&ISO)).or_else(file)
}

/// Whether `head` begins with an entry of the oldest archives, which have no magic: a name, and the sum of its bytes.
fn is_old_tar(head: &[u8]) -> bool {
    const SUM: std::ops::Range<usize> = 148..156;
    let Some(header) = head.first_chunk::<512>().filter(|header| header[0] != 0) else { return false };
    let digits = header[SUM].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    let stored = digits.fold(0u32, |sum, digit| sum.wrapping_mul(8).wrapping_add(u32::from(digit - b'0')));
    let rest = header.iter().enumerate().filter(|(at, _)| !SUM.contains(at));
    stored == rest.map(|(_, byte)| u32::from(*byte)).sum::<u32>() + u32::from(b' ') * SUM.len() as u32
}

/// Possible starts of file systems without a partition table: after 63 sectors, and at whole mebibytes.
fn other_places() -> impl Iterator<Item = u64> {
    [63 * 512].into_iter().chain((1..=64).map(|mib| mib << 20))
}

/// The place of a primary ext superblock that is not at the device's start.
fn begins_elsewhere(dev: &dyn BlockDevice) -> Option<u64> {
    other_places().find(|start| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let at = start + SUPERBLOCK_OFFSET;
        at + SUPERBLOCK_SIZE as u64 <= dev.size_bytes()
            && dev.read_at(at, &mut bytes, BioFlags::META).is_ok()
            && SuperBlock::decode(&bytes, at).is_ok_and(|sb| sb.raw().s_block_group_nr.get() == 0)
    })
}

/// The content of a device without a superblock, a backup or a known format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnrecognizedContent {
    /// A whole image file without any data. Everything else may be a damaged disk whose files can still be saved.
    Empty,
    /// A file system begins at this byte of a whole image.
    At(u64),
    /// No sign of one. `whole`: the image has no partition table either.
    Unknown {
        /// It is a whole image, not a part of one.
        whole: bool,
    },
}

/// Examines a device on which no superblock was found.
pub fn nothing_found(dev: &dyn BlockDevice) -> UnrecognizedContent {
    // A part of an image has a name that is not a file's.
    let file = std::fs::metadata(dev.name()).ok();
    let is_whole_file = || file.as_ref().is_some_and(|m| m.is_file() && m.len() == dev.size_bytes());
    if matches!(dev.next_data(0), Ok(None)) && is_whole_file() {
        return UnrecognizedContent::Empty;
    }
    let whole = file.is_some();
    begins_elsewhere(dev).filter(|_| whole).map_or(UnrecognizedContent::Unknown { whole }, UnrecognizedContent::At)
}

impl Format {
    /// qemu's name for the format, if it is one of the disks that `qemu-nbd` shows.
    pub(crate) fn qemu_driver(&self) -> Option<&'static str> {
        match self.name {
            "a qcow2 disk image" => Some("qcow2"),
            "a VMDK disk image" => Some("vmdk"),
            "a VDI disk image" => Some("vdi"),
            "a VHDX disk image" => Some("vhdx"),
            "a VHD disk image" => Some("vpc"),
            _ => None,
        }
    }

    /// As a phrase: "a qcow2 disk image".
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The step that turns it into a file system that can be opened, as a clause for the user; `image` is the file.
    pub fn advice(&self, image: &str) -> String {
        self.advice.replace("IMAGE", image)
    }
}

#[cfg(test)]
mod tests {
    use extant_block::device::MemDevice;

    use super::*;

    fn with(at: usize, magic: &[u8]) -> MemDevice {
        let dev = MemDevice::new(1 << 20);
        let mut content = vec![0; HEAD_BYTES];
        content[at..at + magic.len()].copy_from_slice(magic);
        dev.write_at(0, &[&content], BioFlags::empty()).expect("written");
        dev
    }

    #[test]
    fn every_magic_identifies_exactly_one_format() {
        for format in FORMATS.iter().chain([&ISO]).chain(FILES) {
            for (at, magic) in format.magics {
                let dev = with(*at, magic);
                let found = identify_unpartitioned(&dev).map(|f| f.name);
                assert_eq!(found, Some(format.name));
                assert!(at + magic.len() <= HEAD_BYTES);
            }
        }
        assert!(identify_unpartitioned(&MemDevice::new(1 << 20)).is_none());
        assert!(identify_unpartitioned(&MemDevice::new(512)).is_none());
    }

    #[test]
    fn the_oldest_tar_archives_are_known_by_their_sum() {
        let mut header = [0; 512];
        header[..4].copy_from_slice(b"name");
        header[100..108].copy_from_slice(b"0000644\0");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let known = |header: &[u8]| identify_unpartitioned(&with(0, header)).map(Format::name);
        assert_eq!(known(&header), Some("a tar archive"));
        header[0] = b'N';
        assert_eq!((known(&header), known(&[0; 512])), (None, None));
    }

    #[test]
    fn the_advice_names_the_image() {
        let format = identify(&with(0, b"QFI\xfb")).expect("known");
        let advice = format.advice("a.img");
        assert_eq!(format.name(), "a qcow2 disk image");
        assert!(advice.contains("qemu-img convert -O raw a.img a.img.raw"), "{advice}");
    }
}
