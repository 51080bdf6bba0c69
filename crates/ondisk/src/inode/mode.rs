//! The meaning of `i_mode` and of the device numbers in inodes.
//!
//! Main types: [`FileType`], [`DeviceNr`].
//!
//! # Locking
//! None.

/// The type of an inode (Linux: `S_IFMT`). For its code in directory entries, see [`FileType::dirent_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A named pipe (`S_IFIFO`).
    Fifo,
    /// A character device (`S_IFCHR`).
    CharDevice,
    /// A directory (`S_IFDIR`).
    Directory,
    /// A block device (`S_IFBLK`).
    BlockDevice,
    /// A file with data (`S_IFREG`).
    Regular,
    /// A symbolic link (`S_IFLNK`).
    Symlink,
    /// A socket (`S_IFSOCK`).
    Socket,
}

/// The bits of `i_mode` that contain the type.
pub const MODE_TYPE_MASK: u16 = 0o170000;

impl FileType {
    /// All types, in the order of their bits in `i_mode`.
    pub const ALL: [FileType; 7] = [
        FileType::Fifo,
        FileType::CharDevice,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::Regular,
        FileType::Symlink,
        FileType::Socket,
    ];

    /// The type in a mode; `None` if the bits are not valid.
    pub fn from_mode(mode: u16) -> Option<FileType> {
        FileType::ALL.into_iter().find(|kind| kind.mode_bits() == mode & MODE_TYPE_MASK)
    }

    /// The type as bits of `i_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            FileType::Fifo => 0o010000,
            FileType::CharDevice => 0o020000,
            FileType::Directory => 0o040000,
            FileType::BlockDevice => 0o060000,
            FileType::Regular => 0o100000,
            FileType::Symlink => 0o120000,
            FileType::Socket => 0o140000,
        }
    }

    /// The type byte of directory entries (Linux: `EXT4_FT_*`).
    pub fn dirent_code(self) -> u8 {
        match self {
            FileType::Regular => 1,
            FileType::Directory => 2,
            FileType::CharDevice => 3,
            FileType::BlockDevice => 4,
            FileType::Fifo => 5,
            FileType::Socket => 6,
            FileType::Symlink => 7,
        }
    }

    /// The type for the type byte of a directory entry; `None` for 0 (unknown) and for invalid codes.
    #[inline]
    pub fn from_dirent_code(code: u8) -> Option<FileType> {
        match code {
            1 => Some(FileType::Regular),
            2 => Some(FileType::Directory),
            3 => Some(FileType::CharDevice),
            4 => Some(FileType::BlockDevice),
            5 => Some(FileType::Fifo),
            6 => Some(FileType::Socket),
            7 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// Whether the inode is a device, whose number is in `i_block`.
    pub fn is_device(self) -> bool {
        matches!(self, FileType::CharDevice | FileType::BlockDevice)
    }
}

/// A device number (Linux: `dev_t`), with 12 bits of major and 20 of minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNr {
    /// The major number, which selects the driver: 12 bits.
    pub major: u32,
    /// The minor number, which selects the driver's device: 20 bits.
    pub minor: u32,
}

impl DeviceNr {
    /// Reads the number from `i_block`: the old 8:8 form in the first word if that is not 0, otherwise the new form in
    /// the second word.
    pub fn decode(i_block: &[u8; 60]) -> DeviceNr {
        let word = |at: usize| u32::from_le_bytes([i_block[at], i_block[at + 1], i_block[at + 2], i_block[at + 3]]);
        match word(0) {
            0 => {
                let new = word(4);
                DeviceNr { major: (new & 0x000f_ff00) >> 8, minor: (new & 0xff) | ((new >> 12) & 0x000f_ff00) }
            }
            old => DeviceNr { major: (old >> 8) & 0xff, minor: old & 0xff },
        }
    }

    /// The `i_block` of a device inode. Bits that do not fit (major above 4095, minor above 2^20 - 1) are dropped.
    pub fn encode(self) -> [u8; 60] {
        let mut i_block = [0; 60];
        if self.major < 256 && self.minor < 256 {
            i_block[..4].copy_from_slice(&(self.major << 8 | self.minor).to_le_bytes());
        } else {
            let new = (self.minor & 0xff) | (self.major & 0xfff) << 8 | (self.minor & 0x000f_ff00) << 12;
            i_block[4..8].copy_from_slice(&new.to_le_bytes());
        }
        i_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers() {
        for (major, minor, old) in [(8, 1, true), (255, 255, true), (300, 70_000, false), (4095, (1 << 20) - 1, false)]
        {
            let number = DeviceNr { major, minor };
            let i_block = number.encode();
            assert_eq!(DeviceNr::decode(&i_block), number);
            assert_eq!(i_block[0] != 0 || i_block[1] != 0, old);
        }
        // The kernel stores 8:1 in this form.
        assert_eq!(DeviceNr { major: 8, minor: 1 }.encode()[..4], [1, 8, 0, 0]);
        // 300:70000 = 0x12c:0x11170.
        assert_eq!(DeviceNr { major: 300, minor: 70_000 }.encode()[4..8], 0x1111_2c70u32.to_le_bytes());
    }

    #[test]
    fn kinds_round_trip() {
        for kind in FileType::ALL {
            assert_eq!(FileType::from_mode(kind.mode_bits() | 0o7777), Some(kind));
            assert_eq!(FileType::from_dirent_code(kind.dirent_code()), Some(kind));
        }
        assert_eq!(FileType::from_mode(0o644), None);
        assert_eq!(FileType::from_mode(0o110000), None);
        assert_eq!(FileType::from_dirent_code(0), None);
    }
}
