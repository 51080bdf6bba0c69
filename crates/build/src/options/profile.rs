//! The types of file systems in Debian's /etc/mke2fs.conf of e2fsprogs 1.47.0.
//!
//! Main types: [`Profile`], [`Type`].
//!
//! # Locking
//! None.

/// Settings of all types.
pub(super) const BASE_FEATURES: &str = "sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr";
/// The default mount options `acl,user_xattr` (`EXT4_DEFM_XATTR_USER`, `EXT4_DEFM_ACL`).
pub(super) const DEFAULT_MOUNT_OPTS: u32 = 0x000c;
const BLOCK_SIZE: u32 = 4096;
const INODE_SIZE: u32 = 256;
const INODE_RATIO: u64 = 16384;

/// A type or usage type, with the settings that differ.
struct Type {
    name: &'static str,
    features: &'static str,
    block_size: Option<u32>,
    inode_size: Option<u32>,
    inode_ratio: Option<u64>,
}

const fn usage(name: &'static str, block_size: Option<u32>, inode_ratio: u64) -> Type {
    Type { name, features: "", block_size, inode_size: None, inode_ratio: Some(inode_ratio) }
}

const fn fs_type(name: &'static str, features: &'static str) -> Type {
    Type { name, features, block_size: None, inode_size: None, inode_ratio: None }
}

const TYPES: [Type; 11] = [
    fs_type("ext2", ""),
    fs_type("ext3", "has_journal"),
    fs_type("ext4", "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"),
    usage("small", Some(1024), 4096),
    usage("floppy", Some(1024), 8192),
    usage("big", None, 32768),
    usage("huge", None, 65536),
    usage("news", None, 4096),
    // "The system's page size".
    usage("largefile", Some(4096), 1 << 20),
    usage("largefile4", Some(4096), 4 << 20),
    Type { name: "hurd", features: "", block_size: Some(4096), inode_size: Some(128), inode_ratio: None },
];

/// The settings of several types. If several types have a setting, the last one is used.
pub(super) struct Profile {
    pub features: Vec<&'static str>,
    pub block_size: u32,
    pub inode_size: u32,
    pub inode_ratio: u64,
}

/// Whether this is a type of file system, as in -t.
pub(super) fn is_fs_type(name: &str) -> bool {
    ["ext2", "ext3", "ext4"].contains(&name)
}

/// The usage type for a size.
pub(super) fn usage_for(bytes: u64) -> &'static str {
    const MIB: u64 = 1 << 20;
    match bytes {
        b if b < 3 * MIB => "floppy",
        b if b < 512 * MIB => "small",
        b if b < 4 * MIB * MIB => "default",
        b if b < 16 * MIB * MIB => "big",
        _ => "huge",
    }
}

impl Profile {
    /// The settings of the types, and the names of types that do not exist.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> (Profile, Vec<&'a str>) {
        let mut unknown = Vec::new();
        let mut profile =
            Profile { features: Vec::new(), block_size: BLOCK_SIZE, inode_size: INODE_SIZE, inode_ratio: INODE_RATIO };
        for name in names {
            let Some(kind) = TYPES.iter().find(|kind| kind.name == name) else {
                if name != "default" && !name.is_empty() {
                    unknown.push(name);
                }
                continue;
            };
            profile.features.push(kind.features);
            profile.block_size = kind.block_size.unwrap_or(profile.block_size);
            profile.inode_size = kind.inode_size.unwrap_or(profile.inode_size);
            profile.inode_ratio = kind.inode_ratio.unwrap_or(profile.inode_ratio);
        }
        (profile, unknown)
    }
}
