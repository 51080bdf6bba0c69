//! The table of problems: one row for each, in the order of their codes.
//!
//! A row contains e2fsck's code, the variant, e2fsck's name without its prefix, the severity, the action of `e2fsck
//! -p`, and the text. [`super::Problem::text`] lists the placeholders of a text.
//!
//! # Locking
//! None.

use super::{Preen, Problem, Row, Severity};

macro_rules! problems {
    ($($code:literal $variant:ident $name:literal $severity:ident $preen:ident $text:literal;)*) => {
        impl Problem {
            $(
                #[doc = concat!($name, ": ", $text, ".")]
                #[allow(non_upper_case_globals)]
                pub const $variant: Problem = Problem($code);
            )*
        }

        /// All rows, by ascending code.
        pub(super) static ROWS: &[Row] = &[$(
            Row {
                code: $code,
                name: $name,
                severity: Severity::$severity,
                preen: Preen::$preen,
                text: $text,
            },
        )*];
    };
}

problems! {
    // Superblock, descriptors, journal, orphans.
    0x000001 BbNotGroup "BB_NOT_GROUP" Damage Stop
        "the block bitmap is at block {found}, where this group cannot have it";
    0x000002 IbNotGroup "IB_NOT_GROUP" Damage Stop
        "the inode bitmap is at block {found}, where this group cannot have it";
    0x000003 ItableNotGroup "ITABLE_NOT_GROUP" Damage Stop
        "the inode table begins at block {found}, where this group cannot have it";
    0x000004 SbCorrupt "SB_CORRUPT" Damage Stop
        "no ext2, ext3 or ext4 superblock that can be used";
    0x000005 FsSizeWrong "FS_SIZE_WRONG" Damage Stop
        "the file system claims {found} blocks, the device has {expected}";
    0x000008 FirstDataBlock "FIRST_DATA_BLOCK" Damage Stop
        "s_first_data_block is {found}, expected {expected}";
    0x00000b MiscCorruptSuper "MISC_CORRUPT_SUPER" Damage Stop
        "the impossible value {found} (limit {expected})";
    0x00000d InodeCountWrong "INODE_COUNT_WRONG" Damage Stop
        "s_inodes_count is {found}, expected {expected}";
    0x00000e HurdClearFiletype "HURD_CLEAR_FILETYPE" Advice Stop
        "made for the Hurd, which does not know the feature filetype";
    0x00000f JournalBadInode "JOURNAL_BAD_INODE" Damage Fix
        "the journal's inode {found} holds no journal";
    0x000011 CantFindJournal "CANT_FIND_JOURNAL" Damage Stop
        "a journal on another device is named beside the one in inode {found}";
    0x000015 JournalBadSuper "JOURNAL_BAD_SUPER" Damage Fix
        "the journal's superblock is damaged";
    0x000016 JournalHasJournal "JOURNAL_HAS_JOURNAL" Damage Fix
        "there is a journal in inode {found}, but the feature has_journal is not set";
    0x000017 JournalRecoverSet "JOURNAL_RECOVER_SET" Damage Fix
        "needs_recovery is set, but there is no journal";
    0x000018 JournalRecoveryClear "JOURNAL_RECOVERY_CLEAR" Damage Stop
        "needs_recovery is clear, but the journal's log begins at block {found}";
    0x00001a FsRevLevel "FS_REV_LEVEL" Advice Fix
        "features are set in a file system of revision 0";
    0x000023 OrphanIllegalHeadInode "ORPHAN_ILLEGAL_HEAD_INODE" Damage Stop
        "the list of orphans begins with inode {found}, which cannot be an orphan";
    0x000024 OrphanIllegalInode "ORPHAN_ILLEGAL_INODE" Damage Stop
        "an orphan points to inode {found}, which cannot be one";
    0x000025 JournalUnsuppRocompat "JOURNAL_UNSUPP_ROCOMPAT" Damage Stop
        "the journal has the unknown read-only features {found:x}";
    0x000026 JournalUnsuppIncompat "JOURNAL_UNSUPP_INCOMPAT" Damage Stop
        "the journal has the unknown features {found:x}";
    0x000027 JournalUnsuppVersion "JOURNAL_UNSUPP_VERSION" Damage Stop
        "the journal's superblock is of the unknown type {found}";
    0x00002e NonzeroReservedGdtBlocks "NONZERO_RESERVED_GDT_BLOCKS" Damage Stop
        "{found} blocks are reserved for descriptors, but the feature resize_inode is not set";
    0x00002f ClearResizeInode "CLEAR_RESIZE_INODE" Damage Stop
        "has blocks, but the feature resize_inode is not set";
    0x000030 ResizeInodeInvalid "RESIZE_INODE_INVALID" Damage Stop
        "does not map the blocks that are reserved for descriptors";
    0x000031 FutureSbLastMount "FUTURE_SB_LAST_MOUNT" Advice Fix
        "the last mount is in the future ({found} seconds since 1970, now {expected})";
    0x000032 FutureSbLastWrite "FUTURE_SB_LAST_WRITE" Advice Fix
        "the last write is in the future ({found} seconds since 1970, now {expected})";
    0x000035 GdtCsum "GDT_CSUM" Damage Fix
        "the descriptor's checksum is {found:x}, expected {expected:x}";
    0x000036 GdtUninit "GDT_UNINIT" Damage Fix
        "flags or counts that need descriptor checksums are set ({found:x})";
    0x000038 GdtItableUnused "GDT_ITABLE_UNUSED" Damage Fix
        "{found} inodes at the table's end are said to be unused, at most {expected} possible";
    0x000039 BbUninitLast "BB_UNINIT_LAST" Damage Fix
        "the last group's block bitmap is marked as never written";
    0x00003a JnlTxnCorrupt "JNL_TXN_CORRUPT" Damage Stop
        "the log is damaged behind transaction {found}";
    0x00003b ClearTestfsFlag "CLEAR_TESTFS_FLAG" Advice Fix
        "the flag test_fs is set";
    0x000042 MmpInvalidBlk "MMP_INVALID_BLK" Damage Fix
        "the block of multi-mount protection is {found}, outside the file system";
    0x000043 MmpInvalidMagic "MMP_INVALID_MAGIC" Damage Fix
        "multi-mount protection: magic {found:x}, expected {expected:x}";
    0x000046 MetaAndGdtCsumSet "META_AND_GDT_CSUM_SET" Advice Fix
        "both metadata_csum and uninit_bg are set";
    0x000047 MmpCsumInvalid "MMP_CSUM_INVALID" Damage Fix
        "multi-mount protection: checksum {found:x}, expected {expected:x}";
    0x000048 Bit64WithoutExtents "64BIT_WITHOUT_EXTENTS" Advice Fix
        "64bit is set without extent";
    0x000049 FirstMetaBgTooBig "FIRST_META_BG_TOO_BIG" Damage Stop
        "s_first_meta_bg is {found}, at most {expected} possible";
    0x00004b CsumSeedWithoutMetaCsum "CSUM_SEED_WITHOUT_META_CSUM" Advice Fix
        "metadata_csum_seed is set without metadata_csum";
    0x00004d BadMinExtraIsize "BAD_MIN_EXTRA_ISIZE" Damage Stop
        "s_min_extra_isize is {found}, expected a multiple of 4 up to {expected}";
    0x00004e BadWantExtraIsize "BAD_WANT_EXTRA_ISIZE" Damage Stop
        "s_want_extra_isize is {found}, expected a multiple of 4 up to {expected}";
    0x00004f InvalidQuotaIno "INVALID_QUOTA_INO" Damage Stop
        "inode {found} cannot hold a quota";
    0x000050 InodeCountBig "INODE_COUNT_BIG" Damage Stop
        "the groups would have {found} inodes, more than can be numbered";
    0x000051 DisableResizeInode "DISABLE_RESIZE_INODE" Damage Stop
        "resize_inode and meta_bg are both set";
    0x000052 OrphanFileHole "ORPHAN_FILE_HOLE" Damage Stop
        "logical block {lblk} of the orphan file is a hole";
    0x000053 OrphanFileBadMagic "ORPHAN_FILE_BAD_MAGIC" Damage Stop
        "the orphan file's block has the magic {found:x}, expected {expected:x}";
    0x000054 OrphanFileBadChecksum "ORPHAN_FILE_BAD_CHECKSUM" Damage Stop
        "the orphan file's block has the checksum {found:x}, expected {expected:x}";
    0x000055 OrphanFileWrongSize "ORPHAN_FILE_WRONG_SIZE" Damage Stop
        "the orphan file has {found} bytes, which are not whole blocks";
    // Inodes, maps, attributes; blocks claimed twice.
    0x010001 RootNoDir "ROOT_NO_DIR" Damage Stop
        "the root is no directory (mode {found:o})";
    0x010002 RootDtime "ROOT_DTIME" Damage Fix
        "the root has a time of deletion";
    0x010003 ReservedBadMode "RESERVED_BAD_MODE" Damage Fix
        "a reserved inode has the mode {found:o}";
    0x010004 ZeroDtime "ZERO_DTIME" Damage Fix
        "deleted, but without a time of deletion";
    0x010005 SetDtime "SET_DTIME" Damage Fix
        "in use, but has the time of deletion {found}";
    0x010006 ZeroLengthDir "ZERO_LENGTH_DIR" Damage Fix
        "a directory without blocks";
    0x010007 BbConflict "BB_CONFLICT" Damage Stop
        "the block bitmap at block {found} lies on other metadata";
    0x010008 IbConflict "IB_CONFLICT" Damage Stop
        "the inode bitmap at block {found} lies on other metadata";
    0x010009 ItableConflict "ITABLE_CONFLICT" Damage Stop
        "{expected} blocks of the inode table from block {found} on are other metadata";
    0x01000c BadISize "BAD_I_SIZE" Damage Fix
        "i_size is {found}, expected {expected}";
    0x01000d BadIBlocks "BAD_I_BLOCKS" Damage Fix
        "i_blocks is {found}, expected {expected}";
    0x01000e IllegalBlockNum "ILLEGAL_BLOCK_NUM" Damage Stop
        "points to block {found}, outside the file system";
    0x01002f SetImagic "SET_IMAGIC" Damage Stop
        "the flag imagic is set, the feature imagic_inodes is not";
    0x010030 SetImmutable "SET_IMMUTABLE" Advice Fix
        "a special file or symlink is immutable or append-only";
    0x010032 SetNonzsize "SET_NONZSIZE" Damage Fix
        "a special file has {found} bytes, expected {expected}";
    0x010034 JournalInodeNotClear "JOURNAL_INODE_NOT_CLEAR" Damage Fix
        "the journal's inode is not in use, but has blocks or links";
    0x010035 JournalBadMode "JOURNAL_BAD_MODE" Damage Fix
        "the journal is no regular file (mode {found:o})";
    0x010036 LowDtime "LOW_DTIME" Damage Stop
        "the time of deletion {found} looks like an inode of the list of orphans";
    0x01003a BadEaBlock "BAD_EA_BLOCK" Damage Stop
        "the attribute block's magic is {found:x}, expected {expected:x}";
    0x01003c ExtattrRefcount "EXTATTR_REFCOUNT" Damage Stop
        "the attribute block's reference count is {found}, expected {expected}";
    0x01003e EaMultiBlock "EA_MULTI_BLOCK" Damage Stop
        "the attribute block claims {found} blocks, expected {expected}";
    0x010040 EaAllocCollision "EA_ALLOC_COLLISION" Damage Stop
        "two parts of the attribute block overlap";
    0x010041 EaBadName "EA_BAD_NAME" Damage Stop
        "an attribute has an impossible name (index {found})";
    0x010042 EaBadValue "EA_BAD_VALUE" Damage Stop
        "an attribute's value of {found} bytes does not fit";
    0x010044 ToobigDir "TOOBIG_DIR" Damage Stop
        "block {found} is beyond the largest directory";
    0x010045 ToobigReg "TOOBIG_REG" Damage Stop
        "block {found} is beyond the largest file";
    0x010046 ToobigSymlink "TOOBIG_SYMLINK" Damage Stop
        "block {found} is beyond the largest symlink";
    0x010047 HtreeSet "HTREE_SET" Damage Fix
        "indexed, but the feature dir_index is not set";
    0x010048 HtreeNodir "HTREE_NODIR" Damage Fix
        "the index flag is set, but it is no directory";
    0x010049 HtreeBadroot "HTREE_BADROOT" Damage Fix
        "the index has no root that can be used";
    0x01004a HtreeHashv "HTREE_HASHV" Damage Fix
        "the index uses the unknown hash {found}";
    0x01004b HtreeIncompat "HTREE_INCOMPAT" Damage Fix
        "the index has the unknown flags {found:x}";
    0x01004c HtreeDepth "HTREE_DEPTH" Damage Fix
        "the index has {found} levels below its root, at most {expected} possible";
    0x01004f ExtraIsize "EXTRA_ISIZE" Damage Fix
        "i_extra_isize is {found}, which an inode of this size cannot have (limit {expected})";
    0x010050 AttrNameLen "ATTR_NAME_LEN" Damage Fix
        "an attribute's name of {found} bytes does not fit";
    0x010053 AttrValueSize "ATTR_VALUE_SIZE" Damage Fix
        "an attribute's value of {found} bytes does not fit";
    0x010054 AttrHash "ATTR_HASH" Damage Fix
        "an attribute's hash is {found:x}, expected {expected:x}";
    0x010055 TreatAsDirectory "TREAT_AS_DIRECTORY" Damage Stop
        "a special file (mode {found:o}) whose first block is a directory's";
    0x010058 ExtentBadStartBlk "EXTENT_BAD_START_BLK" Damage Stop
        "an extent begins at block {found}, outside the file system";
    0x010059 ExtentEndsBeyond "EXTENT_ENDS_BEYOND" Damage Stop
        "an extent ends at block {found}, outside the file system";
    0x01005a ExtentsSet "EXTENTS_SET" Damage Stop
        "has the extents flag, but the feature extent is not set";
    0x01005b ExtentFeature "EXTENT_FEATURE" Damage Stop
        "has an extent tree, but the feature extent is not set";
    0x01005c UnsetExtentFl "UNSET_EXTENT_FL" Damage Fix
        "has an extent tree, but not the flag";
    0x01005d FastSymlinkExtentFl "FAST_SYMLINK_EXTENT_FL" Damage Stop
        "a symlink without blocks has the extents flag";
    0x01005e OutOfOrderExtents "OUT_OF_ORDER_EXTENTS" Damage Stop
        "an extent begins at logical block {found}, expected at least {expected}";
    0x01005f ExtentHeaderInvalid "EXTENT_HEADER_INVALID" Damage Stop
        "an extent node's header is invalid";
    0x010062 QuotaBadMode "QUOTA_BAD_MODE" Damage Fix
        "a quota file is no regular file (mode {found:o})";
    0x010063 QuotaInodeNotClear "QUOTA_INODE_NOT_CLEAR" Damage Fix
        "the quota's inode is not in use, but has blocks or links";
    0x010065 InvalidBadInode "INVALID_BAD_INODE" Damage Fix
        "the inode of the list of bad blocks is a file's";
    0x010066 ExtentLengthZero "EXTENT_LENGTH_ZERO" Damage Stop
        "an extent has no blocks";
    0x010067 InodeIsGarbage "INODE_IS_GARBAGE" Damage Stop
        "lies in a block of which most inodes make no sense";
    0x010068 InodeOnlyCsumInvalid "INODE_ONLY_CSUM_INVALID" Damage Fix
        "the inode's checksum is {found:x}, expected {expected:x}";
    0x010069 InodeEaAllocCollision "INODE_EA_ALLOC_COLLISION" Damage Stop
        "two parts of the attributes in the inode overlap";
    0x01006a ExtentOnlyCsumInvalid "EXTENT_ONLY_CSUM_INVALID" Damage Stop
        "an extent node's checksum is {found:x}, expected {expected:x}";
    0x01006c EaBlockOnlyCsumInvalid "EA_BLOCK_ONLY_CSUM_INVALID" Damage Stop
        "the attribute block's checksum is {found:x}, expected {expected:x}";
    0x01006d ExtentIndexStartInvalid "EXTENT_INDEX_START_INVALID" Damage Stop
        "an index entry begins at logical block {found}, its node at {expected}";
    0x01006e ExtentEndOutOfBounds "EXTENT_END_OUT_OF_BOUNDS" Damage Stop
        "an extent ends before logical block {found}, beyond the end {expected} of its parent or its file";
    0x01006f InlineDataFeature "INLINE_DATA_FEATURE" Damage Fix
        "has inline data, but the feature inline_data is not set";
    0x010070 InlineDataSet "INLINE_DATA_SET" Damage Stop
        "has the inline flag, but the feature inline_data is not set";
    0x010071 CriticalMetadataCollision "CRITICAL_METADATA_COLLISION" Damage Stop
        "a block of the map lies at block {found}, on the file system's own metadata";
    0x010072 CollapseDblock "COLLAPSE_DBLOCK" Damage Stop
        "a directory's block is at logical block {found}, expected {expected}";
    0x010073 UninitDblock "UNINIT_DBLOCK" Damage Fix
        "a directory's extent is unwritten";
    0x010074 MisalignedCluster "MISALIGNED_CLUSTER" Damage Stop
        "{found} blocks from logical block {lblk} on, at block {block}, do not lie in their clusters as they must";
    0x010075 InlineDataNoAttr "INLINE_DATA_NO_ATTR" Damage Stop
        "has the inline flag, but no attribute with inline data";
    0x010076 SpecialExtentsIdata "SPECIAL_EXTENTS_IDATA" Advice Fix
        "a special file has the extents or inline flag";
    0x010077 ClearInlineDataForExtent "CLEAR_INLINE_DATA_FOR_EXTENT" Damage Stop
        "has the extents and the inline flag; it holds an extent tree";
    0x010078 ClearExtentForInlineData "CLEAR_EXTENT_FOR_INLINE_DATA" Damage Stop
        "has the extents and the inline flag; it holds inline data";
    0x010079 ClearExtentInlineDataFlags "CLEAR_EXTENT_INLINE_DATA_FLAGS" Damage Stop
        "has the extents and the inline flag; it holds a block map";
    0x01007a ClearExtentInlineDataInode "CLEAR_EXTENT_INLINE_DATA_INODE" Damage Stop
        "has the extents and the inline flag; what it holds is not clear";
    0x01007d ExtentCollision "EXTENT_COLLISION" Damage Stop
        "an extent begins at logical block {found}, which another one maps";
    0x010080 NoBigallocBlockmapFiles "NO_BIGALLOC_BLOCKMAP_FILES" Damage Stop
        "is mapped by pointers in a file system with clusters";
    0x010081 MissingExtentHeader "MISSING_EXTENT_HEADER" Damage Stop
        "has the extents flag, but its tree has no header";
    0x010082 EaTimeOutOfRange "EA_TIME_OUT_OF_RANGE" Advice Fix
        "a time lies between 2310 and 2378: before 1970 in an old encoding";
    0x010083 AttrValueEaInode "ATTR_VALUE_EA_INODE" Damage Fix
        "an attribute's value is in inode {found}, which cannot hold one";
    0x010085 AttrNoEaInodeFl "ATTR_NO_EA_INODE_FL" Damage Fix
        "an attribute's value is in inode {found}, which has no such flag";
    0x010086 AttrSetEaInodeFl "ATTR_SET_EA_INODE_FL" Damage Fix
        "the inode {found} of an attribute's value has no such flag";
    0x010087 ClearUninitExtent "CLEAR_UNINIT_EXTENT" Advice Fix
        "has an unwritten extent";
    0x010088 CasefoldNondir "CASEFOLD_NONDIR" Damage Stop
        "the casefold flag is set, but it is no directory";
    0x010089 CasefoldFeature "CASEFOLD_FEATURE" Damage Stop
        "the casefold flag is set, the feature casefold is not";
    0x01008a MissingEncryptionXattr "MISSING_ENCRYPTION_XATTR" Damage Stop
        "the encryption flag is set, but there is no encryption context";
    0x01008b CorruptEncryptionXattr "CORRUPT_ENCRYPTION_XATTR" Damage Stop
        "the encryption context is damaged";
    0x01008d HtreeNeedsSiphash "HTREE_NEEDS_SIPHASH" Damage Fix
        "the index uses hash {found}, but needs SipHash";
    0x01008e HtreeCannotSiphash "HTREE_CANNOT_SIPHASH" Damage Fix
        "the index uses SipHash, which this directory cannot";
    0x01008f OrphanFileBadMode "ORPHAN_FILE_BAD_MODE" Damage Fix
        "the orphan file is no regular file (mode {found:o})";
    0x010090 OrphanFileNotClear "ORPHAN_FILE_NOT_CLEAR" Damage Fix
        "the orphan file's inode is not in use, but has blocks or links";
    0x010091 EaInodeNonreg "EA_INODE_NONREG" Damage Stop
        "the flag of attribute values is set, but it is no regular file";
    0x010092 EaInodeFeature "EA_INODE_FEATURE" Damage Fix
        "an attribute's value is in inode {found}, but the feature ea_inode is not set";
    0x011002 DupBlock "DUP_BLOCK" Damage Stop
        "{found} blocks from {block} on are claimed more than once";
    // Directories.
    0x020001 BadInodeDot "BAD_INODE_DOT" Damage Stop
        "'.' leads to inode {found}, expected {expected}";
    0x020002 BadIno "BAD_INO" Damage Stop
        "an entry leads to inode {found}, which no name can lead to";
    0x020003 UnusedInode "UNUSED_INODE" Damage Fix
        "an entry leads to inode {found}, which is not in use";
    0x020004 LinkDot "LINK_DOT" Damage Stop
        "an entry leads to its own directory";
    0x020006 LinkDir "LINK_DIR" Damage Stop
        "a second name of directory {found}, whose parent is {expected}";
    0x020007 LinkRoot "LINK_ROOT" Damage Stop
        "an entry leads to the root";
    0x020008 BadName "BAD_NAME" Damage Stop
        "a name contains '/' or NUL";
    0x020009 MissingDot "MISSING_DOT" Damage Stop
        "there is no '.'";
    0x02000a MissingDotDot "MISSING_DOT_DOT" Damage Stop
        "there is no '..'";
    0x02000b FirstNotDot "1ST_NOT_DOT" Damage Stop
        "the first entry is not '.'";
    0x02000c SecondNotDotDot "2ND_NOT_DOT_DOT" Damage Stop
        "the second entry is not '..'";
    0x02000d FaddrZero "FADDR_ZERO" Damage Stop
        "i_faddr is {found}, expected {expected}";
    0x02000e FileAclZero "FILE_ACL_ZERO" Damage Stop
        "has attributes in block {found}, but the feature ext_attr is not set";
    0x02000f DirSizeHighZero "DIR_SIZE_HIGH_ZERO" Damage Stop
        "a directory's i_size_high is {found}, expected {expected}";
    0x020010 FragZero "FRAG_ZERO" Damage Stop
        "i_frag is {found}, expected {expected}";
    0x020011 FsizeZero "FSIZE_ZERO" Damage Stop
        "i_fsize is {found}, expected {expected}";
    0x020012 BadMode "BAD_MODE" Damage Stop
        "the mode {found:o} has no file type";
    0x020013 DirCorrupted "DIR_CORRUPTED" Damage Stop
        "an entry of {found} bytes cannot be";
    0x020015 DirectoryHole "DIRECTORY_HOLE" Damage Stop
        "logical block {lblk} of the directory is a hole";
    0x020016 DotNullTerm "DOT_NULL_TERM" Damage Stop
        "'.' is not followed by NUL";
    0x020017 DotDotNullTerm "DOT_DOT_NULL_TERM" Damage Stop
        "'..' is not followed by NUL";
    0x020018 BadCharDev "BAD_CHAR_DEV" Damage Stop
        "a character device with a map or an index";
    0x020019 BadBlockDev "BAD_BLOCK_DEV" Damage Stop
        "a block device with a map or an index";
    0x02001a DupDot "DUP_DOT" Damage Stop
        "a second '.'";
    0x02001b DupDotDot "DUP_DOT_DOT" Damage Stop
        "a second '..'";
    0x02001d FinalReclen "FINAL_RECLEN" Damage Stop
        "the last entry's length is {found}, expected {expected}";
    0x020024 SplitDot "SPLIT_DOT" Advice Stop
        "'.' takes {found} bytes, expected {expected}";
    0x020025 BadFifo "BAD_FIFO" Damage Stop
        "a named pipe with a map or an index";
    0x020026 BadSocket "BAD_SOCKET" Damage Stop
        "a socket with a map or an index";
    0x020027 SetFiletype "SET_FILETYPE" Advice Fix
        "an entry has no file type, its inode's is {expected}";
    0x020028 BadFiletype "BAD_FILETYPE" Damage Stop
        "an entry's file type is {found}, its inode's {expected}";
    0x020029 ClearFiletype "CLEAR_FILETYPE" Damage Fix
        "an entry has the file type {found}, but the feature filetype is not set";
    0x020030 NullName "NULL_NAME" Damage Stop
        "an entry without a name";
    0x020031 InvalidSymlink "INVALID_SYMLINK" Damage Stop
        "the symlink's target is not what its size {found} says";
    0x020032 FileAclBad "FILE_ACL_BAD" Damage Stop
        "its attribute block is {found}, outside the file system";
    0x020033 FeatureLargeFiles "FEATURE_LARGE_FILES" Damage Fix
        "there are {found} large files, but the feature large_file is not set";
    0x020034 HtreeNotref "HTREE_NOTREF" Damage Stop
        "the index does not lead to logical block {lblk}";
    0x020035 HtreeDupref "HTREE_DUPREF" Damage Stop
        "the index leads to logical block {lblk} twice";
    0x020036 HtreeMinHash "HTREE_MIN_HASH" Damage Stop
        "the least hash in logical block {lblk} is {found:x}, below the index's {expected:x}";
    0x020037 HtreeMaxHash "HTREE_MAX_HASH" Damage Stop
        "the largest hash in logical block {lblk} is {found:x}, above the index's {expected:x}";
    0x020039 FeatureLargeDirs "FEATURE_LARGE_DIRS" Damage Fix
        "there are {found} large directories, but the feature large_dir is not set";
    0x02003a HtreeBadblk "HTREE_BADBLK" Damage Stop
        "the index leads to logical block {found} of a directory of {expected}";
    0x02003c HtreeBadRoot "HTREE_BAD_ROOT" Damage Fix
        "the index's root is invalid";
    0x02003d HtreeBadLimit "HTREE_BAD_LIMIT" Damage Fix
        "an index block has room for {found} entries, expected {expected}";
    0x02003e HtreeBadCount "HTREE_BAD_COUNT" Damage Fix
        "an index block has {found} entries, at most {expected} possible";
    0x02003f HtreeHashOrder "HTREE_HASH_ORDER" Damage Fix
        "the hashes of an index block are out of order";
    0x020040 HtreeBadDepth "HTREE_BAD_DEPTH" Damage Stop
        "logical block {lblk} hangs {found} levels below the root, expected {expected}";
    0x020041 DuplicateDirent "DUPLICATE_DIRENT" Damage Stop
        "a name is there twice";
    0x020044 BlocksHiZero "BLOCKS_HI_ZERO" Damage Stop
        "i_blocks_high is {found}, expected {expected}";
    0x020045 UnexpectedHtreeBlock "UNEXPECTED_HTREE_BLOCK" Damage Stop
        "logical block {lblk} lies beyond the indexed directory's {expected} blocks";
    0x020046 InorefBgInoUninit "INOREF_BG_INO_UNINIT" Damage Fix
        "an entry leads to inode {found}, in a group whose inodes are marked as never used";
    0x020047 InorefInUnused "INOREF_IN_UNUSED" Damage Fix
        "an entry leads to inode {found}, in the part of its table that was never used";
    0x020048 IFileAclHiZero "I_FILE_ACL_HI_ZERO" Damage Fix
        "i_file_acl_high is {found}, expected {expected}";
    0x020049 HtreeRootCsumInvalid "HTREE_ROOT_CSUM_INVALID" Damage Fix
        "the checksum of the index's root is {found:x}, expected {expected:x}";
    0x02004a HtreeNodeCsumInvalid "HTREE_NODE_CSUM_INVALID" Damage Fix
        "the checksum of an index node is {found:x}, expected {expected:x}";
    0x02004c LeafNodeMissingCsum "LEAF_NODE_MISSING_CSUM" Damage Fix
        "a directory block has no room for its checksum";
    0x02004d LeafNodeOnlyCsumInvalid "LEAF_NODE_ONLY_CSUM_INVALID" Damage Fix
        "a directory block's checksum is {found:x}, expected {expected:x}";
    0x02004e BadInlineDirSize "BAD_INLINE_DIR_SIZE" Damage Stop
        "an inline directory has {found} bytes";
    0x020050 BadEncryptedName "BAD_ENCRYPTED_NAME" Damage Stop
        "an encrypted name has {found} bytes, at least {expected} needed";
    0x020051 UnencryptedFile "UNENCRYPTED_FILE" Damage Stop
        "an encrypted name leads to inode {found}, which is not encrypted";
    0x020052 InconsistentEncryptionPolicy "INCONSISTENT_ENCRYPTION_POLICY" Damage Stop
        "an encrypted name leads to inode {found}, which has another policy";
    0x020053 BadEncodedName "BAD_ENCODED_NAME" Damage Stop
        "a name is no text of the volume's encoding";
    0x020055 EaInodeDirLink "EA_INODE_DIR_LINK" Damage Stop
        "an entry leads to inode {found}, which is the value of an attribute";
    // Connectivity.
    0x030001 NoRootInode "NO_ROOT_INODE" Damage Stop
        "the root is not in use";
    0x030003 UnconnectedDir "UNCONNECTED_DIR" Damage Stop
        "no name leads to the directory ('..' is inode {found})";
    0x030004 NoLfDir "NO_LF_DIR" Advice Fix
        "there is no /lost+found";
    0x030005 BadDotDot "BAD_DOT_DOT" Damage Stop
        "'..' is inode {found}, expected {expected}";
    0x030017 LpfNotdir "LPF_NOTDIR" Advice Stop
        "/lost+found is no directory";
    0x030018 LpfInlineData "LPF_INLINE_DATA" Advice Stop
        "/lost+found has inline data";
    0x03001b LpfEncrypted "LPF_ENCRYPTED" Advice Stop
        "/lost+found is encrypted";
    0x03001d LoopedDir "LOOPED_DIR" Damage Stop
        "the directory lies below itself (parent {found})";
    // Links and reference counts.
    0x040001 ZeroLenInode "ZERO_LEN_INODE" Advice Fix
        "empty, and no name leads to it";
    0x040002 UnattachedInode "UNATTACHED_INODE" Damage Stop
        "no name leads to it";
    0x040003 BadRefCount "BAD_REF_COUNT" Damage Fix
        "the link count is {found}, expected {expected}";
    0x040005 EaInodeRefCount "EA_INODE_REF_COUNT" Damage Fix
        "the value of an attribute has the reference count {found}, expected {expected}";
    0x040006 DirNlinkFeature "DIR_NLINK_FEATURE" Damage Stop
        "has {found} links, but the feature dir_nlink is not set";
    0x040007 DirOverflowRefCount "DIR_OVERFLOW_REF_COUNT" Advice Fix
        "the link count stands for too many, but is {expected}";
    0x040008 EaInodeSpuriousFlag "EA_INODE_SPURIOUS_FLAG" Damage Fix
        "the flag of attribute values is set, but no attribute refers to it";
    // Bitmaps and counts.
    0x050001 InodeBmapPadding "INODE_BMAP_PADDING" Damage Fix
        "the inode bitmap's padding is not set";
    0x050002 BlockBmapPadding "BLOCK_BMAP_PADDING" Damage Fix
        "the block bitmap's padding is not set";
    0x050004 BlockUnused "BLOCK_UNUSED" Damage Fix
        "{found} blocks from {block} on are marked as used, but are free";
    0x050005 BlockUsed "BLOCK_USED" Damage Fix
        "{found} blocks from {block} on are marked as free, but are used";
    0x050008 InodeUnused "INODE_UNUSED" Damage Fix
        "{found} inodes from this one on are marked as used, but are free";
    0x050009 InodeUsed "INODE_USED" Damage Fix
        "{found} inodes from this one on are marked as free, but are used";
    0x05000b FreeInodeCountGroup "FREE_INODE_COUNT_GROUP" Damage Fix
        "the count of free inodes is {found}, expected {expected}";
    0x05000c FreeDirCountGroup "FREE_DIR_COUNT_GROUP" Damage Fix
        "the count of directories is {found}, expected {expected}";
    0x05000d FreeInodeCount "FREE_INODE_COUNT" Advice Fix
        "the count of free inodes is {found}, expected {expected}";
    0x05000e FreeBlockCountGroup "FREE_BLOCK_COUNT_GROUP" Damage Fix
        "the count of free clusters is {found}, expected {expected}";
    0x05000f FreeBlockCount "FREE_BLOCK_COUNT" Advice Fix
        "the count of free blocks is {found}, expected {expected}";
    0x050018 BlockUninit "BLOCK_UNINIT" Damage Fix
        "has files' blocks, but its block bitmap is marked as never written";
    0x050019 InodeUninit "INODE_UNINIT" Damage Fix
        "has inodes in use, but its inode bitmap is marked as never written";
    0x05001a InodeBitmapCsumInvalid "INODE_BITMAP_CSUM_INVALID" Damage Fix
        "the inode bitmap's checksum is {found:x}, expected {expected:x}";
    0x05001b BlockBitmapCsumInvalid "BLOCK_BITMAP_CSUM_INVALID" Damage Fix
        "the block bitmap's checksum is {found:x}, expected {expected:x}";
    // After all passes.
    0x060002 UpdateQuotas "UPDATE_QUOTAS" Damage Fix
        "the quota file says {found}, expected {expected}";
    0x060007 OrphanFileWithoutJournal "ORPHAN_FILE_WITHOUT_JOURNAL" Damage Fix
        "there is an orphan file, but no journal";
    0x06000c OrphanBlockDirty "ORPHAN_BLOCK_DIRTY" Damage Fix
        "the orphan file's block names {found} inodes";
    0x06000d OrphanPresentCleanFile "ORPHAN_PRESENT_CLEAN_FILE" Damage Fix
        "orphan_present is set, but the orphan file is empty";
    0x06000e OrphanPresentNoFile "ORPHAN_PRESENT_NO_FILE" Damage Fix
        "orphan_present is set, but there is no orphan file";
    // Only Extant reports these.
    0xff0001 Unreadable "UNREADABLE" Damage Stop
        "{found} bytes from byte {expected} on cannot be read";
    0xff0002 UnknownFeatures "UNKNOWN_FEATURES" Damage Stop
        "the features {found:x} are unknown here: what belongs to them is not checked";
    0xff0003 ExtentTooDeep "EXTENT_TOO_DEEP" Damage Fix
        "the extent tree has {found} levels below its root, at most {expected} possible";
}
