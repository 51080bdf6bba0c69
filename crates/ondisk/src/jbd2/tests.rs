//! Encoding and decoding of log blocks of every format, with and without damage.

use super::*;
use crate::csum::crc32c;
use crate::damage::Damage;
use crate::error::Error;
use crate::extent::Extent;
use crate::units::{BlockNr, InodeNr, LogicalBlock};
use proptest::prelude::*;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn formats(block_size: usize) -> Vec<LogFormat> {
    let mut all = Vec::new();
    for csum in [LogCsum::None, LogCsum::V1, LogCsum::V2, LogCsum::V3] {
        for wide in [false, true] {
            all.push(LogFormat::new(block_size, csum, wide, UUID));
        }
    }
    all
}

#[test]
fn tids_compare_by_signed_difference() {
    let (old, new) = (Tid(0xFFFF_FFF0), Tid(5));
    assert!(old.is_before(new) && new.is_after(old));
    assert_eq!(new.since(old), 21);
    assert_eq!(Tid(u32::MAX).next(), Tid(0));
    assert!(Tid(7).is_at_or_before(Tid(7)) && Tid(7).is_at_or_after(Tid(7)) && !Tid(7).is_after(Tid(7)));
}

#[test]
fn tag_sizes_equal_the_kernels() {
    let size = |csum, wide| LogFormat::new(4096, csum, wide, UUID).tag_bytes();
    assert_eq!(size(LogCsum::None, false), 8);
    assert_eq!(size(LogCsum::None, true), 12);
    assert_eq!(size(LogCsum::V1, true), 12);
    assert_eq!(size(LogCsum::V2, false), 10);
    assert_eq!(size(LogCsum::V2, true), 14);
    assert_eq!(size(LogCsum::V3, false), 16);
    assert_eq!(size(LogCsum::V3, true), 16);
}

#[test]
fn checksums_match_known_vectors() {
    // "123456789": the catalogued check values of CRC-32C and of CRC-32/MPEG-2 (the latter is crc32_be from ~0).
    assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
    assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7);
    assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
}

#[test]
fn descriptors_round_trip() {
    for block_size in [1024, 4096, 65536] {
        for format in formats(block_size) {
            let full = DescriptorBuilder::capacity_of(&format);
            for count in [1, 2, full - 1, full] {
                let mut builder = DescriptorBuilder::new(&format, Tid(77));
                for i in 0..count {
                    let block = BlockNr(if format.wide { 0x5_0000_0000 } else { 0 } + 1000 + i as u64);
                    let is_full = builder.push(block, i % 3 == 0, 0xABCD_0000 + i as u32);
                    assert_eq!(is_full, i + 1 == full);
                }
                let mut buf = vec![0xEE; block_size];
                builder.finish(&mut buf);
                assert!(builder.is_empty());
                assert_eq!(BlockHeader::decode(&buf), Some(BlockHeader { kind: BlockKind::Descriptor, tid: Tid(77) }));
                assert!(format.tail_valid(&buf));
                let tags: Vec<Tag> = descriptor_tags(&format, &buf).collect();
                assert_eq!(tags.len(), count, "{format:?}");
                for (i, tag) in tags.iter().enumerate() {
                    assert_eq!(tag.block.0 & 0xFFFF_FFFF, 1000 + i as u64);
                    assert_eq!(tag.block.0 >> 32, if format.wide { 5 } else { 0 });
                    assert_eq!(tag.is_escaped(), i % 3 == 0);
                    assert_eq!(tag.flags.contains(TagFlags::SAME_UUID), i > 0);
                    assert_eq!(tag.flags.contains(TagFlags::LAST_TAG), i + 1 == count);
                    let sum = 0xABCD_0000 + i as u32;
                    let wanted = match format.csum {
                        LogCsum::V3 => sum,
                        LogCsum::V2 => sum & 0xFFFF,
                        _ => 0,
                    };
                    assert_eq!(tag.checksum, wanted);
                }
                if format.has_block_csums() {
                    buf[100] ^= 1;
                    assert!(!format.tail_valid(&buf));
                }
            }
        }
    }
}

#[test]
fn a_v3_descriptor_has_the_bytes_of_the_format() {
    let format = LogFormat::new(1024, LogCsum::V3, true, UUID);
    let mut builder = DescriptorBuilder::new(&format, Tid(0x01020304));
    builder.push(BlockNr(0x1_2233_4455), true, 0xCAFE_BABE);
    builder.push(BlockNr(9), false, 1);
    let mut buf = vec![0; 1024];
    builder.finish(&mut buf);
    assert_eq!(buf[..12], [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 1, 1, 2, 3, 4]);
    assert_eq!(buf[12..28], [0x22, 0x33, 0x44, 0x55, 0, 0, 0, 1, 0, 0, 0, 1, 0xCA, 0xFE, 0xBA, 0xBE]);
    assert_eq!(buf[28..44], UUID);
    assert_eq!(buf[44..60], [0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn tag_checksums_protect_the_copy() {
    for format in formats(1024) {
        let mut data = vec![7u8; 1024];
        let sum = tag_checksum(format.seed, Tid(9), &data);
        let mut builder = DescriptorBuilder::new(&format, Tid(9));
        builder.push(BlockNr(1), false, sum);
        let mut buf = vec![0; 1024];
        builder.finish(&mut buf);
        let tag = descriptor_tags(&format, &buf).next().unwrap();
        assert!(tag.matches(&format, Tid(9), &data));
        if format.has_block_csums() {
            assert!(!tag.matches(&format, Tid(10), &data));
            data[500] ^= 4;
            assert!(!tag.matches(&format, Tid(9), &data));
        }
    }
}

#[test]
fn escaping_hides_the_magic_number() {
    let mut image = vec![5u8; 1024];
    assert!(!needs_escape(&image));
    image[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
    assert!(needs_escape(&image));
    let mut copy = image.clone();
    escape(&mut copy);
    assert_eq!(copy[..5], [0, 0, 0, 0, 5]);
    assert_eq!(BlockHeader::decode(&copy), None);
    unescape(&mut copy);
    assert_eq!(copy, image);
}

#[test]
fn revokes_round_trip() {
    for format in formats(1024) {
        let full = RevokeBuilder::capacity_of(&format);
        for count in [0, 1, full] {
            let mut builder = RevokeBuilder::new(&format, Tid(3));
            for i in 0..count {
                assert_eq!(builder.push(BlockNr(format.max_block() - i as u64)), i + 1 == full);
            }
            let mut buf = vec![0xEE; 1024];
            builder.finish(&mut buf);
            assert!(format.tail_valid(&buf));
            assert_eq!(
                u32::from_be_bytes(buf[12..16].try_into().unwrap()) as usize,
                16 + count * format.record_bytes()
            );
            let blocks: Vec<u64> = revoke_records(&format, &buf).unwrap().map(|b| b.0).collect();
            assert_eq!(blocks, (0..count as u64).map(|i| format.max_block() - i).collect::<Vec<_>>());
            buf[12..16].copy_from_slice(&((1024 - format.tail_bytes() + 1) as u32).to_be_bytes());
            assert!(matches!(revoke_records(&format, &buf), Err(Error::Corrupt { .. })));
            buf[12..16].copy_from_slice(&3u32.to_be_bytes());
            assert_eq!(revoke_records(&format, &buf).unwrap().count(), 0);
        }
    }
}

#[test]
fn commits_round_trip() {
    for format in formats(4096) {
        let commit = CommitBlock { tid: Tid(12), sec: 1_700_000_000_123, nsec: 999 };
        let mut buf = vec![0xEE; 4096];
        commit.encode(&format, Some(0x1234_5678), &mut buf);
        assert!(buf[60..].iter().all(|b| *b == 0));
        let (back, csum) = CommitBlock::decode(&format, &buf).unwrap();
        assert_eq!(back, commit);
        let wanted = match format.csum {
            LogCsum::None => CommitCsum::Absent,
            LogCsum::V1 => CommitCsum::Transaction(0x1234_5678),
            LogCsum::V2 | LogCsum::V3 => CommitCsum::Valid,
        };
        assert_eq!(csum, wanted);
        if format.has_block_csums() {
            assert_eq!(buf[12..14], [0, 0]);
            // A torn write: the first sector is new, and the rest has its old content.
            buf[512..].fill(0xEE);
            assert_eq!(CommitBlock::decode(&format, &buf).unwrap().1, CommitCsum::Valid);
            buf[20] ^= 1;
            assert_eq!(CommitBlock::decode(&format, &buf).unwrap().1, CommitCsum::Invalid);
        }
    }
    let v1 = LogFormat::new(1024, LogCsum::V1, false, UUID);
    let mut buf = vec![0; 1024];
    CommitBlock { tid: Tid(1), sec: 1, nsec: 0 }.encode(&v1, None, &mut buf);
    assert_eq!(CommitBlock::decode(&v1, &buf).unwrap().1, CommitCsum::Absent);
    buf[12] = 9;
    assert_eq!(CommitBlock::decode(&v1, &buf).unwrap().1, CommitCsum::Invalid);
}

#[test]
fn the_super_block_round_trips() {
    for csum in [LogCsum::None, LogCsum::V1, LogCsum::V2, LogCsum::V3] {
        let mut sb = JournalSuperBlock::create(4096, 2048, UUID, csum, true);
        sb.incompat |= IncompatFeatures::REVOKE;
        sb.start = 17;
        sb.sequence = Tid(0xFFFF_FFFF);
        sb.errno = -5;
        sb.head = 99;
        let bytes = sb.encode();
        assert_eq!(bytes[..512], sb.live_bytes());
        let back = JournalSuperBlock::decode(&bytes, 4096).unwrap();
        assert_eq!(back.encode(), bytes);
        assert_eq!((back.start, back.sequence, back.errno, back.head), (17, Tid(0xFFFF_FFFF), -5, 99));
        assert_eq!(back.csum(), csum);
        assert!(back.is_live() && back.v2);
        assert_eq!(back.log(), LogRange { first: 1, last: 2048 });
        let mut broken = bytes;
        broken[0x100] ^= 1;
        assert_eq!(JournalSuperBlock::decode(&broken, 4096).is_err(), back.format().has_block_csums());
    }
}

#[test]
fn invalid_super_blocks_are_refused() {
    let good = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::None, false);
    let decode = |bytes: &[u8]| JournalSuperBlock::decode(bytes, 1024);
    assert!(decode(&good.encode()).is_ok());
    assert!(matches!(JournalSuperBlock::decode(&good.encode(), 4096), Err(Error::Corrupt { .. })));
    assert!(decode(&good.encode()[..1000]).is_err());
    let with = |at: usize, value: u32| {
        let mut bytes = good.encode();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        bytes
    };
    for (at, value) in [(0, 1), (4, 2), (4, 5), (0xC, 2048), (0x10, 1), (0x14, 0), (0x14, 1023), (0x1C, 1024)] {
        assert!(matches!(decode(&with(at, value)), Err(Error::Corrupt { .. })), "{at:#x} = {value}");
    }
    for (at, value) in [(0x28, 0x40), (0x2C, 1)] {
        assert!(matches!(decode(&with(at, value)), Err(Error::Unsupported { .. })), "{at:#x} = {value}");
    }
    // CSUM_V2 and V3 at once; V3 without checksum type; V1 and V3 at once.
    let mut both = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::V3, false);
    both.incompat |= IncompatFeatures::CSUM_V2;
    assert!(decode(&both.encode()).is_err());
    assert!(decode(&with(0x28, 0x10)).is_err());
    let mut mixed = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::V3, false);
    mixed.compat |= CompatFeatures::CHECKSUM;
    assert!(decode(&mixed.encode()).is_err());
    // An unknown compat bit is harmless and preserved; in v1 these words do not exist.
    assert_eq!(decode(&with(0x24, 0x8000)).unwrap().encode()[0x26], 0x80);
    let mut v1 = with(0x28, 0xFFFF_FFFF);
    v1[4..8].copy_from_slice(&3u32.to_be_bytes());
    let back = decode(&v1).unwrap();
    assert!(!back.v2 && back.incompat.is_empty());
    assert_eq!(back.encode(), v1);
}

#[test]
fn each_damage_of_the_super_block_is_found_alone() {
    use JournalSuperDamage as D;
    let context = JournalContext { block_size: 1024, blocks: Some(1024) };
    let parse = |bytes: &[u8]| {
        let mut superblock = None;
        let found = crate::damage::all(|mut sink| superblock = JournalSuperBlock::parse(bytes, &context, &mut sink));
        let fatal = found.iter().find(|damage| damage.is_fatal()).map(|damage| damage.error());
        assert_eq!(JournalSuperBlock::decode(bytes, 1024).err(), fatal);
        (found, superblock.is_some())
    };
    let good = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::None, false);
    assert_eq!(parse(&good.encode()), (vec![], true));
    assert_eq!(parse(&good.encode()[..1023]), (vec![D::Length { found: 1023 }], false));
    for (at, value, expected, has_log) in [
        (0, 1, D::Magic { found: 1 }, false),
        (4, 2, D::Kind { found: 2 }, false),
        (0x28, 0x40, D::Incompat { unknown: 0x40 }, true),
        (0x2C, 1, D::RoCompat { unknown: 1 }, true),
        (0x28, 0x10, D::ChecksumType { found: 0 }, true),
        (0xC, 2048, D::BlockSize { found: 2048, expected: 1024 }, true),
        (0x14, 0, D::Log { first: 0, max_len: 1024 }, false),
        (0x1C, 1024, D::Start { found: 1024, first: 1, last: 1024 }, true),
        (0x10, 1025, D::TooLong { found: 1025, most: 1024 }, true),
        (0x40, 2, D::Users { found: 2 }, true),
    ] {
        let mut bytes = good.encode();
        bytes[at..at + 4].copy_from_slice(&u32::to_be_bytes(value));
        assert_eq!(parse(&bytes), (vec![expected], has_log));
    }
    let mut both = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::V3, false);
    let mut bytes = both.encode();
    bytes[0x200] ^= 1;
    assert!(matches!(parse(&bytes), (found, true) if matches!(found[..], [D::Checksum { .. }])));
    both.incompat |= IncompatFeatures::CSUM_V2;
    assert_eq!(parse(&both.encode()).0, [D::ChecksumsV2V3]);
    let mut mixed = JournalSuperBlock::create(1024, 1024, UUID, LogCsum::V3, false);
    mixed.compat |= CompatFeatures::CHECKSUM;
    assert_eq!(parse(&mixed.encode()).0, [D::ChecksumsV1]);
}

#[test]
fn the_fast_commit_area_is_not_part_of_the_log() {
    let mut sb = JournalSuperBlock::create(1024, 1280, UUID, LogCsum::None, false);
    sb.incompat |= IncompatFeatures::FAST_COMMIT;
    assert_eq!(sb.log(), LogRange { first: 1, last: 1024 });
    assert_eq!(sb.fast_commit_area(), 1025..1280);
    sb.num_fc_blocks = 10;
    assert_eq!(sb.log().last, 1270);
    sb.num_fc_blocks = 257;
    assert_eq!((sb.log().last, sb.fast_commit_area().len()), (1280, 0));
}

#[test]
fn the_log_range_wraps() {
    let log = LogRange { first: 3, last: 10 };
    assert_eq!((log.next(8), log.next(9)), (9, 3));
    assert_eq!((log.advance(9, 1), log.advance(3, 7), log.advance(5, 20)), (3, 3, 4));
    assert_eq!((log.distance(9, 3), log.distance(4, 8), log.distance(4, 4)), (1, 4, 0));
    assert!(log.contains(3) && log.contains(9) && !log.contains(10) && !log.contains(2));
}

/// Lays out fast commits in the way of the kernel.
struct AreaWriter {
    blocks: Vec<u8>,
    block_size: usize,
    crc: u32,
}

impl AreaWriter {
    fn new(block_size: usize) -> AreaWriter {
        AreaWriter { blocks: Vec::new(), block_size, crc: 0 }
    }

    fn put(&mut self, tag: u16, len: usize, value: &[u8]) {
        let mut record = [tag.to_le_bytes(), (len as u16).to_le_bytes()].concat();
        record.extend_from_slice(value);
        self.crc = crc32c(self.crc, &record);
        self.blocks.extend_from_slice(&record);
    }

    /// The number of bytes left in the block.
    fn left(&self) -> usize {
        self.block_size - self.blocks.len() % self.block_size
    }

    fn record(&mut self, tag: u16, value: &[u8]) {
        if self.left() < self.block_size && self.left() < 4 + value.len() + 4 {
            let pad = self.left() - 4;
            self.put(7, pad, &vec![0; pad]);
        }
        self.put(tag, value.len(), value);
    }

    fn head(&mut self, features: u32, tid: u32) {
        self.record(9, &[features.to_le_bytes(), tid.to_le_bytes()].concat());
    }

    fn tail(&mut self, tid: u32) {
        if self.left() < 12 {
            let pad = self.left() - 4;
            self.put(7, pad, &vec![0; pad]);
        }
        let len = self.left() - 4;
        self.put(8, len, &tid.to_le_bytes());
        let crc = std::mem::take(&mut self.crc);
        self.blocks.extend_from_slice(&crc.to_le_bytes());
        self.blocks.resize(self.blocks.len().next_multiple_of(self.block_size), 0xEE);
    }

    fn finish(mut self) -> Vec<u8> {
        self.blocks.resize(self.blocks.len().next_multiple_of(self.block_size), 0);
        self.blocks
    }
}

fn name(parent: u32, ino: u32, name: &[u8]) -> Vec<u8> {
    [&parent.to_le_bytes()[..], &ino.to_le_bytes(), name].concat()
}

/// The commits of an area for transaction 7, and the error that ended the scan.
fn scan(bytes: &[u8], block_size: usize) -> (Vec<FastCommit>, Option<crate::Error>) {
    let mut scan = FastCommitScan::new(Tid(7));
    for (i, block) in bytes.chunks(block_size).enumerate() {
        match scan.block(100 + i as u32, block) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => return (scan.finish(), Some(e)),
        }
    }
    (scan.finish(), None)
}

#[test]
fn fast_commits_are_read_in_order() {
    let mut w = AreaWriter::new(1024);
    w.head(0, 7);
    let extent =
        [&12u32.to_le_bytes()[..], &3u32.to_le_bytes(), &32770u16.to_le_bytes(), &[1, 0], &[9, 0, 0, 0]].concat();
    w.record(1, &extent);
    w.record(6, &[&12u32.to_le_bytes()[..], &[5; 160]].concat());
    for i in 0..60 {
        w.record(3, &name(2, 12 + i, b"a name of some length"));
    }
    w.tail(7);
    w.record(2, &[12u32, 5, u32::MAX].map(u32::to_le_bytes).concat());
    w.record(5, &name(2, 12, b"x"));
    w.record(4, &name(2, 12, b"y"));
    w.tail(7);
    w.tail(7);
    let whole = w.blocks.clone();
    let (commits, error) = scan(&whole, 1024);
    assert_eq!((commits.len(), error), (3, None));
    assert_eq!(commits.iter().map(|c| c.records.len()).collect::<Vec<_>>(), [62, 3, 0]);
    let (place, first) = &commits[0].records[0];
    assert_eq!((place.log_block, place.offset), (100, 12));
    let extent = Extent { lblk: LogicalBlock(3), len: 2, pblk: BlockNr(9 | 1 << 32), unwritten: true };
    assert_eq!(*first, FastCommitRecord::AddRange { ino: InodeNr(12), extent });
    let (place, last) = &commits[1].records[2];
    assert_eq!(place.to_string(), format!("the fast commit at log block {}, byte 29", 100 + whole.len() / 1024 - 2));
    let named = FastCommitName { parent: InodeNr(2), ino: InodeNr(12), name: b"y".to_vec() };
    assert_eq!(*last, FastCommitRecord::Link(named));
    // The last commit is torn, or belongs to the transaction before: the result is empty, or has only the complete
    // commits.
    w.record(5, &name(2, 12, b"z"));
    w.tail(6);
    assert_eq!(scan(&w.blocks, 1024), (commits.clone(), None));
    let mut torn = whole.clone();
    torn[1030] ^= 1;
    assert_eq!(scan(&torn, 1024), (Vec::new(), None));
    let mut torn = whole.clone();
    let at = torn.len() - 2048 + 8;
    torn[at] ^= 1;
    assert_eq!(scan(&torn, 1024), (commits[..1].to_vec(), None));
    for len in 0..whole.len() {
        let (found, error) = scan(&whole[..len], 1024);
        assert_eq!(error, None);
        assert_eq!(found, commits[..found.len()]);
    }
}

#[test]
fn a_complete_fast_commit_with_invalid_records_is_damage() {
    let cases: [(u16, Vec<u8>, &str); 8] = [
        (1, vec![0; 15], "15 bytes in a record with tag 1"),
        (1, vec![0; 16], "a range of 0 blocks"),
        (2, vec![0; 13], "13 bytes in a record with tag 2"),
        (3, name(2, 12, b""), "8 bytes in a record with tag 3"),
        (5, name(2, 12, &[b'x'; 256]), "264 bytes in a record with tag 5"),
        (6, vec![0; 131], "131 bytes in a record with tag 6"),
        (9, vec![0; 9], "9 bytes in a record with tag 9"),
        (10, vec![0; 4], "unknown tag 10"),
    ];
    for (tag, value, wanted) in cases {
        let mut w = AreaWriter::new(1024);
        w.head(0, 7);
        w.record(tag, &value);
        let torn = w.blocks.clone();
        w.tail(7);
        let (commits, error) = scan(&w.blocks, 1024);
        assert!(commits.is_empty());
        assert_eq!(error.unwrap().to_string(), format!("fast commit at log block 100: byte 12: {wanted}"));
        // Without the checksum, the record counts as a leftover.
        assert_eq!(scan(&torn, 1024), (Vec::new(), None));
    }
    let mut w = AreaWriter::new(1024);
    w.head(4, 7);
    w.tail(7);
    assert_eq!(
        scan(&w.blocks, 1024).1.unwrap().to_string(),
        "unsupported: the fast commit at log block 100, byte 0: features 0x4"
    );
}

proptest! {
    #[test]
    fn readers_take_anything(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), kind in 0u32..7) {
        if bytes.len() >= 12 {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            bytes[4..8].copy_from_slice(&kind.to_be_bytes());
        }
        let _ = BlockHeader::decode(&bytes);
        let _ = JournalSuperBlock::decode(&bytes, 1024);
        for format in formats(1024) {
            prop_assert!(descriptor_tags(&format, &bytes).count() <= bytes.len() / format.tag_bytes());
            let _ = format.tail_valid(&bytes);
            if let Ok(records) = revoke_records(&format, &bytes) {
                prop_assert!(records.count() <= bytes.len() / format.record_bytes());
            }
            let _ = CommitBlock::decode(&format, &bytes);
        }
    }

    /// For any content of the area, with or without valid checksums: no panic, and no record outside of its block.
    #[test]
    fn fast_commits_take_anything(
        records in proptest::collection::vec((0u16..12, 0usize..40, any::<[u8; 8]>()), 0..40),
        noise in proptest::collection::vec(any::<u8>(), 0..64),
        sum in any::<bool>(),
        block_size in prop_oneof![Just(0usize), 1usize..40, Just(1024)],
    ) {
        let mut writer = AreaWriter::new(block_size.max(64));
        writer.head(0, 7);
        for (tag, len, start) in &records {
            let mut value = vec![0; *len];
            let n = value.len().min(8);
            value[..n].copy_from_slice(&start[..n]);
            writer.record(*tag, &value);
        }
        if sum {
            writer.tail(7);
        }
        let mut bytes = writer.finish();
        bytes.extend_from_slice(&noise);
        let mut scan = FastCommitScan::new(Tid(7));
        for (i, block) in bytes.chunks(block_size.max(1)).enumerate() {
            if !matches!(scan.block(i as u32, block), Ok(true)) {
                break;
            }
        }
        let found = scan.finish().iter().map(|commit| commit.records.len()).sum::<usize>();
        prop_assert!(found <= records.len());
    }
}
