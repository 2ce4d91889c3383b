//! Numbers that carry their unit, with checked arithmetic only, and the texts that people write for them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;

/// A count of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Sum, or `None` past 2^64.
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// Difference, or `None` below zero.
    pub fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_sub(other.0).map(Bytes)
    }
}

impl fmt::Display for Bytes {
    /// `10.0 GiB (10737418240 bytes)`; below one KiB just the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match human(self.0) {
            Some(text) => write!(f, "{text} ({} bytes)", self.0),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl Bytes {
    /// `10.0 GiB`, for tables and progress lines.
    pub fn short(self) -> String {
        human(self.0).unwrap_or_else(|| format!("{} B", self.0))
    }
}

fn human(n: u64) -> Option<String> {
    const UNITS: [(&str, u32); 5] = [
        ("PiB", 50),
        ("TiB", 40),
        ("GiB", 30),
        ("MiB", 20),
        ("KiB", 10),
    ];
    UNITS
        .iter()
        .find(|(_, shift)| n >> shift > 0)
        .map(|(unit, shift)| {
            // Two steps keep the arithmetic whole: tenths, rounded down.
            let whole = n >> shift;
            let rest = n & ((1u64 << shift) - 1);
            let tenth = (u128::from(rest) * 10) >> shift;
            format!("{whole}.{tenth} {unit}")
        })
}

/// What cannot be read as a size, a duration or a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);

impl FromStr for Bytes {
    type Err = ParseError;

    /// `512MiB`, `2GiB`, `20GB`, `4096`, `4096B`, with an optional space before the unit.
    fn from_str(text: &str) -> Result<Bytes, ParseError> {
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor: u64 = match unit.trim_start() {
            "" | "B" => 1,
            "KiB" | "K" => 1 << 10,
            "MiB" | "M" => 1 << 20,
            "GiB" | "G" => 1 << 30,
            "TiB" | "T" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            other => {
                return Err(ParseError(format!(
                    "{text:?} is not a size: unit {other:?} is unknown (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)"
                )));
            }
        };
        let count: u64 = number.parse().map_err(|_| {
            ParseError(format!(
                "{text:?} is not a size: write for example 512MiB or 20GB"
            ))
        })?;
        count
            .checked_mul(factor)
            .map(Bytes)
            .ok_or_else(|| ParseError(format!("{text:?} is larger than any disk")))
    }
}

/// A duration as people write it: `30s`, `10m`, `2h`, `500ms`; `0` alone is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let wrong = || {
        ParseError(format!(
            "{text:?} is not a duration: write for example 30s, 10m or 2h"
        ))
    };
    let count: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(count)),
        "s" => Some(count),
        "m" => count.checked_mul(60),
        "h" => count.checked_mul(3600),
        "" if count == 0 => Some(0),
        _ => None,
    };
    // A year is past every sensible deadline and far from any overflow.
    seconds
        .filter(|s| *s <= 366 * 24 * 3600)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// A logical sector size in bytes: a power of two from 512 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SectorSize(u32);

impl SectorSize {
    /// 512 bytes.
    pub const S512: SectorSize = SectorSize(512);
    /// 4096 bytes.
    pub const S4096: SectorSize = SectorSize(4096);

    /// A sector size, or `None` for what no disk has.
    pub fn new(bytes: u32) -> Option<SectorSize> {
        (bytes.is_power_of_two() && (512..=65536).contains(&bytes)).then_some(SectorSize(bytes))
    }

    /// In bytes.
    pub const fn get(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for SectorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl<'de> Deserialize<'de> for SectorSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SectorSize, D::Error> {
        let raw = u32::deserialize(deserializer)?;
        SectorSize::new(raw)
            .ok_or_else(|| serde::de::Error::custom(format!("{raw} is not a sector size")))
    }
}

/// A logical block address, in sectors of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lba(pub u64);

impl Lba {
    /// The byte offset of this block, or `None` past 2^64.
    pub fn offset(self, sector: SectorSize) -> Option<Bytes> {
        self.0.checked_mul(sector.get()).map(Bytes)
    }
}

/// A hash function that a digest may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-512 (FIPS 180-4).
    Sha512,
}

impl HashAlgorithm {
    /// The name before the colon.
    pub const fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha512 => "sha512",
        }
    }

    /// Length of the digest in hexadecimal digits.
    pub const fn hex_len(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 64,
            HashAlgorithm::Sha512 => 128,
        }
    }
}

/// A digest as written: `sha256:…` or `sha512:…`, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: HashAlgorithm,
    hex: String,
}

impl Digest {
    /// The digest `bytes` of `algorithm`.
    pub fn from_bytes(algorithm: HashAlgorithm, bytes: &[u8]) -> Digest {
        Digest {
            algorithm,
            hex: hex(bytes),
        }
    }

    /// The hash function.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// The digest in lower-case hexadecimal.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

/// Bytes as lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, b| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{b:02x}");
        out
    })
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Digest, ParseError> {
        let wrong = |why: &str| {
            ParseError(format!(
                "{text:?} is not a digest: {why}; write sha256:<64 hex digits> or sha512:<128 hex digits>"
            ))
        };
        let (name, digits) = text
            .split_once(':')
            .ok_or_else(|| wrong("the algorithm is missing"))?;
        let algorithm = match name {
            "sha256" => HashAlgorithm::Sha256,
            "sha512" => HashAlgorithm::Sha512,
            _ => return Err(wrong("unknown algorithm")),
        };
        if digits.len() != algorithm.hex_len() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong("wrong number of hex digits"));
        }
        Ok(Digest {
            algorithm,
            hex: digits.to_ascii_lowercase(),
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, want) in [
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("20GB", 20_000_000_000),
            ("4096", 4096),
            ("1 TiB", 1 << 40),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap(), Bytes(want), "{text}");
        }
        for text in [
            "",
            "GiB",
            "12XiB",
            "-1",
            "99999999999999999999",
            "18446744073709551615TiB",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn durations_as_people_write_them() {
        assert_eq!(parse_duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(parse_duration("10m").unwrap(), Duration::from_secs(600));
        assert_eq!(parse_duration("0").unwrap(), Duration::ZERO);
        for text in ["", "10", "10x", "-1s", "99999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_print_their_exact_number() {
        assert_eq!(Bytes(10 << 30).to_string(), "10.0 GiB (10737418240 bytes)");
        assert_eq!(Bytes(1000).to_string(), "1000 bytes");
        assert_eq!(Bytes(u64::MAX).short(), "16383.9 PiB");
    }

    #[test]
    fn digests_are_checked_and_lowered() {
        let text = format!("sha256:{}", "AB".repeat(32));
        let digest: Digest = text.parse().unwrap();
        assert_eq!(digest.hex(), "ab".repeat(32));
        for wrong in [
            "sha256:ab",
            "md5:ab",
            "ab",
            &format!("sha512:{}", "a".repeat(64)),
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
