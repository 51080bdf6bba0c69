//! The kinds of images for differential tests.

use crate::oracle::MkfsOptions;

/// An image kind, and its name for messages.
#[derive(Clone, Debug)]
pub struct ImageKind {
    pub name: String,
    pub options: MkfsOptions,
}

/// Enough for a few thousand operations; the file is sparse.
const SIZE: u64 = 512 << 20;

/// One kind. `features` is mke2fs's `-O` list.
pub fn kind(fs_type: &'static str, features: &str, inode_size: Option<u32>, block_size: u32) -> ImageKind {
    let mut name = format!("{fs_type}-{}k", block_size / 1024);
    for feature in features.split(',').filter(|f| !f.is_empty()) {
        name = format!("{name}-{}", feature.replace('^', "no_"));
    }
    if let Some(size) = inode_size {
        name = format!("{name}-i{size}");
    }
    let mut options = MkfsOptions::new(fs_type, SIZE);
    options.block_size = block_size;
    options.inode_size = inode_size;
    options.features = features.to_owned();
    ImageKind { name, options }
}

/// The kinds of [`matrix`] that EXTANT_KINDS names, separated by commas; all of them if it is not set.
pub fn chosen() -> Vec<ImageKind> {
    let Ok(names) = std::env::var("EXTANT_KINDS") else { return matrix() };
    let kinds: Vec<_> = matrix().into_iter().filter(|k| names.split(',').any(|n| n == k.name)).collect();
    assert!(
        !kinds.is_empty(),
        "EXTANT_KINDS={names} names none of {:?}",
        matrix().into_iter().map(|k| k.name).collect::<Vec<_>>()
    );
    kinds
}

/// The list begins with ext2, ext3 and ext4 as mke2fs makes them, and ext4 with the features that change the format
/// most, each with blocks of 1 and 4 KiB. Next are kinds with inline data, whose capacity depends on the inode size.
/// Then come kinds with clusters of few and of many blocks, and finally those with attribute values in separate inodes.
pub fn matrix() -> Vec<ImageKind> {
    let each = |block_size| {
        [
            kind("ext2", "", None, block_size),
            kind("ext3", "", None, block_size),
            kind("ext4", "", None, block_size),
            kind("ext4", "orphan_file", None, block_size),
            kind("ext4", "metadata_csum_seed", None, block_size),
            kind("ext4", "^has_journal", None, block_size),
            kind("ext4", "", Some(128), block_size),
        ]
    };
    let inline = [(None, 1024), (None, 4096), (Some(1024), 1024), (Some(1024), 4096)]
        .map(|(inode_size, block_size)| kind("ext4", "inline_data", inode_size, block_size));
    let clustered = |features, block_size, cluster: &str| {
        let mut kind = kind("ext4", features, None, block_size);
        kind.name = format!("{}-c{cluster}", kind.name);
        kind.options.extra_args.extend(["-C".to_owned(), cluster.to_owned()]);
        kind
    };
    let clusters = [
        clustered("bigalloc", 1024, "4096"),
        clustered("bigalloc", 1024, "65536"),
        clustered("bigalloc", 4096, "16384"),
        clustered("bigalloc,ea_inode,inline_data", 4096, "16384"),
    ];
    let values = [kind("ext4", "ea_inode", None, 1024), kind("ext4", "ea_inode,inline_data", None, 4096)];
    [1024, 4096].into_iter().flat_map(each).chain(inline).chain(clusters).chain(values).collect()
}

/// A module of tests, one for each kind of [`matrix`]: `tests_of_kinds!(writes_match, run)` makes
/// `writes_match::ext2_1k` and so on, which call `run` with the kind and its place in the list.
#[macro_export]
macro_rules! tests_of_kinds {
    ($module:ident, $run:expr) => {
        $crate::tests_of_kinds!(@ $module, $run,
            ext2_1k ext3_1k ext4_1k ext4_1k_orphan_file ext4_1k_metadata_csum_seed ext4_1k_no_has_journal ext4_1k_i128
            ext2_4k ext3_4k ext4_4k ext4_4k_orphan_file ext4_4k_metadata_csum_seed ext4_4k_no_has_journal ext4_4k_i128
            ext4_1k_inline_data ext4_4k_inline_data ext4_1k_inline_data_i1024 ext4_4k_inline_data_i1024
            ext4_1k_bigalloc_c4096 ext4_1k_bigalloc_c65536 ext4_4k_bigalloc_c16384
            ext4_4k_bigalloc_ea_inode_inline_data_c16384 ext4_1k_ea_inode ext4_4k_ea_inode_inline_data);
    };
    (@ $module:ident, $run:expr, $($name:ident)*) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $name() {
                    let mut kinds = $crate::kinds::matrix();
                    let place = kinds.iter().position(|kind| kind.name.replace('-', "_") == stringify!($name));
                    let place = place.expect("a kind of the matrix");
                    $run(&kinds.swap_remove(place), place);
                }
            )*

            #[test]
            fn every_kind_has_its_test() {
                let names = [$(stringify!($name)),*];
                assert_eq!($crate::kinds::matrix().len(), names.len(), "kinds without a test");
            }
        }
    };
}

/// A module of tests, one for each case: `tests_of_cases!(grows, run, ext4: 31, ext3: 32)` makes `grows::ext4`, which
/// calls `run(31)`, and `grows::ext3`.
#[macro_export]
macro_rules! tests_of_cases {
    ($module:ident, $run:expr, $($name:ident: $case:expr),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $name() {
                    $run($case);
                }
            )*
        }
    };
}
