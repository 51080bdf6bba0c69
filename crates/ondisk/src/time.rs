//! Timestamps of inodes: 32-bit seconds, and an extra word that adds two epoch bits and the nanoseconds.
//!
//! Main type: [`Timestamp`]. It does not read a clock.
//!
//! # Locking
//! None.

/// Seconds since 1970 (negative before) and nanoseconds in `0..1_000_000_000` (Linux: `struct timespec64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// The seconds since 1970; negative before.
    pub seconds: i64,
    /// 0 to 999,999,999; added to the seconds also before 1970.
    pub nanos: u32,
}

const NANOS_MAX: u32 = 999_999_999;

impl Timestamp {
    /// The earliest time that an inode can store: 1901-12-13.
    pub const MIN: Timestamp = Timestamp { seconds: i32::MIN as i64, nanos: 0 };
    /// The latest time that an inode with extra words can store: 2446-05-10.
    pub const MAX: Timestamp = Timestamp { seconds: i32::MAX as i64 + (3 << 32), nanos: NANOS_MAX };
    /// The latest time that a 128-byte inode can store: 2038-01-19, in whole seconds.
    pub const MAX_WITHOUT_EXTRA: Timestamp = Timestamp { seconds: i32::MAX as i64, nanos: 0 };

    /// A whole second, whether the format can store it or not.
    pub const fn from_seconds(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    /// Decodes the seconds word and, if the inode has one, the extra word. Nanoseconds of a second or more, which only
    /// a damaged image has, are clamped.
    pub fn decode(seconds: u32, extra: Option<u32>) -> Timestamp {
        let low = i64::from(seconds as i32);
        match extra {
            None => Timestamp { seconds: low, nanos: 0 },
            Some(extra) => {
                Timestamp { seconds: low + (i64::from(extra & 3) << 32), nanos: (extra >> 2).min(NANOS_MAX) }
            }
        }
    }

    /// The seconds word and the extra word. A time beyond the range of 34 bits is clamped.
    pub fn encode(self) -> (u32, u32) {
        let clamped = self.clamp(Timestamp::MIN, Timestamp::MAX);
        let low = clamped.seconds as i32;
        let epoch = ((clamped.seconds - i64::from(low)) >> 32) as u32 & 3;
        (low as u32, (clamped.nanos.min(NANOS_MAX) << 2) | epoch)
    }

    /// The seconds word of an inode that has no extra word; clamped to the years 1901 to 2038.
    pub fn encode_without_extra(self) -> u32 {
        self.clamp(Timestamp::MIN, Timestamp::MAX_WITHOUT_EXTRA).seconds as i32 as u32
    }

    /// The time after being stored and read back, so that memory never contains more than the disk can store.
    pub fn as_stored(self, has_extra: bool) -> Timestamp {
        if has_extra {
            let (seconds, extra) = self.encode();
            Timestamp::decode(seconds, Some(extra))
        } else {
            Timestamp::decode(self.encode_without_extra(), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_follow_the_table_of_the_format_document() {
        // (seconds, epoch bits, low word): the limits of every epoch.
        for (seconds, epoch, low) in [
            (-1i64, 0u32, 0xffff_ffffu32),
            (-0x8000_0000, 0, 0x8000_0000),
            (0, 0, 0),
            (0x7fff_ffff, 0, 0x7fff_ffff),
            (0x8000_0000, 1, 0x8000_0000),
            (0xffff_ffff, 1, 0xffff_ffff),
            (0x1_0000_0000, 1, 0),
            (0x1_8000_0000, 2, 0x8000_0000),
            (0x2_7fff_ffff, 2, 0x7fff_ffff),
            (0x2_8000_0000, 3, 0x8000_0000),
            (0x3_7fff_ffff, 3, 0x7fff_ffff),
        ] {
            let stamp = Timestamp { seconds, nanos: 123_456_789 };
            assert_eq!(stamp.encode(), (low, 123_456_789 << 2 | epoch), "{seconds:#x}");
            assert_eq!(Timestamp::decode(low, Some(123_456_789 << 2 | epoch)), stamp);
        }
    }

    #[test]
    fn out_of_range_is_clamped() {
        assert_eq!(Timestamp::from_seconds(i64::MAX).as_stored(true), Timestamp::MAX);
        assert_eq!(Timestamp::from_seconds(i64::MIN).as_stored(true), Timestamp::MIN);
        assert_eq!(Timestamp::from_seconds(1 << 31).as_stored(false), Timestamp::MAX_WITHOUT_EXTRA);
        assert_eq!(Timestamp::from_seconds(i64::MIN).as_stored(false), Timestamp::MIN);
        assert_eq!(Timestamp::decode(5, Some(u32::MAX)).nanos, NANOS_MAX);
    }

    proptest! {
        #[test]
        fn round_trip(seconds in Timestamp::MIN.seconds..=Timestamp::MAX.seconds, nanos in 0..=NANOS_MAX) {
            let stamp = Timestamp { seconds, nanos };
            prop_assert_eq!(stamp.as_stored(true), stamp);
        }
    }
}
