//! Converts histograms to records, and back.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

use crate::error::{Error, Result};
use crate::result::Latency;
use crate::vfs::Histograms;

/// Records of all kinds of operations that have samples.
pub fn records(histograms: &Histograms) -> Result<BTreeMap<String, Latency>> {
    histograms.iter().map(|(op, h)| Ok((op.name().to_owned(), record(&h)?))).collect()
}

/// A record of one histogram (nanoseconds).
pub fn record(h: &Histogram<u64>) -> Result<Latency> {
    let mut bytes = Vec::new();
    V2Serializer::new()
        .serialize(h, &mut bytes)
        .map_err(|e| Error::Failed(format!("a histogram could not be written: {e}")))?;
    Ok(Latency {
        count: h.len(),
        mean_ns: h.mean(),
        p50_ns: h.value_at_quantile(0.5),
        p90_ns: h.value_at_quantile(0.9),
        p99_ns: h.value_at_quantile(0.99),
        p999_ns: h.value_at_quantile(0.999),
        max_ns: h.max(),
        histogram: encode(&bytes),
    })
}

/// The histogram of a record.
pub fn histogram(latency: &Latency) -> Result<Histogram<u64>> {
    let broken = || Error::Failed("the record of a histogram is damaged".into());
    let bytes = decode(&latency.histogram).ok_or_else(broken)?;
    Deserializer::new().deserialize(&mut &bytes[..]).map_err(|_| broken())
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648).
fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            out.push(if i <= chunk.len() { ALPHABET[(word >> (18 - 6 * i)) as usize & 63] as char } else { '=' });
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    for chunk in text.chunks(4) {
        let mut word = 0u32;
        for (i, c) in chunk.iter().enumerate() {
            word |= (ALPHABET.iter().position(|a| a == c)? as u32) << (18 - 6 * i);
        }
        out.extend(word.to_be_bytes()[1..].iter().take(chunk.len().checked_sub(1)?));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Op;

    #[test]
    fn base64() {
        for (plain, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(encode(plain.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(decode("Z!=="), None);
    }

    #[test]
    fn a_histogram_comes_back() {
        let mut histograms = Histograms::default();
        for ns in [100, 200, 300, 1_000_000] {
            histograms.record(Op::Fsync, ns);
        }
        let records = records(&histograms).unwrap();
        let fsync = &records["fsync"];
        assert_eq!((records.len(), fsync.count), (1, 4));
        assert!((990_000..=1_010_000).contains(&fsync.max_ns), "{}", fsync.max_ns);
        assert!((195..=205).contains(&fsync.p50_ns), "{}", fsync.p50_ns);
        assert_eq!(histogram(fsync).unwrap().len(), 4);
    }
}
