//! Log blocks of every format there and back, and damaged.

use super::*;
use crate::error::Error;
use crate::units::BlockNr;
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
fn tag_sizes_are_the_kernels() {
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
fn checksum_vectors() {
    // "123456789": the catalogued check values of CRC-32C and of CRC-32/MPEG-2 (the latter is crc32_be from ~0).
    assert_eq!(!crc32c(!0, b"123456789"), 0xE306_9283);
    assert_eq!(crc32_be(!0, b"123456789"), 0x0376_E6E7);
    assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
}

#[test]
fn descriptors_come_back() {
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
fn bytes_of_a_v3_descriptor() {
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
fn revokes_come_back() {
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
fn commits_come_back() {
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
            // Torn: the first sector is new, the rest is what lay there before.
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
fn super_block_comes_back() {
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
fn super_block_refusals() {
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
    // An unknown compat bit is harmless and survives; in v1 the words do not exist.
    assert_eq!(decode(&with(0x24, 0x8000)).unwrap().encode()[0x26], 0x80);
    let mut v1 = with(0x28, 0xFFFF_FFFF);
    v1[4..8].copy_from_slice(&3u32.to_be_bytes());
    let back = decode(&v1).unwrap();
    assert!(!back.v2 && back.incompat.is_empty());
    assert_eq!(back.encode(), v1);
}

#[test]
fn fast_commit_area_is_cut_off() {
    let mut sb = JournalSuperBlock::create(1024, 1280, UUID, LogCsum::None, false);
    sb.incompat |= IncompatFeatures::FAST_COMMIT;
    assert_eq!(sb.log(), LogRange { first: 1, last: 1024 });
    assert_eq!(sb.fast_commit_area(), 1024..1280);
    sb.num_fc_blocks = 10;
    assert_eq!(sb.log().last, 1270);
    sb.num_fc_blocks = 257;
    assert_eq!(sb.log().last, 1280);
    let mut head = vec![9, 0, 8, 0, 0, 0, 0, 0, 44, 0, 0, 0];
    assert_eq!(fast_commit_head(&head), Some(FastCommitHead { features: 0, tid: Tid(44) }));
    head[2] = 7;
    assert_eq!(fast_commit_head(&head), None);
    assert_eq!(fast_commit_head(&head[..11]), None);
}

#[test]
fn log_range_goes_round() {
    let log = LogRange { first: 3, last: 10 };
    assert_eq!((log.next(8), log.next(9)), (9, 3));
    assert_eq!((log.advance(9, 1), log.advance(3, 7), log.advance(5, 20)), (3, 3, 4));
    assert_eq!((log.distance(9, 3), log.distance(4, 8), log.distance(4, 4)), (1, 4, 0));
    assert!(log.contains(3) && log.contains(9) && !log.contains(10) && !log.contains(2));
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
        let _ = fast_commit_head(&bytes);
        for format in formats(1024) {
            prop_assert!(descriptor_tags(&format, &bytes).count() <= bytes.len() / format.tag_bytes());
            let _ = format.tail_valid(&bytes);
            if let Ok(records) = revoke_records(&format, &bytes) {
                prop_assert!(records.count() <= bytes.len() / format.record_bytes());
            }
            let _ = CommitBlock::decode(&format, &bytes);
        }
    }
}
